"""What the quorum's state machine hears, and what it wants done. Pure."""

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from moldau.errors import MoldauError
from moldau.raft.messages import (
    NO_LEADER,
    NO_VOTE,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumEpochResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    SnapshotId,
    VoteRequest,
    VoteResponse,
    VoterNode,
)
from moldau.raft.raft_log_state import BatchSummary, RaftLogState

RaftRequest = (
    VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest | QuorumFetchRequest | FetchSnapshotRequest
)
RaftResponse = VoteResponse | QuorumEpochResponse | QuorumFetchResponse | FetchSnapshotResponse


class Role(Enum):
    """A node that is no voter (an observer) is unattached or a follower, and never anything else."""

    UNATTACHED = "unattached"
    """Knows of no leader in its epoch, and asks the voters in turn."""
    FOLLOWER = "follower"
    PROSPECTIVE = "prospective"
    """Asks whether it would be voted for, before it begins an epoch that would disturb the others."""
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"
    """Led in this epoch, and must not lead in it again."""


@dataclass(frozen=True, slots=True)
class ElectionState:
    """What a voter must remember across a crash: without it, it could vote twice in one epoch."""

    epoch: int = 0
    leader_id: int = NO_LEADER
    voted_for: int = NO_VOTE
    voted_directory_id: UUID | None = None


# Events


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """The node is up. All of its log is durable, and committed below the end of the snapshot it begins with."""

    log: RaftLogState
    committed_offset: int = 0


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """The state's `deadline_ms` may have come."""


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """Another node asks; it is answered by an Answer or a Serve among the effects."""

    request: RaftRequest


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """An answer to a Send."""

    by: int
    request: RaftRequest
    reply: RaftResponse


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No answer came to a Send. `is_connection_refused`: because nobody listens there."""

    by: int
    request: RaftRequest
    is_connection_refused: bool = False


@dataclass(frozen=True, slots=True)
class BatchesAppended:
    batches: tuple[BatchSummary, ...]


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The disk was full, or what came from the leader was damaged: nothing was appended."""


@dataclass(frozen=True, slots=True)
class LogFlushed:
    """This node has everything below `end_offset` on disk."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class LogTruncated:
    end_offset: int


@dataclass(frozen=True, slots=True)
class SnapshotCreated:
    """This node made a snapshot of what is committed, and the log begins at `start_offset` now."""

    snapshot: SnapshotId
    start_offset: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """The leader's snapshot is on disk, and the log begins anew behind it."""

    snapshot: SnapshotId
    voters: tuple[VoterNode, ...]


@dataclass(frozen=True, slots=True)
class SnapshotFetchFailed:
    """The leader's snapshot could not be had."""


@dataclass(frozen=True, slots=True)
class ResignRequested:
    """The node is about to stop: whoever leads hands over, and does not stand again."""


Event = (
    NodeStarted
    | TimerExpired
    | RequestReceived
    | ResponseReceived
    | RequestFailed
    | BatchesAppended
    | AppendFailed
    | LogFlushed
    | LogTruncated
    | SnapshotCreated
    | SnapshotInstalled
    | SnapshotFetchFailed
    | ResignRequested
)


# Effects


@dataclass(frozen=True, slots=True)
class PersistElection:
    """Must be on disk before any later effect is begun."""

    election: ElectionState


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Asks another node; an Answered or Unanswered follows."""

    to: int
    request: RaftRequest


@dataclass(frozen=True, slots=True)
class SendResponse:
    """To what was Received. An error is raised to whoever asked."""

    reply: RaftResponse | MoldauError


@dataclass(frozen=True, slots=True)
class ServeFetch:
    """What was Received is answered from the log or a snapshot, as long as this node leads in this epoch."""

    request: QuorumFetchRequest | FetchSnapshotRequest


@dataclass(frozen=True, slots=True)
class AppendLeaderChange:
    """Appends the first batch of a leader's epoch. It is what lets a leader commit the records of epochs before
    its own."""

    leader_id: int
    epoch: int
    voters: tuple[VoterNode, ...]
    granting_voters: tuple[int, ...]
    includes_voters: bool
    """Whether it names them as the voters from now on, because the log does not yet."""


@dataclass(frozen=True, slots=True)
class AppendVoters:
    """Appends a record that names the voters anew. Leader only."""

    voters: tuple[VoterNode, ...]


@dataclass(frozen=True, slots=True)
class AppendFetchedRecords:
    """Appends what the leader sent, behind the end of the log, if it is sound."""

    records: bytes


@dataclass(frozen=True, slots=True)
class TruncateLog:
    end_offset: int


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """Gets a snapshot from the leader and begins the log anew behind it; SnapshotTaken or SnapshotFailed follows."""

    leader_id: int
    epoch: int
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """The high watermark has moved: everything below `offset` is agreed on for ever."""

    offset: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """Another leader (perhaps none) or another epoch than before."""

    leader_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class VotersChanged:
    voters: tuple[VoterNode, ...]


@dataclass(frozen=True, slots=True)
class ReplicaOffsetRegressed:
    """A voter wants to read on at `end_offset`, and had everything below `confirmed_offset` on disk before."""

    replica: ReplicaKey
    confirmed_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class FatalError:
    """What was agreed on is not what others have: going on would spread the damage."""

    reason: str


Effect = (
    PersistElection
    | SendRequest
    | SendResponse
    | ServeFetch
    | AppendLeaderChange
    | AppendVoters
    | AppendFetchedRecords
    | TruncateLog
    | FetchSnapshot
    | HighWatermarkAdvanced
    | LeaderChanged
    | VotersChanged
    | ReplicaOffsetRegressed
    | FatalError
)
