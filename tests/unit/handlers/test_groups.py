"""Group requests in every version: what the coordinator gets and what clients get back."""

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InvalidProducerIdMappingError,
    MemberIdRequiredError,
    MoldauError,
    NotCoordinatorError,
    OffsetMetadataTooLargeError,
    PeerUnreachableError,
    ProducerFencedError,
    RebalanceInProgressError,
    TransactionAbortableError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from moldau.groups.records import NO_EXPIRY, CommittedOffset, MemberMetadataValue
from moldau.groups.requests import (
    CommitRequest,
    GroupDescription,
    GroupState,
    JoinedMember,
    JoinRequest,
    JoinResponse,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    MemberIdentity,
    OffsetToCommit,
    SyncRequest,
    SyncResponse,
    TopicPartition,
    TransactionalCommitRequest,
)
from moldau.handlers import REGISTRY
from moldau.handlers.a10_find_coordinator import find_coordinator
from moldau.logs.store import LogName
from moldau.metadata.image import NO_LEADER, PartitionRegistration, TopicImage
from moldau.metrics.request_metrics import RequestMetrics
from moldau.server.api import Broker, ClientConnection, RequestContext
from moldau.server.dispatcher import Dispatcher
from moldau.transactions.requests import AddPartitionsRequest
from moldau.wire.api_keys import ApiKey
from support.admin_broker import LISTENER, AdminBroker, image_of, topic_id, versions_of
from support.raw_group_member import join_tree, sync_tree
from support.wire import encode

WALL_MS = 1_700_000_000_000
ALL_OF_A_GROUP = 3400
NOT_REQUESTED = -(2**31)


