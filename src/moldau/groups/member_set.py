"""Who is in a classic group: its members in the order they came, the static ones by instance id, the leader, and the
protocols that all of them can speak.
"""

from collections.abc import Iterable, Iterator

from moldau.groups.classic_group_member import ClassicGroupMember
from moldau.groups.java_hash import java_hash
from moldau.groups.requests import JoinRequest, Protocol


class MemberSet:
    def __init__(self, members: Iterable[ClassicGroupMember] = (), leader: str | None = None) -> None:
        self.members: dict[str, ClassicGroupMember] = {}
        self.leader: str | None = None
        """A member, as long as there is one: the first that came, or who took over from it."""
        self._static_members: dict[str, str] = {}
        self._supported_protocols: dict[str, int] = {}
        """How many members speak each protocol."""
        for member in members:
            self.add(member)
        if leader in self.members:
            self.leader = leader

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[ClassicGroupMember]:
        return iter(self.members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.members

    def static_member_id(self, instance_id: str) -> str | None:
        """The member id that a static member has now."""
        return self._static_members.get(instance_id)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The group waits as long as its most patient member asks for."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def supports_any(self, protocols: Iterable[Protocol]) -> bool:
        """Whether one of these is spoken by all members."""
        return any(self._supported_protocols.get(protocol.name, 0) == len(self) for protocol in protocols)

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that everybody speaks; most votes win."""
        votes: dict[str, int] = {}
        for member in self:
            vote = next(
                name for name in member.protocol_names if self._supported_protocols[name] == len(self)
            )
            votes[vote] = votes.get(vote, 0) + 1
        most = max(votes.values())
        return min((name for name in votes if votes[name] == most), key=_java_map_bucket)

    def add(self, member: ClassicGroupMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static_members[member.instance_id] = member.member_id
        self._count_protocols(member, 1)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        if member.instance_id is not None:
            del self._static_members[member.instance_id]
        self._count_protocols(member, -1)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, member_id: str, successor: ClassicGroupMember) -> None:
        """A static member has come back under another id: it takes over everything, the leadership too."""
        was_leader = self.leader == member_id
        self.remove(member_id)
        self.add(successor)
        if was_leader:
            self.leader = successor.member_id

    def update(self, member: ClassicGroupMember, request: JoinRequest) -> None:
        """A member joins again, perhaps with other protocols and timeouts than before."""
        self._count_protocols(member, -1)
        member.protocols = request.protocols
        self._count_protocols(member, 1)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms

    def _count_protocols(self, member: ClassicGroupMember, by: int) -> None:
        for name in member.protocol_names:
            speakers = self._supported_protocols.get(name, 0) + by
            if speakers:
                self._supported_protocols[name] = speakers
            else:
                del self._supported_protocols[name]


def _java_map_bucket(name: str) -> int:
    """Kafka takes the first of those with equally many votes in the order of a Java hash map, and so do we: a group
    that moves from there finds the same protocol. (A map of up to twelve protocols has sixteen places.)"""
    code = java_hash(name) & 0xFFFFFFFF
    return (code ^ code >> 16) & 15
