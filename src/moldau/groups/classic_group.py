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
    UnknownMemberIdError,
)
from moldau.groups.classic_group_member import ClassicGroupMember
from moldau.groups.decision_builder import DecisionBuilder
from moldau.groups.rebalance import Rebalance
from moldau.groups.requests import (
    EMPTY_RESPONSE,
    UNKNOWN_MEMBER_ID,
    GroupCoordinatorConfig,
    GroupDecision,
    GroupDescription,
    GroupState,
    JoinRequest,
    LeaveResponse,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    MemberIdentity,
    Now,
    RequestId,
    SyncRequest,
)
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import PROTOCOL_TYPE, decode_subscription

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1_000
"""A member that has never finished a join cannot send heartbeats. It may have given up and joined under another id,
so it is not waited for longer than this."""


def check_session_timeout(session_timeout_ms: int, config: GroupCoordinatorConfig) -> None:
    least, most = config.session_timeout_ms_min, config.session_timeout_ms_max
    if not least <= session_timeout_ms <= most:
        raise InvalidSessionTimeoutError(
            f"a session timeout of {session_timeout_ms} ms is not between {least} and {most}"
        )


class ClassicGroup(Rebalance):
    # Requests

    def join(self, now: Now, request: JoinRequest, request_id: RequestId) -> GroupDecision:
        check_session_timeout(request.session_timeout_ms, self._config)
        builder = DecisionBuilder(now)
        if not self._accepts_joining_member(self._effective_member_id(request)):
            builder.complete(
                request_id, GroupMaxSizeReachedError(f"the group has {self._config.size_max} members")
            )
            self._reject_member(builder, request.member_id)
            return builder.build()
        self._check_protocols(request)
        if request.member_id == UNKNOWN_MEMBER_ID:
            self._join_new_member(builder, request, request_id)
        elif request.member_id in self._pending_join_members and request.instance_id is None:
            self._add_member_and_rebalance(builder, request.member_id, request, request_id)
        else:
            member = self._require_member(request.member_id, request.instance_id)
            self._join_existing_member(builder, member, request, request_id)
        return builder.build()

    def sync(self, now: Now, request: SyncRequest, request_id: RequestId) -> GroupDecision:
        member = self._require_member(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        self._check_sync_protocol(request)
        builder = DecisionBuilder(now)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgressError("members are joining: the generation is over")
        if self.state is GroupState.STABLE:
            self._mark_synced(member.member_id)
            builder.complete(request_id, self._sync_response(member.assignment))
            return builder.build()
        self._fail_superseded_request(builder, self._awaiting_sync, member.member_id)
        self._awaiting_sync[member.member_id] = request_id
        if member.member_id == self.leader:
            self._propose_assignments(builder, request.assignments)
        else:
            self._mark_synced(member.member_id)
        return builder.build()

    def heartbeat(self, now: Now, identity: MemberIdentity, request_id: RequestId) -> GroupDecision:
        member = self._require_member(identity.member_id, identity.instance_id)
        self._check_generation(identity.generation)
        builder = DecisionBuilder(now)
        self._reschedule_heartbeat(builder, member)
        if self.state is GroupState.PREPARING_REBALANCE:
            builder.complete(request_id, RebalanceInProgressError("the group is rebalancing: join again"))
        else:
            builder.complete(request_id, EMPTY_RESPONSE)
        return builder.build()

    def leave(self, now: Now, members: Sequence[LeavingMember], request_id: RequestId) -> GroupDecision:
        builder = DecisionBuilder(now)
        size_before = len(self._members)
        left = tuple(
            LeaveResult(each.member_id, each.instance_id, self._leave_member(builder, each))
            for each in members
        )
        builder.complete(request_id, LeaveResponse(left))
        if len(self._members) < size_before:
            self._prepare_rebalance_or_complete_join(builder)
        else:
            self._maybe_complete_join(builder)
        return builder.build()

    def validate_offset_commit(self, now: Now, identity: MemberIdentity) -> None:
        """Whether these may commit offsets; for a member it is a sign of life."""
        if identity.generation < 0 and self.is_empty:
            return
        if (
            identity.generation < 0
            and identity.member_id == UNKNOWN_MEMBER_ID
            and identity.instance_id is None
        ):
            raise UnknownMemberIdError("offsets of a group with members are committed by members only")
        member = self._require_member(identity.member_id, identity.instance_id)
        self._check_generation(identity.generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgressError("the member has to sync first")
        self._reschedule_heartbeat(DecisionBuilder(now), member)

    # What requests are checked for

    def _check_protocols(self, request: JoinRequest) -> None:
        if self.is_empty:
            if not request.protocol_type or not request.protocols:
                raise InconsistentGroupProtocolError("a member has a protocol type and at least one protocol")
        elif request.protocol_type != self.protocol_type:
            raise InconsistentGroupProtocolError(
                f"protocol type {request.protocol_type!r} in a group of {self.protocol_type!r}"
            )
        elif not self._members.supports_any(request.protocols):
            raise InconsistentGroupProtocolError("none of the protocols is spoken by all members")

    def _require_member(self, member_id: str, instance_id: str | None) -> ClassicGroupMember:
        """Who was removed, or replaced by another with its instance id, is nobody here any more."""
        self._check_instance_not_fenced(member_id, instance_id)
        member = self._members.members.get(member_id)
        if member is None:
            raise UnknownMemberIdError(f"no member {member_id!r} in group {self.group_id!r}")
        return member

    def _check_instance_not_fenced(self, member_id: str, instance_id: str | None) -> None:
        if instance_id is None:
            return
        static_member_id = self._members.static_member_id(instance_id)
        if static_member_id is None:
            raise UnknownMemberIdError(f"no static member {instance_id!r} in group {self.group_id!r}")
        if static_member_id != member_id:
            raise FencedInstanceIdError(f"static member {instance_id!r} is now {static_member_id!r}")

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGenerationError(f"generation {generation} where it is {self.generation}")

    def _check_sync_protocol(self, request: SyncRequest) -> None:
        for said, chosen in (
            (request.protocol_type, self.protocol_type),
            (request.protocol_name, self.protocol_name),
        ):
            if said is not None and chosen is not None and said != chosen:
                raise InconsistentGroupProtocolError(f"{said!r} where the group has chosen {chosen!r}")

    def _effective_member_id(self, request: JoinRequest) -> str:
        """A static member that comes back without its id is who it was: it needs no place of its own."""
        if request.member_id == UNKNOWN_MEMBER_ID and request.instance_id is not None:
            return self._members.static_member_id(request.instance_id) or UNKNOWN_MEMBER_ID
        return request.member_id

    def _accepts_joining_member(self, member_id: str) -> bool:
        match self.state:
            case GroupState.EMPTY:
                return True
            case GroupState.PREPARING_REBALANCE:
                # Those who have joined are counted, not those who are known: so a group that has become too
                # big, because the limit was lowered, sheds the members that come last.
                return member_id in self._awaiting_join or len(self._awaiting_join) < self._config.size_max
            case _:
                return member_id in self._members or len(self._members) < self._config.size_max

    # Joining

    def _join_new_member(self, builder: DecisionBuilder, request: JoinRequest, request_id: RequestId) -> None:
        member_id = request.new_member_id
        if request.instance_id is not None:
            static_member_id = self._members.static_member_id(request.instance_id)
            if static_member_id is not None:
                self._replace_static_member(
                    builder, self._members.members[static_member_id], request, request_id
                )
            else:
                self._add_member_and_rebalance(builder, member_id, request, request_id)
        elif request.requires_known_member_id:
            self._add_pending_member(builder, member_id, request.session_timeout_ms)
            raise MemberIdRequiredError(member_id)
        else:
            self._add_member_and_rebalance(builder, member_id, request, request_id)

    def _add_pending_member(self, builder: DecisionBuilder, member_id: str, session_timeout_ms: int) -> None:
        self._pending_join_members[member_id] = None
        self._session_deadlines.set(member_id, builder.deadline_ms(session_timeout_ms))

    def _add_member_and_rebalance(
        self, builder: DecisionBuilder, member_id: str, request: JoinRequest, request_id: RequestId
    ) -> None:
        self._pending_join_members.pop(member_id, None)
        member = ClassicGroupMember.from_request(member_id, request)
        member.is_new = True
        if not self._members:
            self.protocol_type = request.protocol_type
        self._members.add(member)
        self._awaiting_join[member_id] = request_id
        self._mark_new_member_added()
        self._session_deadlines.set(member_id, builder.deadline_ms(NEW_MEMBER_JOIN_TIMEOUT_MS))
        self._prepare_rebalance_or_complete_join(builder)

    def _join_existing_member(
        self,
        builder: DecisionBuilder,
        member: ClassicGroupMember,
        request: JoinRequest,
        request_id: RequestId,
    ) -> None:
        is_news = member.protocols != request.protocols
        leads_stable_group = self.state is GroupState.STABLE and member.member_id == self.leader
        # A leader joins again when something has changed that calls for other assignments, such as partitions
        # that were added; the group need not see what.
        if self.state is GroupState.PREPARING_REBALANCE or is_news or leads_stable_group:
            self._fail_superseded_request(builder, self._awaiting_join, member.member_id)
            self._members.update(member, request)
            self._awaiting_join[member.member_id] = request_id
            self._prepare_rebalance_or_complete_join(builder)
        else:
            # Its answer may have been lost, so it is given again.
            builder.complete(request_id, self._join_response(member.member_id))

    def _replace_static_member(
        self,
        builder: DecisionBuilder,
        former: ClassicGroupMember,
        request: JoinRequest,
        request_id: RequestId,
    ) -> None:
        """A static member has been restarted: it has its place but not its member id any more."""
        successor = ClassicGroupMember.from_request(request.new_member_id, request)
        successor.assignment = former.assignment
        if self._can_replace_without_rebalance(former, successor):
            self._propose_static_replacement(builder, former, successor, request, request_id)
            return
        self._fence_member(builder, former.member_id)
        self._members.replace(former.member_id, successor)
        self._awaiting_join[successor.member_id] = request_id
        self._reschedule_heartbeat(builder, successor)
        self._prepare_rebalance_or_complete_join(builder)

    def _fence_member(self, builder: DecisionBuilder, member_id: str) -> None:
        error = FencedInstanceIdError("another member with the same instance id has taken this one's place")
        builder.complete_all(self._take_parked_requests(member_id), error)
        self._pending_sync_members.pop(member_id, None)
        self._session_deadlines.set(member_id, None)

    def _reject_member(self, builder: DecisionBuilder, member_id: str) -> None:
        """There is no room for who was a member until now, or was told to come back."""
        self._remove_pending_member(member_id)
        if member_id in self._members:
            self._remove_member(builder, member_id)
        self._maybe_complete_join(builder)

    def expire_pending_member(self, now: Now, member_id: str) -> None:
        """If this id was given out, and nobody has come back with it, nobody is waited for."""
        self._remove_pending_member(member_id)
        if self._can_complete_join:
            self._join_deadline_ms = now.monotonic_ms

    # Leaving

    def _leave_member(self, builder: DecisionBuilder, leaving: LeavingMember) -> MoldauError | None:
        member_id = leaving.member_id
        if member_id == UNKNOWN_MEMBER_ID:
            # An operator removes a static member, knowing nothing but its instance id.
            static_member_id = (
                self._members.static_member_id(leaving.instance_id)
                if leaving.instance_id is not None
                else None
            )
            if static_member_id is None:
                return UnknownMemberIdError(f"no static member {leaving.instance_id!r}")
            member_id = static_member_id
        elif member_id in self._pending_join_members:
            self._remove_pending_member(member_id)
            return None
        else:
            try:
                member_id = self._require_member(member_id, leaving.instance_id).member_id
            except MoldauError as error:
                return error
        self._remove_member(builder, member_id)
        return None

    # Looking at it

    @property
    def members(self) -> MappingProxyType[str, ClassicGroupMember]:
        return MappingProxyType(self._members.members)

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
            tuple(member.describe(protocol_name) for member in self._members),
        )

    def as_listed_group(self) -> ListedGroup:
        return ListedGroup(self.group_id, self.protocol_type or "", self.state, "classic")
