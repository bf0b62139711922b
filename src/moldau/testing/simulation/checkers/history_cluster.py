"""What clients of a cluster did and saw, what its topics promise, and what every replica holds in the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moldau.testing.simulation.checkers.history import History, Partition

LogContent = Sequence[tuple[int, bytes]]


@dataclass(slots=True)
class ClusterHistory(History):
    lossy_topics: dict[str, str] = field(default_factory=dict)
    """Topics that may lose acknowledged records, and why: unclean elections, or nodes that end uncleanly together
    where writes are cached."""
    replicas: dict[Partition, Mapping[int, LogContent]] = field(default_factory=dict)
    """At the end, when all is healed: what each node has of a partition."""
    readers: dict[str, Sequence[Partition]] = field(default_factory=dict)
    """Consumers without a group that were to read their partitions to the end, from offset 0 on."""
    operations: int = 0
    """Requests for something that clients made: records sent, polls, commits, changes of topics."""
