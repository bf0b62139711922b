"""The metadata quorum's state machine: who leads, in which epoch, and how far the log is committed. Pure.

Raft, in the form in which followers fetch. Events come in through `step`, effects go out, and the driver performs
them in their order. A quorum of one runs through the same steps as any other: it votes for itself, wins, and
commits what its majority of one has on disk.
"""

from dataclasses import dataclass

from moldau.errors import InvalidRequestError, InvalidVoterKeyError
from moldau.raft.events import (
    Answer,
    Answered,
    Appended,
    AppendFailed,
    Asked,
    Durable,
    Effect,
    Election,
    Event,
    LeaderIs,
    Leaving,
    Received,
    Role,
    Send,
    SnapshotFailed,
    SnapshotMade,
    SnapshotTaken,
    Started,
    Tick,
    Told,
    Truncated,
    Unanswered,
    VotersAre,
)
from moldau.raft.leading import Leading
from moldau.raft.messages import (
    NO_LEADER,
    NO_VOTE,
    BeginEpochRequest,
    EndEpochRequest,
    EpochReply,
    LogEnd,
    QuorumFetch,
    QuorumFetched,
    ReplicaKey,
    SnapshotFetch,
    SnapshotFetched,
    VoteReply,
    VoteRequest,
)
from moldau.raft.voters import find, is_same, majority_of

EPOCHS_AHEAD_MAX = 2**20
EPOCH_MAX = 2**31 - 1 - EPOCHS_AHEAD_MAX


