"""What the members of groups asked of their coordinator and heard from it: the evidence of `checker_groups.py`.

Times are counted in events, over all clients. What never ended may have happened at any time after it began, or
not at all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from moldau.testing.simulation.checkers.history import Partition

NO_GENERATION = -1
NOTHING_COMMITTED = -1


class RequestIdentity(NamedTuple):
    """Who a request says it is from."""

    group: str
    generation: int
    """NO_GENERATION for commits from outside the membership."""
    member: str
    instance_id: str | None


class OperationResult(Enum):
    INFO = "unknown"
    OK = "done"
    FAIL = "refused"
    """For certain: nothing of it may ever show."""


@dataclass(slots=True, kw_only=True)
class ClientOperation:
    invoked_at: int
    completed_at: int | None = None
    result: OperationResult = OperationResult.INFO

    @property
    def completed_by(self) -> float:
        """When it had happened for certain, if it did."""
        return math.inf if self.completed_at is None else self.completed_at


@dataclass(slots=True, kw_only=True)
class CommitOperation(ClientOperation):
    tag: str
    """Goes with the commit as its metadata and comes back with every answer that shows it: no two are alike."""
    identity: RequestIdentity
    partition: Partition
    offset: int

    @property
    def key(self) -> tuple[str, Partition]:
        return self.identity.group, self.partition


@dataclass(slots=True, kw_only=True)
class DeleteOperation(ClientOperation):
    group: str
    partition: Partition | None
    """None: the group with all its offsets."""


@dataclass(slots=True, kw_only=True)
class JoinOperation(ClientOperation):
    """Recorded where the answer brought a member id that the request did not have."""

    group: str
    instance_id: str | None
    member: str


@dataclass(slots=True, kw_only=True)
class SyncOperation(ClientOperation):
    """An assignment handed out."""

    identity: RequestIdentity
    partitions: Sequence[Partition]


@dataclass(slots=True, kw_only=True)
class HeartbeatOperation(ClientOperation):
    """A heartbeat that was accepted."""

    identity: RequestIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchOperation:
    """An answer to the question what is committed for a partition."""

    group: str
    partition: Partition
    invoked_at: int
    completed_at: int
    offset: int
    tag: str


class Delivery(NamedTuple):
    """A record that a group's consumer gave to its user."""

    at: int
    group: str
    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True)
class FinalGroupState:
    """A group at the end, as its coordinator describes it."""

    state: str
    assignments: Mapping[str, Sequence[Partition]]
    """By member."""


@dataclass(slots=True)
class GroupHistory:
    commits: list[CommitOperation] = field(default_factory=list)
    deletions: list[DeleteOperation] = field(default_factory=list)
    offset_fetches: list[OffsetFetchOperation] = field(default_factory=list)
    joins: list[JoinOperation] = field(default_factory=list)
    syncs: list[SyncOperation] = field(default_factory=list)
    heartbeats: list[HeartbeatOperation] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    final_groups: dict[str, FinalGroupState] = field(default_factory=dict)
    """The groups of consumers, at the end."""
    end_offsets: dict[Partition, int] = field(default_factory=dict)
    """The partitions that every one of those groups must have read, and where they end."""
    _events: int = 0

    def next_event(self) -> int:
        self._events += 1
        return self._events
