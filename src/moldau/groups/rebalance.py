"""How a classic group gets from one generation to the next, and what of that is durable.

    Empty → PreparingRebalance → CompletingRebalance → Stable
              members join         members sync

Whoever waits for an answer is a ticket here, until all have joined, until the leader has synced, or until the time
for that is up. Only `apply` makes a group Stable: a sync that could not be written leaves everybody to sync again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moldau.errors import RebalanceInProgressError, UnknownMemberIdError
from moldau.groups.classic_group_member import ClassicGroupMember
from moldau.groups.deadline_queue import DeadlineQueue
from moldau.groups.decision_builder import DecisionBuilder
from moldau.groups.member_set import MemberSet
from moldau.groups.records import GroupMetadataRecord, GroupMetadataValue
from moldau.groups.requests import (
    GroupCoordinatorConfig,
    GroupDecision,
    GroupState,
    JoinRequest,
    JoinResponse,
    Now,
    RequestId,
    SyncResponse,
)

REJOIN_DELAY_MS_MIN = 1_000
"""How long a group whose members all failed to join waits at least before it looks again."""

NO_TIMESTAMP = -1


@dataclass(slots=True)
class _InitialDelayedJoin:
    """The first members of a group are likely to have company: each that comes makes it wait a little more."""

    delay_ms: int
    remaining_ms: int
    """By how much it may be prolonged."""
    new_member_added: bool = False


@dataclass(frozen=True, slots=True)
class _Proposal:
    """What the group will be when its record is written."""

    metadata: GroupMetadataValue
    members: Sequence[ClassicGroupMember]
    synced: Sequence[str] = ()
    """Who is told its assignment with it."""
    replaced_member_id: str | None = None
    """The member id that its holder has lost."""


class Rebalance:
    def __init__(self, group_id: str, config: GroupCoordinatorConfig) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.empty_since_ms: int | None = None
        """By the wall clock; None where it is not empty or not known."""
        self._config = config
        self._members = MemberSet()
        self._pending_join_members: dict[str, None] = {}
        """Ids that were given out; the group waits for those who have them to join, but not for long."""
        self._awaiting_join: dict[str, RequestId] = {}
        """Members whose join waits for the others. None outside of PreparingRebalance."""
        self._awaiting_sync: dict[str, RequestId] = {}
        """Members whose sync waits for the leader's. None outside of CompletingRebalance."""
        self._pending_sync_members: dict[str, None] = {}
        """Members that were told of this generation and have not synced."""
        self._session_deadlines = DeadlineQueue()
        """For each member and pending id when it must have been heard of again. Those who wait for an answer of
        ours may have none."""
        self._initial_join: _InitialDelayedJoin | None = None
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._proposal: _Proposal | None = None
        self._subscriptions: tuple[bytes, ...] | None = None
        """What the members of the newest generation said of themselves."""

    @property
    def leader(self) -> str | None:
        return self._members.leader

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    # Joining

    def _prepare_rebalance_or_complete_join(self, builder: DecisionBuilder) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(builder)
        else:
            self._prepare_rebalance(builder)

    def _prepare_rebalance(self, builder: DecisionBuilder) -> None:
        """Members have to join (again); from now on nothing of the old generation is accepted."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._reset_assignments(builder)
        self._pending_sync_members.clear()
        self._sync_deadline_ms = None
        was_empty = self.is_empty
        self.state = GroupState.PREPARING_REBALANCE
        self.empty_since_ms = None
        if was_empty:
            delay_ms = self._config.initial_rebalance_delay_ms
            self._initial_join = _InitialDelayedJoin(
                delay_ms, max(self._members.rebalance_timeout_ms - delay_ms, 0)
            )
            self._join_deadline_ms = builder.deadline_ms(delay_ms)
        elif self._has_all_members_joined:
            self._complete_join(builder)
        else:
            self._join_deadline_ms = builder.deadline_ms(self._members.rebalance_timeout_ms)

    def _reset_assignments(self, builder: DecisionBuilder) -> None:
        error = RebalanceInProgressError("the group is rebalancing again: join again")
        for member_id, request_id in self._awaiting_sync.items():
            builder.complete(request_id, error)
            self._reschedule_heartbeat(builder, self._members.members[member_id])
        self._awaiting_sync.clear()
        for member in self._members:
            member.assignment = b""

    @property
    def _has_all_members_joined(self) -> bool:
        return len(self._awaiting_join) == len(self._members) and not self._pending_join_members

    def _mark_new_member_added(self) -> None:
        if self._initial_join is not None:
            self._initial_join.new_member_added = True

    def _maybe_complete_join(self, builder: DecisionBuilder) -> None:
        if self._can_complete_join:
            self._complete_join(builder)

    @property
    def _can_complete_join(self) -> bool:
        is_preparing = self.state is GroupState.PREPARING_REBALANCE
        return is_preparing and self._initial_join is None and self._has_all_members_joined

    def _on_join_deadline(self, builder: DecisionBuilder) -> None:
        initial = self._initial_join
        if initial is not None and initial.new_member_added and initial.remaining_ms:
            delay_ms = min(self._config.initial_rebalance_delay_ms, initial.remaining_ms)
            self._initial_join = _InitialDelayedJoin(
                delay_ms, max(initial.remaining_ms - initial.delay_ms, 0)
            )
            self._join_deadline_ms = builder.deadline_ms(delay_ms)
        else:
            self._complete_join(builder)

    def _complete_join(self, builder: DecisionBuilder) -> None:
        """Goes on with those who have joined. Static members may be away for a while: they keep their place."""
        self._initial_join = None
        self._join_deadline_ms = None
        for member in list(self._members):
            if member.member_id not in self._awaiting_join and not member.is_static:
                self._remove_member(builder, member.member_id)
        if not self._members:
            self._transition_to_empty(builder)
        elif not self._awaiting_join:
            delay_ms = max(self._members.rebalance_timeout_ms, REJOIN_DELAY_MS_MIN)
            self._join_deadline_ms = builder.deadline_ms(delay_ms)
        else:
            if self._members.leader not in self._awaiting_join:
                self._members.leader = next(member_id for member_id in self._awaiting_join)
            self._start_next_generation(builder)

    def _start_next_generation(self, builder: DecisionBuilder) -> None:
        self.generation += 1
        self.protocol_name = self._members.select_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        self._update_subscriptions()
        self._pending_sync_members = dict.fromkeys(self._members.members)
        self._sync_deadline_ms = builder.deadline_ms(self._members.rebalance_timeout_ms)
        for member in self._members:
            member.is_new = False
            self._reschedule_heartbeat(builder, member)
            if member.member_id in self._awaiting_join:
                builder.complete(
                    self._awaiting_join.pop(member.member_id), self._join_response(member.member_id)
                )

    def _transition_to_empty(self, builder: DecisionBuilder) -> None:
        self.generation += 1
        self.protocol_name = None
        self.state = GroupState.EMPTY
        self.empty_since_ms = builder.now.wall_ms
        self._update_subscriptions()
        self._propose(builder, _Proposal(self._build_metadata(builder.now, {}), ()))

    def _join_response(self, member_id: str) -> JoinResponse:
        is_leader = member_id == self.leader and self.state is GroupState.COMPLETING_REBALANCE
        shown = self._members if is_leader else ()
        return JoinResponse(
            generation=self.generation,
            protocol_type=self.protocol_type or "",
            protocol_name=self.protocol_name or "",
            leader=self.leader or "",
            skip_assignment=False,
            member_id=member_id,
            members=tuple(each.to_joined_member(self.protocol_name) for each in shown),
        )

    # Syncing

    def _mark_synced(self, member_id: str) -> None:
        self._pending_sync_members.pop(member_id, None)
        if not self._pending_sync_members:
            self._sync_deadline_ms = None

    def _on_sync_deadline(self, builder: DecisionBuilder) -> None:
        for member_id in list(self._pending_sync_members):
            self._remove_member(builder, member_id)
        self._prepare_rebalance(builder)

    def _sync_response(self, assignment: bytes) -> SyncResponse:
        return SyncResponse(
            protocol_type=self.protocol_type or "",
            protocol_name=self.protocol_name or "",
            assignment=assignment,
        )

    def _propose_assignments(self, builder: DecisionBuilder, assignments: Mapping[str, bytes]) -> None:
        """The leader has spoken. A member that it left out gets nothing."""
        given = {member_id: assignments.get(member_id, b"") for member_id in self._members.members}
        for member_id, request_id in self._awaiting_sync.items():
            builder.complete(request_id, self._sync_response(given[member_id]))
            self._reschedule_heartbeat(builder, self._members.members[member_id])
        synced = tuple(self._awaiting_sync)
        self._awaiting_sync.clear()
        # If the record cannot be written they all must sync again, and are waited for as before.
        self._pending_sync_members.update(dict.fromkeys(synced))
        self._propose(
            builder, _Proposal(self._build_metadata(builder.now, given), tuple(self._members), synced)
        )

    # Static members that come back while nothing else goes on

    def _can_replace_without_rebalance(
        self, former: ClassicGroupMember, successor: ClassicGroupMember
    ) -> bool:
        """Whether the group can stay as it is: what was assigned to the one goes to the other."""
        if self.state is not GroupState.STABLE:
            return False
        if list(successor.protocol_names) == list(former.protocol_names):
            # The same votes elect the same protocol.
            return True
        others = [member for member in self._members if member is not former]
        return MemberSet([*others, successor]).select_protocol() == self.protocol_name

    def _propose_static_replacement(
        self,
        builder: DecisionBuilder,
        former: ClassicGroupMember,
        successor: ClassicGroupMember,
        request: JoinRequest,
        request_id: RequestId,
    ) -> None:
        leads = former.member_id == self.leader
        leader = successor.member_id if leads else self.leader
        members = tuple(successor if member is former else member for member in self._members)
        given = {member.member_id: member.assignment for member in members}
        metadata = self._build_metadata(builder.now, given, members=members, leader=leader)
        # An older leader can only be kept from assigning anew by telling it that another one leads.
        told = request.supports_skipping_assignment
        builder.complete(
            request_id,
            JoinResponse(
                generation=self.generation,
                protocol_type=self.protocol_type or "",
                protocol_name=self.protocol_name or "",
                leader=(leader if told else self.leader) or "",
                skip_assignment=told and leads,
                member_id=successor.member_id,
                members=tuple(each.to_joined_member(self.protocol_name) for each in members)
                if told and leads
                else (),
            ),
        )
        self._reschedule_heartbeat(builder, successor)
        self._propose(builder, _Proposal(metadata, members, replaced_member_id=former.member_id))

    # Members and their time

    def _reschedule_heartbeat(self, builder: DecisionBuilder, member: ClassicGroupMember) -> None:
        self._session_deadlines.set(member.member_id, builder.deadline_ms(member.session_timeout_ms))

    def _on_session_expired(self, builder: DecisionBuilder, member_id: str) -> None:
        if member_id in self._pending_join_members:
            del self._pending_join_members[member_id]
        elif member_id in self._members:
            is_waiting = member_id in self._awaiting_join or member_id in self._awaiting_sync
            if is_waiting and not self._members.members[member_id].is_new:
                return
            self._remove_member(builder, member_id)
            if self.state is not GroupState.PREPARING_REBALANCE:
                self._prepare_rebalance(builder)
                return
        else:
            # It was to succeed a static member, but the record of that could not be written.
            return
        if self.state is GroupState.PREPARING_REBALANCE and self._has_all_members_joined:
            self._complete_join(builder)

    def _remove_member(self, builder: DecisionBuilder, member_id: str) -> None:
        """If it is still there, and waits for an answer, it learns that it has to join as a new member."""
        builder.complete_all(
            self._take_parked_requests(member_id), UnknownMemberIdError("the member was removed")
        )
        self._members.remove(member_id)
        self._pending_sync_members.pop(member_id, None)
        self._session_deadlines.set(member_id, None)

    def _remove_pending_member(self, member_id: str) -> None:
        if member_id in self._pending_join_members:
            del self._pending_join_members[member_id]
            self._session_deadlines.set(member_id, None)

    def _take_parked_requests(self, member_id: str) -> list[RequestId]:
        return [
            parked.pop(member_id)
            for parked in (self._awaiting_join, self._awaiting_sync)
            if member_id in parked
        ]

    def _fail_superseded_request(
        self, builder: DecisionBuilder, parked: dict[str, RequestId], member_id: str
    ) -> None:
        """A member asks again: whoever waits for the answer to its first request is told, not left hanging."""
        if member_id in parked:
            builder.complete(
                parked.pop(member_id), RebalanceInProgressError("the member has asked again since")
            )

    @property
    def next_deadline_ms(self) -> int | None:
        deadlines = (self._session_deadlines.next_ms, self._join_deadline_ms, self._sync_deadline_ms)
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, now: Now) -> GroupDecision:
        builder = DecisionBuilder(now)
        while (due_ms := self.next_deadline_ms) is not None and due_ms <= now.monotonic_ms:
            if due_ms == self._join_deadline_ms:
                self._join_deadline_ms = None
                self._on_join_deadline(builder)
            elif due_ms == self._sync_deadline_ms:
                self._sync_deadline_ms = None
                self._on_sync_deadline(builder)
            elif (member_id := self._session_deadlines.pop_due(due_ms)) is not None:
                self._on_session_expired(builder, member_id)
        return builder.build()

    # What is durable

    def _build_metadata(
        self,
        now: Now,
        assignments: Mapping[str, bytes],
        *,
        members: Sequence[ClassicGroupMember] | None = None,
        leader: str | None = None,
    ) -> GroupMetadataValue:
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader=leader or self.leader,
            state_timestamp_ms=now.wall_ms,
            members=tuple(
                member.to_record(self.protocol_name, assignments[member.member_id])
                for member in (self._members if members is None else members)
            ),
        )

    def _propose(self, builder: DecisionBuilder, proposal: _Proposal) -> None:
        self._proposal = proposal
        builder.records.append(GroupMetadataRecord(self.group_id, proposal.metadata))

    def apply(self, metadata: GroupMetadataValue) -> None:
        """The group is what this record, which is in the log now, says it is."""
        proposal, self._proposal = self._proposal, None
        if proposal is not None and proposal.metadata == metadata:
            self._apply_proposal(proposal)
        else:
            self._apply_loaded(metadata)
        self.generation = metadata.generation
        self.protocol_type = metadata.protocol_type or None
        self.protocol_name = metadata.protocol_name
        self.state = GroupState.STABLE if metadata.members else GroupState.EMPTY
        known_since = not metadata.members and metadata.state_timestamp_ms != NO_TIMESTAMP
        self.empty_since_ms = metadata.state_timestamp_ms if known_since else None
        self._update_subscriptions()

    def _apply_proposal(self, proposal: _Proposal) -> None:
        self._members = MemberSet(proposal.members, proposal.metadata.leader)
        for to_record in proposal.metadata.members:
            self._members.members[to_record.member_id].assignment = to_record.assignment
        for member_id in proposal.synced:
            self._mark_synced(member_id)
        if proposal.replaced_member_id is not None:
            self._session_deadlines.set(proposal.replaced_member_id, None)
            self._mark_synced(proposal.replaced_member_id)

    def _apply_loaded(self, metadata: GroupMetadataValue) -> None:
        for member in self._members:
            self._session_deadlines.set(member.member_id, None)
        members = [ClassicGroupMember.from_record(each, metadata.protocol_name) for each in metadata.members]
        self._members = MemberSet(members, metadata.leader)

    def on_loaded(self, now: Now) -> GroupDecision:
        """The log has been read to its end: from here on the members are held to their timeouts."""
        builder = DecisionBuilder(now)
        for member in self._members:
            self._reschedule_heartbeat(builder, member)
        if len(self._members) > self._config.size_max:
            self._prepare_rebalance(builder)
        return builder.build()

    def _update_subscriptions(self) -> None:
        self._subscriptions = tuple(member.metadata(self.protocol_name) for member in self._members)
