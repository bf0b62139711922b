"""Effects of the Raft state machine. Pure."""

from typing import NamedTuple

from moldau.errors import MoldauError
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.messages import (
    FetchSnapshotRequest,
    QuorumFetchRequest,
    RaftRequest,
    RaftResponse,
    ReplicaKey,
    SnapshotId,
    VoterNode,
)


class PersistElection(NamedTuple):
    """Persists the election state. The write must be durable before any later effect is executed."""

    election: ElectionState


class SendRequest(NamedTuple):
    """Sends a request. A ResponseReceived or RequestFailed event follows."""

    node_id: int
    request: RaftRequest


class SendResponse(NamedTuple):
    """The response to a RequestReceived event. If it is an error, the call that submitted the event raises it."""

    response: RaftResponse | MoldauError


class ServeFetch(NamedTuple):
    """Responds to a fetch with data from the log or a snapshot, if this node is still the leader of the epoch."""

    request: QuorumFetchRequest | FetchSnapshotRequest


class AppendLeaderChange(NamedTuple):
    """Appends the first batch of a leader's epoch. When it is committed, all earlier records are committed too."""

    leader_id: int
    epoch: int
    voters: tuple[VoterNode, ...]
    granting_voters: tuple[int, ...]
    includes_voters: bool
    """Whether the batch also has a voters record, because the log has none yet."""


class AppendVoters(NamedTuple):
    """Appends a record with a new set of voters. Only a leader emits this effect."""

    voters: tuple[VoterNode, ...]


class AppendFetchedRecords(NamedTuple):
    """Validates records from the leader and appends them at the end of the log."""

    records: bytes


class TruncateLog(NamedTuple):
    end_offset: int


class FetchSnapshot(NamedTuple):
    """Installs the leader's snapshot. A SnapshotInstalled or SnapshotFetchFailed event follows."""

    leader_id: int
    epoch: int
    snapshot: SnapshotId


class HighWatermarkAdvanced(NamedTuple):
    """Everything below `offset` is committed."""

    offset: int


class LeaderChanged(NamedTuple):
    """The leader (NO_LEADER if none is known) or the epoch changed."""

    leader_id: int
    epoch: int


class VotersChanged(NamedTuple):
    voters: tuple[VoterNode, ...]


class ReplicaOffsetRegressed(NamedTuple):
    """A restarted voter fetches from `end_offset`, although it had confirmed everything below `confirmed_offset`."""

    replica: ReplicaKey
    confirmed_offset: int
    end_offset: int


class FatalError(NamedTuple):
    """Committed records differ between nodes. The node must stop, because continuing would spread the damage."""

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
