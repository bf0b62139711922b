"""One group of the classic protocol as a pure state machine: requests and time in, records and responses out.

    Empty → PreparingRebalance → CompletingRebalance → Stable
              members join         members sync

A generation starts when the members have joined. The record of the generation is written when the leader syncs. The
group becomes Stable in `apply`, when the record is in the log. If the write fails, the members sync again. After a
crash of the coordinator, the members join again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moldau.coordinator.deadline_queue import DeadlineQueue
from moldau.coordinator.result import Now, RequestId
from moldau.errors import (
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    MoldauError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from moldau.groups.classic_group_metadata import ClassicGroupMetadata
from moldau.groups.delayed_operations import DelayedJoin, DelayedSync
from moldau.groups.members import ClassicGroupMember, MemberSet
from moldau.groups.records import GroupMetadataRecord, GroupMetadataValue
from moldau.groups.requests import (
    EMPTY_RESPONSE,
    UNKNOWN_MEMBER_ID,
    GroupResult,
    GroupState,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    MemberIdentity,
    ResultBuilder,
    SyncRequest,
)
from moldau.settings.broker import BrokerSettings

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1_000
"""Session timeout of a member until its first join completes. Before that, the member cannot send heartbeats. The
timeout removes a member whose client has stopped or has joined again with another member id."""

REJOIN_DELAY_MS_MIN = 1_000
"""Minimum time for which the group waits again if it has only static members and none of them has joined in time."""


def check_session_timeout(session_timeout_ms: int, settings: BrokerSettings) -> None:
    low, high = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
    if not low <= session_timeout_ms <= high:
        raise InvalidSessionTimeoutError(f"session timeout {session_timeout_ms} ms is not between {low} and {high}")


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A change of the group that takes effect when its record is in the log."""

    value: GroupMetadataValue
    members: Sequence[ClassicGroupMember]
    synced: Sequence[str] = ()
    """Members that receive their assignment with this change."""
    replaced_member_id: str | None = None
    """The previous member id of a static member that rejoined."""


