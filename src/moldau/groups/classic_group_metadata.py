"""State, generation, protocol and members of a classic group, and their records and responses."""

from collections.abc import Iterable, Mapping, Sequence

from moldau.errors import IllegalGenerationError, InconsistentGroupProtocolError
from moldau.groups.members import ClassicGroupMember, MemberSet
from moldau.groups.records import GroupMetadataValue
from moldau.groups.requests import (
    GroupDescription,
    GroupState,
    JoinRequest,
    JoinResponse,
    ListedGroup,
    SyncRequest,
    SyncResponse,
)
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import PROTOCOL_TYPE, decode_subscription

NO_TIMESTAMP = -1


class ClassicGroupMetadata:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.empty_since_ms: int | None = None
        """Wall clock time at which the group became empty; None if the group is not empty or the time is unknown."""
        self.members = MemberSet()
        self._subscriptions: tuple[bytes, ...] | None = None
        """Protocol metadata of the members of the latest generation."""

    @property
    def leader(self) -> str | None:
        return self.members.leader

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    # Checks of requests

    def check_join_protocols(self, request: JoinRequest) -> None:
        if self.is_empty:
            if not request.protocol_type or not request.protocols:
                raise InconsistentGroupProtocolError("a join needs a protocol type and at least one protocol")
        elif request.protocol_type != self.protocol_type:
            raise InconsistentGroupProtocolError(
                f"protocol type {request.protocol_type!r} does not match the group's {self.protocol_type!r}"
            )
        elif not self.members.supports_any(request.protocols):
            raise InconsistentGroupProtocolError("no protocol is supported by all members")

    def check_sync_protocols(self, request: SyncRequest) -> None:
        for requested, selected in (
            (request.protocol_type, self.protocol_type),
            (request.protocol_name, self.protocol_name),
        ):
            if requested is not None and selected is not None and requested != selected:
                raise InconsistentGroupProtocolError(f"{requested!r} does not match the group's {selected!r}")

    def check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGenerationError(f"generation {generation} does not match the group's {self.generation}")

    # Transitions

    def start_generation(self) -> None:
        self.generation += 1
        self.protocol_name = self.members.select_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        self._update_subscriptions()

    def become_empty(self, wall_ms: int) -> None:
        self.generation += 1
        self.protocol_name = None
        self.state = GroupState.EMPTY
        self.empty_since_ms = wall_ms
        self._update_subscriptions()

    def update(self, value: GroupMetadataValue, members: MemberSet) -> None:
        """Replaces the state by that of a group record. The group is Stable if it has members, otherwise Empty."""
        self.members = members
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol_name
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        has_empty_time = not value.members and value.state_timestamp_ms != NO_TIMESTAMP
        self.empty_since_ms = value.state_timestamp_ms if has_empty_time else None
        self._update_subscriptions()

    def _update_subscriptions(self) -> None:
        self._subscriptions = tuple(member.metadata(self.protocol_name) for member in self.members)

    def can_replace_without_rebalance(self, old: ClassicGroupMember, new: ClassicGroupMember) -> bool:
        """Returns whether a static member can be replaced while the group stays Stable."""
        if self.state is not GroupState.STABLE:
            return False
        if list(new.protocol_names) == list(old.protocol_names):
            # The replacement does not change the votes for protocols, so the selected protocol stays the same.
            return True
        others = [member for member in self.members if member is not old]
        return MemberSet([*others, new]).select_protocol() == self.protocol_name

    # Records and responses

    def to_record_value(
        self,
        wall_ms: int,
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
            state_timestamp_ms=wall_ms,
            members=tuple(
                member.to_record(self.protocol_name, assignments[member.member_id])
                for member in (self.members if members is None else members)
            ),
        )

    def join_response(self, member_id: str) -> JoinResponse:
        is_leader = member_id == self.leader and self.state is GroupState.COMPLETING_REBALANCE
        return self.join_response_with(member_id, self.leader, self.members if is_leader else ())

    def join_response_with(
        self,
        member_id: str,
        leader: str | None,
        members: Iterable[ClassicGroupMember],
        *,
        skip_assignment: bool = False,
    ) -> JoinResponse:
        return JoinResponse(
            generation=self.generation,
            protocol_type=self.protocol_type or "",
            protocol_name=self.protocol_name or "",
            leader=leader or "",
            skip_assignment=skip_assignment,
            member_id=member_id,
            members=tuple(each.to_joined_member(self.protocol_name) for each in members),
        )

    def sync_response(self, assignment: bytes) -> SyncResponse:
        return SyncResponse(
            protocol_type=self.protocol_type or "", protocol_name=self.protocol_name or "", assignment=assignment
        )

    def subscribed_topics(self) -> tuple[str, ...] | None:
        """Returns the topics that the members subscribe to, or None if the subscriptions are unknown."""
        if self.protocol_type != PROTOCOL_TYPE or self._subscriptions is None:
            return None
        topics: dict[str, None] = {}
        for subscription in self._subscriptions:
            try:
                # Every subscription is decoded as version 0, because later versions start with the fields of version 0.
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
            tuple(member.to_record(protocol_name, member.assignment) for member in self.members),
        )

    def as_listed_group(self) -> ListedGroup:
        return ListedGroup(self.group_id, self.protocol_type or "", self.state, "classic")
