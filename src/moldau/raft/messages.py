"""Requests and responses of the metadata quorum, as the Raft implementation sees them.

`raft/kafka_network_channel.py` and the request handlers convert them to and from Kafka's messages.
"""

from collections.abc import Sequence
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


class VoterNode(NamedTuple):
    node_id: int
    directory_id: UUID | None = None
    endpoints: tuple[VoterEndpoint, ...] = ()

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.node_id, self.directory_id)


class EpochEndOffset(NamedTuple):
    """The end of a log or an epoch: the epoch of the last record (NO_EPOCH if there is none) and the offset after it.

    The order is Raft's. The end with the later epoch is more up to date, then the one with the larger offset.
    """

    epoch: int
    offset: int


class SnapshotId(NamedTuple):
    """A snapshot of all records below `end_offset`. `epoch` is the epoch of the last of these records."""

    end_offset: int
    epoch: int


class VoteRequest(NamedTuple):
    candidate: ReplicaKey
    epoch: int
    """The epoch in which the candidate wants to lead. In a pre-vote, it is the candidate's current epoch."""
    log_end: EpochEndOffset
    is_pre_vote: bool
    voter: ReplicaKey


class VoteResponse(NamedTuple):
    epoch: int
    leader_id: int
    is_granted: bool
    leader_silence_ms: int = 0
    """For at least this time before its vote, the voter had no leader and granted no other vote; 0 if unknown."""


class BeginQuorumEpochRequest(NamedTuple):
    """Announces a newly elected leader."""

    leader_id: int
    epoch: int
    voter: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...] = ()


class EndQuorumEpochRequest(NamedTuple):
    """Announces that the leader resigns. The first preferred candidate starts an election almost at once."""

    leader_id: int
    epoch: int
    preferred_candidates: tuple[ReplicaKey, ...]


class QuorumEpochResponse(NamedTuple):
    """The response to BeginQuorumEpoch and EndQuorumEpoch."""

    epoch: int
    leader_id: int


class QuorumFetchRequest(NamedTuple):
    """A fetch of a replica from the end of its log. It confirms that the replica's whole log is durable."""

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


class QuorumFetchResponse(NamedTuple):
    """A response with records (possibly none), a diverging epoch, a snapshot to fetch, or only the leader's id."""

    epoch: int
    leader_id: int
    is_leader: bool
    """Whether the responding node is the leader. If not, the fields below are not set."""
    records: bytes = b""
    high_watermark: int = -1
    log_start_offset: int = 0
    diverging_epoch: EpochEndOffset | None = None
    """Set if the replica must truncate its log: the end of the leader's largest epoch that is not above the epoch of
    the replica's last record."""
    snapshot: SnapshotId | None = None
    sent_ms: int = -1
    """The time on the leader's clock when it sent the response; -1 if not set.

    The replica's next fetch returns this time, so that the leader knows when this replica last had contact.
    """


class FetchSnapshotRequest(NamedTuple):
    replica: ReplicaKey
    epoch: int
    snapshot: SnapshotId
    position: int
    bytes_max: int = 1024 * 1024
    leader_sent_ms: int = -1
    """The same as `QuorumFetchRequest.leader_sent_ms`."""


class FetchSnapshotResponse(NamedTuple):
    epoch: int
    leader_id: int
    is_leader: bool
    size: int = 0
    """The size of the whole snapshot in bytes."""
    position: int = 0
    data: bytes = b""
    sent_ms: int = -1


RaftRequest = VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest | QuorumFetchRequest | FetchSnapshotRequest
RaftResponse = VoteResponse | QuorumEpochResponse | QuorumFetchResponse | FetchSnapshotResponse


class ReplicaProgress(NamedTuple):
    """The progress of a voter or observer, as the leader sees it (DescribeQuorum)."""

    key: ReplicaKey
    end_offset: int
    last_fetch_ms: int
    """The wall-clock time of the last fetch; -1 if the replica never fetched."""
    last_caught_up_ms: int


class QuorumDescription(NamedTuple):
    leader_id: int
    epoch: int
    high_watermark: int
    voters: Sequence[ReplicaProgress]
    observers: Sequence[ReplicaProgress]
    endpoints: Sequence[VoterNode]
