"""What the nodes of the metadata quorum say to each other, in the quorum's own words.

`raft/kafka_network_channel.py` and the request handlers turn these into Kafka's messages and back; the state
machine and its
driver know nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

NO_LEADER = -1
NO_VOTE = -1
NO_EPOCH = -1


class ReplicaKey(NamedTuple):
    """Who holds a copy of the metadata log: a node, and the directory it is kept in. A node that lost its disk has
    another directory and is not the same replica. None is a directory that is not known."""

    node_id: int
    directory_id: UUID | None = None


class VoterEndpoint(NamedTuple):
    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class VoterNode:
    node_id: int
    directory_id: UUID | None = None
    endpoints: tuple[VoterEndpoint, ...] = ()

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.node_id, self.directory_id)


class EpochEndOffset(NamedTuple):
    """Where a log ends: the epoch of its last record (NO_EPOCH when empty), and the offset after it. They compare
    as Raft compares logs: the later epoch, then the longer log, is more up to date."""

    epoch: int
    offset: int


class SnapshotId(NamedTuple):
    """What a snapshot stands for: all below `end_offset`, the last record of which is of `epoch`."""

    end_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class VoteRequest:
    candidate: ReplicaKey
    epoch: int
    """The one it stands for; with a pre-vote, its present one."""
    log_end: EpochEndOffset
    is_pre_vote: bool
    voter: ReplicaKey
    """Who is asked."""


@dataclass(frozen=True, slots=True)
class VoteResponse:
    epoch: int
    leader_id: int
    is_granted: bool
    leader_silence_ms: int = 0
    """For how long, at least, the voter had heard of no leader, nor helped to elect one."""


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochRequest:
    """A leader that was elected says so."""

    leader_id: int
    epoch: int
    voter: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class EndQuorumEpochRequest:
    """A leader that resigns says so; `preferred_candidates` should stand for election, the first at once."""

    leader_id: int
    epoch: int
    preferred_candidates: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class QuorumEpochResponse:
    """To both of the above."""

    epoch: int
    leader_id: int


@dataclass(frozen=True, slots=True)
class QuorumFetchRequest:
    """A replica (voter or observer) wants what comes after `log_end`, and by asking says that it has all before it
    on disk."""

    replica: ReplicaKey
    epoch: int
    """The leader epoch that the replica knows."""
    log_end: EpochEndOffset
    """`offset` is where it wants to read on, `epoch` that of the last record it has."""
    high_watermark: int = -1
    """The one it knows."""
    max_wait_ms: int = 0
    bytes_max: int = 8 * 1024 * 1024
    heard_ms: int = -1
    """The `sent_ms` of the newest answer that the replica has had of this leader; -1 where it has had none."""


@dataclass(frozen=True, slots=True)
class QuorumFetchResponse:
    """One of: records (perhaps none), a point of divergence, a snapshot to fetch first; or another leader."""

    epoch: int
    leader_id: int
    is_leader: bool
    """False: ask `leader_id`, the rest means nothing."""
    records: bytes = b""
    high_watermark: int = -1
    log_start_offset: int = 0
    diverging_epoch: EpochEndOffset | None = None
    """The replica's last epoch ended here in the leader's log: it cuts its own log back to that, and asks again."""
    snapshot: SnapshotId | None = None
    sent_ms: int = -1
    """When the leader answered, by its own clock. A replica says it back with its next fetch, and only that tells the
    leader how lately it was heard: a fetch may have been on its way for long."""


@dataclass(frozen=True, slots=True)
class FetchSnapshotRequest:
    replica: ReplicaKey
    epoch: int
    snapshot: SnapshotId
    position: int
    bytes_max: int = 1024 * 1024
    heard_ms: int = -1
    """As of a QuorumFetch."""


@dataclass(frozen=True, slots=True)
class FetchSnapshotResponse:
    epoch: int
    leader_id: int
    is_leader: bool
    size: int = 0
    """Of the whole snapshot."""
    position: int = 0
    data: bytes = b""
    sent_ms: int = -1


class ReplicaProgress(NamedTuple):
    """How far a voter or observer is, as the leader sees it (DescribeQuorum)."""

    key: ReplicaKey
    end_offset: int
    last_fetch_ms: int
    """Wall time, -1 where it never fetched."""
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    leader_id: int
    epoch: int
    high_watermark: int
    voters: Sequence[ReplicaProgress]
    observers: Sequence[ReplicaProgress]
    endpoints: Sequence[VoterNode]
