"""Requests and responses of the group coordinator, shared by state machines, driver and request handlers.

Errors are exceptions of `moldau.errors`. A request that fails at once raises the error. A parked request gets the
error as its response.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple
from uuid import UUID

from moldau.coordinator.result import CompletedRequest, CoordinatorResult, Now, RequestId
from moldau.errors import MoldauError
from moldau.groups.records import CommittedOffset, GroupRecord, MemberMetadataValue
from moldau.logs.producer_state import UNKNOWN_OWNER, TransactionOwner

NO_GENERATION = -1
UNKNOWN_MEMBER_ID = ""
"""The member id of a new member, and of a consumer that commits without being a member."""

TopicPartition = tuple[str, int]

TopicKey = tuple[str, UUID | None]
"""Name and id of a topic. The id is None for offsets that were committed without a topic id."""


CompletedGroupRequest = CompletedRequest["GroupResponse | MoldauError"]

GroupResult = CoordinatorResult[GroupRecord, Sequence[CompletedGroupRequest]]
"""Records, and the requests that are completed when the records are committed. An operation can complete the current
request, requests that were parked before, both, or none."""


@dataclass(slots=True)
class ResultBuilder:
    """Collects the records and completed requests of one operation."""

    now: Now
    records: list[GroupRecord] = field(default_factory=list)
    completed: list[CompletedGroupRequest] = field(default_factory=list)

    def complete(self, request_id: RequestId, response: "GroupResponse | MoldauError") -> None:
        self.completed.append(CompletedRequest(request_id, response))

    def deadline_ms(self, delay_ms: int) -> int:
        return self.now.monotonic_ms + delay_ms

    def build(self) -> GroupResult:
        return CoordinatorResult(self.records, self.completed)


class GroupState(StrEnum):
    """Group states as spelled in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """The state that DescribeGroups returns for a group that does not exist."""


# Membership


class Protocol(NamedTuple):
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    group_id: str
    member_id: str
    new_member_id: str
    """The generated member id. It is used only if the member is new."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    requires_known_member_id: bool
    """True in version 4 and later. A new dynamic member then has to join again with its id (MEMBER_ID_REQUIRED)."""
    supports_skipping_assignment: bool
    """True in version 9 and later, in which clients understand SkipAssignment."""
    reason: str = ""

    @property
    def size_bytes(self) -> int:
        """A lower bound of the member's bytes in the group's record."""
        texts = len(self.client_id) + len(self.instance_id or "")
        return texts + sum(len(each.name) + len(each.metadata) for each in self.protocols)


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    skip_assignment: bool
    member_id: str
    members: tuple[JoinedMember, ...]
    """All members in the leader's response, empty in the responses of other members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    """None in request versions without this field."""
    assignments: Mapping[str, bytes]

    @property
    def size_bytes(self) -> int:
        """A lower bound of the bytes of the assignments in the group's record."""
        return sum(map(len, self.assignments.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    protocol_type: str
    protocol_name: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """The sender of a heartbeat or commit."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None


class LeavingMember(NamedTuple):
    member_id: str
    instance_id: str | None
    reason: str = ""


class LeaveResult(NamedTuple):
    member_id: str
    instance_id: str | None
    error: MoldauError | None


@dataclass(frozen=True, slots=True)
class EmptyResponse:
    """The response of heartbeats and deletions, which return only an error code."""


EMPTY_RESPONSE = EmptyResponse()


# Offsets


class OffsetToCommit(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    expire_timestamp_ms: int
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    identity: MemberIdentity
    offsets: tuple[OffsetToCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalCommitRequest:
    """Offsets to commit as a part of a producer's transaction."""

    identity: MemberIdentity
    offsets: tuple[OffsetToCommit, ...]
    producer_id: int
    producer_epoch: int
    client_version: int
    """The transaction version of the client. With TV2 the epoch increases after each transaction."""
    owner: TransactionOwner = UNKNOWN_OWNER


PartitionErrors = dict[TopicPartition, MoldauError | None]
"""The response to a commit or deletion of offsets: for each partition, in request order, an error or None."""

PartitionOffsets = dict[TopicPartition, CommittedOffset | MoldauError | None]
"""Committed offsets or errors, in request order; sorted by topic and partition if the request was for all offsets."""


# Describing groups


class GroupDescription(NamedTuple):
    group_id: str
    state: GroupState | Literal[""]
    """Empty if the group could not be described."""
    protocol_type: str
    protocol_name: str
    members: tuple[MemberMetadataValue, ...]
    """The subscriptions are empty unless the group is Stable, as in Kafka."""


class GroupSnapshot(NamedTuple):
    """The state and the committed offsets of a group at one time."""

    state: GroupState
    members: tuple[tuple[str, str], ...]
    """Client id and client host of each member."""
    offsets: tuple[tuple[TopicPartition, CommittedOffset], ...]


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: GroupState
    type: str
    """Always `classic`."""


GroupResponse = (
    JoinResponse
    | SyncResponse
    | tuple[LeaveResult, ...]
    | EmptyResponse
    | PartitionErrors
    | PartitionOffsets
    | GroupDescription
    | tuple[ListedGroup, ...]
)
