"""One member of a classic group: who it is, what it can speak, and what it was given to consume."""

from dataclasses import dataclass
from typing import Self

from moldau.groups.records import MemberMetadataValue
from moldau.groups.requests import JoinedMember, JoinRequest, MemberDescription, Protocol


@dataclass(slots=True)
class ClassicGroupMember:
    member_id: str
    instance_id: str | None
    """Set for a static member: it keeps its place when it comes back under another member id."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    """In the order of its preference, each with what the member says about itself in it."""
    assignment: bytes = b""
    is_new: bool = False
    """Has not been through a whole join yet, so that it cannot send heartbeats either."""

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
    def from_record(cls, metadata: MemberMetadataValue, protocol_name: str | None) -> Self:
        """From the log, which remembers only the protocol that was chosen."""
        return cls(
            member_id=metadata.member_id,
            instance_id=metadata.instance_id,
            client_id=metadata.client_id,
            client_host=metadata.client_host,
            session_timeout_ms=metadata.session_timeout_ms,
            rebalance_timeout_ms=metadata.rebalance_timeout_ms,
            protocols=(Protocol(protocol_name or "", metadata.subscription),),
            assignment=metadata.assignment,
        )

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def protocol_names(self) -> dict[str, None]:
        """Without repeats, the preferred one first."""
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

    def describe(self, protocol_name: str | None) -> MemberDescription:
        return MemberDescription(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.metadata(protocol_name),
            self.assignment,
        )
