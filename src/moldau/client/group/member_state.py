"""Types of the group membership: states, configuration, generation and members."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from moldau.client.group.assignors import ConsumerPartitionAssignor


class MemberState(Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    """JoinGroup is in flight."""
    ASSIGNING = "assigning"
    """This member is the leader and fetches the metadata for the assignment."""
    SYNCING = "syncing"
    JOINED = "joined"
    """The assignment has arrived and takes effect in the user's next poll."""
    STABLE = "stable"
    FENCED = "fenced"
    """Another consumer uses the instance id. This state is final, because otherwise the two consumers would fence each
    other repeatedly."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class GroupRebalanceConfig:
    group_id: str
    assignors: tuple[ConsumerPartitionAssignor, ...]
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    poll_interval_max_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    auto_commit: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_interval_ms < self.session_timeout_ms:
            raise ValueError("heartbeat_interval_ms must be above 0 and below session_timeout_ms")
        if not self.assignors:
            raise ValueError("a consumer needs at least one assignor")


class Generation(NamedTuple):
    """The generation and member id of a request. `generation_id` is -1 outside a generation."""

    generation_id: int = -1
    member_id: str = ""
    protocol: str = ""
    """The name of the assignor that the group selected."""

    @property
    def is_member(self) -> bool:
        return self.generation_id >= 0 and self.member_id != ""


NO_GENERATION = Generation()


class JoinGroupMember(NamedTuple):
    """A member in the JoinGroup response to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class ConsumerGroupMetadata(NamedTuple):
    """The identity of a consumer in its group, for transactions that commit its offsets."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
