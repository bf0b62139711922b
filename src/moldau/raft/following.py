"""The part of the quorum's state machine that every node has: its epoch, its leader, and fetching from it. Pure."""

from dataclasses import dataclass, field

from moldau.raft.events import (
    AppendFetchedRecords,
    Effect,
    ElectionState,
    FatalError,
    FetchSnapshot,
    HighWatermarkAdvanced,
    PersistElection,
    Role,
    SendRequest,
    TruncateLog,
)
from moldau.raft.leader_state import NEVER, Leadership
from moldau.raft.messages import (
    NO_LEADER,
    EpochEndOffset,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    SnapshotId,
    VoterEndpoint,
    VoterNode,
)
from moldau.raft.network_channel import QuorumConfig
from moldau.raft.raft_log_state import RaftLogState
from moldau.raft.voter_set import VoterSetHistory, find_voter

_ATTACHABLE = (Role.UNATTACHED, Role.FOLLOWER)


@dataclass(slots=True)
class Following:
    key: ReplicaKey
    election: ElectionState
    """As it was last persisted, or as the newest Persist effect says. Its epoch never falls, and within an
    epoch a vote and a leader, once set, never change."""
    settings: QuorumConfig = field(default_factory=QuorumConfig)
    bootstrap: tuple[int, ...] = ()
    """Whom to ask for the leader beside the voters."""
    endpoints: tuple[VoterEndpoint, ...] = ()
    """Where this node itself can be reached; empty where it does not know."""

    log: RaftLogState = field(default_factory=lambda: RaftLogState(VoterSetHistory(())))
    role: Role = Role.UNATTACHED
    high_watermark: int = 0
    """Never falls, never beyond the log's end."""
    election_deadline_ms: int | None = None
    """When this node stands for election, or gives up the one that is under way."""
    is_shutting_down: bool = False

    heard_ms: int | None = None
    """Follower only: when the leader itself was last heard of."""
    last_leader_activity_ms: int | None = None
    """When this node last heard of a leader, led itself, or gave its vote; None since its process began."""
    leader_sent_ms: int = NEVER
    """When the leader of this epoch sent the newest answer that this node has had, by the leader's clock."""
    leader_silence_ms: int = 0
    """In an election: for how long those who vote for this node had heard of no leader, at least."""
    has_leader_resigned: bool = False
    """The leader of this epoch has resigned or its process is gone; others may not know yet."""
    pending_fetch: tuple[int, QuorumFetchRequest] | None = None
    """The one fetch that is under way, and whom it was sent to. Answers to any other come too late."""
    fetching_snapshot: SnapshotId | None = None
    next_fetch_ms: int | None = None
    """When the next fetch is sent, after one that led to nothing."""
    leader_high_watermark: int = 0
    """As the leader told it, with records that may not be durable here yet."""
    catch_up_offset: int | None = None
    """The first high watermark that a leader told since this node started: all agreed on before that is below it."""
    leader_lookup_count: int = 0
    """How many have been asked for the leader; says whose turn it is."""
    is_leader_unreachable: bool = False
    """The last fetch went to a leader known by hearsay only, and was not answered: it may be elsewhere by now."""

    granting_voters: dict[int, None] = field(default_factory=dict)
    """In an election: who would vote, or has voted, for this node in this round."""
    rejecting_voters: dict[int, None] = field(default_factory=dict)
    """In an election: who has not, or did not answer."""
    election_start_ms: int = 0
    """When the round of the election began."""
    leader_state: Leadership | None = None
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
    def voters(self) -> tuple[VoterNode, ...]:
        return self.log.voters.current

    @property
    def is_voter(self) -> bool:
        return find_voter(self.voters, self.key) is not None

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def leader_id(self) -> int:
        """Who leads in this epoch as far as this node knows, NO_LEADER where it does not."""
        return self.election.leader_id if self.role in (Role.LEADER, Role.FOLLOWER) else NO_LEADER

    @property
    def is_caught_up(self) -> bool:
        """Whether this node has all that was agreed on before it started. What it had committed in a former life is in
        its log, but it does not know any more how far that was."""
        return self.catch_up_offset is not None and self.high_watermark >= self.catch_up_offset

    def _other_voters(self) -> list[VoterNode]:
        return [voter for voter in self.voters if voter.node_id != self.node_id]

    # Time

    def _deadline_in(self, ms: float) -> int:
        return self._now_ms + max(1, int(ms))

    def _random_election_deadline(self) -> int:
        return self._deadline_in(self.settings.election_timeout_ms * (1 + self._chance))

    def _schedule_election(self, at_ms: int) -> None:
        """Stands for election then, if nothing happens before; news never put off what was due sooner."""
        if not self.is_shutting_down and (
            self.election_deadline_ms is None or at_ms < self.election_deadline_ms
        ):
            self.election_deadline_ms = at_ms

    # Epochs and leaders

    def _persist_election(self, election: ElectionState) -> None:
        if election == self.election:
            return
        if election.epoch != self.epoch:
            self.leader_sent_ms = NEVER
        self.election = election
        for place, effect in enumerate(self._effects):
            if isinstance(effect, PersistElection):
                # Twice in one step: written once, before all that rests on either.
                self._effects[place] = PersistElection(election)
                return
        self._effects.append(PersistElection(election))

    def _advance_epoch(self, epoch: int, leader_id: int) -> None:
        """An epoch has begun that this node did not know of; perhaps with a leader."""
        assert epoch > self.epoch
        if leader_id == self.node_id:
            leader_id = NO_LEADER
        self._persist_election(ElectionState(epoch, leader_id))
        self._end_leadership()
        self.has_leader_resigned = False
        if leader_id != NO_LEADER or self.role in (Role.LEADER, Role.FOLLOWER, Role.RESIGNED):
            # Otherwise one that stands again and again, and cannot win, would keep all others from standing.
            self.election_deadline_ms = None
        self._transition_to_unattached()
        self._schedule_election(self._random_election_deadline())
        if leader_id != NO_LEADER:
            self._transition_to_follower(leader_id)
        else:
            self._schedule_fetch()

    def _end_leadership(self) -> None:
        if self.leader_state is not None:
            self.leader_state = None
            self.last_leader_activity_ms = self._now_ms

    def _transition_to_follower(self, leader_id: int, *, fetches: bool = True) -> None:
        """Somebody says who leads in this epoch."""
        if self.role in (Role.LEADER, Role.RESIGNED) or leader_id == self.node_id or self.has_leader_resigned:
            return
        if self.election.leader_id not in (NO_LEADER, leader_id):
            # There is one leader in an epoch; who says otherwise is wrong.
            return
        if self.role is Role.FOLLOWER:
            return
        election = self.election
        self._persist_election(
            ElectionState(self.epoch, leader_id, election.voted_for, election.voted_directory_id)
        )
        was_in_election = self.role is not Role.UNATTACHED
        self._transition_to_unattached()
        self.role = Role.FOLLOWER
        if was_in_election:
            self.election_deadline_ms = None
        # Hearsay: the leader is given the time of an election, not that of one that was heard.
        self._schedule_election(self._random_election_deadline())
        if fetches:
            self._fetch()

    def _on_leader_contact(self, leader_id: int, *, fetches: bool = True) -> None:
        """The leader of this epoch itself has been heard of."""
        self.has_leader_resigned = False
        self._transition_to_follower(leader_id, fetches=fetches)
        if self.role is Role.FOLLOWER and self.leader_id == leader_id:
            self.heard_ms = self.last_leader_activity_ms = self._now_ms
            self.election_deadline_ms = None
            # Not all at once, or their votes would be split.
            spread_ms = self.settings.election_timeout_ms / 2 * self._chance
            self._schedule_election(self._deadline_in(self.settings.fetch_timeout_ms + spread_ms))

    def _leader_silence_ms(self) -> int:
        """For how long this node has heard of no leader, as far as it can tell."""
        return (
            0 if self.last_leader_activity_ms is None else max(0, self._now_ms - self.last_leader_activity_ms)
        )

    def has_live_leader(self, now_ms: int) -> bool:
        if self.role is Role.FOLLOWER and self.heard_ms is not None:
            return now_ms - self.heard_ms < self.settings.fetch_timeout_ms
        return self.role is Role.LEADER

    def _on_leader_resigned(self, stand_at_ms: int) -> None:
        """It does not lead any more, though no other epoch has begun."""
        self.has_leader_resigned = True
        self._transition_to_unattached()
        self._schedule_election(stand_at_ms)
        self._schedule_fetch()

    def _on_leader_unreachable(self, node_id: int) -> None:
        if self.role is Role.FOLLOWER and self.leader_id == node_id:
            self._on_leader_resigned(self._deadline_in(self.settings.election_timeout_ms / 5 * self._chance))

    def _transition_to_unattached(self) -> None:
        self.role = Role.UNATTACHED
        self.heard_ms = None
        self._cancel_fetch()

    # Fetching

    def _cancel_fetch(self) -> None:
        """An answer that still comes is too late. A snapshot is as good from a former leader."""
        self.pending_fetch = None
        self.next_fetch_ms = None
        self.is_leader_unreachable = False

    def _fetch(self) -> None:
        """Asks the leader, or somebody for the leader."""
        if self.role is Role.FOLLOWER and not self.is_leader_unreachable:
            self._send_fetch_to(self.leader_id, max_wait_ms=self.settings.fetch_timeout_ms // 3)
        elif self.role in _ATTACHABLE:
            self._look_up_leader()

    def _leader_lookup_ids(self) -> list[int]:
        """Who may know the leader."""
        return [*(voter.node_id for voter in self._other_voters()), *self.bootstrap]

    def _look_up_leader(self) -> None:
        known = self._leader_lookup_ids()
        if known and self._send_fetch_to(known[self.leader_lookup_count % len(known)]):
            self.leader_lookup_count += 1
            self.is_leader_unreachable = False

    def _send_fetch_to(self, to: int, max_wait_ms: int = 0) -> bool:
        """Whether it could be sent: a fetch says that all before it is durable."""
        if self.pending_fetch is not None or self.fetching_snapshot is not None:
            return False
        if self.log.durable_offset < self.log.end_offset:
            return False
        self.next_fetch_ms = None
        request = QuorumFetchRequest(
            self.key,
            self.epoch,
            self.log.log_end,
            self.high_watermark,
            max_wait_ms,
            heard_ms=self.leader_sent_ms,
        )
        self.pending_fetch = (to, request)
        self._effects.append(SendRequest(to, request))
        return True

    def _schedule_fetch(self, ms: float | None = None) -> None:
        if self.role in _ATTACHABLE and self.pending_fetch is None:
            self.next_fetch_ms = self._deadline_in(
                self.settings.election_timeout_ms / 10 if ms is None else ms
            )

    def _on_fetch_failed(self, by: int, *, is_connection_refused: bool) -> None:
        self.pending_fetch = None
        if self.role is Role.FOLLOWER and by == self.leader_id:
            self.is_leader_unreachable = self.heard_ms is None and bool(self._leader_lookup_ids())
        self._schedule_fetch()
        if is_connection_refused:
            self._on_leader_unreachable(by)

    def _on_fetch_response(self, by: int, request: QuorumFetchRequest, reply: QuorumFetchResponse) -> None:
        if self.pending_fetch != (by, request):
            return
        self.pending_fetch = None
        if reply.epoch == self.epoch and reply.is_leader:
            self._on_leader_contact(reply.leader_id, fetches=False)
            if self.role is Role.FOLLOWER and self.leader_id == reply.leader_id:
                self.leader_sent_ms = max(self.leader_sent_ms, reply.sent_ms)
                self._apply_fetch_response(reply)
                return
        elif reply.epoch == self.epoch:
            if self.role is Role.FOLLOWER and by == self.leader_id:
                self._on_leader_resigned(self._random_election_deadline())
            elif reply.leader_id != NO_LEADER:
                self._transition_to_follower(reply.leader_id)
        if self.pending_fetch is None:
            self._schedule_fetch()

    def _apply_fetch_response(self, reply: QuorumFetchResponse) -> None:
        if reply.diverging_epoch is not None:
            self._handle_divergence(reply.diverging_epoch)
        elif reply.snapshot is not None:
            if reply.snapshot.end_offset <= self.high_watermark:
                # It holds nothing new: the leader's log parted from this one below what is committed.
                self._effects.append(
                    FatalError(_divergence_message(self.high_watermark, reply.snapshot.end_offset))
                )
                return
            self.fetching_snapshot = reply.snapshot
            self._effects.append(FetchSnapshot(reply.leader_id, reply.epoch, reply.snapshot))
        else:
            self.leader_high_watermark = max(self.leader_high_watermark, reply.high_watermark)
            if self.catch_up_offset is None and reply.high_watermark >= 0:
                self.catch_up_offset = reply.high_watermark
            if reply.records:
                self._effects.append(AppendFetchedRecords(reply.records))
            else:
                self._advance_follower_high_watermark()

    def _handle_divergence(self, leader: EpochEndOffset) -> None:
        """Cuts this log back to where it may still be the leader's; the next fetch tells whether it is."""
        own = self.log.end_offset_for_epoch(leader.epoch)
        if own is None:
            self._effects.append(FatalError(_divergence_message(self.high_watermark, leader.offset)))
            return
        end_offset = min(own.offset, leader.offset) if own.epoch == leader.epoch else own.offset
        if end_offset < self.high_watermark:
            self._effects.append(FatalError(_divergence_message(self.high_watermark, end_offset)))
        elif end_offset < self.log.end_offset:
            self._effects.append(TruncateLog(end_offset))
        else:
            self._schedule_fetch()

    def _advance_follower_high_watermark(self) -> None:
        self._commit(min(self.leader_high_watermark, self.log.durable_offset))
        self._fetch()

    def _commit(self, offset: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            self._effects.append(HighWatermarkAdvanced(offset))


def _divergence_message(high_watermark: int, offset: int) -> str:
    return (
        f"the metadata log is committed up to offset {high_watermark}, but the quorum's leader has another log from "
        f"{offset} on: a majority of the voters has lost what it had on disk. Stop this node, keep its data, and "
        "find out which voters came back with old or empty disks"
    )
