"""Events of the Raft state machine. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from moldau.raft.messages import RaftRequest, RaftResponse, SnapshotId, VoterNode
from moldau.raft.raft_log_state import BatchSummary, RaftLogState


class NodeStarted(NamedTuple):
    """The node has loaded its log. The whole log is durable, and records below `committed_offset` are committed."""

    log: RaftLogState
    committed_offset: int = 0


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """The `deadline_ms` of the state machine may have passed."""


class RequestReceived(NamedTuple):
    """A request from another node. A SendResponse or ServeFetch effect follows."""

    request: RaftRequest


class ResponseReceived(NamedTuple):
    node_id: int
    request: RaftRequest
    response: RaftResponse


class RequestFailed(NamedTuple):
    """A request of this node got no usable response. A refused connection means that the other process has ended."""

    node_id: int
    request: RaftRequest
    is_connection_refused: bool = False


class BatchesAppended(NamedTuple):
    batches: tuple[BatchSummary, ...]


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """Nothing was appended, because the disk was full or the fetched records were corrupt."""


class LogFlushed(NamedTuple):
    """Everything below `end_offset` is on this node's disk."""

    end_offset: int


class LogTruncated(NamedTuple):
    end_offset: int


class SnapshotCreated(NamedTuple):
    """This node wrote a snapshot of committed records; the log now starts at `start_offset`."""

    snapshot: SnapshotId
    start_offset: int


class SnapshotInstalled(NamedTuple):
    """The leader's snapshot is durable, and the log was reset to the end of the snapshot."""

    snapshot: SnapshotId
    voters: tuple[VoterNode, ...]


@dataclass(frozen=True, slots=True)
class SnapshotFetchFailed:
    pass


@dataclass(frozen=True, slots=True)
class ResignRequested:
    """The node is about to stop. If it is the leader, it resigns. It starts no more elections."""


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
