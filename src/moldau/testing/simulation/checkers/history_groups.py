"""History of group operations: the requests of clients to their coordinators, with the results.

Times count events over all clients. An operation without a completion may have taken effect at any time after its
invocation, or never.
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
    """Group, generation and member that a request claims to come from."""

    group: str
    generation: int
    """NO_GENERATION for commits outside of a membership."""
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
        """Latest time at which the operation took effect, if it did."""
        return math.inf if self.completed_at is None else self.completed_at


@dataclass(slots=True, kw_only=True)
class CommitOperation(ClientOperation):
    tag: str
    """Unique metadata of the commit, returned by every offset fetch that sees it."""
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
    """None for the whole group."""


@dataclass(slots=True, kw_only=True)
class JoinOperation(ClientOperation):
    """A join whose response has a new member id."""

    group: str
    instance_id: str | None
    member: str


@dataclass(slots=True, kw_only=True)
class SyncOperation(ClientOperation):
    """An assignment that was handed out."""

    identity: RequestIdentity
    partitions: Sequence[Partition]


@dataclass(slots=True, kw_only=True)
class HeartbeatOperation(ClientOperation):
    """An accepted heartbeat."""

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
    """A record that a group's consumer returned to its user."""

    at: int
    group: str
    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True)
class FinalGroupState:
    """Final state of a group, as its coordinator describes it."""

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
    """Final states of the consumer groups."""
    end_offsets: dict[Partition, int] = field(default_factory=dict)
    """End offsets of the partitions that each of those groups must have read."""
    _events: int = 0

    def next_event(self) -> int:
        self._events += 1
        return self._events
