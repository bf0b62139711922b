"""What groups write to `__consumer_offsets`, in the words of the domain. `formats.py` has the bytes."""

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
    """What the member said for the protocol that was chosen."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    """A group as of its last finished rebalance; without members: as of the moment the last one left."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    """Since when the group is in the state that this record gives it (wall clock; -1 where it is not known)."""
    members: tuple[MemberMetadataValue, ...]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    leader_epoch: int
    """NO_LEADER_EPOCH where the committer did not say."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    """Set only by clients of OffsetCommit 2 to 4, which gave a retention time of their own."""
    topic_id: UUID | None = None
    """Which topic of that name was meant, where it was known. Offsets of a topic that is no more are forgotten when it
    is deleted, or when the groups are next loaded: a topic made anew does not inherit them."""


@dataclass(frozen=True, slots=True)
class GroupMetadataRecord:
    group_id: str
    metadata: GroupMetadataValue | None
    """None: the group is no more (a tombstone)."""


@dataclass(frozen=True, slots=True)
class OffsetCommitRecord:
    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None
    """None: it is forgotten (a tombstone)."""


GroupRecord = GroupMetadataRecord | OffsetCommitRecord
