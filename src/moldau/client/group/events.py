"""Events and effects of the membership state machine in `membership_manager.py`."""

from collections.abc import Mapping
from dataclasses import dataclass

from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.group.assignors import JoinGroupMember
from moldau.client.group.member_state import Generation
from moldau.wire.consumer_protocol import Partition

# Events. The event for a request without a response has the code `network_exception` or `request_timed_out`.


@dataclass(frozen=True, slots=True)
class UserPoll:
    """The user polls, and all effects of the last poll are done. Partitions are assigned and revoked only now."""


@dataclass(frozen=True, slots=True)
class HeartbeatTick:
    """A heartbeat or deadline is due. This event does not depend on the user's polls."""


@dataclass(frozen=True, slots=True)
class SubscriptionChanged:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RevokeAll:
    """The user will unsubscribe or close. All partitions are revoked now, while commits are still possible."""

    commit: bool


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """The user unsubscribed. This event follows `RevokeAll`."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The user closed the consumer. This event follows `RevokeAll`."""


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
    """True if the leader is a restarted static member. Then the assignment stays, and the leader only tracks topics."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class MetadataFetchCompleted:
    """The result of `FetchMetadata`. `partition_counts` is None if no broker responded."""

    attempt: int
    partition_counts: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The metadata has changed. `partition_counts` contains all known topics."""

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
    """The name of each assignor with the subscription encoded for it. The preferred assignor comes first."""
    reason: str
    timeout_ms: int
    """The request timeout. It exceeds the rebalance timeout, because the coordinator may wait that long for members."""


@dataclass(frozen=True, slots=True)
class FetchMetadata:
    """Fetch the current metadata of the group's topics, and track their changes."""

    attempt: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendSync:
    attempt: int
    coordinator: int
    generation: Generation
    assignments: tuple[tuple[str, bytes], ...]
    """The encoded assignment of each member id. Only the leader sends assignments."""


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
    """Commit the consumed offsets before partitions are revoked."""


@dataclass(frozen=True, slots=True)
class RevokePartitions:
    """Revoke these partitions; the user may still commit their offsets."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class LosePartitions:
    """Revoke these partitions; other members may own them already."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class AssignPartitions:
    partitions: tuple[Partition, ...]
    """All partitions of the member from now on."""
    added: tuple[Partition, ...]
    """The partitions that the member did not own before."""


@dataclass(frozen=True, slots=True)
class LogWarning:
    message: str


@dataclass(frozen=True, slots=True)
class RaiseError:
    """Raise this error from the user's poll."""

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
