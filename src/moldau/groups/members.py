"""Members of a classic group, their leader, and the protocols that all of them support."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from moldau.coordinator.java_hash import java_hash
from moldau.errors import FencedInstanceIdError, UnknownMemberIdError
from moldau.groups.records import MemberMetadataValue
from moldau.groups.requests import JoinedMember, JoinRequest, Protocol


@dataclass(slots=True)
class ClassicGroupMember:
    member_id: str
    instance_id: str | None
    """Set for a static member, which keeps its assignment when it rejoins with a new member id."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    """Supported protocols with their metadata, the preferred protocol first."""
    assignment: bytes = b""
    is_new: bool = False
    """True until the member's first join completes. Until then the member cannot send heartbeats."""

    @classmethod
    def from_request(cls, member_id: str, request: JoinRequest) -> Self:
        return cls(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
        )

    @classmethod
    def from_record(cls, value: MemberMetadataValue, protocol_name: str | None) -> Self:
        """Restores a member from the log. A record has only the metadata of the selected protocol."""
        return cls(
            member_id=value.member_id,
            instance_id=value.instance_id,
            client_id=value.client_id,
            client_host=value.client_host,
            session_timeout_ms=value.session_timeout_ms,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            protocols=(Protocol(protocol_name or "", value.subscription),),
            assignment=value.assignment,
        )

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def protocol_names(self) -> dict[str, None]:
        """Protocol names without duplicates, the preferred protocol first."""
        return dict.fromkeys(protocol.name for protocol in self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol_name), b"")

    def to_record(self, protocol_name: str | None, assignment: bytes) -> MemberMetadataValue:
        return MemberMetadataValue(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )

    def to_joined_member(self, protocol_name: str | None) -> JoinedMember:
        return JoinedMember(self.member_id, self.instance_id, self.metadata(protocol_name))


class MemberSet:
    """The members of one group in join order. Iteration yields ClassicGroupMember objects."""

    def __init__(self, members: Iterable[ClassicGroupMember] = (), leader: str | None = None) -> None:
        self.by_id: dict[str, ClassicGroupMember] = {}
        self.leader: str | None = None
        """The member id of the group leader; None if the group has no members."""
        self.static_members: dict[str, str] = {}
        """Member ids by instance id."""
        self._supported_protocols: dict[str, int] = {}
        """The number of members that support each protocol."""
        for member in members:
            self.add(member)
        if leader in self.by_id:
            self.leader = leader

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[ClassicGroupMember]:
        return iter(self.by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.by_id

    def require(self, member_id: str, instance_id: str | None) -> ClassicGroupMember:
        """Raises UnknownMemberIdError, or FencedInstanceIdError if another member has the instance id now."""
        self.check_not_fenced(member_id, instance_id)
        member = self.by_id.get(member_id)
        if member is None:
            raise UnknownMemberIdError(f"member {member_id!r} is not in the group")
        return member

    def check_not_fenced(self, member_id: str, instance_id: str | None) -> None:
        if instance_id is None:
            return
        current_id = self.static_members.get(instance_id)
        if current_id is None:
            raise UnknownMemberIdError(f"static member {instance_id!r} is not in the group")
        if current_id != member_id:
            raise FencedInstanceIdError(f"static member {instance_id!r} has the member id {current_id!r} now")

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def supports_any(self, protocols: Iterable[Protocol]) -> bool:
        """Returns whether at least one of these protocols is supported by all members."""
        return any(self._supported_protocols.get(protocol.name, 0) == len(self) for protocol in protocols)

    def select_protocol(self) -> str:
        """Returns the protocol with the most votes. A member votes for its first protocol that all support."""
        votes: dict[str, int] = {}
        for member in self:
            vote = next(name for name in member.protocol_names if self._supported_protocols[name] == len(self))
            votes[vote] = votes.get(vote, 0) + 1
        votes_max = max(votes.values())
        return min((name for name in votes if votes[name] == votes_max), key=_java_map_bucket)

    def add(self, member: ClassicGroupMember) -> None:
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._count_protocols(member, 1)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        member = self.by_id.pop(member_id)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        self._count_protocols(member, -1)
        if self.leader == member_id:
            self.leader = next(iter(self.by_id), None)

    def replace(self, member_id: str, replacement: ClassicGroupMember) -> None:
        """Replaces a static member that rejoined with a new member id. The replacement of a leader becomes leader."""
        was_leader = self.leader == member_id
        self.remove(member_id)
        self.add(replacement)
        if was_leader:
            self.leader = replacement.member_id

    def update(self, member: ClassicGroupMember, request: JoinRequest) -> None:
        """Updates protocols and timeouts of a member that rejoins."""
        self._count_protocols(member, -1)
        member.protocols = request.protocols
        self._count_protocols(member, 1)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms

    def _count_protocols(self, member: ClassicGroupMember, change: int) -> None:
        for name in member.protocol_names:
            count = self._supported_protocols.get(name, 0) + change
            if count:
                self._supported_protocols[name] = count
            else:
                del self._supported_protocols[name]


def _java_map_bucket(name: str) -> int:
    """Returns the bucket of a string in a Java HashMap of 16 buckets (up to 12 entries).

    If several protocols have the most votes, Kafka selects the first in the iteration order of such a map. The same
    order is used here, so that the same protocol is selected.
    """
    code = java_hash(name) & 0xFFFFFFFF
    return (code ^ code >> 16) & 15
