"""Epoch, vote and role of a node in the metadata quorum, and the transitions between roles. Pure.

The state owns one epoch state object, which has the fields of the current role. Transitions that are not allowed
return False and change nothing.
"""

from dataclasses import dataclass, field, replace

from moldau.concurrency.backoff import exponential_backoff_ms
from moldau.errors import NotControllerError
from moldau.raft.effects import HighWatermarkAdvanced
from moldau.raft.epoch_roles import (
    CandidateState,
    ElectionState,
    EpochElection,
    FollowerState,
    ProspectiveState,
    ResignedState,
    UnattachedState,
)
from moldau.raft.leader_state import NEVER, LeaderState
from moldau.raft.messages import (
    NO_LEADER,
    NO_VOTE,
    EndQuorumEpochRequest,
    EpochEndOffset,
    ReplicaKey,
    VoterEndpoint,
    VoteRequest,
    VoterNode,
)
from moldau.raft.quorum_config import QuorumConfig
from moldau.raft.raft_log_state import RaftLogState
from moldau.raft.step_context import StepContext
from moldau.raft.voter_set import VoterSetHistory, find_voter

EPOCHS_AHEAD_MAX = 2**20
EPOCH_MAX = 2**31 - 1 - EPOCHS_AHEAD_MAX

EpochState = UnattachedState | FollowerState | ProspectiveState | CandidateState | LeaderState | ResignedState


