"""What a group member hears and what it has done: the events and effects of `membership.py`."""

from collections.abc import Mapping
from dataclasses import dataclass

from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.group.member_state import Generation, JoinGroupMember
from moldau.wire.consumer_protocol import Partition

# Events. Answers that were a failure to get any have a code of their own (`network_exception`,
# `request_timed_out`).


@dataclass(frozen=True, slots=True)
class UserPoll:
    """The user polls: the only time at which partitions are taken from them or given to them. Whatever the last
    poll asked to have done has been done."""


@dataclass(frozen=True, slots=True)
class HeartbeatTick:
    """Time has passed, wherever the user is."""


@dataclass(frozen=True, slots=True)
class SubscriptionChanged:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RevokeAll:
    """The user is about to unsubscribe or close: partitions are given back while the member can still speak for
    them."""

    commit: bool


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """After `RevokeAll`."""


@dataclass(frozen=True, slots=True)
class Closed:
    """After `RevokeAll`."""


@dataclass(frozen=True, slots=True)
class CoordinatorFound:
    node_id: int


@dataclass(frozen=True, slots=True)
class CoordinatorNotFound:
    code: ErrorCode
    message: str = ""


@dataclass(frozen=True, slots=True)
class JoinResponse:
    attempt: int
    code: ErrorCode = ErrorCode.none
    generation_id: int = -1
    member_id: str = ""
    leader_id: str = ""
    protocol: str = ""
    members: tuple[JoinGroupMember, ...] = ()
    skip_assignment: bool = False
    """A leader that came back: the group's assignment stands, it only watches over the topics again."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class MetadataFetchCompleted:
    """What `FetchMetadata` asked for; None where no broker could be asked."""

    attempt: int
    partition_counts: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """Every topic that is known, with the number of its partitions."""

    partition_counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SyncResponse:
    attempt: int
    code: ErrorCode = ErrorCode.none
    assignment: bytes = b""
    message: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    heartbeat_id: int
    code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class CommitFailed:
    generation: Generation
    code: ErrorCode


Event = (
    UserPoll
    | HeartbeatTick
    | SubscriptionChanged
    | RevokeAll
    | Unsubscribed
    | Closed
    | CoordinatorFound
    | CoordinatorNotFound
    | JoinResponse
    | MetadataFetchCompleted
    | MetadataChanged
    | SyncResponse
    | HeartbeatResponse
    | CommitFailed
)


# Effects


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    pass


@dataclass(frozen=True, slots=True)
class SendJoin:
    attempt: int
    coordinator: int
    member_id: str
    protocols: tuple[tuple[str, bytes], ...]
    """Each assignor's name with the subscription encoded for it, the most wanted first."""
    reason: str
    timeout_ms: int
    """The coordinator answers when all members are there, which may take as long as the rebalance timeout."""


@dataclass(frozen=True, slots=True)
class FetchMetadata:
    """The leader needs the group's topics as they are now, and has to hear of every change to them."""

    attempt: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendSync:
    attempt: int
    coordinator: int
    generation: Generation
    assignments: tuple[tuple[str, bytes], ...]
    """The leader's; followers send none."""


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    heartbeat_id: int
    coordinator: int
    generation: Generation


@dataclass(frozen=True, slots=True)
class SendLeave:
    coordinator: int
    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit what the user has consumed so far; the group does not wait for it longer than it takes."""


@dataclass(frozen=True, slots=True)
class RevokePartitions:
    """Take these from the user, who may still commit them."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class LosePartitions:
    """Take these from the user: others may have them already."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class AssignPartitions:
    partitions: tuple[Partition, ...]
    """All of the member's partitions from now on."""
    added: tuple[Partition, ...]
    """Those of them that it did not have before."""


@dataclass(frozen=True, slots=True)
class LogWarning:
    message: str


@dataclass(frozen=True, slots=True)
class RaiseError:
    """Raise this out of the user's poll."""

    error: KafkaError


Effect = (
    FindCoordinator
    | SendJoin
    | FetchMetadata
    | SendSync
    | SendHeartbeat
    | SendLeave
    | CommitOffsets
    | RevokePartitions
    | LosePartitions
    | AssignPartitions
    | LogWarning
    | RaiseError
)
