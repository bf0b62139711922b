"""Requests and responses of the metadata quorum, as the Raft implementation sees them.

`raft/kafka_network_channel.py` and the request handlers convert them to and from Kafka's messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

NO_LEADER = -1
NO_VOTE = -1
NO_EPOCH = -1


class ReplicaKey(NamedTuple):
    """A replica of the metadata log: a node and its log directory.

    A node that lost its disk has a new directory id and is another replica. None is an unknown directory.
    """

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
    """The end of a log or of an epoch: the last record's epoch (NO_EPOCH if there is none) and the offset after it.

    Log ends compare as in Raft: the later epoch, then the longer log, is more up to date.
    """

    epoch: int
    offset: int


class SnapshotId(NamedTuple):
    """A snapshot of all records below `end_offset`; `epoch` is the epoch of the last of them."""

    end_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class VoteRequest:
    candidate: ReplicaKey
    epoch: int
    """The candidate's epoch; a pre-vote has the current epoch."""
    log_end: EpochEndOffset
    is_pre_vote: bool
    voter: ReplicaKey


@dataclass(frozen=True, slots=True)
class VoteResponse:
    epoch: int
    leader_id: int
    is_granted: bool
    leader_silence_ms: int = 0
    """For how long, at least, the voter has had no leader and granted no other vote."""


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochRequest:
    """Announces a newly elected leader."""

    leader_id: int
    epoch: int
    voter: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class EndQuorumEpochRequest:
    """Announces that the leader resigns. The first preferred candidate starts an election at once."""

    leader_id: int
    epoch: int
    preferred_candidates: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class QuorumEpochResponse:
    """The response to BeginQuorumEpoch and EndQuorumEpoch."""

    epoch: int
    leader_id: int


@dataclass(frozen=True, slots=True)
class QuorumFetchRequest:
    """A replica (voter or observer) fetches from the end of its log, and so confirms that its log is durable."""

    replica: ReplicaKey
    epoch: int
    """The leader epoch that the replica knows."""
    log_end: EpochEndOffset
    high_watermark: int = -1
    """The high watermark that the replica knows."""
    max_wait_ms: int = 0
    bytes_max: int = 8 * 1024 * 1024
    leader_sent_ms: int = -1
    """The `sent_ms` of the latest response that the replica received from this leader; -1 if there is none."""


@dataclass(frozen=True, slots=True)
class QuorumFetchResponse:
    """Has records (perhaps none), or a diverging epoch, or the snapshot to fetch first, or only the leader's id."""

    epoch: int
    leader_id: int
    is_leader: bool
    """If False, the fields below are not set: the replica fetches from `leader_id` instead."""
    records: bytes = b""
    high_watermark: int = -1
    log_start_offset: int = 0
    diverging_epoch: EpochEndOffset | None = None
    """The end of the replica's last epoch in the leader's log: the replica truncates to it and fetches again."""
    snapshot: SnapshotId | None = None
    sent_ms: int = -1
    """When the leader sent the response, by its own clock. The replica's next fetch echoes it.

    The echo tells the leader when the replica last had contact with it; the arrival time of a fetch does not, because
    the network may have delayed it.
    """


@dataclass(frozen=True, slots=True)
class FetchSnapshotRequest:
    replica: ReplicaKey
    epoch: int
    snapshot: SnapshotId
    position: int
    bytes_max: int = 1024 * 1024
    leader_sent_ms: int = -1
    """As in QuorumFetchRequest."""


@dataclass(frozen=True, slots=True)
class FetchSnapshotResponse:
    epoch: int
    leader_id: int
    is_leader: bool
    size: int = 0
    """The size of the whole snapshot in bytes."""
    position: int = 0
    data: bytes = b""
    sent_ms: int = -1


class ReplicaProgress(NamedTuple):
    """The progress of a voter or observer, as the leader sees it (DescribeQuorum)."""

    key: ReplicaKey
    end_offset: int
    last_fetch_ms: int
    """Wall-clock time; -1 if the replica never fetched."""
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    leader_id: int
    epoch: int
    high_watermark: int
    voters: Sequence[ReplicaProgress]
    observers: Sequence[ReplicaProgress]
    endpoints: Sequence[VoterNode]
