"""What the quorum's state machine hears, and what it wants done. Pure."""

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from moldau.errors import MoldauError
from moldau.raft.log_view import LogView, Span
from moldau.raft.messages import (
    NO_LEADER,
    NO_VOTE,
    BeginEpochRequest,
    EndEpochRequest,
    EpochReply,
    QuorumFetch,
    QuorumFetched,
    ReplicaKey,
    SnapshotFetch,
    SnapshotFetched,
    SnapshotId,
    Voter,
    VoteReply,
    VoteRequest,
)

Asked = VoteRequest | BeginEpochRequest | EndEpochRequest | QuorumFetch | SnapshotFetch
Told = VoteReply | EpochReply | QuorumFetched | SnapshotFetched


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
class Election:
    """What a voter must remember across a crash: without it, it could vote twice in one epoch."""

    epoch: int = 0
    leader_id: int = NO_LEADER
    voted_for: int = NO_VOTE
    voted_directory: UUID | None = None


# Events


@dataclass(frozen=True, slots=True)
class Started:
    """The node is up. All of its log is durable, and committed below the end of the snapshot it begins with."""

    log: LogView
    committed_offset: int = 0


@dataclass(frozen=True, slots=True)
class Tick:
    """The state's `deadline_ms` may have come."""


@dataclass(frozen=True, slots=True)
class Received:
    """Another node asks; it is answered by an Answer or a Serve among the effects."""

    request: Asked


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer to a Send."""

    by: int
    request: Asked
    reply: Told


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer came to a Send. `is_gone`: because nobody listens there."""

    by: int
    request: Asked
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Appended:
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The disk was full, or what came from the leader was damaged: nothing was appended."""


@dataclass(frozen=True, slots=True)
class Durable:
    """This node has everything below `end_offset` on disk."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Truncated:
    end_offset: int


@dataclass(frozen=True, slots=True)
class SnapshotMade:
    """This node made a snapshot of what is committed, and the log begins at `start_offset` now."""

    snapshot: SnapshotId
    start_offset: int


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The leader's snapshot is on disk, and the log begins anew behind it."""

    snapshot: SnapshotId
    voters: tuple[Voter, ...]


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The leader's snapshot could not be had."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The node is about to stop: whoever leads hands over, and does not stand again."""


Event = (
    Started
    | Tick
    | Received
    | Answered
    | Unanswered
    | Appended
    | AppendFailed
    | Durable
    | Truncated
    | SnapshotMade
    | SnapshotTaken
    | SnapshotFailed
    | Leaving
)


# Effects


@dataclass(frozen=True, slots=True)
class Persist:
    """Must be on disk before any later effect is begun."""

    election: Election


@dataclass(frozen=True, slots=True)
class Send:
    """Asks another node; an Answered or Unanswered follows."""

    to: int
    request: Asked


@dataclass(frozen=True, slots=True)
class Answer:
    """To what was Received. An error is raised to whoever asked."""

    reply: Told | MoldauError


@dataclass(frozen=True, slots=True)
class Serve:
    """What was Received is answered from the log or a snapshot, as long as this node leads in this epoch."""

    request: QuorumFetch | SnapshotFetch


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Appends the first batch of a leader's epoch. It is what lets a leader commit the records of epochs before
    its own."""

    leader_id: int
    epoch: int
    voters: tuple[Voter, ...]
    granting: tuple[int, ...]
    names_voters: bool
    """Whether it names them as the voters from now on, because the log does not yet."""


@dataclass(frozen=True, slots=True)
class AppendVoters:
    """Appends a record that names the voters anew. Leader only."""

    voters: tuple[Voter, ...]


@dataclass(frozen=True, slots=True)
class AppendRecords:
    """Appends what the leader sent, behind the end of the log, if it is sound."""

    records: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    end_offset: int


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """Gets a snapshot from the leader and begins the log anew behind it; SnapshotTaken or SnapshotFailed follows."""

    leader_id: int
    epoch: int
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Committed:
    """The high watermark has moved: everything below `offset` is agreed on for ever."""

    offset: int


@dataclass(frozen=True, slots=True)
class LeaderIs:
    """Another leader (perhaps none) or another epoch than before."""

    leader_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class VotersAre:
    voters: tuple[Voter, ...]


@dataclass(frozen=True, slots=True)
class FellBack:
    """A voter wants to read on at `end_offset`, and had everything below `confirmed_offset` on disk before."""

    replica: ReplicaKey
    confirmed_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Fatal:
    """What was agreed on is not what others have: going on would spread the damage."""

    reason: str


Effect = (
    Persist
    | Send
    | Answer
    | Serve
    | BeginEpoch
    | AppendVoters
    | AppendRecords
    | Truncate
    | FetchSnapshot
    | Committed
    | LeaderIs
    | VotersAre
    | FellBack
    | Fatal
)
