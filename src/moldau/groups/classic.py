"""One group of the classic protocol: members join, the group waits for all of them, the leader says who gets what, and
everybody is told. Pure: requests and the time go in, records and answers come out.

A generation begins when the members have joined; it is known to the log, and lasts, once the leader has synced. Until
then it lives here alone: after a crash its members join again. `rebalance.py` has the way from one generation to
the next.
"""

from collections.abc import Sequence
from types import MappingProxyType

from moldau.errors import (
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    MoldauError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from moldau.groups.member import Member
from moldau.groups.rebalance import Rebalance
from moldau.groups.requests import (
    DONE,
    UNKNOWN_MEMBER,
    GroupDecision,
    GroupDescription,
    GroupLimits,
    GroupState,
    JoinRequest,
    LeaveReply,
    LeavingMember,
    LeftMember,
    ListedGroup,
    MemberClaim,
    Now,
    SyncRequest,
    Ticket,
)
from moldau.groups.step import Step
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import PROTOCOL_TYPE, decode_subscription

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1_000
"""A member that has never finished a join cannot send heartbeats. It may have given up and joined under another id,
so it is not waited for longer than this."""


def check_session_timeout(session_timeout_ms: int, limits: GroupLimits) -> None:
    least, most = limits.session_timeout_ms_min, limits.session_timeout_ms_max
    if not least <= session_timeout_ms <= most:
        raise InvalidSessionTimeoutError(
            f"a session timeout of {session_timeout_ms} ms is not between {least} and {most}"
        )


class ClassicGroup(Rebalance):
    # Requests

    def join(self, now: Now, request: JoinRequest, ticket: Ticket) -> GroupDecision:
        check_session_timeout(request.session_timeout_ms, self._limits)
        step = Step(now)
        if not self._has_room_for(self._known_as(request)):
            step.answer(ticket, GroupMaxSizeReachedError(f"the group has {self._limits.size_max} members"))
            self._turn_away(step, request.member_id)
            return step.decision()
        self._check_protocols(request)
        if request.member_id == UNKNOWN_MEMBER:
            self._join_anew(step, request, ticket)
        elif request.member_id in self._pending and request.instance_id is None:
            self._add(step, request.member_id, request, ticket)
        else:
            member = self._known_member(request.member_id, request.instance_id)
            self._join_again(step, member, request, ticket)
        return step.decision()

    def sync(self, now: Now, request: SyncRequest, ticket: Ticket) -> GroupDecision:
        member = self._known_member(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        self._check_protocol_chosen(request)
        step = Step(now)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgressError("members are joining: the generation is over")
        if self.state is GroupState.STABLE:
            self._has_synced(member.member_id)
            step.answer(ticket, self._sync_reply(member.assignment))
            return step.decision()
        self._supersede(step, self._syncing, member.member_id)
        self._syncing[member.member_id] = ticket
        if member.member_id == self.leader:
            self._propose_assignments(step, request.assignments)
        else:
            self._has_synced(member.member_id)
        return step.decision()

    def heartbeat(self, now: Now, claim: MemberClaim, ticket: Ticket) -> GroupDecision:
        member = self._known_member(claim.member_id, claim.instance_id)
        self._check_generation(claim.generation)
        step = Step(now)
        self._restart_session(step, member)
        if self.state is GroupState.PREPARING_REBALANCE:
            step.answer(ticket, RebalanceInProgressError("the group is rebalancing: join again"))
        else:
            step.answer(ticket, DONE)
        return step.decision()

    def leave(self, now: Now, members: Sequence[LeavingMember], ticket: Ticket) -> GroupDecision:
        step = Step(now)
        size_before = len(self._roster)
        left = tuple(
            LeftMember(each.member_id, each.instance_id, self._let_go(step, each)) for each in members
        )
        step.answer(ticket, LeaveReply(left))
        if len(self._roster) < size_before:
            self._prepare_or_complete(step)
        else:
            self._complete_if_all_joined(step)
        return step.decision()

    def check_commit(self, now: Now, claim: MemberClaim) -> None:
        """Whether these may commit offsets; for a member it is a sign of life."""
        if claim.generation < 0 and self.is_empty:
            return
        if claim.generation < 0 and claim.member_id == UNKNOWN_MEMBER and claim.instance_id is None:
            raise UnknownMemberError("offsets of a group with members are committed by members only")
        member = self._known_member(claim.member_id, claim.instance_id)
        self._check_generation(claim.generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgressError("the member has to sync first")
        self._restart_session(Step(now), member)

    # What requests are checked for

    def _check_protocols(self, request: JoinRequest) -> None:
        if self.is_empty:
            if not request.protocol_type or not request.protocols:
                raise InconsistentGroupProtocolError("a member has a protocol type and at least one protocol")
        elif request.protocol_type != self.protocol_type:
            raise InconsistentGroupProtocolError(
                f"protocol type {request.protocol_type!r} in a group of {self.protocol_type!r}"
            )
        elif not self._roster.speaks_any(request.protocols):
            raise InconsistentGroupProtocolError("none of the protocols is spoken by all members")

    def _known_member(self, member_id: str, instance_id: str | None) -> Member:
        """Who was removed, or replaced by another with its instance id, is nobody here any more."""
        self._check_not_fenced(member_id, instance_id)
        member = self._roster.members.get(member_id)
        if member is None:
            raise UnknownMemberError(f"no member {member_id!r} in group {self.group_id!r}")
        return member

    def _check_not_fenced(self, member_id: str, instance_id: str | None) -> None:
        if instance_id is None:
            return
        holder = self._roster.holder(instance_id)
        if holder is None:
            raise UnknownMemberError(f"no static member {instance_id!r} in group {self.group_id!r}")
        if holder != member_id:
            raise FencedInstanceIdError(f"static member {instance_id!r} is now {holder!r}")

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGenerationError(f"generation {generation} where it is {self.generation}")

    def _check_protocol_chosen(self, request: SyncRequest) -> None:
        for said, chosen in (
            (request.protocol_type, self.protocol_type),
            (request.protocol_name, self.protocol_name),
        ):
            if said is not None and chosen is not None and said != chosen:
                raise InconsistentGroupProtocolError(f"{said!r} where the group has chosen {chosen!r}")

    def _known_as(self, request: JoinRequest) -> str:
        """A static member that comes back without its id is who it was: it needs no place of its own."""
        if request.member_id == UNKNOWN_MEMBER and request.instance_id is not None:
            return self._roster.holder(request.instance_id) or UNKNOWN_MEMBER
        return request.member_id

    def _has_room_for(self, member_id: str) -> bool:
        match self.state:
            case GroupState.EMPTY:
                return True
            case GroupState.PREPARING_REBALANCE:
                # Those who have joined are counted, not those who are known: so a group that has become too
                # big, because the limit was lowered, sheds the members that come last.
                return member_id in self._joining or len(self._joining) < self._limits.size_max
            case _:
                return member_id in self._roster or len(self._roster) < self._limits.size_max

    # Joining

    def _join_anew(self, step: Step, request: JoinRequest, ticket: Ticket) -> None:
        member_id = request.fresh_member_id
        if request.instance_id is not None:
            holder = self._roster.holder(request.instance_id)
            if holder is not None:
                self._come_back(step, self._roster.members[holder], request, ticket)
            else:
                self._add(step, member_id, request, ticket)
        elif request.requires_known_member_id:
            self._expect(step, member_id, request.session_timeout_ms)
            raise MemberIdRequiredError(member_id)
        else:
            self._add(step, member_id, request, ticket)

    def _expect(self, step: Step, member_id: str, session_timeout_ms: int) -> None:
        self._pending[member_id] = None
        self._sessions.set(member_id, step.after_ms(session_timeout_ms))

    def _add(self, step: Step, member_id: str, request: JoinRequest, ticket: Ticket) -> None:
        self._pending.pop(member_id, None)
        member = Member.joining(member_id, request)
        member.is_new = True
        if not self._roster:
            self.protocol_type = request.protocol_type
        self._roster.add(member)
        self._joining[member_id] = ticket
        self._initial_join_grows()
        self._sessions.set(member_id, step.after_ms(NEW_MEMBER_JOIN_TIMEOUT_MS))
        self._prepare_or_complete(step)

    def _join_again(self, step: Step, member: Member, request: JoinRequest, ticket: Ticket) -> None:
        is_news = member.protocols != request.protocols
        leads_stable_group = self.state is GroupState.STABLE and member.member_id == self.leader
        # A leader joins again when something has changed that calls for other assignments, such as partitions
        # that were added; the group need not see what.
        if self.state is GroupState.PREPARING_REBALANCE or is_news or leads_stable_group:
            self._supersede(step, self._joining, member.member_id)
            self._roster.update(member, request)
            self._joining[member.member_id] = ticket
            self._prepare_or_complete(step)
        else:
            # Its answer may have been lost, so it is given again.
            step.answer(ticket, self._join_reply(member.member_id))

    def _come_back(self, step: Step, former: Member, request: JoinRequest, ticket: Ticket) -> None:
        """A static member has been restarted: it has its place but not its member id any more."""
        successor = Member.joining(request.fresh_member_id, request)
        successor.assignment = former.assignment
        if self._stays_stable_with(former, successor):
            self._propose_successor(step, former, successor, request, ticket)
            return
        self._fence(step, former.member_id)
        self._roster.replace(former.member_id, successor)
        self._joining[successor.member_id] = ticket
        self._restart_session(step, successor)
        self._prepare_or_complete(step)

    def _fence(self, step: Step, member_id: str) -> None:
        error = FencedInstanceIdError("another member with the same instance id has taken this one's place")
        step.answer_all(self._taken_tickets(member_id), error)
        self._unsynced.pop(member_id, None)
        self._sessions.set(member_id, None)

    def _turn_away(self, step: Step, member_id: str) -> None:
        """There is no room for who was a member until now, or was told to come back."""
        self._forget_pending(member_id)
        if member_id in self._roster:
            self._remove(step, member_id)
        self._complete_if_all_joined(step)

    def give_up_pending(self, now: Now, member_id: str) -> None:
        """If this id was given out, and nobody has come back with it, nobody is waited for."""
        self._forget_pending(member_id)
        if self._may_complete_join:
            self._join_deadline_ms = now.monotonic_ms

    # Leaving

    def _let_go(self, step: Step, leaving: LeavingMember) -> MoldauError | None:
        member_id = leaving.member_id
        if member_id == UNKNOWN_MEMBER:
            # An operator removes a static member, knowing nothing but its instance id.
            holder = self._roster.holder(leaving.instance_id) if leaving.instance_id is not None else None
            if holder is None:
                return UnknownMemberError(f"no static member {leaving.instance_id!r}")
            member_id = holder
        elif member_id in self._pending:
            self._forget_pending(member_id)
            return None
        else:
            try:
                member_id = self._known_member(member_id, leaving.instance_id).member_id
            except MoldauError as error:
                return error
        self._remove(step, member_id)
        return None

    # Looking at it

    @property
    def members(self) -> MappingProxyType[str, Member]:
        return MappingProxyType(self._roster.members)

    def subscribed_topics(self) -> tuple[str, ...] | None:
        """What the members of a consumer group read; None where that cannot be known."""
        if self.protocol_type != PROTOCOL_TYPE or self._subscriptions is None:
            return None
        topics: dict[str, None] = {}
        for subscription in self._subscriptions:
            try:
                # Every later version of a subscription begins as version 0 does.
                topics.update(dict.fromkeys(decode_subscription(b"\0\0" + subscription[2:]).topics))
            except DecodeError:
                return None
        return tuple(topics)

    def describe(self) -> GroupDescription:
        protocol_name = self.protocol_name if self.state is GroupState.STABLE else None
        return GroupDescription(
            self.group_id,
            self.state,
            self.protocol_type or "",
            protocol_name or "",
            tuple(member.described(protocol_name) for member in self._roster),
        )

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, self.protocol_type or "", self.state, "classic")