class ClassicGroup:
    def __init__(self, group_id: str, settings: BrokerSettings) -> None:
        self.group_id = group_id
        self.metadata = ClassicGroupMetadata(group_id)
        self._settings = settings
        self._join = DelayedJoin()
        self._sync = DelayedSync()
        self._session_deadlines = DeadlineQueue()
        """Session deadlines of members and pending members. A member with a parked request may have no deadline."""
        self._proposal: _Proposal | None = None

    @property
    def _members(self) -> MemberSet:
        return self.metadata.members

    # Requests

    def join(self, now: Now, request: JoinRequest, request_id: RequestId) -> GroupResult:
        check_session_timeout(request.session_timeout_ms, self._settings)
        builder = ResultBuilder(now)
        if not self._accepts_joining_member(request):
            message = f"the group has the maximum of {self._settings.group_max_size} members"
            builder.complete(request_id, GroupMaxSizeReachedError(message))
            self._remove_pending_member(request.member_id)
            if request.member_id in self._members:
                self._remove_member(builder, request.member_id)
            self._maybe_complete_join(builder)
            return builder.build()
        self.metadata.check_join_protocols(request)
        if request.member_id == UNKNOWN_MEMBER_ID:
            self._join_new_member(builder, request, request_id)
        elif request.member_id in self._join.pending_members and request.instance_id is None:
            self._add_member_and_rebalance(builder, request.member_id, request, request_id)
        else:
            member = self._members.require(request.member_id, request.instance_id)
            self._join_existing_member(builder, member, request, request_id)
        return builder.build()

    def sync(self, now: Now, request: SyncRequest, request_id: RequestId) -> GroupResult:
        member = self._members.require(request.member_id, request.instance_id)
        self.metadata.check_generation(request.generation)
        self.metadata.check_sync_protocols(request)
        builder = ResultBuilder(now)
        if self.metadata.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgressError("the group is rebalancing: join again")
        if self.metadata.state is GroupState.STABLE:
            self._sync.mark_synced(member.member_id)
            builder.complete(request_id, self.metadata.sync_response(member.assignment))
            return builder.build()
        self._sync.park(builder, member.member_id, request_id)
        if member.member_id == self.metadata.leader:
            self._propose_assignments(builder, request.assignments)
        else:
            self._sync.mark_synced(member.member_id)
        return builder.build()

    def heartbeat(self, now: Now, identity: MemberIdentity, request_id: RequestId) -> GroupResult:
        member = self._members.require(identity.member_id, identity.instance_id)
        self.metadata.check_generation(identity.generation)
        builder = ResultBuilder(now)
        self._reschedule_heartbeat(now, member)
        if self.metadata.state is GroupState.PREPARING_REBALANCE:
            builder.complete(request_id, RebalanceInProgressError("the group is rebalancing: join again"))
        else:
            builder.complete(request_id, EMPTY_RESPONSE)
        return builder.build()

    def leave(self, now: Now, members: Sequence[LeavingMember], request_id: RequestId) -> GroupResult:
        builder = ResultBuilder(now)
        size_before = len(self._members)
        results = tuple(
            LeaveResult(each.member_id, each.instance_id, self._leave_member(builder, each)) for each in members
        )
        builder.complete(request_id, results)
        if len(self._members) < size_before:
            self._prepare_rebalance_or_complete_join(builder)
        else:
            self._maybe_complete_join(builder)
        return builder.build()

    def validate_offset_commit(self, now: Now, identity: MemberIdentity) -> None:
        """Raises an error if the sender may not commit. A commit extends a member's session like a heartbeat."""
        if identity.generation < 0 and self.metadata.is_empty:
            return
        if identity.generation < 0 and identity.member_id == UNKNOWN_MEMBER_ID and identity.instance_id is None:
            raise UnknownMemberIdError("only members can commit offsets of a group that has members")
        member = self._members.require(identity.member_id, identity.instance_id)
        self.metadata.check_generation(identity.generation)
        if self.metadata.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgressError("the member has not synced yet")
        self._reschedule_heartbeat(now, member)

    def validate_transactional_offset_commit(self, identity: MemberIdentity) -> None:
        """Raises an error if the sender may not commit in a transaction.

        As in Kafka, old producers send no member and may always commit, a commit is valid during a rebalance, and it
        does not extend the member's session.
        """
        has_member = identity.member_id != UNKNOWN_MEMBER_ID or identity.instance_id is not None
        if identity.generation < 0 and (self.metadata.is_empty or not has_member):
            return
        self._members.require(identity.member_id, identity.instance_id)
        self.metadata.check_generation(identity.generation)

    # Joining

    def _accepts_joining_member(self, request: JoinRequest) -> bool:
        member_id = request.member_id
        if member_id == UNKNOWN_MEMBER_ID and request.instance_id is not None:
            # A static member that rejoins without a member id replaces the member with the same instance id.
            member_id = self._members.static_members.get(request.instance_id) or UNKNOWN_MEMBER_ID
        match self.metadata.state:
            case GroupState.EMPTY:
                return True
            case GroupState.PREPARING_REBALANCE:
                # Count only the members that have joined in this rebalance. If `group_max_size` was lowered below the
                # size of the group, the members that join last are rejected.
                return member_id in self._join.parked or len(self._join.parked) < self._settings.group_max_size
            case _:
                return member_id in self._members or len(self._members) < self._settings.group_max_size

    def _join_new_member(self, builder: ResultBuilder, request: JoinRequest, request_id: RequestId) -> None:
        member_id = request.new_member_id
        if request.instance_id is not None:
            old_member_id = self._members.static_members.get(request.instance_id)
            if old_member_id is not None:
                old_member = self._members.by_id[old_member_id]
                self._replace_static_member(builder, old_member, request, request_id)
                return
        elif request.requires_known_member_id:
            self._join.pending_members[member_id] = None
            self._session_deadlines.set(member_id, builder.deadline_ms(request.session_timeout_ms))
            raise MemberIdRequiredError(member_id)
        self._add_member_and_rebalance(builder, member_id, request, request_id)

    def _add_member_and_rebalance(
        self, builder: ResultBuilder, member_id: str, request: JoinRequest, request_id: RequestId
    ) -> None:
        self._join.pending_members.pop(member_id, None)
        member = ClassicGroupMember.from_request(member_id, request)
        member.is_new = True
        if not self._members:
            self.metadata.protocol_type = request.protocol_type
        self._members.add(member)
        self._join.park(builder, member_id, request_id)
        self._join.has_new_members = True
        self._session_deadlines.set(member_id, builder.deadline_ms(NEW_MEMBER_JOIN_TIMEOUT_MS))
        self._prepare_rebalance_or_complete_join(builder)

    def _join_existing_member(
        self, builder: ResultBuilder, member: ClassicGroupMember, request: JoinRequest, request_id: RequestId
    ) -> None:
        state = self.metadata.state
        # A join of a Stable group's leader starts a rebalance, because the leader joins again to change assignments.
        is_stable_leader = state is GroupState.STABLE and member.member_id == self.metadata.leader
        if state is GroupState.PREPARING_REBALANCE or member.protocols != request.protocols or is_stable_leader:
            self._join.park(builder, member.member_id, request_id)
            self._members.update(member, request)
            self._prepare_rebalance_or_complete_join(builder)
        else:
            # Return the current generation, because the member probably did not receive the response to its last join.
            builder.complete(request_id, self.metadata.join_response(member.member_id))

    def _replace_static_member(
        self, builder: ResultBuilder, old: ClassicGroupMember, request: JoinRequest, request_id: RequestId
    ) -> None:
        """Gives a restarted static member a new member id and fences the old member id."""
        new = ClassicGroupMember.from_request(request.new_member_id, request)
        new.assignment = old.assignment
        if self.metadata.can_replace_without_rebalance(old, new):
            self._propose_static_replacement(builder, old, new, request, request_id)
            return
        error = FencedInstanceIdError("another member joined with the same group.instance.id")
        self._fail_parked_requests(builder, old.member_id, error)
        self._sync.pending_members.pop(old.member_id, None)
        self._session_deadlines.set(old.member_id, None)
        self._members.replace(old.member_id, new)
        self._join.park(builder, new.member_id, request_id)
        self._reschedule_heartbeat(builder.now, new)
        self._prepare_rebalance_or_complete_join(builder)

    def expire_pending_member(self, now: Now, member_id: str) -> None:
        """Stops waiting for a member that received a member id but has not joined with this id."""
        self._remove_pending_member(member_id)
        if self._can_complete_join:
            self._join.deadline_ms = now.monotonic_ms

    # Rebalancing

    def _prepare_rebalance_or_complete_join(self, builder: ResultBuilder) -> None:
        if self.metadata.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(builder)
        else:
            self._prepare_rebalance(builder)

    def _prepare_rebalance(self, builder: ResultBuilder) -> None:
        """Ends the current generation, so that all members must join again."""
        if self.metadata.state is GroupState.COMPLETING_REBALANCE:
            self._reset_assignments(builder)
        self._sync.cancel()
        was_empty = self.metadata.is_empty
        self.metadata.state = GroupState.PREPARING_REBALANCE
        self.metadata.empty_since_ms = None
        if was_empty:
            delay_ms = self._settings.group_initial_rebalance_delay_ms
            remaining_ms = max(self._members.rebalance_timeout_ms - delay_ms, 0)
            self._join.start_delay(builder.now.monotonic_ms, delay_ms, remaining_ms)
        elif self._join.has_all_joined(len(self._members)):
            self._complete_join(builder)
        else:
            self._join.deadline_ms = builder.deadline_ms(self._members.rebalance_timeout_ms)

    def _reset_assignments(self, builder: ResultBuilder) -> None:
        error = RebalanceInProgressError("the group is rebalancing: join again")
        for member_id, request_id in self._sync.parked.items():
            builder.complete(request_id, error)
            self._reschedule_heartbeat(builder.now, self._members.by_id[member_id])
        self._sync.parked.clear()
        for member in self._members:
            member.assignment = b""

    @property
    def _can_complete_join(self) -> bool:
        is_preparing = self.metadata.state is GroupState.PREPARING_REBALANCE
        return is_preparing and self._join.initial_delay_ms is None and self._join.has_all_joined(len(self._members))

    def _maybe_complete_join(self, builder: ResultBuilder) -> None:
        if self._can_complete_join:
            self._complete_join(builder)

    def _complete_join(self, builder: ResultBuilder) -> None:
        """Starts the next generation. Static members that did not join stay, because they may be restarting."""
        self._join.finish()
        for member in list(self._members):
            if member.member_id not in self._join.parked and not member.is_static:
                self._remove_member(builder, member.member_id)
        if not self._members:
            self.metadata.become_empty(builder.now.wall_ms)
            self._propose(builder, _Proposal(self.metadata.to_record_value(builder.now.wall_ms, {}), ()))
        elif not self._join.parked:
            delay_ms = max(self._members.rebalance_timeout_ms, REJOIN_DELAY_MS_MIN)
            self._join.deadline_ms = builder.deadline_ms(delay_ms)
        else:
            if self._members.leader not in self._join.parked:
                self._members.leader = next(iter(self._join.parked))
            self._start_next_generation(builder)

    def _start_next_generation(self, builder: ResultBuilder) -> None:
        self.metadata.start_generation()
        self._sync.pending_members = dict.fromkeys(self._members.by_id)
        self._sync.deadline_ms = builder.deadline_ms(self._members.rebalance_timeout_ms)
        for member in self._members:
            member.is_new = False
            self._reschedule_heartbeat(builder.now, member)
            if member.member_id in self._join.parked:
                request_id = self._join.parked.pop(member.member_id)
                builder.complete(request_id, self.metadata.join_response(member.member_id))

    def _propose_assignments(self, builder: ResultBuilder, leader_assignments: Mapping[str, bytes]) -> None:
        """Proposes the leader's assignments. A member that the leader omitted gets an empty assignment."""
        assignments = {member_id: leader_assignments.get(member_id, b"") for member_id in self._members.by_id}
        for member_id, request_id in self._sync.parked.items():
            builder.complete(request_id, self.metadata.sync_response(assignments[member_id]))
            self._reschedule_heartbeat(builder.now, self._members.by_id[member_id])
        synced = tuple(self._sync.parked)
        self._sync.parked.clear()
        # Keep the synced members pending until the record is written, because they must sync again if the write fails.
        self._sync.pending_members.update(dict.fromkeys(synced))
        value = self.metadata.to_record_value(builder.now.wall_ms, assignments)
        self._propose(builder, _Proposal(value, tuple(self._members), synced))

    def _propose_static_replacement(
        self,
        builder: ResultBuilder,
        old: ClassicGroupMember,
        new: ClassicGroupMember,
        request: JoinRequest,
        request_id: RequestId,
    ) -> None:
        is_leader = old.member_id == self.metadata.leader
        leader = new.member_id if is_leader else self.metadata.leader
        members = tuple(new if member is old else member for member in self._members)
        assignments = {member.member_id: member.assignment for member in members}
        value = self.metadata.to_record_value(builder.now.wall_ms, assignments, members=members, leader=leader)
        skips_assignment = request.supports_skipping_assignment and is_leader
        response = self.metadata.join_response_with(
            new.member_id,
            # If the client of the leader does not know SkipAssignment, the response names the old member id as the
            # leader. The client then acts as a normal member and does not compute assignments again.
            leader if request.supports_skipping_assignment else self.metadata.leader,
            members if skips_assignment else (),
            skip_assignment=skips_assignment,
        )
        builder.complete(request_id, response)
        self._reschedule_heartbeat(builder.now, new)
        self._propose(builder, _Proposal(value, members, replaced_member_id=old.member_id))

    # Leaving and removal

    def _leave_member(self, builder: ResultBuilder, leaving: LeavingMember) -> MoldauError | None:
        member_id = leaving.member_id
        if member_id == UNKNOWN_MEMBER_ID:
            # An administrator removes a static member by its instance id.
            found = None if leaving.instance_id is None else self._members.static_members.get(leaving.instance_id)
            if found is None:
                return UnknownMemberIdError(f"static member {leaving.instance_id!r} is not in the group")
            member_id = found
        elif member_id in self._join.pending_members:
            self._remove_pending_member(member_id)
            return None
        else:
            try:
                self._members.require(member_id, leaving.instance_id)
            except MoldauError as error:
                return error
        self._remove_member(builder, member_id)
        return None

    def _remove_member(self, builder: ResultBuilder, member_id: str) -> None:
        self._fail_parked_requests(builder, member_id, UnknownMemberIdError("the member was removed: join again"))
        self._members.remove(member_id)
        self._sync.pending_members.pop(member_id, None)
        self._session_deadlines.set(member_id, None)

    def _remove_pending_member(self, member_id: str) -> None:
        if member_id in self._join.pending_members:
            del self._join.pending_members[member_id]
            self._session_deadlines.set(member_id, None)

    def _fail_parked_requests(self, builder: ResultBuilder, member_id: str, error: MoldauError) -> None:
        for parked in (self._join.parked, self._sync.parked):
            if member_id in parked:
                builder.complete(parked.pop(member_id), error)

    # Timeouts

    def _reschedule_heartbeat(self, now: Now, member: ClassicGroupMember) -> None:
        self._session_deadlines.set(member.member_id, now.monotonic_ms + member.session_timeout_ms)

    @property
    def next_deadline_ms(self) -> int | None:
        deadlines = (self._session_deadlines.next_ms, self._join.deadline_ms, self._sync.deadline_ms)
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, now: Now) -> GroupResult:
        """Handles all deadlines up to `now`."""
        builder = ResultBuilder(now)
        while (due_ms := self.next_deadline_ms) is not None and due_ms <= now.monotonic_ms:
            if due_ms == self._join.deadline_ms:
                self._join.deadline_ms = None
                if not self._join.try_extend(now.monotonic_ms, self._settings.group_initial_rebalance_delay_ms):
                    self._complete_join(builder)
            elif due_ms == self._sync.deadline_ms:
                self._sync.deadline_ms = None
                for member_id in list(self._sync.pending_members):
                    self._remove_member(builder, member_id)
                self._prepare_rebalance(builder)
            elif (expired := self._session_deadlines.pop_due(due_ms)) is not None:
                self._on_session_expired(builder, expired)
        return builder.build()

    def _on_session_expired(self, builder: ResultBuilder, member_id: str) -> None:
        if member_id in self._join.pending_members:
            del self._join.pending_members[member_id]
        elif member_id in self._members:
            has_parked_request = member_id in self._join.parked or member_id in self._sync.parked
            if has_parked_request and not self._members.by_id[member_id].is_new:
                return
            self._remove_member(builder, member_id)
            if self.metadata.state is not GroupState.PREPARING_REBALANCE:
                self._prepare_rebalance(builder)
                return
        else:
            # `member_id` is the new id of a static member that rejoined. The record with this id could not be written,
            # so the group has no such member.
            return
        is_preparing = self.metadata.state is GroupState.PREPARING_REBALANCE
        if is_preparing and self._join.has_all_joined(len(self._members)):
            self._complete_join(builder)

    # Durable state

    def _propose(self, builder: ResultBuilder, proposal: _Proposal) -> None:
        self._proposal = proposal
        builder.records.append(GroupMetadataRecord(self.group_id, proposal.value))

    def apply(self, value: GroupMetadataValue) -> None:
        """Applies a record that is in the log: the record of the pending proposal, or a record that is being loaded."""
        proposal, self._proposal = self._proposal, None
        if proposal is not None and proposal.value == value:
            members = MemberSet(proposal.members, value.leader)
            for recorded in value.members:
                members.by_id[recorded.member_id].assignment = recorded.assignment
            for member_id in proposal.synced:
                self._sync.mark_synced(member_id)
            if proposal.replaced_member_id is not None:
                self._session_deadlines.set(proposal.replaced_member_id, None)
                self._sync.mark_synced(proposal.replaced_member_id)
        else:
            for member in self._members:
                self._session_deadlines.set(member.member_id, None)
            members = MemberSet(
                (ClassicGroupMember.from_record(each, value.protocol_name) for each in value.members), value.leader
            )
        self.metadata.update(value, members)

    def on_loaded(self, now: Now) -> GroupResult:
        """Starts the session timeouts after the log was loaded."""
        builder = ResultBuilder(now)
        for member in self._members:
            self._reschedule_heartbeat(now, member)
        if len(self._members) > self._settings.group_max_size:
            self._prepare_rebalance(builder)
        return builder.build()
