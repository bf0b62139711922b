"""The Raft state machine of the metadata quorum, which turns events into effects. Pure.

This is Kafka's variant of Raft (KRaft), in which followers fetch from the leader. The effect executor passes events to
`step` and executes the returned effects in order. A single voter takes the same steps: it votes for itself, becomes
leader, and commits records when they are durable on its own disk.
"""

from typing import assert_never

from moldau.errors import InvalidRequestError, InvalidVoterKeyError
from moldau.raft import events
from moldau.raft.effects import AppendLeaderChange, AppendVoters, Effect, LeaderChanged, ServeFetch, VotersChanged
from moldau.raft.epoch_roles import (
    CandidateState,
    ElectionState,
    EpochElection,
    FollowerState,
    ProspectiveState,
    ResignedState,
    UnattachedState,
)
from moldau.raft.leader_state import LeaderState
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
    RaftRequest,
    RaftResponse,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.quorum_fetcher import QuorumFetcher
from moldau.raft.quorum_state import QuorumState
from moldau.raft.raft_log_state import RaftLogState
from moldau.raft.step_context import StepContext
from moldau.raft.voter_set import is_same_replica


class RaftStateMachine:
    def __init__(self, quorum: QuorumState, bootstrap_ids: tuple[int, ...] = ()) -> None:
        self.quorum = quorum
        self.fetcher = QuorumFetcher(quorum, bootstrap_ids)
        self._step = StepContext(0, 0.0)

    @property
    def key(self) -> ReplicaKey:
        return self.quorum.key

    @property
    def log(self) -> RaftLogState:
        return self.quorum.log

    @property
    def epoch(self) -> int:
        return self.quorum.epoch

    @property
    def is_leader(self) -> bool:
        return isinstance(self.quorum.epoch_state, LeaderState)

    @property
    def leader_id(self) -> int:
        return self.quorum.leader_id

    @property
    def deadline_ms(self) -> int | None:
        """The time when the state machine needs a TimerExpired event; None if it needs no timer."""
        if self.quorum.leader_state is not None:
            return self.quorum.leader_state.deadline_ms
        deadlines = (self.quorum.election_deadline_ms, self.fetcher.next_fetch_ms)
        return min((deadline_ms for deadline_ms in deadlines if deadline_ms is not None), default=None)

    def step(self, now_ms: int, event: events.Event, random_fraction: float = 0.5) -> list[Effect]:
        """Handles one event and returns the effects. `random_fraction` is a new random number from 0 to 1."""
        leader, was_leader, voters = (self.leader_id, self.epoch), self.is_leader, self.quorum.voters
        self._step = step = StepContext(now_ms, random_fraction)
        self._handle_event(event)
        if (self.leader_id, self.epoch) != leader:
            # LeaderChanged stops a deposed controller. It comes first, because other effects may wait for disk space.
            is_deposed = was_leader and not self.is_leader and self.epoch != leader[1]
            index = 0 if is_deposed else len(step.effects)
            step.effects.insert(index, LeaderChanged(self.leader_id, self.epoch))
        if self.quorum.voters != voters:
            step.emit(VotersChanged(self.quorum.voters))
        self.quorum.check_invariants()
        return step.effects

    def _handle_event(self, event: events.Event) -> None:
        step, log, fetcher = self._step, self.log, self.fetcher
        match event:
            case events.NodeStarted():
                self._start(event)
            case events.TimerExpired():
                self._on_timer()
            case events.RequestReceived():
                self._handle_request(event.request)
            case events.ResponseReceived():
                self._handle_response(event.node_id, event.request, event.response)
            case events.RequestFailed():
                self._handle_request_failure(event)
            case events.BatchesAppended():
                log.append(event.batches)
            case events.AppendFailed():
                self._on_append_failed()
            case events.LogFlushed():
                self._on_log_flushed(event.end_offset)
            case events.LogTruncated():
                log.truncate(event.end_offset)
                fetcher.fetch(step)
            case events.SnapshotCreated():
                log.advance_start_offset(event.start_offset, event.snapshot)
            case events.SnapshotInstalled():
                fetcher.fetching_snapshot = None
                log.reset_to_snapshot(event.snapshot, event.voters)
                self.quorum.advance_high_watermark(step, event.snapshot.end_offset)
                fetcher.fetch(step)
            case events.SnapshotFetchFailed():
                fetcher.fetching_snapshot = None
                fetcher.schedule_after_failure(step)
            case events.ResignRequested():
                self.quorum.is_shutting_down = True
                self._resign()
                self.quorum.election_deadline_ms = None
            case _:
                assert_never(event)

    def _start(self, event: events.NodeStarted) -> None:
        quorum, step = self.quorum, self._step
        quorum.log = event.log
        quorum.log.high_watermark = event.committed_offset
        if quorum.election == ElectionState():
            # Create quorum-state on the first start, before any election, so that the file always exists.
            step.persist(quorum.election)
        if quorum.is_voter and len(self.quorum.voters) == 1:
            self._become_candidate()
        elif quorum.election.leader_id == quorum.node_id:
            # This node led the epoch before it restarted. It cannot continue, because uncommitted records may be lost.
            quorum.transition_to_resigned(step, tuple(voter.key for voter in quorum.other_voters()))
        elif quorum.election.leader_id != NO_LEADER:
            self._follow(quorum.election.leader_id)
        else:
            # Start an election soon. Its pre-votes do not disturb an existing leader. The responses name that leader.
            quorum.schedule_election(quorum.startup_election_deadline(step))
            self.fetcher.fetch(step)

    def _on_timer(self) -> None:
        quorum, fetcher, now_ms = self.quorum, self.fetcher, self._step.now_ms
        if self.quorum.leader_state is not None:
            self._on_leader_timer(self.quorum.leader_state)
            return
        if quorum.election_deadline_ms is not None and now_ms >= quorum.election_deadline_ms:
            quorum.election_deadline_ms = None
            self._start_election()
        if fetcher.next_fetch_ms is not None and now_ms >= fetcher.next_fetch_ms:
            fetcher.next_fetch_ms = None
            fetcher.fetch(self._step)

    def _on_log_flushed(self, end_offset: int) -> None:
        assert end_offset <= self.log.end_offset, "only appended records can be durable"
        self.log.durable_offset = max(self.log.durable_offset, end_offset)
        if self.quorum.leader_state is not None:
            self._advance_leader_high_watermark(self.quorum.leader_state)
        else:
            self.fetcher.on_progress(self._step)

    def _on_append_failed(self) -> None:
        leader = self.quorum.leader_state
        if leader is None:
            self.fetcher.schedule_after_failure(self._step)
        elif self.quorum.other_voters() or self.log.end_offset == leader.epoch_start_offset:
            # If there are other voters, one of them may be able to append. Otherwise resign only if the first record of
            # the epoch is missing, because a leader without this record can commit nothing.
            self._resign()

    # Elections

    def _start_election(self) -> None:
        quorum, step = self.quorum, self._step
        if not quorum.can_be_candidate():
            self._become_unattached()
            self.fetcher.fetch(step)
        elif quorum.needs_pre_vote():
            has_failed = isinstance(self.quorum.epoch_state, ProspectiveState | CandidateState)
            quorum.transition_to_prospective(step)
            self._request_votes(is_pre_vote=True)
            if has_failed and isinstance(self.quorum.epoch_state, ProspectiveState):
                # The voters in this node's log may be outdated, and the current voters may have a leader.
                self.fetcher.look_up_leader(step)
        else:
            self._become_candidate()

    def _become_candidate(self) -> None:
        self.quorum.transition_to_candidate(self._step)
        self._request_votes(is_pre_vote=False)

    def _request_votes(self, *, is_pre_vote: bool) -> None:
        self.fetcher.cancel()
        for voter in self.quorum.other_voters():
            request = VoteRequest(self.key, self.epoch, self.log.log_end, is_pre_vote, voter.key)
            self._step.send(voter.node_id, request)
        self._tally_votes()

    def _tally_votes(self) -> None:
        quorum, step = self.quorum, self._step
        state = quorum.epoch_state
        assert isinstance(state, ProspectiveState | CandidateState)
        if state.election.is_won(self.quorum.voters):
            if isinstance(state, ProspectiveState):
                self._become_candidate()
            else:
                self._become_leader(state)
        elif state.election.is_lost(self.quorum.voters):
            quorum.schedule_election(quorum.lost_election_deadline(step))

    def _election_of(self, request: VoteRequest) -> EpochElection | None:
        """Returns the current election if the vote request belongs to it."""
        state = self.quorum.epoch_state
        kind = ProspectiveState if request.is_pre_vote else CandidateState
        return state.election if isinstance(state, kind) and request.epoch == self.epoch else None

    def _on_vote_response(self, node_id: int, request: VoteRequest, response: VoteResponse) -> None:
        election = self._election_of(request)
        if election is None:
            return
        if response.is_granted:
            election.record_grant(node_id)
            candidate = self.quorum.epoch_state
            if isinstance(candidate, CandidateState):
                candidate.leader_silence_ms = min(candidate.leader_silence_ms, response.leader_silence_ms)
            self._tally_votes()
            return
        if response.epoch == self.epoch and response.leader_id != NO_LEADER:
            self._follow(response.leader_id)
        self._on_vote_rejected(node_id, request)

    def _on_vote_rejected(self, node_id: int, request: VoteRequest) -> None:
        election = self._election_of(request)
        if election is not None and election.record_rejection(node_id):
            self._tally_votes()

    def _handle_vote(self, request: VoteRequest) -> None:
        quorum, step, candidate = self.quorum, self._step, request.candidate
        self._advance_epoch(request.epoch, NO_LEADER)
        is_granted = quorum.can_grant_vote(request, step.now_ms)
        leader_silence_ms = 0
        if is_granted and not request.is_pre_vote:
            leader_silence_ms = quorum.leader_silence_ms(step.now_ms)
            # Record leader activity, because this vote may make the candidate the leader.
            quorum.last_leader_activity_ms = step.now_ms
            if quorum.election.voted_for == NO_VOTE:
                quorum.persist_election(
                    step, ElectionState(self.epoch, NO_LEADER, candidate.node_id, candidate.directory_id)
                )
                self._become_unattached()
                quorum.restart_election_timer(quorum.election_timeout_deadline(step))
                self.fetcher.schedule(step)
        step.respond(VoteResponse(self.epoch, self.leader_id, is_granted, leader_silence_ms))

    # Leader

    def _become_leader(self, candidate: CandidateState) -> None:
        leader = self.quorum.transition_to_leader(self._step, candidate)
        self._step.emit(
            AppendLeaderChange(
                leader.key.node_id,
                leader.epoch,
                leader.learned_voters(),
                tuple(sorted(candidate.election.granting)),
                includes_voters=not self.log.voters.has_voters_record,
            )
        )
        leader.announce_epoch(self._step)

    def _on_leader_timer(self, leader: LeaderState) -> None:
        if not leader.has_other_voters:
            return
        if leader.has_lost_quorum(self._step.now_ms):
            self._resign()
        elif self._step.now_ms >= leader.next_announcement_ms:
            leader.announce_epoch(self._step)

    def _resign(self) -> None:
        leader = self.quorum.leader_state
        if leader is None:
            return
        self.quorum.transition_to_resigned(self._step, leader.preferred_candidates())
        if not self.quorum.is_voter:
            self._on_leader_resigned(self.quorum.election_timeout_deadline(self._step))

    def _advance_leader_high_watermark(self, leader: LeaderState) -> None:
        quorum, step = self.quorum, self._step
        end_offset = leader.majority_end_offset()
        # A record of an earlier epoch can still be overwritten, even if a majority has it (Raft, 5.4.2). Such a record
        # is committed only together with a record of this epoch.
        if end_offset > leader.epoch_start_offset:
            quorum.advance_high_watermark(step, end_offset)
            if quorum.catch_up_offset is None:
                quorum.catch_up_offset = self.log.high_watermark
        if leader.has_committed_in_epoch and self.log.voters.last_entry.offset < self.log.high_watermark:
            if not quorum.is_voter:
                # The removal of this leader from the voters is committed.
                self._resign()
            elif (voters := leader.learned_voters()) != self.quorum.voters:
                step.emit(AppendVoters(voters))

    # Requests and responses

    def _handle_request(self, request: RaftRequest) -> None:
        match request:
            case VoteRequest() | BeginQuorumEpochRequest() if not is_same_replica(request.voter, self.key):
                self._step.respond(
                    InvalidVoterKeyError(
                        f"this is node {self.key.node_id} with directory {self.key.directory_id}, "
                        f"not node {request.voter.node_id} with directory {request.voter.directory_id}"
                    )
                )
            case VoteRequest() | BeginQuorumEpochRequest() | EndQuorumEpochRequest() if (
                self.quorum.is_epoch_out_of_range(request.epoch)
            ):
                self._step.respond(InvalidRequestError(f"epoch {request.epoch} is too far ahead of epoch {self.epoch}"))
            case VoteRequest():
                self._handle_vote(request)
            case BeginQuorumEpochRequest():
                self._handle_begin_quorum_epoch(request)
            case EndQuorumEpochRequest():
                self._handle_end_quorum_epoch(request)
            case QuorumFetchRequest():
                self._handle_fetch(request)
            case FetchSnapshotRequest():
                self._handle_fetch_snapshot(request)

    def _handle_begin_quorum_epoch(self, request: BeginQuorumEpochRequest) -> None:
        self._advance_epoch(request.epoch, request.leader_id)
        if request.epoch == self.epoch:
            self._on_leader_contact(request.leader_id)
        self._step.respond(QuorumEpochResponse(self.epoch, self.leader_id))

    def _handle_end_quorum_epoch(self, request: EndQuorumEpochRequest) -> None:
        quorum, step = self.quorum, self._step
        self._advance_epoch(request.epoch, request.leader_id)
        is_from_leader = quorum.election.leader_id in (NO_LEADER, request.leader_id)
        may_elect = not isinstance(self.quorum.epoch_state, LeaderState | ResignedState)
        if request.epoch == self.epoch and is_from_leader and may_elect:
            # The first candidate waits briefly, until all voters have the request. Each further candidate waits longer.
            timeout_ms = quorum.config.election_timeout_ms
            deadline_ms = quorum.election_timeout_deadline(step)
            for index, candidate in enumerate(request.preferred_candidates):
                if is_same_replica(candidate, self.key):
                    deadline_ms = step.deadline_in(timeout_ms / 20 + timeout_ms / 2 * index)
            self._on_leader_resigned(deadline_ms)
        step.respond(QuorumEpochResponse(self.epoch, self.leader_id))

    def _handle_fetch(self, request: QuorumFetchRequest) -> None:
        leader = self.quorum.leader_state
        if leader is None or request.epoch != self.epoch:
            self._step.respond(QuorumFetchResponse(self.epoch, self.leader_id, is_leader=False))
            return
        response = leader.handle_fetch(self._step, request)
        if response is not None:
            self._step.respond(response)
        else:
            self._advance_leader_high_watermark(leader)
            self._step.emit(ServeFetch(request))

    def _handle_fetch_snapshot(self, request: FetchSnapshotRequest) -> None:
        leader = self.quorum.leader_state
        if leader is None or request.epoch != self.epoch:
            self._step.respond(FetchSnapshotResponse(self.epoch, self.leader_id, is_leader=False))
            return
        leader.record_contact(request.replica, self._step.now_ms, request.leader_sent_ms)
        self._step.emit(ServeFetch(request))

    def _handle_response(self, node_id: int, request: RaftRequest, response: RaftResponse) -> None:
        self._advance_epoch(response.epoch, response.leader_id)
        match request, response:
            case VoteRequest(), VoteResponse():
                self._on_vote_response(node_id, request, response)
            case QuorumFetchRequest(), QuorumFetchResponse():
                self._on_fetch_response(node_id, request, response)
            case FetchSnapshotRequest(), FetchSnapshotResponse() if response.is_leader and response.epoch == self.epoch:
                self._on_leader_response(response)

    def _handle_request_failure(self, event: events.RequestFailed) -> None:
        quorum, step, node_id = self.quorum, self._step, event.node_id
        match event.request:
            case VoteRequest() as request:
                self._on_vote_rejected(node_id, request)
            case QuorumFetchRequest() as request if self.fetcher.pending == (node_id, request):
                self.fetcher.on_failed(step, node_id)
                is_leader = isinstance(self.quorum.epoch_state, FollowerState) and self.leader_id == node_id
                if event.is_connection_refused and is_leader:
                    # The refused connection shows that the leader's process has ended, so start an election soon.
                    delay_ms = quorum.config.election_timeout_ms / 5 * step.random_fraction
                    self._on_leader_resigned(step.deadline_in(delay_ms))

    def _on_fetch_response(self, node_id: int, request: QuorumFetchRequest, response: QuorumFetchResponse) -> None:
        fetcher, step = self.fetcher, self._step
        if fetcher.pending != (node_id, request):
            return
        fetcher.pending = None
        if response.epoch == self.epoch and response.is_leader:
            if self._on_leader_response(response, fetches=False):
                fetcher.apply_response(step, response)
                return
        elif response.epoch == self.epoch:
            if isinstance(self.quorum.epoch_state, FollowerState) and node_id == self.leader_id:
                self._on_leader_resigned(self.quorum.election_timeout_deadline(step))
            elif response.leader_id != NO_LEADER:
                self._follow(response.leader_id)
        if fetcher.pending is None:
            fetcher.schedule(step)

    # Epochs and leaders

    def _advance_epoch(self, epoch: int, leader_id: int) -> None:
        """Switches to the epoch, unless it is older than or equal to the current epoch."""
        if epoch <= self.epoch:
            return
        if leader_id == self.key.node_id:
            leader_id = NO_LEADER
        self.quorum.advance_epoch(self._step, epoch, leader_id)
        self.fetcher.cancel()
        if leader_id != NO_LEADER:
            self._follow(leader_id)
        else:
            self.fetcher.schedule(self._step)

    def _become_unattached(self) -> None:
        self.quorum.epoch_state = UnattachedState()
        self.fetcher.cancel()

    def _follow(self, leader_id: int, *, fetches: bool = True) -> None:
        if self.quorum.transition_to_follower(self._step, leader_id):
            self.fetcher.cancel()
            if fetches:
                self.fetcher.fetch(self._step)

    def _on_leader_contact(self, leader_id: int, *, fetches: bool = True) -> bool:
        """Handles a message that the leader of this epoch sent. Returns whether this node follows that leader.

        If the node becomes a follower now and `fetches` is True, it fetches at once.
        """
        self.quorum.has_leader_resigned = False
        self._follow(leader_id, fetches=fetches)
        return self.quorum.record_leader_contact(self._step, leader_id)

    def _on_leader_response(
        self, response: QuorumFetchResponse | FetchSnapshotResponse, *, fetches: bool = True
    ) -> bool:
        if not self._on_leader_contact(response.leader_id, fetches=fetches):
            return False
        self.quorum.leader_sent_ms = max(self.quorum.leader_sent_ms, response.sent_ms)
        return True

    def _on_leader_resigned(self, election_deadline_ms: int) -> None:
        """Becomes unattached and schedules an election after the leader resigned or its process ended."""
        self.quorum.has_leader_resigned = True
        self._become_unattached()
        self.quorum.schedule_election(election_deadline_ms)
        self.fetcher.schedule(self._step)
