"""The metadata quorum's state machine: who leads, in which epoch, and how far the log is committed. Pure.

Raft, in the form in which followers fetch. Events come in through `step`, effects go out, and the driver performs
them in their order. A quorum of one runs through the same steps as any other: it votes for itself, wins, and
commits what its majority of one has on disk.
"""

from dataclasses import dataclass

from moldau.errors import InvalidRequestError, InvalidVoterKeyError
from moldau.raft.events import (
    AppendFailed,
    BatchesAppended,
    Effect,
    ElectionState,
    Event,
    LeaderChanged,
    LogFlushed,
    LogTruncated,
    NodeStarted,
    RaftRequest,
    RaftResponse,
    RequestFailed,
    RequestReceived,
    ResignRequested,
    ResponseReceived,
    Role,
    SendRequest,
    SendResponse,
    SnapshotCreated,
    SnapshotFetchFailed,
    SnapshotInstalled,
    TimerExpired,
    VotersChanged,
)
from moldau.raft.leading import Leading
from moldau.raft.messages import (
    NO_LEADER,
    NO_VOTE,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochEndOffset,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumEpochResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.voter_set import find_voter, is_same_replica, majority_size

EPOCHS_AHEAD_MAX = 2**20
EPOCH_MAX = 2**31 - 1 - EPOCHS_AHEAD_MAX


@dataclass(slots=True)
class QuorumState(Leading):
    @property
    def deadline_ms(self) -> int | None:
        """When it wants a Tick."""
        if self.leader_state is not None:
            if not self._other_voters():
                return None
            next_announcement_ms = self.leader_state.next_announcement_ms
            majority_confirmed_ms = self.leader_state.majority_confirmed_ms(self.voters, next_announcement_ms)
            return min(next_announcement_ms, majority_confirmed_ms + self.settings.check_quorum_ms)
        deadlines = [at_ms for at_ms in (self.election_deadline_ms, self.next_fetch_ms) if at_ms is not None]
        return min(deadlines, default=None)

    def step(self, now_ms: int, event: Event, chance: float = 0.5) -> list[Effect]:
        """Takes one event. `chance`, from 0 up to 1, is drawn anew for every step."""
        leader, led, voters = (self.leader_id, self.epoch), self.is_leader, self.voters
        self._now_ms, self._chance, self._effects = now_ms, chance, []
        self._handle_event(event)
        if (self.leader_id, self.epoch) != leader:
            # A deposed controller hears of it first: it must not go on deciding while a full disk is waited for.
            deposed = led and not self.is_leader and self.epoch != leader[1]
            place = 0 if deposed else len(self._effects)
            self._effects.insert(place, LeaderChanged(self.leader_id, self.epoch))
        if self.voters != voters:
            self._effects.append(VotersChanged(self.voters))
        self._check()
        return self._effects

    def _handle_event(self, event: Event) -> None:
        match event:
            case NodeStarted():
                self._start(event)
            case TimerExpired():
                self._on_timer()
            case RequestReceived():
                self._handle_request(event.request)
            case ResponseReceived():
                self._handle_response(event.by, event.request, event.reply)
            case RequestFailed():
                self._handle_request_failure(event)
            case BatchesAppended():
                self.log.append(event.batches)
            case AppendFailed():
                self._on_append_error()
            case LogFlushed():
                self._on_log_flushed(event.end_offset)
            case LogTruncated():
                self.log.truncate(event.end_offset)
                self._fetch()
            case SnapshotCreated():
                self.log.advance_start_offset(event.start_offset, event.snapshot)
            case SnapshotInstalled():
                self.fetching_snapshot = None
                self.log.reset_to_snapshot(event.snapshot, event.voters)
                self._commit(event.snapshot.end_offset)
                self._fetch()
            case SnapshotFetchFailed():
                self.fetching_snapshot = None
                self._schedule_fetch(self.settings.fetch_timeout_ms / 3)
            case ResignRequested():
                self.is_shutting_down = True
                self._resign()
                self.election_deadline_ms = None

    def _check(self) -> None:
        assert self.log.start_offset <= self.high_watermark <= self.log.end_offset
        assert self.log.durable_offset <= self.log.end_offset
        assert (self.role is Role.LEADER) == (self.leader_state is not None)
        assert self.role is not Role.LEADER or self.election.leader_id == self.node_id
        assert self.role is not Role.FOLLOWER or self.election.leader_id not in (NO_LEADER, self.node_id)

    def _start(self, event: NodeStarted) -> None:
        self.log = event.log
        self.high_watermark = event.committed_offset
        if self.is_voter and len(self.voters) == 1:
            self._transition_to_candidate()
        elif self.election.leader_id == self.node_id:
            # What it had not committed may be lost to it or to others: it must not go on where it was.
            self.role = Role.RESIGNED
            self._schedule_election(self._random_election_deadline())
            self._send_end_quorum_epoch([voter.key for voter in self._other_voters()])
        elif self.election.leader_id != NO_LEADER:
            self._transition_to_follower(self.election.leader_id)
        else:
            # Soon: a node that asks first disturbs nobody, and who knows of a leader says so.
            self._schedule_election(self._deadline_in(self.settings.election_timeout_ms * self._chance))
            self._fetch()

    def _on_timer(self) -> None:
        if self.leader_state is not None:
            self._on_leader_timer(self.leader_state)
            return
        if self.election_deadline_ms is not None and self._now_ms >= self.election_deadline_ms:
            self.election_deadline_ms = None
            self._start_election()
        if self.next_fetch_ms is not None and self._now_ms >= self.next_fetch_ms:
            self.next_fetch_ms = None
            self._fetch()

    def _on_log_flushed(self, end_offset: int) -> None:
        assert end_offset <= self.log.end_offset, "more durable than appended cannot be"
        self.log.durable_offset = max(self.log.durable_offset, end_offset)
        if self.leader_state is not None:
            self._maybe_advance_high_watermark()
        else:
            self._advance_follower_high_watermark()

    def _on_append_error(self) -> None:
        if self.leader_state is None:
            # As often as where there is no news: the leader hears of this node, and sends what is in vain no oftener.
            self._schedule_fetch(self.settings.fetch_timeout_ms / 3)
        elif self._other_voters() or self.log.end_offset == self.leader_state.epoch_start_offset:
            # A leader that cannot append, or not even begin its epoch, is in the way of one that can.
            self._resign()

    # Elections

    def _start_election(self) -> None:
        if not self._can_be_candidate():
            self._transition_to_unattached()
            self._fetch()
        elif self._needs_pre_vote():
            has_failed = self.role in (Role.PROSPECTIVE, Role.CANDIDATE)
            self.role = Role.PROSPECTIVE
            self._request_votes(is_pre_vote=True)
            if has_failed and self.role is Role.PROSPECTIVE:
                # Those it takes for the voters may be gone, and others may have a leader.
                self._look_up_leader()
        else:
            self._transition_to_candidate()

    def _can_be_candidate(self) -> bool:
        """A node whose removal may not be agreed on yet may be the only one with all that is: it stands, but its own
        vote does not count."""
        if self.log.voters.last_entry.offset >= self.high_watermark and find_voter(
            self.log.voters.previous, self.key
        ):
            return True
        return self.is_voter

    def _needs_pre_vote(self) -> bool:
        """Whether a node asks for votes before it begins an epoch (pre-vote): then one that merely was away deposes
        no leader that a majority still hears of."""
        return bool(self._other_voters())

    def _transition_to_candidate(self) -> None:
        self.role = Role.CANDIDATE
        self._persist_election(ElectionState(self.epoch + 1, NO_LEADER, self.node_id, self.key.directory_id))
        self.has_leader_resigned = False
        self.leader_silence_ms = self._leader_silence_ms()
        self._request_votes(is_pre_vote=False)

    def _request_votes(self, *, is_pre_vote: bool) -> None:
        self._cancel_fetch()
        self.heard_ms = None
        self.granting_voters, self.rejecting_voters = {self.node_id: None}, {}
        self.election_start_ms = self._now_ms
        self.election_deadline_ms = None
        self._schedule_election(self._random_election_deadline())
        for voter in self._other_voters():
            request = VoteRequest(self.key, self.epoch, self.log.log_end, is_pre_vote, voter.key)
            self._effects.append(SendRequest(voter.node_id, request))
        self._tally_votes()

    def _tally_votes(self) -> None:
        needed = majority_size(len(self.voters))
        if sum(voter.node_id in self.granting_voters for voter in self.voters) >= needed:
            if self.role is Role.PROSPECTIVE:
                self._transition_to_candidate()
            else:
                self._transition_to_leader()
        elif sum(voter.node_id not in self.rejecting_voters for voter in self.voters) < needed:
            timeout_ms = self.settings.election_timeout_ms
            self._schedule_election(self._deadline_in(timeout_ms / 10 + timeout_ms * self._chance))

    def _is_current_election(self, request: VoteRequest) -> bool:
        role = Role.PROSPECTIVE if request.is_pre_vote else Role.CANDIDATE
        return self.role is role and request.epoch == self.epoch

    def _on_vote_response(self, by: int, request: VoteRequest, reply: VoteResponse) -> None:
        if not self._is_current_election(request):
            return
        if reply.is_granted:
            self.granting_voters[by] = None
            self.rejecting_voters.pop(by, None)
            if not request.is_pre_vote:
                self.leader_silence_ms = min(self.leader_silence_ms, reply.leader_silence_ms)
            self._tally_votes()
            return
        if reply.epoch == self.epoch and reply.leader_id != NO_LEADER:
            self._transition_to_follower(reply.leader_id)
        if self._is_current_election(request) and by not in self.granting_voters:
            self.rejecting_voters[by] = None
            self._tally_votes()

    def _handle_vote(self, request: VoteRequest) -> None:
        if request.epoch > self.epoch:
            self._advance_epoch(request.epoch, NO_LEADER)
        is_granted = (
            self._can_grant_pre_vote(request) if request.is_pre_vote else self._can_grant_vote(request)
        )
        leader_silence_ms = 0
        if is_granted and not request.is_pre_vote:
            leader_silence_ms = self._leader_silence_ms()
            # The candidate may take itself for the leader from now on.
            self.last_leader_activity_ms = self._now_ms
        if is_granted and not request.is_pre_vote and self.election.voted_for == NO_VOTE:
            self._persist_election(
                ElectionState(
                    self.epoch, NO_LEADER, request.candidate.node_id, request.candidate.directory_id
                )
            )
            self._transition_to_unattached()
            self.election_deadline_ms = None
            self._schedule_election(self._random_election_deadline())
            self._schedule_fetch()
        self._effects.append(
            SendResponse(VoteResponse(self.epoch, self.leader_id, is_granted, leader_silence_ms))
        )

    def _can_grant_pre_vote(self, request: VoteRequest) -> bool:
        if request.epoch < self.epoch or self.has_live_leader(self._now_ms):
            return False
        return self._is_up_to_date(request.log_end)

    def _can_grant_vote(self, request: VoteRequest) -> bool:
        if request.epoch < self.epoch or self.election.leader_id != NO_LEADER:
            return False
        if self.election.voted_for != NO_VOTE:
            return is_same_replica(
                ReplicaKey(self.election.voted_for, self.election.voted_directory_id), request.candidate
            )
        return self._is_up_to_date(request.log_end)

    def _is_up_to_date(self, log_end: EpochEndOffset) -> bool:
        """Whether a candidate with this log has all that this node may have helped to commit."""
        return log_end >= self.log.log_end

    # What comes from other nodes

    def _handle_request(self, request: RaftRequest) -> None:
        match request:
            case VoteRequest() | BeginQuorumEpochRequest() if not is_same_replica(request.voter, self.key):
                error = InvalidVoterKeyError(
                    f"this is node {self.node_id} with directory {self.key.directory_id}, "
                    f"not node {request.voter.node_id} with directory {request.voter.directory_id}"
                )
                self._effects.append(SendResponse(error))
            case VoteRequest() | BeginQuorumEpochRequest() | EndQuorumEpochRequest() if (
                self.is_epoch_out_of_range(request.epoch)
            ):
                self._effects.append(
                    SendResponse(
                        InvalidRequestError(f"epoch {request.epoch} cannot be: this is epoch {self.epoch}")
                    )
                )
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

    def is_epoch_out_of_range(self, epoch: int) -> bool:
        """Epochs are counted one by one, and one request must not use them up. A node that was away for very long
        learns the epoch by its own fetches."""
        return epoch > min(self.epoch + EPOCHS_AHEAD_MAX, EPOCH_MAX)

    def _handle_begin_quorum_epoch(self, request: BeginQuorumEpochRequest) -> None:
        if request.epoch > self.epoch:
            self._advance_epoch(request.epoch, request.leader_id)
        if request.epoch == self.epoch:
            self._on_leader_contact(request.leader_id)
        self._effects.append(SendResponse(QuorumEpochResponse(self.epoch, self.leader_id)))

    def _handle_end_quorum_epoch(self, request: EndQuorumEpochRequest) -> None:
        if request.epoch > self.epoch:
            self._advance_epoch(request.epoch, request.leader_id)
        is_ours = self.election.leader_id in (NO_LEADER, request.leader_id)
        if request.epoch == self.epoch and is_ours and not self.is_leader and self.role is not Role.RESIGNED:
            # The first stands as soon as the others have heard it too, each of the rest if those before it did not.
            timeout_ms = self.settings.election_timeout_ms
            stand_at_ms = self._random_election_deadline()
            for place, successor in enumerate(request.preferred_candidates):
                if is_same_replica(successor, self.key):
                    stand_at_ms = self._deadline_in(timeout_ms / 20 + timeout_ms / 2 * place)
            self._on_leader_resigned(stand_at_ms)
        self._effects.append(SendResponse(QuorumEpochResponse(self.epoch, self.leader_id)))

    def _handle_response(self, by: int, request: RaftRequest, reply: RaftResponse) -> None:
        if reply.epoch > self.epoch:
            self._advance_epoch(reply.epoch, reply.leader_id)
        match request, reply:
            case VoteRequest(), VoteResponse():
                self._on_vote_response(by, request, reply)
            case QuorumFetchRequest(), QuorumFetchResponse():
                self._on_fetch_response(by, request, reply)
            case FetchSnapshotRequest(), FetchSnapshotResponse() if (
                reply.is_leader and reply.epoch == self.epoch
            ):
                self._on_leader_contact(reply.leader_id)
                if self.role is Role.FOLLOWER and self.leader_id == reply.leader_id:
                    self.leader_sent_ms = max(self.leader_sent_ms, reply.sent_ms)

    def _handle_request_failure(self, event: RequestFailed) -> None:
        match event.request:
            case VoteRequest() as request:
                if self._is_current_election(request) and event.by not in self.granting_voters:
                    self.rejecting_voters[event.by] = None
                    self._tally_votes()
            case QuorumFetchRequest() as request if self.pending_fetch == (event.by, request):
                self._on_fetch_failed(event.by, is_connection_refused=event.is_connection_refused)
