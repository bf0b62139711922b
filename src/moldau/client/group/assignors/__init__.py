"""How the leader of a group shares out the partitions, by the names that go over the wire."""

from moldau.client.group.assignors.assignor import (
    NO_ASSIGNMENT,
    Assignments,
    ConsumerPartitionAssignor,
    PreviousAssignment,
    SubscribedMember,
)
from moldau.client.group.assignors.cooperative_sticky import CooperativeStickyAssignor
from moldau.client.group.assignors.range import RangeAssignor
from moldau.client.group.assignors.roundrobin import RoundRobinAssignor
from moldau.client.group.assignors.sticky import StickyAssignor

__all__ = [
    "NO_ASSIGNMENT",
    "Assignments",
    "ConsumerPartitionAssignor",
    "PreviousAssignment",
    "SubscribedMember",
    "get_assignor",
]

_ASSIGNORS: tuple[ConsumerPartitionAssignor, ...] = (
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
)


def get_assignor(name: str) -> ConsumerPartitionAssignor:
    """Raises ValueError for a name that is none."""
    for assignor in _ASSIGNORS:
        if assignor.name == name:
            return assignor
    raise ValueError(f"no assignor {name!r}; there are {', '.join(each.name for each in _ASSIGNORS)}")
