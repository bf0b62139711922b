"""The terms in which a group member speaks of itself: its settings, its states, its generation."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from moldau.client.group.assignors import ConsumerPartitionAssignor


class MemberState(Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    """The join is at the coordinator."""
    ASSIGNING = "assigning"
    """This member leads and waits for metadata to assign by."""
    SYNCING = "syncing"
    JOINED = "joined"
    """The assignment is here and waits for the user's next poll."""
    STABLE = "stable"
    FENCED = "fenced"
    """Another consumer has taken the instance id. There is no way back: two would fence each other for ever."""
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
            raise ValueError(
                "heartbeat_interval_ms is above 0 and below session_timeout_ms, so that one may be lost"
            )
        if not self.assignors:
            raise ValueError("a consumer needs at least one assignor")


class Generation(NamedTuple):
    """Which member of which generation a request speaks for."""

    generation_id: int = -1
    member_id: str = ""
    protocol: str = ""
    """The assignor that the group has voted for."""

    @property
    def is_member(self) -> bool:
        return self.generation_id >= 0 and self.member_id != ""


NO_GENERATION = Generation()


class JoinGroupMember(NamedTuple):
    """A member as the coordinator names it to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class ConsumerGroupMetadata(NamedTuple):
    """Who a consumer is in its group; a transaction that commits offsets for it names it so."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
