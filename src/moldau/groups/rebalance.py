"""How a classic group gets from one generation to the next, and what of that is durable.

    Empty → PreparingRebalance → CompletingRebalance → Stable
              members join         members sync

Whoever waits for an answer is a ticket here, until all have joined, until the leader has synced, or until the time
for that is up. Only `apply` makes a group Stable: a sync that could not be written leaves everybody to sync again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moldau.errors import RebalanceInProgressError, UnknownMemberError
from moldau.groups.deadlines import Deadlines
from moldau.groups.member import Member
from moldau.groups.records import GroupChanged, GroupMetadata
from moldau.groups.requests import (
    GroupDecision,
    GroupLimits,
    GroupState,
    JoinReply,
    JoinRequest,
    Now,
    SyncReply,
    Ticket,
)
from moldau.groups.roster import Roster
from moldau.groups.step import Step

JOIN_AGAIN_MS_MIN = 1_000
"""How long a group whose members all failed to join waits at least before it looks again."""

NO_TIMESTAMP = -1


@dataclass(slots=True)
class _InitialJoin:
    """The first members of a group are likely to have company: each that comes makes it wait a little more."""

    delay_ms: int
    left_ms: int
    """By how much it may be prolonged."""
    grew: bool = False


@dataclass(frozen=True, slots=True)
class _Proposal:
    """What the group will be when its record is written."""

    metadata: GroupMetadata
    members: Sequence[Member]
    synced: Sequence[str] = ()
    """Who is told its assignment with it."""
    gone: str | None = None
    """The member id that its holder has lost."""


class Rebalance:
    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.empty_since_ms: int | None = None
        """By the wall clock; None where it is not empty or not known."""
        self._limits = limits
        self._roster = Roster()
        self._pending: dict[str, None] = {}
        """Ids that were given out; the group waits for those who have them to join, but not for long."""
        self._joining: dict[str, Ticket] = {}
        """Members whose join waits for the others. None outside of PreparingRebalance."""
        self._syncing: dict[str, Ticket] = {}
        """Members whose sync waits for the leader's. None outside of CompletingRebalance."""
        self._unsynced: dict[str, None] = {}
        """Members that were told of this generation and have not synced."""
        self._sessions = Deadlines()
        """For each member and pending id when it must have been heard of again. Those who wait for an answer of
        ours may have none."""
        self._initial_join: _InitialJoin | None = None
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._proposal: _Proposal | None = None
        self._subscriptions: tuple[bytes, ...] | None = None
        """What the members of the newest generation said of themselves."""

    @property
    def leader(self) -> str | None:
        return self._roster.leader

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    # Joining

    def _prepare_or_complete(self, step: Step) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(step)
        else:
            self._prepare(step)

    def _prepare(self, step: Step) -> None:
        """Members have to join (again); from now on nothing of the old generation is accepted."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._send_back_to_join(step)
        self._unsynced.clear()
        self._sync_deadline_ms = None
        was_empty = self.is_empty
        self.state = GroupState.PREPARING_REBALANCE
        self.empty_since_ms = None
        if was_empty:
            delay_ms = self._limits.initial_rebalance_delay_ms
            self._initial_join = _InitialJoin(delay_ms, max(self._roster.rebalance_timeout_ms - delay_ms, 0))
            self._join_deadline_ms = step.after_ms(delay_ms)
        elif self._have_all_joined:
            self._complete_join(step)
        else:
            self._join_deadline_ms = step.after_ms(self._roster.rebalance_timeout_ms)

    def _send_back_to_join(self, step: Step) -> None:
        error = RebalanceInProgressError("the group is rebalancing again: join again")
        for member_id, ticket in self._syncing.items():
            step.answer(ticket, error)
            self._restart_session(step, self._roster.members[member_id])
        self._syncing.clear()
        for member in self._roster:
            member.assignment = b""

    @property
    def _have_all_joined(self) -> bool:
        return len(self._joining) == len(self._roster) and not self._pending

    def _initial_join_grows(self) -> None:
        if self._initial_join is not None:
            self._initial_join.grew = True

    def _complete_if_all_joined(self, step: Step) -> None:
        if self._may_complete_join:
            self._complete_join(step)

    @property
    def _may_complete_join(self) -> bool:
        is_preparing = self.state is GroupState.PREPARING_REBALANCE
        return is_preparing and self._initial_join is None and self._have_all_joined

    def _join_time_is_up(self, step: Step) -> None:
        initial = self._initial_join
        if initial is not None and initial.grew and initial.left_ms:
            delay_ms = min(self._limits.initial_rebalance_delay_ms, initial.left_ms)
            self._initial_join = _InitialJoin(delay_ms, max(initial.left_ms - initial.delay_ms, 0))
            self._join_deadline_ms = step.after_ms(delay_ms)
        else:
            self._complete_join(step)

    def _complete_join(self, step: Step) -> None:
        """Goes on with those who have joined. Static members may be away for a while: they keep their place."""
        self._initial_join = None
        self._join_deadline_ms = None
        for member in list(self._roster):
            if member.member_id not in self._joining and not member.is_static:
                self._remove(step, member.member_id)
        if not self._roster:
            self._become_empty(step)
        elif not self._joining:
            delay_ms = max(self._roster.rebalance_timeout_ms, JOIN_AGAIN_MS_MIN)
            self._join_deadline_ms = step.after_ms(delay_ms)
        else:
            if self._roster.leader not in self._joining:
                self._roster.leader = next(member_id for member_id in self._joining)
            self._begin_generation(step)

    def _begin_generation(self, step: Step) -> None:
        self.generation += 1
        self.protocol_name = self._roster.elected_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        self._note_subscriptions()
        self._unsynced = dict.fromkeys(self._roster.members)
        self._sync_deadline_ms = step.after_ms(self._roster.rebalance_timeout_ms)
        for member in self._roster:
            member.is_new = False
            self._restart_session(step, member)
            if member.member_id in self._joining:
                step.answer(self._joining.pop(member.member_id), self._join_reply(member.member_id))

    def _become_empty(self, step: Step) -> None:
        self.generation += 1
        self.protocol_name = None
        self.state = GroupState.EMPTY
        self.empty_since_ms = step.now.wall_ms
        self._note_subscriptions()
        self._write(step, _Proposal(self._metadata(step.now, {}), ()))

    def _join_reply(self, member_id: str) -> JoinReply:
        is_leader = member_id == self.leader and self.state is GroupState.COMPLETING_REBALANCE
        shown = self._roster if is_leader else ()
        return JoinReply(
            generation=self.generation,
            protocol_type=self.protocol_type or "",
            protocol_name=self.protocol_name or "",
            leader=self.leader or "",
            skip_assignment=False,
            member_id=member_id,
            members=tuple(each.shown_to_leader(self.protocol_name) for each in shown),
        )

    # Syncing

    def _has_synced(self, member_id: str) -> None:
        self._unsynced.pop(member_id, None)
        if not self._unsynced:
            self._sync_deadline_ms = None

    def _sync_time_is_up(self, step: Step) -> None:
        for member_id in list(self._unsynced):
            self._remove(step, member_id)
        self._prepare(step)

    def _sync_reply(self, assignment: bytes) -> SyncReply:
        return SyncReply(
            protocol_type=self.protocol_type or "",
            protocol_name=self.protocol_name or "",
            assignment=assignment,
        )

    def _propose_assignments(self, step: Step, assignments: Mapping[str, bytes]) -> None:
        """The leader has spoken. A member that it left out gets nothing."""
        given = {member_id: assignments.get(member_id, b"") for member_id in self._roster.members}
        for member_id, ticket in self._syncing.items():
            step.answer(ticket, self._sync_reply(given[member_id]))
            self._restart_session(step, self._roster.members[member_id])
        synced = tuple(self._syncing)
        self._syncing.clear()
        # If the record cannot be written they all must sync again, and are waited for as before.
        self._unsynced.update(dict.fromkeys(synced))
        self._write(step, _Proposal(self._metadata(step.now, given), tuple(self._roster), synced))

    # Static members that come back while nothing else goes on

    def _stays_stable_with(self, former: Member, successor: Member) -> bool:
        """Whether the group can stay as it is: what was assigned to the one goes to the other."""
        if self.state is not GroupState.STABLE:
            return False
        if list(successor.protocol_names) == list(former.protocol_names):
            # The same votes elect the same protocol.
            return True
        others = [member for member in self._roster if member is not former]
        return Roster([*others, successor]).elected_protocol() == self.protocol_name

    def _propose_successor(
        self, step: Step, former: Member, successor: Member, request: JoinRequest, ticket: Ticket
    ) -> None:
        leads = former.member_id == self.leader
        leader = successor.member_id if leads else self.leader
        members = tuple(successor if member is former else member for member in self._roster)
        given = {member.member_id: member.assignment for member in members}
        metadata = self._metadata(step.now, given, members=members, leader=leader)
        # An older leader can only be kept from assigning anew by telling it that another one leads.
        told = request.supports_skipping_assignment
        step.answer(
            ticket,
            JoinReply(
                generation=self.generation,
                protocol_type=self.protocol_type or "",
                protocol_name=self.protocol_name or "",
                leader=(leader if told else self.leader) or "",
                skip_assignment=told and leads,
                member_id=successor.member_id,
                members=tuple(each.shown_to_leader(self.protocol_name) for each in members)
                if told and leads
                else (),
            ),
        )
        self._restart_session(step, successor)
        self._write(step, _Proposal(metadata, members, gone=former.member_id))

    # Members and their time

    def _restart_session(self, step: Step, member: Member) -> None:
        self._sessions.set(member.member_id, step.after_ms(member.session_timeout_ms))

    def _session_is_over(self, step: Step, member_id: str) -> None:
        if member_id in self._pending:
            del self._pending[member_id]
        elif member_id in self._roster:
            is_waiting = member_id in self._joining or member_id in self._syncing
            if is_waiting and not self._roster.members[member_id].is_new:
                return
            self._remove(step, member_id)
            if self.state is not GroupState.PREPARING_REBALANCE:
                self._prepare(step)
                return
        else:
            # It was to succeed a static member, but the record of that could not be written.
            return
        if self.state is GroupState.PREPARING_REBALANCE and self._have_all_joined:
            self._complete_join(step)

    def _remove(self, step: Step, member_id: str) -> None:
        """If it is still there, and waits for an answer, it learns that it has to join as a new member."""
        step.answer_all(self._taken_tickets(member_id), UnknownMemberError("the member was removed"))
        self._roster.remove(member_id)
        self._unsynced.pop(member_id, None)
        self._sessions.set(member_id, None)

    def _forget_pending(self, member_id: str) -> None:
        if member_id in self._pending:
            del self._pending[member_id]
            self._sessions.set(member_id, None)

    def _taken_tickets(self, member_id: str) -> list[Ticket]:
        return [parked.pop(member_id) for parked in (self._joining, self._syncing) if member_id in parked]

    def _supersede(self, step: Step, parked: dict[str, Ticket], member_id: str) -> None:
        """A member asks again: whoever waits for the answer to its first request is told, not left hanging."""
        if member_id in parked:
            step.answer(parked.pop(member_id), RebalanceInProgressError("the member has asked again since"))

    @property
    def next_deadline_ms(self) -> int | None:
        deadlines = (self._sessions.next_ms, self._join_deadline_ms, self._sync_deadline_ms)
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, now: Now) -> GroupDecision:
        step = Step(now)
        while (due_ms := self.next_deadline_ms) is not None and due_ms <= now.monotonic_ms:
            if due_ms == self._join_deadline_ms:
                self._join_deadline_ms = None
                self._join_time_is_up(step)
            elif due_ms == self._sync_deadline_ms:
                self._sync_deadline_ms = None
                self._sync_time_is_up(step)
            elif (member_id := self._sessions.pop_due(due_ms)) is not None:
                self._session_is_over(step, member_id)
        return step.decision()

    # What is durable

    def _metadata(
        self,
        now: Now,
        assignments: Mapping[str, bytes],
        *,
        members: Sequence[Member] | None = None,
        leader: str | None = None,
    ) -> GroupMetadata:
        return GroupMetadata(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader=leader or self.leader,
            state_timestamp_ms=now.wall_ms,
            members=tuple(
                member.recorded(self.protocol_name, assignments[member.member_id])
                for member in (self._roster if members is None else members)
            ),
        )

    def _write(self, step: Step, proposal: _Proposal) -> None:
        self._proposal = proposal
        step.records.append(GroupChanged(self.group_id, proposal.metadata))

    def apply(self, metadata: GroupMetadata) -> None:
        """The group is what this record, which is in the log now, says it is."""
        proposal, self._proposal = self._proposal, None
        if proposal is not None and proposal.metadata == metadata:
            self._take(proposal)
        else:
            self._restore(metadata)
        self.generation = metadata.generation
        self.protocol_type = metadata.protocol_type or None
        self.protocol_name = metadata.protocol_name
        self.state = GroupState.STABLE if metadata.members else GroupState.EMPTY
        known_since = not metadata.members and metadata.state_timestamp_ms != NO_TIMESTAMP
        self.empty_since_ms = metadata.state_timestamp_ms if known_since else None
        self._note_subscriptions()

    def _take(self, proposal: _Proposal) -> None:
        self._roster = Roster(proposal.members, proposal.metadata.leader)
        for recorded in proposal.metadata.members:
            self._roster.members[recorded.member_id].assignment = recorded.assignment
        for member_id in proposal.synced:
            self._has_synced(member_id)
        if proposal.gone is not None:
            self._sessions.set(proposal.gone, None)
            self._has_synced(proposal.gone)

    def _restore(self, metadata: GroupMetadata) -> None:
        for member in self._roster:
            self._sessions.set(member.member_id, None)
        members = [Member.restored(each, metadata.protocol_name) for each in metadata.members]
        self._roster = Roster(members, metadata.leader)

    def loaded(self, now: Now) -> GroupDecision:
        """The log has been read to its end: from here on the members are held to their timeouts."""
        step = Step(now)
        for member in self._roster:
            self._restart_session(step, member)
        if len(self._roster) > self._limits.size_max:
            self._prepare(step)
        return step.decision()

    def _note_subscriptions(self) -> None:
        self._subscriptions = tuple(member.metadata(self.protocol_name) for member in self._roster)