@dataclass(slots=True)
class QuorumState:
    key: ReplicaKey
    election: ElectionState
    """The election state that was loaded on startup, or the one in the latest PersistElection effect.

    The epoch never decreases. Within an epoch, the vote and the leader never change once they are set.
    """
    config: QuorumConfig = field(default_factory=QuorumConfig)
    endpoints: tuple[VoterEndpoint, ...] = ()
    """The endpoints of this node; empty if unknown."""
    log: RaftLogState = field(default_factory=lambda: RaftLogState(VoterSetHistory(())))
    epoch_state: EpochState = field(default_factory=UnattachedState)
    election_deadline_ms: int | None = None
    """The time when this node starts its next election, even if the current one is undecided."""
    is_shutting_down: bool = False
    last_leader_activity_ms: int | None = None
    """The last time since startup when this node was the leader, had contact with a leader, or granted a vote."""
    leader_sent_ms: int = NEVER
    """The send time, on the leader's clock, of the latest response from the leader of this epoch."""
    has_leader_resigned: bool = False
    """Whether the leader of this epoch has resigned or its process has ended. Other nodes may still name it."""
    lost_elections: int = 0
    """The number of elections in a row that this node has lost, since it was a leader or follower."""
    elections_started: int = 0
    """How often this node has become a candidate."""
    catch_up_offset: int | None = None
    """The first high watermark that this node learned after its start. Records that were committed before the start
    have lower offsets."""

    @property
    def node_id(self) -> int:
        return self.key.node_id

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def voters(self) -> tuple[VoterNode, ...]:
        return self.log.voters.current

    @property
    def is_voter(self) -> bool:
        return find_voter(self.voters, self.key) is not None

    @property
    def leader_id(self) -> int:
        """The known leader of this epoch, or NO_LEADER."""
        return self.election.leader_id if isinstance(self.epoch_state, LeaderState | FollowerState) else NO_LEADER

    @property
    def leader_state(self) -> LeaderState | None:
        """The state of this node as leader; None if it is not the leader."""
        return self.epoch_state if isinstance(self.epoch_state, LeaderState) else None

    def require_leader(self) -> LeaderState:
        """Returns `leader_state`. Raises NotControllerError if this node is not the leader."""
        if self.leader_state is None:
            raise NotControllerError("this node is not the leader of the metadata quorum")
        return self.leader_state

    @property
    def is_caught_up(self) -> bool:
        """Whether this node has all records that were committed before it started."""
        return self.catch_up_offset is not None and self.log.high_watermark >= self.catch_up_offset

    def other_voters(self) -> list[VoterNode]:
        return [voter for voter in self.voters if voter.node_id != self.node_id]

    def has_live_leader(self, now_ms: int) -> bool:
        """Returns whether this node is the leader, or had contact with the leader within the fetch timeout."""
        if isinstance(self.epoch_state, FollowerState) and self.epoch_state.leader_contact_ms is not None:
            return now_ms - self.epoch_state.leader_contact_ms < self.config.fetch_timeout_ms
        return isinstance(self.epoch_state, LeaderState)

    def leader_silence_ms(self, now_ms: int) -> int:
        """Returns for how long this node has certainly had no leader; 0 if that is unknown."""
        return 0 if self.last_leader_activity_ms is None else max(0, now_ms - self.last_leader_activity_ms)

    def advance_high_watermark(self, step: StepContext, offset: int) -> None:
        if offset > self.log.high_watermark:
            self.log.high_watermark = offset
            step.emit(HighWatermarkAdvanced(offset))

    def is_epoch_out_of_range(self, epoch: int) -> bool:
        """Returns whether the epoch of a request is too far ahead to be accepted.

        Without this limit, one wrong request could use up all epoch numbers. A node that was down for very long still
        learns the current epoch from the responses to its fetches, which have no such limit.
        """
        return epoch > min(self.epoch + EPOCHS_AHEAD_MAX, EPOCH_MAX)

    def check_invariants(self) -> None:
        log = self.log
        assert log.start_offset <= log.high_watermark <= log.end_offset
        assert log.durable_offset <= log.end_offset
        if isinstance(self.epoch_state, LeaderState):
            assert self.election.leader_id == self.node_id
        if isinstance(self.epoch_state, FollowerState):
            assert self.election.leader_id not in (NO_LEADER, self.node_id)

    # Elections

    def election_timeout_deadline(self, step: StepContext) -> int:
        return step.deadline_in(self.config.election_timeout_ms * (1 + step.random_fraction))

    def startup_election_deadline(self, step: StepContext) -> int:
        """Returns when a node that knows no leader starts its first election after startup.

        In a new cluster, the voter with the lowest id starts at once, and the other voters wait longer. So the lowest
        id becomes the first leader, unless its node is missing. The vote rules do not depend on this order.
        """
        delay_ms = self.config.election_timeout_ms * step.random_fraction
        if self.is_voter and self.epoch == 0 and self.log.end_offset == 0:
            is_first = self.node_id == min(voter.node_id for voter in self.voters)
            delay_ms = 0 if is_first else delay_ms + self.config.first_election_margin_ms
        return step.deadline_in(delay_ms)

    def lost_election_deadline(self, step: StepContext) -> int:
        """Returns when to start the next election after a lost one.

        Usually the votes were split, and the next election should follow soon. The random part grows with each lost
        election, because messages between the voters may take longer than it.
        """
        timeout_ms = self.config.election_timeout_ms
        self.lost_elections += 1
        spread_ms = exponential_backoff_ms(self.lost_elections, max(timeout_ms // 5, 1), timeout_ms)
        return step.deadline_in(timeout_ms / 20 + spread_ms * step.random_fraction)

    def schedule_election(self, at_ms: int) -> None:
        """Schedules an election, unless an earlier one is already scheduled."""
        if not self.is_shutting_down and (self.election_deadline_ms is None or at_ms < self.election_deadline_ms):
            self.election_deadline_ms = at_ms

    def restart_election_timer(self, at_ms: int) -> None:
        self.election_deadline_ms = None
        self.schedule_election(at_ms)

    def can_be_candidate(self) -> bool:
        history = self.log.voters
        # A node can be elected until its removal from the voters is committed, because it may be the only node with all
        # committed records. Its own vote does not count.
        if history.last_entry.offset >= self.log.high_watermark and find_voter(history.previous, self.key):
            return True
        return self.is_voter

    def needs_pre_vote(self) -> bool:
        # Without pre-votes, a node that reconnects could depose a leader that has contact with a majority.
        return bool(self.other_voters())

    def can_grant_vote(self, request: VoteRequest, now_ms: int) -> bool:
        if request.epoch < self.epoch:
            return False
        if request.is_pre_vote:
            return not self.has_live_leader(now_ms) and self.is_up_to_date(request.log_end)
        if self.election.leader_id != NO_LEADER:
            return False
        if self.election.voted_for != NO_VOTE:
            return self.election.has_voted_for(request.candidate)
        return self.is_up_to_date(request.log_end)

    def is_up_to_date(self, log_end: EpochEndOffset) -> bool:
        """Returns whether a candidate with this log end has every record that this node may have helped to commit."""
        return log_end >= self.log.log_end

    # Transitions

    def persist_election(self, step: StepContext, election: ElectionState) -> None:
        if election == self.election:
            return
        if election.epoch != self.epoch:
            self.leader_sent_ms = NEVER
        self.election = election
        step.persist(election)

    def advance_epoch(self, step: StepContext, epoch: int, leader_id: int) -> None:
        """Becomes unattached in a newer epoch that another node started. Its leader may be unknown (NO_LEADER)."""
        assert epoch > self.epoch
        self.persist_election(step, ElectionState(epoch, leader_id))
        self._record_end_of_leadership(step)
        self.has_leader_resigned = False
        if leader_id != NO_LEADER or isinstance(self.epoch_state, LeaderState | FollowerState | ResignedState):
            # Restart the election timer only if a leader is known, or was known in the previous epoch. Otherwise a
            # candidate that cannot win could postpone the elections of all other nodes again and again.
            self.election_deadline_ms = None
        self.epoch_state = UnattachedState()
        self.schedule_election(self.election_timeout_deadline(step))

    def transition_to_follower(self, step: StepContext, leader_id: int) -> bool:
        """Becomes a follower of `leader_id`, which this node or another node knows as the leader of this epoch."""
        if isinstance(self.epoch_state, LeaderState | ResignedState | FollowerState):
            return False
        if leader_id == self.node_id or self.has_leader_resigned:
            return False
        if self.election.leader_id not in (NO_LEADER, leader_id):
            # An epoch has only one leader, and this node already knows it, so `leader_id` must be wrong.
            return False
        self.persist_election(step, replace(self.election, leader_id=leader_id))
        self.lost_elections = 0
        if not isinstance(self.epoch_state, UnattachedState):
            self.election_deadline_ms = None
        self.epoch_state = FollowerState()
        # Use the election timeout, because the fetch timeout applies only after contact with the leader itself.
        self.schedule_election(self.election_timeout_deadline(step))
        return True

    def record_leader_contact(self, step: StepContext, leader_id: int) -> bool:
        """Restarts the fetch timeout. Returns False if this node does not follow `leader_id`."""
        if not isinstance(self.epoch_state, FollowerState) or self.leader_id != leader_id:
            return False
        self.epoch_state.leader_contact_ms = self.last_leader_activity_ms = step.now_ms
        # A random part of the timeout prevents voters from starting elections at the same time and splitting the votes.
        spread_ms = self.config.election_timeout_ms / 2 * step.random_fraction
        self.restart_election_timer(step.deadline_in(self.config.fetch_timeout_ms + spread_ms))
        return True

    def transition_to_prospective(self, step: StepContext) -> None:
        self.epoch_state = ProspectiveState(EpochElection(step.now_ms, {self.node_id: None}))
        self.restart_election_timer(self.election_timeout_deadline(step))

    def transition_to_candidate(self, step: StepContext) -> None:
        self.persist_election(step, ElectionState(self.epoch + 1, NO_LEADER, self.node_id, self.key.directory_id))
        self.has_leader_resigned = False
        self.elections_started += 1
        votes = EpochElection(step.now_ms, {self.node_id: None})
        self.epoch_state = CandidateState(votes, self.leader_silence_ms(step.now_ms))
        self.restart_election_timer(self.election_timeout_deadline(step))

    def transition_to_leader(self, step: StepContext, candidate: CandidateState) -> LeaderState:
        self.election_deadline_ms = None
        self.lost_elections = 0
        self.persist_election(step, replace(self.election, leader_id=self.node_id))
        self.epoch_state = leader = LeaderState(
            self.key,
            self.epoch,
            self.log,
            self.config,
            self.endpoints,
            elected_since_ms=candidate.election.start_ms,
            epoch_start_offset=self.log.end_offset,
            next_announcement_ms=step.now_ms,
            leader_silence_ms=candidate.leader_silence_ms,
        )
        return leader

    def transition_to_resigned(self, step: StepContext, preferred_candidates: tuple[ReplicaKey, ...]) -> None:
        """Gives up leadership and sends EndQuorumEpoch to the candidates for the next election."""
        self._record_end_of_leadership(step)
        self.epoch_state = ResignedState()
        self.schedule_election(self.election_timeout_deadline(step))
        request = EndQuorumEpochRequest(self.node_id, self.epoch, preferred_candidates)
        for candidate in preferred_candidates:
            step.send(candidate.node_id, request)

    def _record_end_of_leadership(self, step: StepContext) -> None:
        if self.leader_state is not None:
            self.last_leader_activity_ms = step.now_ms
