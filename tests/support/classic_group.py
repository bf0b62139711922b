"""Harness for a ClassicGroup: requests at chosen times, records applied at once, responses by request id."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moldau.coordinator.result import Now, RequestId
from moldau.errors import MoldauError
from moldau.groups.classic_group import ClassicGroup
from moldau.groups.classic_group_metadata import ClassicGroupMetadata
from moldau.groups.members import ClassicGroupMember
from moldau.groups.records import GroupMetadataRecord, GroupRecord
from moldau.groups.requests import (
    UNKNOWN_MEMBER_ID,
    GroupResponse,
    GroupResult,
    GroupState,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    MemberIdentity,
    Protocol,
    SyncRequest,
    SyncResponse,
)
from moldau.settings.broker import BrokerSettings
from moldau.wire.consumer_protocol import Subscription, encode_subscription

GROUP = "readers"
WALL_MS = 1_700_000_000_000
RANGE = (Protocol("range", b"mine"),)

PENDING = None
"""The response of a request that is still parked."""


def named_protocols(*names: str, metadata: bytes = b"mine") -> tuple[Protocol, ...]:
    return tuple(Protocol(name, metadata) for name in names)


def subscribed_to(*topics: str) -> tuple[Protocol, ...]:
    return (Protocol("range", encode_subscription(Subscription(topics))),)


class GroupHarness:
    def __init__(self, config: BrokerSettings | None = None) -> None:
        self.config = config or BrokerSettings()
        self.group = ClassicGroup(GROUP, self.config)
        self.now_ms = 1_000
        self.log: list[GroupRecord] = []
        self.log_fails = False
        self.responses: dict[RequestId, GroupResponse | MoldauError] = {}
        self.lost: list[RequestId] = []
        """Requests whose record could not be written."""
        self._request_ids = 0
        self._member_ids = 0

    @property
    def metadata(self) -> ClassicGroupMetadata:
        return self.group.metadata

    @property
    def members(self) -> Mapping[str, ClassicGroupMember]:
        return self.group.metadata.members.by_id

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    # Time

    def wait(self, delay_ms: int) -> None:
        """Advances time and handles deadlines when they are due."""
        until_ms = self.now_ms + delay_ms
        while (due_ms := self.group.next_deadline_ms) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._apply_result(self.group.tick(self.now))
        self.now_ms = until_ms

    def wait_for_generation(self) -> None:
        """Advances time until the join completes."""
        while self.group.metadata.state is GroupState.PREPARING_REBALANCE:
            due_ms = self.group.next_deadline_ms
            assert due_ms is not None
            self.wait(due_ms - self.now_ms)

    def crash(self) -> None:
        """Restarts the coordinator: the group is restored from the log."""
        self.group = ClassicGroup(GROUP, self.config)
        for record in self.log:
            if isinstance(record, GroupMetadataRecord) and record.metadata is not None:
                self.group.apply(record.metadata)
        self._apply_result(self.group.on_loaded(self.now))

    # Requests: each returns its request id

    def join(
        self,
        member_id: str = UNKNOWN_MEMBER_ID,
        *,
        instance: str | None = None,
        protocols: tuple[Protocol, ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        requires_known_member_id: bool = False,
        supports_skipping_assignment: bool = True,
        client_host: str = "/10.0.0.1",
        new_member_id: str | None = None,
    ) -> RequestId:
        self._member_ids += 1
        request = JoinRequest(
            group_id=GROUP,
            member_id=member_id,
            new_member_id=new_member_id or f"{instance or 'member'}-{self._member_ids}",
            instance_id=instance,
            client_id="client",
            client_host=client_host,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type=protocol_type,
            protocols=protocols,
            requires_known_member_id=requires_known_member_id,
            supports_skipping_assignment=supports_skipping_assignment,
        )
        return self._submit(lambda request_id: self.group.join(self.now, request, request_id))

    def sync(
        self,
        member_id: str,
        assignments: Mapping[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> RequestId:
        request = SyncRequest(
            group_id=GROUP,
            generation=self.metadata.generation if generation is None else generation,
            member_id=member_id,
            instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=assignments or {},
        )
        return self._submit(lambda request_id: self.group.sync(self.now, request, request_id))

    def heartbeat(self, member_id: str, *, generation: int | None = None, instance: str | None = None) -> RequestId:
        identity = self.identity(member_id, generation=generation, instance=instance)
        return self._submit(lambda request_id: self.group.heartbeat(self.now, identity, request_id))

    def leave(self, *members: LeavingMember | str) -> RequestId:
        leaving = [LeavingMember(each, None) if isinstance(each, str) else each for each in members]
        return self._submit(lambda request_id: self.group.leave(self.now, leaving, request_id))

    def commit(self, member_id: str, *, generation: int | None = None, instance: str | None = None) -> None:
        self.group.validate_offset_commit(self.now, self.identity(member_id, generation=generation, instance=instance))

    def identity(self, member_id: str, *, generation: int | None = None, instance: str | None = None) -> MemberIdentity:
        return MemberIdentity(
            group_id=GROUP,
            generation=self.metadata.generation if generation is None else generation,
            member_id=member_id,
            instance_id=instance,
        )

    # Responses

    def response(self, request_id: RequestId) -> GroupResponse | MoldauError | None:
        return self.responses.get(request_id)

    def joined(self, request_id: RequestId) -> JoinResponse:
        response = self.responses[request_id]
        assert isinstance(response, JoinResponse), response
        return response

    def assignment(self, request_id: RequestId) -> bytes:
        response = self.responses[request_id]
        assert isinstance(response, SyncResponse), response
        return response.assignment

    def error_type(self, request_id: RequestId) -> type[Any]:
        """Returns the type of the error response."""
        response = self.responses[request_id]
        assert isinstance(response, MoldauError), response
        return type(response)

    # Initial states

    def stable(self, *members: dict[str, Any]) -> list[str]:
        """Creates a Stable group; the first member is the leader."""
        request_ids = [self.join(**each) for each in members]
        self.wait_for_generation()
        ids = [self.joined(request_id).member_id for request_id in request_ids]
        self.sync_all(ids, [each.get("instance") for each in members])
        return ids

    def sync_all(self, ids: Sequence[str], instances: Sequence[str | None] | None = None) -> None:
        instances = instances or [None] * len(ids)
        for member_id, instance in list(zip(ids, instances, strict=True))[::-1]:
            self.sync(member_id, {each: f"part of {each}".encode() for each in ids}, instance=instance)

    # Internals

    def _submit(self, operation: Callable[[RequestId], GroupResult]) -> RequestId:
        self._request_ids += 1
        request_id = self._request_ids
        try:
            result = operation(request_id)
        except MoldauError as error:
            self._record_response(request_id, error)
        else:
            self._apply_result(result)
        return request_id

    def _apply_result(self, result: GroupResult) -> None:
        if result.records and self.log_fails:
            self.lost += [response.request_id for response in result.response]
            return
        for record in result.records:
            assert isinstance(record, GroupMetadataRecord)
            assert record.metadata is not None
            self.log.append(record)
            self.group.apply(record.metadata)
        for response in result.response:
            self._record_response(response.request_id, response.response)

    def _record_response(self, request_id: RequestId, response: GroupResponse | MoldauError) -> None:
        assert request_id not in self.responses, f"request {request_id} is completed twice"
        assert request_id not in self.lost, f"request {request_id} is completed after its write failed"
        self.responses[request_id] = response
