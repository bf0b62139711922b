"""What is asked of groups and what they answer: plain values, shared by the pure machines, the driver and the handlers.

Errors are exceptions of `moldau.errors`, raised where a request is answered at once, and given as an answer
where the request was parked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from moldau.coordinator import CoordinatorResult
from moldau.errors import MoldauError
from moldau.groups.records import CommittedOffset, GroupRecord

NO_GENERATION = -1
UNKNOWN_MEMBER_ID = ""
"""The member id of who has none yet, and of consumers that commit without being in a group."""

RequestId = int
"""Names a request that waits for its answer; the driver gives them out and knows who holds which."""

TopicPartition = tuple[str, int]

TopicKey = tuple[str, UUID | None]
"""A topic of this name and id. The id None stands for offsets that do not say which topic of the name was meant."""


class Now(NamedTuple):
    monotonic_ms: int
    """Timeouts go by this one."""
    wall_ms: int
    """What is written into records, and what offsets expire by."""


class CompletedRequest(NamedTuple):
    request_id: RequestId
    response: "GroupResponse | MoldauError"


GroupDecision = CoordinatorResult[GroupRecord, Sequence[CompletedRequest]]
"""Records, and the requests that may be answered once they are committed: the one that asked, or others that were
parked, or none when it is parked itself."""

EMPTY_DECISION: GroupDecision = CoordinatorResult((), ())


class GroupState(StrEnum):
    """As Kafka spells them in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """What DescribeGroups calls a group that is not there (any more): with its tombstone in the log it is dropped."""


@dataclass(frozen=True, slots=True)
class GroupCoordinatorConfig:
    """The settings that the pure machines go by."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    size_max: int = 2**31 - 1
    offset_metadata_length_max: int = 4_096
    """In UTF-16 units, as Kafka counts, though its setting speaks of bytes."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000


# Membership


class Protocol(NamedTuple):
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    group_id: str
    member_id: str
    new_member_id: str
    """The id to give if the member turns out to be a new one: chance comes from outside."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    requires_known_member_id: bool
    """From version 4 on a new dynamic member is first sent away with its id (MEMBER_ID_REQUIRED)."""
    supports_skipping_assignment: bool
    """From version 9 on a leader can be told that the assignment stands as it is."""
    reason: str = ""

    @property
    def size_bytes(self) -> int:
        """No more than the bytes that the group keeps of it."""
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
    """All of them for the leader, none for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    """None where the version does not say, and then nothing is checked against it."""
    assignments: Mapping[str, bytes]

    @property
    def size_bytes(self) -> int:
        """No more than the bytes of what it asks to be written."""
        return sum(map(len, self.assignments.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    protocol_type: str
    protocol_name: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """Who a heartbeat or commit says it is from."""

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
class LeaveResponse:
    members: tuple[LeaveResult, ...]


@dataclass(frozen=True, slots=True)
class EmptyResponse:
    """The answer where there is nothing to say but that it is done: heartbeats, deletions."""


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


@dataclass(frozen=True, slots=True)
class CommitResponse:
    errors: Mapping[TopicPartition, MoldauError | None]
    """In the order they were asked for."""


@dataclass(frozen=True, slots=True)
class OffsetsResponse:
    """Committed offsets by partition, in the order of the request, or all in order of topic and partition."""

    offsets: Mapping[TopicPartition, CommittedOffset | None]


@dataclass(frozen=True, slots=True)
class DeleteOffsetsResponse:
    errors: Mapping[TopicPartition, MoldauError | None]


# Looking at groups


class MemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    """Empty unless the group is stable, as Kafka has it."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: tuple[MemberDescription, ...]


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: GroupState
    type: str
    """`classic`."""


@dataclass(frozen=True, slots=True)
class ListResponse:
    groups: tuple[ListedGroup, ...]


GroupResponse = (
    JoinResponse
    | SyncResponse
    | LeaveResponse
    | EmptyResponse
    | CommitResponse
    | OffsetsResponse
    | DeleteOffsetsResponse
    | GroupDescription
    | ListResponse
)