class ScriptedGroups:
    """A fake coordinator that records its calls and returns scripted results."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.reply: Any = None
        self.error: MoldauError | None = None
        self.leader = 1

    def _answer(self, *calls: Any) -> Any:
        self.calls.append(calls[0] if len(calls) == 1 else calls)
        if self.error is not None:
            raise self.error
        return self.reply

    async def coordinator_partition(self, group_id: str) -> PartitionRegistration:
        self._answer(group_id)
        return PartitionRegistration(0, (1,), (1,), self.leader, 0, 0)

    async def join(self, request: JoinRequest) -> Any:
        return self._answer(request)

    async def sync(self, request: SyncRequest) -> Any:
        return self._answer(request)

    async def heartbeat(self, identity: MemberIdentity) -> None:
        self._answer(identity)

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> Any:
        return self._answer(group_id, members)

    async def commit(self, request: CommitRequest) -> Any:
        self._answer(request)
        return {(each.topic, each.partition): None for each in request.offsets} | (self.reply or {})

    async def commit_transactional(
        self, request: TransactionalCommitRequest, verify: Callable[[Any], Awaitable[None]]
    ) -> Any:
        await verify(SimpleNamespace(name=LogName("__consumer_offsets", 3)))
        self._answer(request)
        return {(each.topic, each.partition): None for each in request.offsets} | (self.reply or {})

    async def fetch_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition] | None, *, require_stable: bool
    ) -> Any:
        self._answer(group_id, partitions)
        self.require_stable = require_stable
        known: dict[TopicPartition, CommittedOffset] = self.reply or {}
        return known if partitions is None else {each: known.get(each) for each in partitions}

    async def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> Any:
        self._answer(group_id, partitions)
        return {each: self.reply.get(each) for each in partitions}

    async def describe(self, group_id: str) -> Any:
        return self._answer(group_id)

    async def delete_group(self, group_id: str) -> None:
        self._answer(group_id)

    async def list_groups(self, states: Sequence[str], types: Sequence[str]) -> Any:
        return self._answer(states, types)


class ScriptedVerifier:
    """A fake TransactionVerifier that records its calls and returns a scripted error."""

    def __init__(self) -> None:
        self.calls: list[AddPartitionsRequest] = []
        self.error: MoldauError | None = None

    async def verify(self, request: AddPartitionsRequest) -> dict[tuple[str, int], MoldauError | None]:
        self.calls.append(request)
        return dict.fromkeys(request.partitions, self.error)


class GroupBroker(AdminBroker):
    def __init__(self) -> None:
        super().__init__(image_of({"orders": 2, "payments": 1}))
        self.groups = ScriptedGroups()
        self.transactions = ScriptedGroups()
        self.transaction_verifier = ScriptedVerifier()
        self.late_requests = SimpleNamespace(check=lambda *_: None)
        self.client_request_count = 0
        self.request_metrics = RequestMetrics()
        self.platform = SimpleNamespace(
            random=random.Random(1),
            clock=SimpleNamespace(wall_ms=lambda: WALL_MS, monotonic_ms=lambda: 0, monotonic_us=lambda: 0),
        )


@pytest.fixture
def broker() -> GroupBroker:
    return GroupBroker()


def every_version(api_key: ApiKey) -> Any:
    return pytest.mark.parametrize("version", versions_of(api_key))


def test_every_version_that_kafka_advertises_is_served() -> None:
    served = {
        ApiKey.OFFSET_COMMIT: (2, 10),
        ApiKey.OFFSET_FETCH: (1, 10),
        ApiKey.FIND_COORDINATOR: (0, 6),
        ApiKey.JOIN_GROUP: (0, 9),
        ApiKey.HEARTBEAT: (0, 4),
        ApiKey.LEAVE_GROUP: (0, 5),
        ApiKey.SYNC_GROUP: (0, 5),
        ApiKey.DESCRIBE_GROUPS: (0, 6),
        ApiKey.LIST_GROUPS: (0, 5),
        ApiKey.DELETE_GROUPS: (0, 2),
        ApiKey.OFFSET_DELETE: (0, 0),
        ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    }
    for api_key, (low, high) in served.items():
        assert versions_of(api_key) == list(range(low, high + 1)), api_key.name


# FindCoordinator


def find(broker: GroupBroker, version: int, *keys: str, kind: int = 0) -> list[tuple[Any, ...]]:
    response = broker.send(ApiKey.FIND_COORDINATOR, version, key=keys[0], coordinator_keys=keys, key_type=kind)
    found = response.coordinators if version >= 4 else [response]
    return [(each.error_code, each.node_id, each.host, each.port) for each in found]


@every_version(ApiKey.FIND_COORDINATOR)
def test_the_coordinator_has_the_endpoint_of_the_clients_listener(broker: GroupBroker, version: int) -> None:
    assert find(broker, version, "g") == [(0, 1, "host1", 9001)]
    assert broker.groups.calls == ["g"]


@every_version(ApiKey.FIND_COORDINATOR)
def test_a_missing_coordinator_is_a_retriable_error(broker: GroupBroker, version: int) -> None:
    broker.groups.leader = NO_LEADER
    assert find(broker, version, "g") == [(15, -1, "", -1)]
    broker.groups.error = CoordinatorNotAvailableError("the topic cannot be made")
    assert find(broker, version, "g") == [(15, -1, "", -1)]


def test_a_coordinator_whose_process_has_probably_ended_is_not_named(broker: GroupBroker) -> None:
    offsets = TopicImage("__consumer_offsets", topic_id(9), (PartitionRegistration(0, (1,), (1,), 7, 0, 0),))
    topics = {**broker.metadata.image.topics, "__consumer_offsets": offsets}
    broker.metadata.image = dataclasses.replace(broker.metadata.image, topics=topics)
    assert find(broker, 4, "g") == [(0, 1, "host1", 9001)]
    assert broker.availability.waited_for == {7}
    broker.availability.suspected = {1}
    assert find(broker, 4, "g") == [(15, -1, "", -1)]


def test_each_key_has_its_own_coordinator(broker: GroupBroker) -> None:
    assert find(broker, 4, "a", "b") == [(0, 1, "host1", 9001)] * 2
    response = broker.send(ApiKey.FIND_COORDINATOR, 6, coordinator_keys=["a", "b"], key_type=0)
    assert [each.key for each in response.coordinators] == ["a", "b"]


def test_many_keys_yield_to_the_event_loop(broker: GroupBroker) -> None:
    async def scenario() -> int:
        turns = 0
        session = RequestContext(ClientConnection("127.0.0.1:5000", LISTENER), 4, "tests")
        request = SimpleNamespace(key_type=0, coordinator_keys=[f"g{number}" for number in range(5_000)])
        request.get = lambda name, default=None: getattr(request, name, default)
        finding = asyncio.ensure_future(find_coordinator(request, session, cast(Broker, broker)))
        while not finding.done():
            await asyncio.sleep(0)
            turns += 1
        assert len((await finding)["coordinators"]) == 5_000
        return turns

    assert asyncio.run(scenario()) >= 10


@pytest.mark.parametrize("version", range(1, 7))
def test_transactional_ids_have_their_own_coordinator(broker: GroupBroker, version: int) -> None:
    assert find(broker, version, "t", kind=1) == [(0, 1, "host1", 9001)]
    assert (broker.groups.calls, broker.transactions.calls) == ([], ["t"])


def test_other_keys_have_no_coordinator(broker: GroupBroker) -> None:
    assert find(broker, 6, "s", kind=2) == [(42, -1, "", -1)]
    assert (broker.groups.calls, broker.transactions.calls) == ([], [])


# JoinGroup


def join(broker: GroupBroker, version: int, **more: Any) -> Any:
    request = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 60_000,
        "member_id": "me",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"topics"}],
        "reason": "I am new",
        **more,
    }
    return broker.send(ApiKey.JOIN_GROUP, version, **request)


@every_version(ApiKey.JOIN_GROUP)
def test_a_join_request_is_passed_to_the_coordinator(broker: GroupBroker, version: int) -> None:
    broker.groups.error = UnknownMemberIdError("who?")
    join(broker, version, member_id="")
    (request,) = broker.groups.calls
    assert (request.group_id, request.member_id, request.instance_id) == ("g", "", None)
    assert (request.client_id, request.client_host) == ("tests", "/127.0.0.1")
    assert request.session_timeout_ms == 10_000
    assert request.rebalance_timeout_ms == (60_000 if version >= 1 else 10_000)
    assert [(each.name, each.metadata, type(each.metadata)) for each in request.protocols] == [
        ("range", b"topics", bytes)
    ]
    assert request.requires_known_member_id is (version >= 4)
    assert request.supports_skipping_assignment is (version >= 9)
    assert request.reason == ("I am new" if version >= 8 else "")
    client_id, _, unique = request.new_member_id.partition("-")
    assert (client_id, len(unique)) == ("tests", 36)


def test_a_static_member_joins_without_a_member_id(broker: GroupBroker) -> None:
    broker.groups.error = UnknownMemberIdError("who?")
    for version in range(5, 10):
        join(broker, version, member_id="", group_instance_id="rack-7")
        request = broker.groups.calls[-1]
        assert request.instance_id == "rack-7"
        assert request.new_member_id.startswith("rack-7-")
        assert not request.requires_known_member_id
    assert len({request.new_member_id for request in broker.groups.calls}) == 5


def test_a_long_client_id_is_shortened_in_the_member_id(broker: GroupBroker) -> None:
    broker.groups.error = UnknownMemberIdError("who?")
    join(broker, 9, member_id="", group_instance_id="x" * 32_767)
    (request,) = broker.groups.calls
    assert request.instance_id == "x" * 32_767
    assert request.new_member_id.startswith("x" * 255 + "-")


@pytest.mark.parametrize(
    ("api_key", "version", "tree"),
    [
        (ApiKey.JOIN_GROUP, 9, join_tree("g", "me")),
        (ApiKey.SYNC_GROUP, 5, sync_tree("g", "me", 1, assignments=[{"member_id": "me", "assignment": b"a"}])),
    ],
)
def test_pending_joins_and_syncs_do_not_keep_their_frames(
    broker: GroupBroker, api_key: ApiKey, version: int, tree: dict[str, Any]
) -> None:
    async def scenario() -> None:
        others_come: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def waits(request: Any) -> Any:
            return await others_come

        broker.groups.join = broker.groups.sync = waits  # type: ignore[method-assign]
        frame = bytearray(encode(api_key, version, tree, 7))
        dispatcher = Dispatcher(cast(Broker, broker), REGISTRY)
        pending = asyncio.ensure_future(
            dispatcher.handle(ClientConnection("127.0.0.1:5000", LISTENER), memoryview(frame), lambda: None)
        )
        await asyncio.sleep(0)
        frame.clear()  # Python refuses where somebody still looks at the bytes.
        others_come.set_exception(RebalanceInProgressError("once more"))
        assert await pending is not None

    asyncio.run(scenario())


@every_version(ApiKey.JOIN_GROUP)
def test_the_leaders_join_response_lists_all_members(broker: GroupBroker, version: int) -> None:
    broker.groups.reply = JoinResponse(
        generation=7,
        protocol_type="consumer",
        protocol_name="range",
        leader="me",
        skip_assignment=True,
        member_id="me",
        members=(JoinedMember("me", None, b"mine"), JoinedMember("you", "rack", b"yours")),
    )
    response = join(broker, version)
    assert (response.error_code, response.generation_id, response.leader, response.member_id) == (0, 7, "me", "me")
    assert response.protocol_name == "range"
    assert response.get("protocol_type", "consumer") == "consumer"
    assert response.get("skip_assignment", True) is True
    assert [(each.member_id, bytes(each.metadata)) for each in response.members] == [("me", b"mine"), ("you", b"yours")]
    if version >= 5:
        assert [each.group_instance_id for each in response.members] == [None, "rack"]


@every_version(ApiKey.JOIN_GROUP)
def test_a_rejected_join_returns_the_member_id_to_use(broker: GroupBroker, version: int) -> None:
    for error, code, member_id in (
        (NotCoordinatorError("elsewhere"), 16, "me"),
        (MemberIdRequiredError("tests-1"), 79, "tests-1"),
    ):
        broker.groups.error = error
        response = join(broker, version)
        assert (response.error_code, response.member_id) == (code, member_id)
        assert (response.generation_id, response.leader, response.members) == (-1, "", [])
        assert response.protocol_name == (None if version >= 7 else "")
        assert response.get("protocol_type") is None


# SyncGroup, Heartbeat, LeaveGroup


def sync(broker: GroupBroker, version: int, **more: Any) -> Any:
    request = {
        "group_id": "g",
        "generation_id": 7,
        "member_id": "me",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": "you", "assignment": b"half"}],
        **more,
    }
    return broker.send(ApiKey.SYNC_GROUP, version, **request)


@every_version(ApiKey.SYNC_GROUP)
def test_a_sync_sends_and_returns_assignments(broker: GroupBroker, version: int) -> None:
    broker.groups.reply = SyncResponse(protocol_type="consumer", protocol_name="range", assignment=b"mine")
    response = sync(broker, version)
    (request,) = broker.groups.calls
    assert (request.group_id, request.generation, request.member_id) == ("g", 7, "me")
    assert request.assignments == {"you": b"half"}
    assert type(request.assignments["you"]) is bytes
    assert (request.protocol_type, request.protocol_name) == (("consumer", "range") if version >= 5 else (None, None))
    assert (response.error_code, bytes(response.assignment)) == (0, b"mine")
    assert response.get("protocol_name", "range") == "range"


@every_version(ApiKey.SYNC_GROUP)
def test_a_rejected_sync_has_no_assignment(broker: GroupBroker, version: int) -> None:
    broker.groups.error = RebalanceInProgressError("join again")
    response = sync(broker, version)
    assert (response.error_code, bytes(response.assignment)) == (27, b"")
    assert response.get("protocol_type") is None


def test_from_version_5_on_a_sync_must_send_its_protocol(broker: GroupBroker) -> None:
    assert sync(broker, 5, protocol_name=None).error_code == 23
    assert sync(broker, 5, protocol_type=None).error_code == 23
    assert broker.groups.calls == []


@every_version(ApiKey.HEARTBEAT)
def test_heartbeats_are_passed_to_the_coordinator(broker: GroupBroker, version: int) -> None:
    request = {"group_id": "g", "generation_id": 7, "member_id": "me", "group_instance_id": "rack"}
    assert broker.send(ApiKey.HEARTBEAT, version, **request).error_code == 0
    instance = "rack" if version >= 3 else None
    assert broker.groups.calls == [MemberIdentity(group_id="g", generation=7, member_id="me", instance_id=instance)]
    broker.groups.error = RebalanceInProgressError("join again")
    assert broker.send(ApiKey.HEARTBEAT, version, **request).error_code == 27


@every_version(ApiKey.LEAVE_GROUP)
def test_one_or_several_members_leave(broker: GroupBroker, version: int) -> None:
    unknown = UnknownMemberIdError("who?")
    many = version >= 3
    left = [LeaveResult("a", None, unknown)] + ([LeaveResult("", "rack", None)] if many else [])
    broker.groups.reply = tuple(left)
    leaving = [
        {"member_id": "a", "group_instance_id": None, "reason": "tired"},
        {"member_id": "", "group_instance_id": "rack", "reason": None},
    ]
    response = broker.send(ApiKey.LEAVE_GROUP, version, group_id="g", member_id="a", members=leaving)
    reason = "tired" if version >= 5 else ""
    if many:
        assert broker.groups.calls == [("g", [LeavingMember("a", None, reason), LeavingMember("", "rack")])]
        assert response.error_code == 0
        assert [(each.member_id, each.group_instance_id, each.error_code) for each in response.members] == [
            ("a", None, 25),
            ("", "rack", 0),
        ]
    else:
        assert broker.groups.calls == [("g", [LeavingMember("a", None)])]
        assert response.error_code == 25
    broker.groups.error = NotCoordinatorError("elsewhere")
    response = broker.send(ApiKey.LEAVE_GROUP, version, group_id="g", member_id="a", members=leaving)
    assert response.error_code == 16
    assert response.get("members", []) == []


# OffsetCommit


def commit(broker: GroupBroker, version: int, *named: tuple[int, list[int]], **more: Any) -> list[Any]:
    """Topics by their number in the image; an unknown one has none."""
    names = ["orders", "payments", "missing"]
    topics = [
        {
            "name": names[number],
            "topic_id": topic_id(number),
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": 40 + index,
                    "committed_leader_epoch": 3,
                    "committed_metadata": "note",
                }
                for index in partitions
            ],
        }
        for number, partitions in named
    ]
    request = {
        "group_id": "g",
        "generation_id_or_member_epoch": 7,
        "member_id": "me",
        "group_instance_id": "rack",
        "retention_time": -1,
        "topics": topics,
        **more,
    }
    response = broker.send(ApiKey.OFFSET_COMMIT, version, **request)
    assert [topic.get("topic_id") for topic in response.topics] == [
        topic_id(number) if version >= 10 else None for number, _ in named
    ]
    return [[each.error_code for each in topic.partitions] for topic in response.topics]


@every_version(ApiKey.OFFSET_COMMIT)
def test_offsets_are_committed_and_unknown_partitions_rejected(broker: GroupBroker, version: int) -> None:
    assert commit(broker, version, (0, [0, 1, 2]), (2, [0]), (1, [0])) == [
        [0, 0, 3],
        [100 if version >= 10 else 3],
        [0],
    ]
    (request,) = broker.groups.calls
    assert request.identity == MemberIdentity(
        group_id="g", generation=7, member_id="me", instance_id="rack" if version >= 7 else None
    )
    assert [(each.topic, each.partition, each.offset, each.metadata) for each in request.offsets] == [
        ("orders", 0, 40, "note"),
        ("orders", 1, 41, "note"),
        ("payments", 0, 40, "note"),
    ]
    assert {each.leader_epoch for each in request.offsets} == {3 if version >= 6 else -1}
    assert {each.expire_timestamp_ms for each in request.offsets} == {NO_EXPIRY}
    assert request.offsets[0].topic_id == topic_id(0)


@every_version(ApiKey.OFFSET_COMMIT)
def test_old_versions_commit_with_a_retention_time(broker: GroupBroker, version: int) -> None:
    commit(broker, version, (0, [0]), retention_time=5_000)
    (request,) = broker.groups.calls
    assert request.offsets[0].expire_timestamp_ms == (WALL_MS + 5_000 if version <= 4 else NO_EXPIRY)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_huge_retention_time_does_not_overflow(broker: GroupBroker, version: int) -> None:
    commit(broker, version, (0, [0]), retention_time=2**63 - 1)
    (request,) = broker.groups.calls
    assert request.offsets[0].expire_timestamp_ms == 2**63 - 1


@every_version(ApiKey.OFFSET_COMMIT)
def test_commit_errors_by_version(broker: GroupBroker, version: int) -> None:
    broker.groups.reply = {("orders", 1): OffsetMetadataTooLargeError("too long")}
    assert commit(broker, version, (0, [0, 1])) == [[0, 12]]
    broker.groups.error = RebalanceInProgressError("join again")
    assert commit(broker, version, (0, [0, 1])) == [[27, 27]]
    broker.groups.error = GroupIdNotFoundError("no such group")
    assert commit(broker, version, (0, [0, 1])) == [[69, 69] if version >= 9 else [22, 22]]


def test_a_commit_of_unknown_topics_does_not_reach_the_coordinator(broker: GroupBroker) -> None:
    assert commit(broker, 9, (2, [0])) == [[3]]
    assert commit(broker, 9) == []
    assert broker.groups.calls == []


# TxnOffsetCommit


def commit_transactional(broker: GroupBroker, version: int, *named: tuple[str, list[int]]) -> list[list[int]]:
    topics = [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": 40 + index,
                    "committed_leader_epoch": 3,
                    "committed_metadata": "note",
                }
                for index in partitions
            ],
        }
        for name, partitions in named
    ]
    response = broker.send(
        ApiKey.TXN_OFFSET_COMMIT,
        version,
        transactional_id="tx",
        group_id="g",
        producer_id=70,
        producer_epoch=5,
        generation_id=7,
        member_id="me",
        group_instance_id="rack",
        topics=topics,
    )
    assert [topic.name for topic in response.topics] == [name for name, _ in named]
    return [[each.error_code for each in topic.partitions] for topic in response.topics]


@every_version(ApiKey.TXN_OFFSET_COMMIT)
def test_transactions_commit_offsets_of_known_partitions(broker: GroupBroker, version: int) -> None:
    assert commit_transactional(broker, version, ("orders", [0, 1, 2, -1]), ("missing", [0]), ("payments", [0])) == [
        [0, 0, 3, 3],
        [3],
        [0],
    ]
    (request,) = broker.groups.calls
    generation, member_id, instance_id = (7, "me", "rack") if version >= 3 else (-1, "", None)
    assert request.identity == MemberIdentity(
        group_id="g", generation=generation, member_id=member_id, instance_id=instance_id
    )
    epoch = 3 if version >= 2 else -1
    assert request.offsets == tuple(
        OffsetToCommit(name, index, 40 + index, epoch, "note", NO_EXPIRY, topic_id(number))
        for name, index, number in (("orders", 0, 0), ("orders", 1, 0), ("payments", 0, 1))
    )
    assert (request.producer_id, request.producer_epoch) == (70, 5)
    assert request.client_version == (2 if version >= 5 else 0)
    assert broker.transaction_verifier.calls == [
        AddPartitionsRequest(
            transactional_id="tx",
            producer_id=70,
            producer_epoch=5,
            partitions=frozenset({("__consumer_offsets", 3)}),
            client_version=2 if version >= 5 else 0,
        )
    ]


@every_version(ApiKey.TXN_OFFSET_COMMIT)
def test_transactional_commit_errors_by_version(broker: GroupBroker, version: int) -> None:
    broker.groups.reply = {("orders", 1): OffsetMetadataTooLargeError("too long")}
    assert commit_transactional(broker, version, ("orders", [0, 1])) == [[0, 12]]
    broker.groups.error = IllegalGenerationError("join again")
    assert commit_transactional(broker, version, ("orders", [0, 1, 5])) == [[22, 22, 3]]
    broker.groups.error = CoordinatorLoadInProgressError("a moment")
    assert commit_transactional(broker, version, ("orders", [0])) == [[14 if version >= 2 else 15]]


@every_version(ApiKey.TXN_OFFSET_COMMIT)
def test_verification_errors_by_version(broker: GroupBroker, version: int) -> None:
    for error, code in (
        (TransactionAbortableError("not added"), 120 if version >= 4 else 48),
        (ProducerFencedError("an old epoch"), 47),
        (InvalidProducerIdMappingError("no such id"), 49),
        (ConcurrentTransactionsError("a moment"), 51),
        (PeerUnreachableError("no route"), 14 if version >= 2 else 15),
        (CoordinatorNotAvailableError("no leader"), 15),
        (UnknownTopicOrPartitionError("not known yet"), 15),
    ):
        broker.transaction_verifier.error = error
        assert commit_transactional(broker, version, ("orders", [0, 1])) == [[code, code]]
    assert broker.groups.calls == []


def test_a_transactional_commit_of_unknown_topics_is_not_verified(broker: GroupBroker) -> None:
    assert commit_transactional(broker, 5, ("missing", [0])) == [[3]]
    assert commit_transactional(broker, 5) == []
    assert broker.groups.calls == broker.transaction_verifier.calls == []


# OffsetFetch


KNOWN = {
    ("orders", 0): CommittedOffset(5, 3, "note", WALL_MS),
    ("orders", 1): CommittedOffset(6, -1, "", WALL_MS),
    ("gone", 0): CommittedOffset(7, -1, "", WALL_MS),
}


def fetch(broker: GroupBroker, version: int, topics: list[dict[str, Any]] | None) -> Any:
    group = {"group_id": "g", "member_id": "me", "member_epoch": 7, "topics": topics}
    if version >= 8:
        response = broker.send(ApiKey.OFFSET_FETCH, version, groups=[group], require_stable=True)
        assert [each.group_id for each in response.groups] == ["g"]
        return response.groups[0]
    return broker.send(ApiKey.OFFSET_FETCH, version, group_id="g", topics=topics, require_stable=True)


def offsets_of(topic: Any) -> list[tuple[int, int, int, str, int]]:
    return [
        (
            each.partition_index,
            each.committed_offset,
            each.get("committed_leader_epoch", -1),
            each.metadata,
            each.error_code,
        )
        for each in topic.partitions
    ]


@every_version(ApiKey.OFFSET_FETCH)
def test_offsets_of_requested_partitions_are_fetched(broker: GroupBroker, version: int) -> None:
    broker.groups.reply = KNOWN
    calls = [
        {"name": "orders", "topic_id": topic_id(0), "partition_indexes": [1, 0, 9]},
        {"name": "missing", "topic_id": topic_id(99), "partition_indexes": [0]},
    ]
    response = fetch(broker, version, calls)
    assert response.get("error_code", 0) == 0
    orders, missing = response.topics
    epoch = 3 if version >= 5 else -1
    assert offsets_of(orders) == [(1, 6, -1, "", 0), (0, 5, epoch, "note", 0), (9, -1, -1, "", 0)]
    assert offsets_of(missing) == [(0, -1, -1, "", 100 if version >= 10 else 0)]
    ((group_id, partitions),) = broker.groups.calls
    assert group_id == "g"
    assert ("orders", 9) in partitions
    assert (("missing", 0) in partitions) is (version < 10)


@every_version(ApiKey.OFFSET_FETCH)
def test_offsets_may_be_required_to_be_stable(broker: GroupBroker, version: int) -> None:
    unstable = UnstableOffsetCommitError("a transaction is open")
    broker.groups.reply = {**KNOWN, ("orders", 0): unstable}
    calls = [{"name": "orders", "topic_id": topic_id(0), "partition_indexes": [0, 1]}]
    (orders,) = fetch(broker, version, calls).topics
    assert broker.groups.require_stable is (version >= 7)
    assert offsets_of(orders) == [(0, -1, -1, "", 88), (1, 6, -1, "", 0)]
    if version >= 2:
        assert offsets_of(fetch(broker, version, None).topics[0]) == [(0, -1, -1, "", 88), (1, 6, -1, "", 0)]


@every_version(ApiKey.OFFSET_FETCH)
def test_duplicate_topics_and_partitions_have_one_result(broker: GroupBroker, version: int) -> None:
    broker.groups.reply = KNOWN
    calls = [{"name": "orders", "topic_id": topic_id(0), "partition_indexes": indexes} for indexes in ([1, 1], [0, 1])]
    (orders,) = fetch(broker, version, calls * 50).topics
    assert [each[:2] for each in offsets_of(orders)] == [(1, 6), (0, 5)]
    broker.groups.error = NotCoordinatorError("elsewhere")
    if version < 2:
        assert len(fetch(broker, version, calls * 50).topics) == 1


@every_version(ApiKey.OFFSET_FETCH)
def test_offsets_of_a_deleted_topic_are_not_returned_for_its_successor(broker: GroupBroker, version: int) -> None:
    broker.groups.reply = {("orders", 0): CommittedOffset(5, 3, "", WALL_MS, topic_id=topic_id(99))}
    calls = [{"name": "orders", "topic_id": topic_id(0), "partition_indexes": [0]}]
    (orders,) = fetch(broker, version, calls).topics
    assert offsets_of(orders)[0][1] == -1
    if version >= 2:
        assert fetch(broker, version, None).topics == []


@pytest.mark.parametrize("version", range(2, 11))
def test_all_offsets_of_a_group_are_fetched(broker: GroupBroker, version: int) -> None:
    broker.groups.reply = KNOWN
    response = fetch(broker, version, None)
    assert broker.groups.calls[0][1] is None
    if version >= 10:
        assert [topic.topic_id for topic in response.topics] == [topic_id(0)], "a topic that is gone has no id"
    else:
        assert [topic.name for topic in response.topics] == ["orders", "gone"]
    assert [each[:2] for each in offsets_of(response.topics[0])] == [(0, 5), (1, 6)]


@every_version(ApiKey.OFFSET_FETCH)
def test_a_loading_group_returns_its_error(broker: GroupBroker, version: int) -> None:
    broker.groups.error = NotCoordinatorError("elsewhere")
    calls = [{"name": "orders", "topic_id": topic_id(0), "partition_indexes": [0, 1]}]
    response = fetch(broker, version, calls)
    if version >= 2:
        assert (response.error_code, response.topics) == (16, [])
    else:
        assert offsets_of(response.topics[0]) == [(0, -1, -1, "", 16), (1, -1, -1, "", 16)]


def test_each_group_has_its_own_result(broker: GroupBroker) -> None:
    broker.groups.reply = KNOWN
    groups = [{"group_id": each, "topics": None} for each in ("a", "b")]
    response = broker.send(ApiKey.OFFSET_FETCH, 8, groups=groups, require_stable=False)
    assert [(each.group_id, len(each.topics)) for each in response.groups] == [("a", 2), ("b", 2)]


def test_a_duplicate_group_has_one_result(broker: GroupBroker) -> None:
    broker.groups.reply = KNOWN
    groups = [{"group_id": each, "topics": None} for each in ("a", "b", "a", "a")]
    response = broker.send(ApiKey.OFFSET_FETCH, 8, groups=groups, require_stable=False)
    assert [each.group_id for each in response.groups] == ["a", "b"]
    assert len(broker.groups.calls) == 2


# Looking at groups


STABLE = GroupDescription(
    "g",
    GroupState.STABLE,
    "consumer",
    "range",
    (MemberMetadataValue("me", "rack", "client", "/10.0.0.1", 0, 0, b"topics", b"all"),),
)


@every_version(ApiKey.DESCRIBE_GROUPS)
def test_a_group_is_described(broker: GroupBroker, version: int) -> None:
    broker.groups.reply = STABLE
    response = broker.send(ApiKey.DESCRIBE_GROUPS, version, groups=["g"], include_authorized_operations=True)
    (group,) = response.groups
    assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == ("me", "client", "/10.0.0.1")
    assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (b"topics", b"all")
    assert member.get("group_instance_id") == ("rack" if version >= 4 else None)
    assert group.get("authorized_operations", ALL_OF_A_GROUP) == ALL_OF_A_GROUP


@every_version(ApiKey.DESCRIBE_GROUPS)
def test_an_unknown_group_is_described_as_dead(broker: GroupBroker, version: int) -> None:
    broker.groups.error = GroupIdNotFoundError("no such group")
    response = broker.send(ApiKey.DESCRIBE_GROUPS, version, groups=["g"], include_authorized_operations=False)
    (group,) = response.groups
    assert (group.error_code, group.group_state) == (69 if version >= 6 else 0, "Dead")
    assert group.get("error_message") == ("no such group" if version >= 6 else None)
    assert group.get("authorized_operations", NOT_REQUESTED) == NOT_REQUESTED


@every_version(ApiKey.DESCRIBE_GROUPS)
def test_a_group_of_another_coordinator_is_not_described(broker: GroupBroker, version: int) -> None:
    broker.groups.error = NotCoordinatorError("elsewhere")
    response = broker.send(ApiKey.DESCRIBE_GROUPS, version, groups=["g"], include_authorized_operations=False)
    assert [(each.error_code, each.group_state, each.members) for each in response.groups] == [(16, "", [])]


@every_version(ApiKey.LIST_GROUPS)
def test_groups_are_listed(broker: GroupBroker, version: int) -> None:
    broker.groups.reply = [ListedGroup("g", "consumer", GroupState.EMPTY, "classic")]
    response = broker.send(ApiKey.LIST_GROUPS, version, states_filter=["Empty"], types_filter=["classic"])
    assert response.error_code == 0
    (group,) = response.groups
    assert (group.group_id, group.protocol_type) == ("g", "consumer")
    assert group.get("group_state", "Empty") == "Empty"
    assert group.get("group_type", "classic") == "classic"
    ((states, types),) = broker.groups.calls
    assert (list(states), list(types)) == (["Empty"] if version >= 4 else [], ["classic"] if version >= 5 else [])
    broker.groups.error = NotCoordinatorError("elsewhere")
    response = broker.send(ApiKey.LIST_GROUPS, version, states_filter=[], types_filter=[])
    assert (response.error_code, response.groups) == (16, [])


# Deleting


@every_version(ApiKey.DELETE_GROUPS)
def test_each_deleted_group_has_its_own_result(broker: GroupBroker, version: int) -> None:
    response = broker.send(ApiKey.DELETE_GROUPS, version, groups_names=["a", "b"])
    assert [(each.group_id, each.error_code) for each in response.results] == [("a", 0), ("b", 0)]
    assert broker.groups.calls == ["a", "b"]
    broker.groups.error = GroupIdNotFoundError("no such group")
    response = broker.send(ApiKey.DELETE_GROUPS, version, groups_names=["a"])
    assert [each.error_code for each in response.results] == [69]


def test_each_deleted_offset_has_its_own_result(broker: GroupBroker) -> None:
    broker.groups.reply = {("orders", 1): RebalanceInProgressError("busy")}
    topics = [
        {"name": "orders", "partitions": [{"partition_index": index} for index in (0, 1, 5)]},
        {"name": "missing", "partitions": [{"partition_index": 0}]},
    ]
    response = broker.send(ApiKey.OFFSET_DELETE, 0, group_id="g", topics=topics)
    assert response.error_code == 0
    assert [[each.error_code for each in topic.partitions] for topic in response.topics] == [[0, 27, 3], [3]]
    assert broker.groups.calls == [("g", [("orders", 0), ("orders", 1)])]
    broker.groups.error = GroupIdNotFoundError("no such group")
    response = broker.send(ApiKey.OFFSET_DELETE, 0, group_id="g", topics=topics)
    assert (response.error_code, response.topics) == (69, [])