@dataclass(slots=True)
class QuorumState(Leading):
    @property
    def deadline_ms(self) -> int | None:
        """When it wants a Tick."""
        if self.leadership is not None:
            if not self._others():
                return None
            begin_ms = self.leadership.begin_ms
            confirmed_ms = self.leadership.confirmed_ms(self.voters, begin_ms)
            return min(begin_ms, confirmed_ms + self.settings.check_quorum_ms)
        deadlines = [at_ms for at_ms in (self.election_ms, self.fetch_ms) if at_ms is not None]
        return min(deadlines, default=None)

    def step(self, now_ms: int, event: Event, chance: float = 0.5) -> list[Effect]:
        """Takes one event. `chance`, from 0 up to 1, is drawn anew for every step."""
        leader, led, voters = (self.leader_id, self.epoch), self.is_leader, self.voters
        self._now_ms, self._chance, self._effects = now_ms, chance, []
        self._take(event)
        if (self.leader_id, self.epoch) != leader:
            # A deposed controller hears of it first: it must not go on deciding while a full disk is waited for.
            deposed = led and not self.is_leader and self.epoch != leader[1]
            place = 0 if deposed else len(self._effects)
            self._effects.insert(place, LeaderIs(self.leader_id, self.epoch))
        if self.voters != voters:
            self._effects.append(VotersAre(self.voters))
        self._check()
        return self._effects

    def _take(self, event: Event) -> None:
        match event:
            case Started():
                self._start(event)
            case Tick():
                self._tick()
            case Received():
                self._received(event.request)
            case Answered():
                self._answered(event.by, event.request, event.reply)
            case Unanswered():
                self._unanswered(event)
            case Appended():
                self.log.append(event.spans)
            case AppendFailed():
                self._append_failed()
            case Durable():
                self._made_durable(event.end_offset)
            case Truncated():
                self.log.truncate(event.end_offset)
                self._fetch()
            case SnapshotMade():
                self.log.advance_start(event.start_offset, event.snapshot)
            case SnapshotTaken():
                self.fetching_snapshot = None
                self.log.restart(event.snapshot, event.voters)
                self._commit(event.snapshot.end_offset)
                self._fetch()
            case SnapshotFailed():
                self.fetching_snapshot = None
                self._fetch_later(self.settings.fetch_timeout_ms / 3)
            case Leaving():
                self.is_leaving = True
                self._resign()
                self.election_ms = None

    def _check(self) -> None:
        assert self.log.start_offset <= self.high_watermark <= self.log.end_offset
        assert self.log.durable_offset <= self.log.end_offset
        assert (self.role is Role.LEADER) == (self.leadership is not None)
        assert self.role is not Role.LEADER or self.election.leader_id == self.node_id
        assert self.role is not Role.FOLLOWER or self.election.leader_id not in (NO_LEADER, self.node_id)

    def _start(self, event: Started) -> None:
        self.log = event.log
        self.high_watermark = event.committed_offset
        if self.is_voter and len(self.voters) == 1:
            self._stand()
        elif self.election.leader_id == self.node_id:
            # What it had not committed may be lost to it or to others: it must not go on where it was.
            self.role = Role.RESIGNED
            self._stand_at(self._election_timeout())
            self._say_goodbye([voter.key for voter in self._others()])
        elif self.election.leader_id != NO_LEADER:
            self._follow(self.election.leader_id)
        else:
            # Soon: a node that asks first disturbs nobody, and who knows of a leader says so.
            self._stand_at(self._after(self.settings.election_timeout_ms * self._chance))
            self._fetch()

    def _tick(self) -> None:
        if self.leadership is not None:
            self._tick_as_leader(self.leadership)
            return
        if self.election_ms is not None and self._now_ms >= self.election_ms:
            self.election_ms = None
            self._begin_election()
        if self.fetch_ms is not None and self._now_ms >= self.fetch_ms:
            self.fetch_ms = None
            self._fetch()

    def _made_durable(self, end_offset: int) -> None:
        assert end_offset <= self.log.end_offset, "more durable than appended cannot be"
        self.log.durable_offset = max(self.log.durable_offset, end_offset)
        if self.leadership is not None:
            self._count_durable()
        else:
            self._progressed_as_follower()

    def _append_failed(self) -> None:
        if self.leadership is None:
            # As often as where there is no news: the leader hears of this node, and sends what is in vain no oftener.
            self._fetch_later(self.settings.fetch_timeout_ms / 3)
        elif self._others() or self.log.end_offset == self.leadership.epoch_start_offset:
            # A leader that cannot append, or not even begin its epoch, is in the way of one that can.
            self._resign()

    # Elections

    def _begin_election(self) -> None:
        if not self._may_stand():
            self._detach()
            self._fetch()
        elif self._asks_first():
            has_failed = self.role in (Role.PROSPECTIVE, Role.CANDIDATE)
            self.role = Role.PROSPECTIVE
            self._begin_round(is_pre_vote=True)
            if has_failed and self.role is Role.PROSPECTIVE:
                # Those it takes for the voters may be gone, and others may have a leader.
                self._ask_around()
        else:
            self._stand()

    def _may_stand(self) -> bool:
        """A node whose removal may not be agreed on yet may be the only one with all that is: it stands, but its own
        vote does not count."""
        if self.log.voters.newest.offset >= self.high_watermark and find(self.log.voters.before, self.key):
            return True
        return self.is_voter

    def _asks_first(self) -> bool:
        """Whether a node asks for votes before it begins an epoch (pre-vote): then one that merely was away deposes
        no leader that a majority still hears of."""
        return bool(self._others())

    def _stand(self) -> None:
        self.role = Role.CANDIDATE
        self._set_election(Election(self.epoch + 1, NO_LEADER, self.node_id, self.key.directory_id))
        self.leader_has_left = False
        self.silent_ms = self._silence_ms()
        self._begin_round(is_pre_vote=False)

    def _begin_round(self, *, is_pre_vote: bool) -> None:
        self._stop_fetching()
        self.heard_ms = None
        self.granted, self.refused = {self.node_id: None}, {}
        self.round_ms = self._now_ms
        self.election_ms = None
        self._stand_at(self._election_timeout())
        for voter in self._others():
            request = VoteRequest(self.key, self.epoch, self.log.last, is_pre_vote, voter.key)
            self._effects.append(Send(voter.node_id, request))
        self._count_votes()

    def _count_votes(self) -> None:
        needed = majority_of(len(self.voters))
        if sum(voter.node_id in self.granted for voter in self.voters) >= needed:
            if self.role is Role.PROSPECTIVE:
                self._stand()
            else:
                self._lead()
        elif sum(voter.node_id not in self.refused for voter in self.voters) < needed:
            timeout_ms = self.settings.election_timeout_ms
            self._stand_at(self._after(timeout_ms / 10 + timeout_ms * self._chance))

    def _is_of_this_round(self, request: VoteRequest) -> bool:
        role = Role.PROSPECTIVE if request.is_pre_vote else Role.CANDIDATE
        return self.role is role and request.epoch == self.epoch

    def _vote_answered(self, by: int, request: VoteRequest, reply: VoteReply) -> None:
        if not self._is_of_this_round(request):
            return
        if reply.is_granted:
            self.granted[by] = None
            self.refused.pop(by, None)
            if not request.is_pre_vote:
                self.silent_ms = min(self.silent_ms, reply.silent_ms)
            self._count_votes()
            return
        if reply.epoch == self.epoch and reply.leader_id != NO_LEADER:
            self._follow(reply.leader_id)
        if self._is_of_this_round(request) and by not in self.granted:
            self.refused[by] = None
            self._count_votes()

    def _vote_received(self, request: VoteRequest) -> None:
        if request.epoch > self.epoch:
            self._adopt(request.epoch, NO_LEADER)
        is_granted = self._grants_pre_vote(request) if request.is_pre_vote else self._grants_vote(request)
        silent_ms = 0
        if is_granted and not request.is_pre_vote:
            silent_ms = self._silence_ms()
            # The candidate may take itself for the leader from now on.
            self.last_heard_ms = self._now_ms
        if is_granted and not request.is_pre_vote and self.election.voted_for == NO_VOTE:
            self._set_election(
                Election(self.epoch, NO_LEADER, request.candidate.node_id, request.candidate.directory_id)
            )
            self._detach()
            self.election_ms = None
            self._stand_at(self._election_timeout())
            self._fetch_later()
        self._effects.append(Answer(VoteReply(self.epoch, self.leader_id, is_granted, silent_ms)))

    def _grants_pre_vote(self, request: VoteRequest) -> bool:
        if request.epoch < self.epoch or self.hears_leader(self._now_ms):
            return False
        return self._is_up_to_date(request.last)

    def _grants_vote(self, request: VoteRequest) -> bool:
        if request.epoch < self.epoch or self.election.leader_id != NO_LEADER:
            return False
        if self.election.voted_for != NO_VOTE:
            return is_same(
                ReplicaKey(self.election.voted_for, self.election.voted_directory), request.candidate
            )
        return self._is_up_to_date(request.last)

    def _is_up_to_date(self, last: LogEnd) -> bool:
        """Whether a candidate with this log has all that this node may have helped to commit."""
        return last >= self.log.last

    # What comes from other nodes

    def _received(self, request: Asked) -> None:
        match request:
            case VoteRequest() | BeginEpochRequest() if not is_same(request.voter, self.key):
                error = InvalidVoterKeyError(
                    f"this is node {self.node_id} with directory {self.key.directory_id}, "
                    f"not node {request.voter.node_id} with directory {request.voter.directory_id}"
                )
                self._effects.append(Answer(error))
            case VoteRequest() | BeginEpochRequest() | EndEpochRequest() if self.is_absurd(request.epoch):
                self._effects.append(
                    Answer(
                        InvalidRequestError(f"epoch {request.epoch} cannot be: this is epoch {self.epoch}")
                    )
                )
            case VoteRequest():
                self._vote_received(request)
            case BeginEpochRequest():
                self._epoch_begins(request)
            case EndEpochRequest():
                self._epoch_ends(request)
            case QuorumFetch():
                self._fetch_received(request)
            case SnapshotFetch():
                self._snapshot_fetch_received(request)

    def is_absurd(self, epoch: int) -> bool:
        """Epochs are counted one by one, and one request must not use them up. A node that was away for very long
        learns the epoch by its own fetches."""
        return epoch > min(self.epoch + EPOCHS_AHEAD_MAX, EPOCH_MAX)

    def _epoch_begins(self, request: BeginEpochRequest) -> None:
        if request.epoch > self.epoch:
            self._adopt(request.epoch, request.leader_id)
        if request.epoch == self.epoch:
            self._hear(request.leader_id)
        self._effects.append(Answer(EpochReply(self.epoch, self.leader_id)))

    def _epoch_ends(self, request: EndEpochRequest) -> None:
        if request.epoch > self.epoch:
            self._adopt(request.epoch, request.leader_id)
        is_ours = self.election.leader_id in (NO_LEADER, request.leader_id)
        if request.epoch == self.epoch and is_ours and not self.is_leader and self.role is not Role.RESIGNED:
            # The first stands as soon as the others have heard it too, each of the rest if those before it did not.
            timeout_ms = self.settings.election_timeout_ms
            stand_at_ms = self._election_timeout()
            for place, successor in enumerate(request.successors):
                if is_same(successor, self.key):
                    stand_at_ms = self._after(timeout_ms / 20 + timeout_ms / 2 * place)
            self._leader_left(stand_at_ms)
        self._effects.append(Answer(EpochReply(self.epoch, self.leader_id)))

    def _answered(self, by: int, request: Asked, reply: Told) -> None:
        if reply.epoch > self.epoch:
            self._adopt(reply.epoch, reply.leader_id)
        match request, reply:
            case VoteRequest(), VoteReply():
                self._vote_answered(by, request, reply)
            case QuorumFetch(), QuorumFetched():
                self._fetch_answered(by, request, reply)
            case SnapshotFetch(), SnapshotFetched() if reply.is_leader and reply.epoch == self.epoch:
                self._hear(reply.leader_id)
                if self.role is Role.FOLLOWER and self.leader_id == reply.leader_id:
                    self.leader_sent_ms = max(self.leader_sent_ms, reply.sent_ms)

    def _unanswered(self, event: Unanswered) -> None:
        match event.request:
            case VoteRequest() as request:
                if self._is_of_this_round(request) and event.by not in self.granted:
                    self.refused[event.by] = None
                    self._count_votes()
            case QuorumFetch() as request if self.fetching == (event.by, request):
                self._fetch_unanswered(event.by, is_gone=event.is_gone)
