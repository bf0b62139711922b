"""Records of `__consumer_offsets` as plain values. `formats.py` encodes and decodes the records."""

from dataclasses import dataclass
from uuid import UUID

NO_EXPIRY = -1
NO_LEADER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class MemberMetadataValue:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    """The member's metadata for the selected protocol."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    """The state of a group after its last completed rebalance, or after it became empty."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    """Wall clock time at which the group entered this state; -1 if unknown."""
    members: tuple[MemberMetadataValue, ...]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    leader_epoch: int
    """NO_LEADER_EPOCH if the client did not send a leader epoch."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    """Set only by OffsetCommit versions 2 to 4, because only these requests have a retention time."""
    topic_id: UUID | None = None
    """The topic's id, if known. It distinguishes a deleted topic from a new topic of the same name."""


@dataclass(frozen=True, slots=True)
class GroupMetadataRecord:
    group_id: str
    metadata: GroupMetadataValue | None
    """None for a tombstone."""


@dataclass(frozen=True, slots=True)
class OffsetCommitRecord:
    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None
    """None for a tombstone."""


GroupRecord = GroupMetadataRecord | OffsetCommitRecord
