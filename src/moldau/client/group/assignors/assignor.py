"""What every assignor is: given the members of a group and how many partitions their topics have, who gets
what. Assignors are pure and keep nothing; what must outlive a generation travels in the subscriptions.

Racks are not looked at: a partition's nearness to a member plays no part in any of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from moldau.wire.consumer_protocol import Partition, Subscription

Assignments = dict[str, list[Partition]]
"""Every member by id, and its partitions in the order of topic and index."""


@dataclass(frozen=True, slots=True)
class SubscribedMember:
    """One member as the leader sees it."""

    member_id: str
    subscription: Subscription
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreviousAssignment:
    """What a member was last assigned, and in which generation."""

    partitions: tuple[Partition, ...] = ()
    generation_id: int = -1


NO_ASSIGNMENT = PreviousAssignment()


class ConsumerPartitionAssignor(ABC):
    name: ClassVar[str]
    """As it stands on the wire."""
    is_cooperative: ClassVar[bool] = False
    """Whether members may keep their partitions while they rejoin."""

    def user_data(self, previous_assignment: PreviousAssignment) -> bytes | None:
        """What a member tells the leader beside its subscription."""
        return None

    @abstractmethod
    def assign(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> Assignments:
        """A topic without an entry in `partition_counts` does not exist: nobody gets anything of it."""


def sorted_members(members: Sequence[SubscribedMember]) -> list[SubscribedMember]:
    """Static members first, by their instance ids: their place does not depend on the ids a coordinator makes
    up, so a restart of the whole group moves nothing."""
    return sorted(members, key=lambda each: (each.instance_id is None, each.instance_id or each.member_id))


def subscribers_by_topic(
    members: Sequence[SubscribedMember], partition_counts: Mapping[str, int]
) -> dict[str, list[SubscribedMember]]:
    """The topics that exist and that somebody wants, in order, each with its members in order."""
    found: dict[str, list[SubscribedMember]] = {}
    for member in sorted_members(members):
        for topic in dict.fromkeys(member.subscription.topics):
            if partition_counts.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member)
    return dict(sorted(found.items()))


def empty_assignments(members: Sequence[SubscribedMember]) -> Assignments:
    return {member.member_id: [] for member in members}
