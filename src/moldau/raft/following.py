"""The part of the quorum's state machine that every node has: its epoch, its leader, and fetching from it. Pure."""

from dataclasses import dataclass, field

from moldau.raft.events import (
    AppendRecords,
    Committed,
    Effect,
    Election,
    Fatal,
    FetchSnapshot,
    Persist,
    Role,
    Send,
    Truncate,
)
from moldau.raft.log_view import LogView
from moldau.raft.messages import (
    NO_LEADER,
    LogEnd,
    QuorumFetch,
    QuorumFetched,
    ReplicaKey,
    SnapshotId,
    Voter,
    VoterEndpoint,
)
from moldau.raft.ports import QuorumSettings
from moldau.raft.replicas import NEVER, Leadership
from moldau.raft.voters import VoterHistory, find

_ATTACHABLE = (Role.UNATTACHED, Role.FOLLOWER)


@dataclass(slots=True)
class Following:
    key: ReplicaKey
    election: Election
    """As it was last persisted, or as the newest Persist effect says. Its epoch never falls, and within an
    epoch a vote and a leader, once set, never change."""
    settings: QuorumSettings = field(default_factory=QuorumSettings)
    bootstrap: tuple[int, ...] = ()
    """Whom to ask for the leader beside the voters."""
    endpoints: tuple[VoterEndpoint, ...] = ()
    """Where this node itself can be reached; empty where it does not know."""

    log: LogView = field(default_factory=lambda: LogView(VoterHistory(())))
    role: Role = Role.UNATTACHED
    high_watermark: int = 0
    """Never falls, never beyond the log's end."""
    election_ms: int | None = None
    """When this node stands for election, or gives up the one that is under way."""
    is_leaving: bool = False

    heard_ms: int | None = None
    """Follower only: when the leader itself was last heard of."""
    last_heard_ms: int | None = None
    """When this node last heard of a leader, led itself, or gave its vote; None since its process began."""
    leader_sent_ms: int = NEVER
    """When the leader of this epoch sent the newest answer that this node has had, by the leader's clock."""
    silent_ms: int = 0
    """In an election: for how long those who vote for this node had heard of no leader, at least."""
    leader_has_left: bool = False
    """The leader of this epoch has resigned or its process is gone; others may not know yet."""
    fetching: tuple[int, QuorumFetch] | None = None
    """The one fetch that is under way, and whom it was sent to. Answers to any other come too late."""
    fetching_snapshot: SnapshotId | None = None
    fetch_ms: int | None = None
    """When the next fetch is sent, after one that led to nothing."""
    leader_high_watermark: int = 0
    """As the leader told it, with records that may not be durable here yet."""
    current_from: int | None = None
    """The first high watermark that a leader told since this node started: all agreed on before that is below it."""
    asked: int = 0
    """How many have been asked for the leader; says whose turn it is."""
    has_missed_leader: bool = False
    """The last fetch went to a leader known by hearsay only, and was not answered: it may be elsewhere by now."""

    granted: dict[int, None] = field(default_factory=dict)
    """In an election: who would vote, or has voted, for this node in this round."""
    refused: dict[int, None] = field(default_factory=dict)
    """In an election: who has not, or did not answer."""
    round_ms: int = 0
    """When the round of the election began."""
    leadership: Leadership | None = None
    """There as long as this node leads."""

    _now_ms: int = 0
    _chance: float = 0.0
    _effects: list[Effect] = field(default_factory=list)

    @property
    def node_id(self) -> int:
        return self.key.node_id

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def voters(self) -> tuple[Voter, ...]:
        return self.log.voters.current

    @property
    def is_voter(self) -> bool:
        return find(self.voters, self.key) is not None

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def leader_id(self) -> int:
        """Who leads in this epoch as far as this node knows, NO_LEADER where it does not."""
        return self.election.leader_id if self.role in (Role.LEADER, Role.FOLLOWER) else NO_LEADER

    @property
    def is_current(self) -> bool:
        """Whether this node has all that was agreed on before it started. What it had committed in a former life is in
        its log, but it does not know any more how far that was."""
        return self.current_from is not None and self.high_watermark >= self.current_from

    def _others(self) -> list[Voter]:
        return [voter for voter in self.voters if voter.node_id != self.node_id]

    # Time

    def _after(self, ms: float) -> int:
        return self._now_ms + max(1, int(ms))

    def _election_timeout(self) -> int:
        return self._after(self.settings.election_timeout_ms * (1 + self._chance))

    def _stand_at(self, at_ms: int) -> None:
        """Stands for election then, if nothing happens before; news never put off what was due sooner."""
        if not self.is_leaving and (self.election_ms is None or at_ms < self.election_ms):
            self.election_ms = at_ms

    # Epochs and leaders

    def _set_election(self, election: Election) -> None:
        if election == self.election:
            return
        if election.epoch != self.epoch:
            self.leader_sent_ms = NEVER
        self.election = election
        for place, effect in enumerate(self._effects):
            if isinstance(effect, Persist):
                # Twice in one step: written once, before all that rests on either.
                self._effects[place] = Persist(election)
                return
        self._effects.append(Persist(election))

    def _adopt(self, epoch: int, leader_id: int) -> None:
        """An epoch has begun that this node did not know of; perhaps with a leader."""
        assert epoch > self.epoch
        if leader_id == self.node_id:
            leader_id = NO_LEADER
        self._set_election(Election(epoch, leader_id))
        self._end_leadership()
        self.leader_has_left = False
        if leader_id != NO_LEADER or self.role in (Role.LEADER, Role.FOLLOWER, Role.RESIGNED):
            # Otherwise one that stands again and again, and cannot win, would keep all others from standing.
            self.election_ms = None
        self._detach()
        self._stand_at(self._election_timeout())
        if leader_id != NO_LEADER:
            self._follow(leader_id)
        else:
            self._fetch_later()

    def _end_leadership(self) -> None:
        if self.leadership is not None:
            self.leadership = None
            self.last_heard_ms = self._now_ms

    def _follow(self, leader_id: int, *, fetches: bool = True) -> None:
        """Somebody says who leads in this epoch."""
        if self.role in (Role.LEADER, Role.RESIGNED) or leader_id == self.node_id or self.leader_has_left:
            return
        if self.election.leader_id not in (NO_LEADER, leader_id):
            # There is one leader in an epoch; who says otherwise is wrong.
            return
        if self.role is Role.FOLLOWER:
            return
        election = self.election
        self._set_election(Election(self.epoch, leader_id, election.voted_for, election.voted_directory))
        was_in_election = self.role is not Role.UNATTACHED
        self._detach()
        self.role = Role.FOLLOWER
        if was_in_election:
            self.election_ms = None
        # Hearsay: the leader is given the time of an election, not that of one that was heard.
        self._stand_at(self._election_timeout())
        if fetches:
            self._fetch()

    def _hear(self, leader_id: int, *, fetches: bool = True) -> None:
        """The leader of this epoch itself has been heard of."""
        self.leader_has_left = False
        self._follow(leader_id, fetches=fetches)
        if self.role is Role.FOLLOWER and self.leader_id == leader_id:
            self.heard_ms = self.last_heard_ms = self._now_ms
            self.election_ms = None
            # Not all at once, or their votes would be split.
            spread_ms = self.settings.election_timeout_ms / 2 * self._chance
            self._stand_at(self._after(self.settings.fetch_timeout_ms + spread_ms))

    def _silence_ms(self) -> int:
        """For how long this node has heard of no leader, as far as it can tell."""
        return 0 if self.last_heard_ms is None else max(0, self._now_ms - self.last_heard_ms)

    def hears_leader(self, now_ms: int) -> bool:
        if self.role is Role.FOLLOWER and self.heard_ms is not None:
            return now_ms - self.heard_ms < self.settings.fetch_timeout_ms
        return self.role is Role.LEADER

    def _leader_left(self, stand_at_ms: int) -> None:
        """It does not lead any more, though no other epoch has begun."""
        self.leader_has_left = True
        self._detach()
        self._stand_at(stand_at_ms)
        self._fetch_later()

    def _leader_is_gone(self, node_id: int) -> None:
        if self.role is Role.FOLLOWER and self.leader_id == node_id:
            self._leader_left(self._after(self.settings.election_timeout_ms / 5 * self._chance))

    def _detach(self) -> None:
        self.role = Role.UNATTACHED
        self.heard_ms = None
        self._stop_fetching()

    # Fetching

    def _stop_fetching(self) -> None:
        """An answer that still comes is too late. A snapshot is as good from a former leader."""
        self.fetching = None
        self.fetch_ms = None
        self.has_missed_leader = False

    def _fetch(self) -> None:
        """Asks the leader, or somebody for the leader."""
        if self.role is Role.FOLLOWER and not self.has_missed_leader:
            self._fetch_from(self.leader_id, wait_ms=self.settings.fetch_timeout_ms // 3)
        elif self.role in _ATTACHABLE:
            self._ask_around()

    def _known(self) -> list[int]:
        """Who may know the leader."""
        return [*(voter.node_id for voter in self._others()), *self.bootstrap]

    def _ask_around(self) -> None:
        known = self._known()
        if known and self._fetch_from(known[self.asked % len(known)]):
            self.asked += 1
            self.has_missed_leader = False

    def _fetch_from(self, to: int, wait_ms: int = 0) -> bool:
        """Whether it could be sent: a fetch says that all before it is durable."""
        if self.fetching is not None or self.fetching_snapshot is not None:
            return False
        if self.log.durable_offset < self.log.end_offset:
            return False
        self.fetch_ms = None
        request = QuorumFetch(
            self.key,
            self.epoch,
            self.log.last,
            self.high_watermark,
            wait_ms,
            heard_ms=self.leader_sent_ms,
        )
        self.fetching = (to, request)
        self._effects.append(Send(to, request))
        return True

    def _fetch_later(self, ms: float | None = None) -> None:
        if self.role in _ATTACHABLE and self.fetching is None:
            self.fetch_ms = self._after(self.settings.election_timeout_ms / 10 if ms is None else ms)

    def _fetch_unanswered(self, by: int, *, is_gone: bool) -> None:
        self.fetching = None
        if self.role is Role.FOLLOWER and by == self.leader_id:
            self.has_missed_leader = self.heard_ms is None and bool(self._known())
        self._fetch_later()
        if is_gone:
            self._leader_is_gone(by)

    def _fetch_answered(self, by: int, request: QuorumFetch, reply: QuorumFetched) -> None:
        if self.fetching != (by, request):
            return
        self.fetching = None
        if reply.epoch == self.epoch and reply.is_leader:
            self._hear(reply.leader_id, fetches=False)
            if self.role is Role.FOLLOWER and self.leader_id == reply.leader_id:
                self.leader_sent_ms = max(self.leader_sent_ms, reply.sent_ms)
                self._take_fetched(reply)
                return
        elif reply.epoch == self.epoch:
            if self.role is Role.FOLLOWER and by == self.leader_id:
                self._leader_left(self._election_timeout())
            elif reply.leader_id != NO_LEADER:
                self._follow(reply.leader_id)
        if self.fetching is None:
            self._fetch_later()

    def _take_fetched(self, reply: QuorumFetched) -> None:
        if reply.diverging is not None:
            self._diverged(reply.diverging)
        elif reply.snapshot is not None:
            if reply.snapshot.end_offset <= self.high_watermark:
                # It holds nothing new: the leader's log parted from this one below what is committed.
                self._effects.append(Fatal(_parted(self.high_watermark, reply.snapshot.end_offset)))
                return
            self.fetching_snapshot = reply.snapshot
            self._effects.append(FetchSnapshot(reply.leader_id, reply.epoch, reply.snapshot))
        else:
            self.leader_high_watermark = max(self.leader_high_watermark, reply.high_watermark)
            if self.current_from is None and reply.high_watermark >= 0:
                self.current_from = reply.high_watermark
            if reply.records:
                self._effects.append(AppendRecords(reply.records))
            else:
                self._progressed_as_follower()

    def _diverged(self, leader: LogEnd) -> None:
        """Cuts this log back to where it may still be the leader's; the next fetch tells whether it is."""
        own = self.log.end_of(leader.epoch)
        if own is None:
            self._effects.append(Fatal(_parted(self.high_watermark, leader.offset)))
            return
        end_offset = min(own.offset, leader.offset) if own.epoch == leader.epoch else own.offset
        if end_offset < self.high_watermark:
            self._effects.append(Fatal(_parted(self.high_watermark, end_offset)))
        elif end_offset < self.log.end_offset:
            self._effects.append(Truncate(end_offset))
        else:
            self._fetch_later()

    def _progressed_as_follower(self) -> None:
        self._commit(min(self.leader_high_watermark, self.log.durable_offset))
        self._fetch()

    def _commit(self, offset: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            self._effects.append(Committed(offset))


def _parted(high_watermark: int, offset: int) -> str:
    return (
        f"the metadata log is committed up to offset {high_watermark}, but the quorum's leader has another log from "
        f"{offset} on: a majority of the voters has lost what it had on disk. Stop this node, keep its data, and "
        "find out which voters came back with old or empty disks"
    )
