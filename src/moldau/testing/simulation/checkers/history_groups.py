"""The history of group operations: the requests of clients to their coordinators, with the results.

Times are event numbers, counted over all clients. An operation without a completion may have taken effect at any time
after its invocation, or never.
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
    """The group, generation and member that a request names as its sender."""

    group: str
    generation: int
    """NO_GENERATION for commits of a client that is not a member."""
    member: str
    instance_id: str | None


class OperationResult(Enum):
    INFO = "info"
    OK = "ok"
    FAIL = "fail"
    """The operation definitely had no effect."""


@dataclass(slots=True, kw_only=True)
class ClientOperation:
    invoked_at: int
    completed_at: int | None = None
    result: OperationResult = OperationResult.INFO

    @property
    def completed_by(self) -> float:
        """The latest time at which the operation can have taken effect. Infinite if it has not completed."""
        return math.inf if self.completed_at is None else self.completed_at


@dataclass(slots=True, kw_only=True)
class CommitOperation(ClientOperation):
    tag: str
    """The unique metadata of the commit. An offset fetch returns the metadata together with the committed offset."""
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
    """The partition whose offset is deleted, or None for the whole group."""


@dataclass(slots=True, kw_only=True)
class JoinOperation(ClientOperation):
    """A successful JoinGroup whose response has a new member id."""

    group: str
    instance_id: str | None
    member: str


@dataclass(slots=True, kw_only=True)
class SyncOperation(ClientOperation):
    """A successful SyncGroup, whose response has the member's assignment."""

    identity: RequestIdentity
    partitions: Sequence[Partition]


@dataclass(slots=True, kw_only=True)
class HeartbeatOperation(ClientOperation):
    """A heartbeat that the coordinator accepted."""

    identity: RequestIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchOperation:
    """The committed offset of a partition, as an offset fetch returned it."""

    group: str
    partition: Partition
    invoked_at: int
    completed_at: int
    offset: int
    tag: str


class Delivery(NamedTuple):
    """A record that a consumer of a group returned to the application."""

    at: int
    group: str
    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True)
class FinalGroupState:
    """The state of a group at the end, as its coordinator describes it."""

    state: str
    assignments: Mapping[str, Sequence[Partition]]
    """Partitions by member id."""


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
    end_offsets: dict[Partition, int] = field(default_factory=dict)
    """The end offsets of the partitions. Every group in `final_groups` must have read up to these offsets."""
    _events: int = 0

    def next_event(self) -> int:
        self._events += 1
        return self._events
