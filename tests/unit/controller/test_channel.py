"""The channel finds the active controller, on this or another node, and never executes a request twice."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest

from moldau.client.net.api_versions import SUPPORTED_VERSIONS
from moldau.controller.channel import NodeToControllerChannel
from moldau.controller.requests import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    BrokerRegistrationRequest,
    CreateTopicResult,
    IsrChange,
    IsrChangeResult,
    NewTopic,
    OfflineReplica,
)
from moldau.errors import (
    DuplicateBrokerRegistrationError,
    InvalidUpdateVersionError,
    MoldauError,
    NotControllerError,
    PeerUnreachableError,
    RequestTimedOutError,
    StaleBrokerEpochError,
    TopicExistsError,
)
from moldau.metadata.image import Endpoint
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder
from moldau.wire.frames import read_request_header, skip_tagged_fields

T = TypeVar("T")
TOPIC = UUID(int=0xA)

REGISTRATION = BrokerRegistrationRequest(
    broker_id=1,
    incarnation_id=UUID(int=7),
    endpoints=[Endpoint("PLAINTEXT", "alpha", 9092)],
    rack="north",
    cluster_id="the-cluster",
    previous_epoch=41,
)
CHANGES = [
    IsrChange(TOPIC, 0, 3, 5, ((1, 10), (2, 20))),
    IsrChange(UUID(int=0xB), 4, 1, 2, ((1, 10),), is_recovering=True),
    IsrChange(TOPIC, 1, 3, 6, ((1, 10),)),
]


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class ScriptedPeers:
    """Responds to requests from a script; both pass through the codec."""

    def __init__(self, *script: Mapping[str, Any] | Callable[[Message], Any] | BaseException) -> None:
        self.script = list(script)
        self.calls: list[tuple[int, ApiKey, str, Message]] = []

    async def call(
        self, node_id: int, api: ApiKey, tree: Mapping[str, Any], *, lane: str, timeout_ms: int | None = None
    ) -> Message:
        version = SUPPORTED_VERSIONS[api].maximum
        asked, responded = bytearray(), bytearray()
        encoder(api, version, "request")(asked, tree)
        request = decoder(api, version, "request")(memoryview(asked))
        self.calls.append((node_id, api, lane, request))
        await asyncio.sleep(0)
        response = self.script.pop(0)
        if isinstance(response, BaseException):
            raise response
        if callable(response):
            response = response(request)
        encoder(api, version, "response")(responded, response)
        return decoder(api, version, "response")(memoryview(responded))


class LocalController:
    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **_: Any) -> Any:
            self.calls.append((name, arguments))
            response = self.script.pop(0)
            if isinstance(response, BaseException):
                raise response
            return response

        return call


class Loader:
    def __init__(self, offset: int) -> None:
        self.image = SimpleNamespace(offset=offset, topics={})
        self.waited: list[int] = []

    async def wait_for_offset(self, offset: int) -> None:
        self.waited.append(offset)
        self.image.offset = offset


class RaftClient:
    def __init__(self, *leaders: int) -> None:
        self._leaders = list(leaders)

    @property
    def leader_id(self) -> int:
        return self._leaders.pop(0) if len(self._leaders) > 1 else self._leaders[0]


def make(
    *leaders: int,
    peers: ScriptedPeers | None = None,
    controller: LocalController | None = None,
    loader: Loader | None = None,
) -> NodeToControllerChannel:
    return NodeToControllerChannel(
        1,
        cast(Any, controller or LocalController()),
        cast(Any, RaftClient(*leaders)),
        cast(Any, peers or ScriptedPeers()),
        cast(Any, loader or Loader(100)),
        Clock(),
    )


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_a_registration_request_carries_all_fields() -> None:
    peers = ScriptedPeers({"throttle_time": 0, "error_code": 0, "broker_epoch": 44})
    assert run(make(2, peers=peers).register_broker(REGISTRATION)) == 44
    ((node_id, api, lane, request),) = peers.calls
    assert (node_id, api, lane) == (2, ApiKey.BROKER_REGISTRATION, "controller")
    assert (request.broker_id, request.cluster_id, request.incarnation_id) == (1, "the-cluster", UUID(int=7))
    assert (request.rack, request.previous_broker_epoch) == ("north", 41)
    (listener,) = request.listeners
    assert (listener.name, listener.host, listener.port) == ("PLAINTEXT", "alpha", 9092)
    assert [each.name for each in request.features] == sorted(each.name for each in request.features) != []


def test_the_local_controller_is_called_without_the_network() -> None:
    controller = LocalController(44, BrokerHeartbeatReply(True, False, False), [], range(5))
    controller_channel = make(1, controller=controller)

    async def scenario() -> None:
        assert await controller_channel.register_broker(REGISTRATION) == 44
        assert (await controller_channel.heartbeat(BrokerHeartbeat(1, 44, 9))).is_caught_up
        assert await controller_channel.alter_partition(1, 44, []) == []
        assert await controller_channel.allocate_producer_ids(1, 44) == range(5)

    run(scenario())
    assert [name for name, _ in controller.calls] == [
        "register_broker",
        "heartbeat",
        "alter_partition",
        "allocate_producer_ids",
    ]


def test_a_heartbeat_carries_offline_replicas() -> None:
    peers = ScriptedPeers(
        {"throttle_time": 0, "error_code": 0, "is_caught_up": True, "is_fenced": False, "should_shut_down": True}
    )
    heartbeat = BrokerHeartbeat(
        1,
        44,
        9,
        want_shut_down=True,
        not_ready=[
            OfflineReplica(TOPIC, 3, 1, "it is damaged"),
            OfflineReplica(TOPIC, 4, 1, "it is full", is_transient=True),
        ],
    )
    reply = run(make(2, peers=peers).heartbeat(heartbeat))
    assert reply == BrokerHeartbeatReply(is_caught_up=True, is_fenced=False, should_shut_down=True)
    request = peers.calls[0][3]
    assert (request.broker_epoch, request.current_metadata_offset, request.want_shut_down) == (44, 9, True)
    (not_ready,) = request.not_ready
    assert (not_ready.topic_id, not_ready.partition_index, not_ready.reason) == (TOPIC, 3, "it is damaged")
    (full,) = request.not_writable
    assert full.partition_index == 4, "controllers without this field ignore such replicas"


def test_isr_change_results_are_in_the_order_of_the_changes() -> None:
    def response(request: Message) -> dict[str, Any]:
        return {
            "throttle_time": 0,
            "error_code": 0,
            "topics": [
                {
                    "topic_id": topic.topic_id,
                    "partitions": [
                        {
                            "partition_index": each.partition_index,
                            "error_code": 95 if each.partition_index == 1 else 0,
                            "leader_id": 1,
                            "leader_epoch": each.leader_epoch,
                            "isr": [member.broker_id for member in each.new_isr_with_epochs],
                            "leader_recovery_state": each.leader_recovery_state,
                            "partition_epoch": each.partition_epoch + 1,
                        }
                        for each in topic.partitions
                    ],
                }
                for topic in reversed(request.topics)
            ],
        }

    peers = ScriptedPeers(response)
    results = run(make(2, peers=peers).alter_partition(1, 10, CHANGES))
    assert [(each.topic_id, each.partition) for each in results] == [
        (each.topic_id, each.partition) for each in CHANGES
    ]
    assert results[0] == IsrChangeResult(TOPIC, 0, 1, 3, (1, 2), False, 6)
    assert results[1].is_recovering
    assert isinstance(results[2].error, InvalidUpdateVersionError)
    assert peers.calls[0][2] == "changes", "it waits for a commit, which must not delay heartbeats"


def test_a_partition_missing_in_the_response_gets_an_error() -> None:
    peers = ScriptedPeers({"throttle_time": 0, "error_code": 0, "topics": []})
    results = run(make(2, peers=peers).alter_partition(1, 10, CHANGES))
    assert len(results) == 3
    assert all(each.error is not None for each in results)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (41, NotControllerError),
        (77, StaleBrokerEpochError),
        (101, DuplicateBrokerRegistrationError),
        (-1, MoldauError),
        (9999, MoldauError),
    ],
)
def test_error_codes_become_errors(code: int, error: type[MoldauError]) -> None:
    peers = ScriptedPeers({"throttle_time": 0, "error_code": code, "broker_epoch": -1})
    with pytest.raises(error):
        run(make(2, peers=peers).register_broker(REGISTRATION))


def test_a_brokers_own_requests_are_not_retried() -> None:
    peers = ScriptedPeers(PeerUnreachableError("gone", is_connection_refused=True))
    with pytest.raises(PeerUnreachableError):
        run(make(2, peers=peers).heartbeat(BrokerHeartbeat(1, 44, 9)))
    with pytest.raises(NotControllerError):
        run(make(-1).heartbeat(BrokerHeartbeat(1, 44, 9)))


# Requests with retries


def enveloped(response: Mapping[str, Any], offset: int = -1) -> Callable[[Message], dict[str, Any]]:
    """Another node's response to the request in an envelope."""

    def reply(request: Message) -> dict[str, Any]:
        header = read_request_header(request.request_data)
        data = bytearray(header.correlation_id.to_bytes(4, "big"))
        data.append(0)
        encoder(header.api_key, header.version, "response")(data, response)
        return {"error_code": 0, "response_data": data, "metadata_offset": offset}

    return reply


def created(name: str, code: int = 0) -> dict[str, Any]:
    topic = {
        "name": name,
        "topic_id": TOPIC,
        "error_code": code,
        "error_message": None,
        "num_partitions": 3,
        "replication_factor": 2,
        "configs": [],
    }
    return {"throttle_time": 0, "topics": [topic]}


NOT_CONTROLLER = {"error_code": 41, "response_data": None}


def create(controller_channel: NodeToControllerChannel, timeout_ms: int = 10_000) -> Sequence[CreateTopicResult]:
    work = controller_channel.create_topics([NewTopic("orders", 3, 2, configs={"a": "b"})], timeout_ms=timeout_ms)
    return cast(Sequence[CreateTopicResult], run(work))


def test_a_topic_is_created_by_another_node_in_an_envelope() -> None:
    peers = ScriptedPeers(enveloped(created("orders"), offset=120))
    loader = Loader(100)
    (result,) = create(make(2, peers=peers, loader=loader))
    assert result == CreateTopicResult("orders", TOPIC, 3, 2)
    assert loader.waited == [120], "the next request to this node sees the topic"
    request = peers.calls[0][3]
    header = read_request_header(request.request_data)
    body = decoder(header.api_key, header.version, "request")(
        request.request_data[skip_tagged_fields(request.request_data, header.body_start) :]
    )
    assert (header.api_key, body.timeout, body.validate_only) == (ApiKey.CREATE_TOPICS, 10_000, False)
    assert [(each.name, each.num_partitions, each.replication_factor) for each in body.topics] == [("orders", 3, 2)]


def test_topic_error_codes_become_errors() -> None:
    (result,) = create(make(2, peers=ScriptedPeers(enveloped(created("orders", 36)))))
    assert isinstance(result.error, TopicExistsError)


def test_requests_are_retried_on_the_new_controller() -> None:
    peers = ScriptedPeers(
        NOT_CONTROLLER, PeerUnreachableError("refused", is_connection_refused=True), enveloped(created("orders"))
    )
    (result,) = create(make(2, -1, 2, 3, peers=peers))
    assert result.error is None
    assert [call[0] for call in peers.calls] == [2, 2, 3]


class LocalHandler:
    """Executes requests on this node as scripted."""

    def __init__(self, *script: Mapping[str, Any] | MoldauError) -> None:
        self.script = list(script)
        self.apis: list[ApiKey] = []

    async def __call__(self, frame: memoryview, client_host: bytes) -> bytearray:
        header = read_request_header(frame)
        self.apis.append(ApiKey(header.api_key))
        outcome = self.script.pop(0)
        if isinstance(outcome, MoldauError):
            raise outcome
        data = bytearray(header.correlation_id.to_bytes(4, "big"))
        data.append(0)
        encoder(header.api_key, header.version, "response")(data, outcome)
        return data


def test_a_controller_that_moves_to_this_node_executes_the_request_in_place() -> None:
    channel = make(2, 1, peers=ScriptedPeers(NOT_CONTROLLER))
    channel.local_handler = local = LocalHandler(created("orders"))
    (result,) = create(channel)
    assert result == CreateTopicResult("orders", TOPIC, 3, 2)
    assert local.apis == [ApiKey.CREATE_TOPICS]


def test_a_local_controller_that_is_not_active_is_retried() -> None:
    channel = make(1)
    channel.local_handler = local = LocalHandler(NotControllerError("moved"), created("orders"))
    (result,) = create(channel)
    assert result.error is None
    assert local.apis == [ApiKey.CREATE_TOPICS] * 2


def test_a_request_that_may_have_been_executed_is_not_retried() -> None:
    peers = ScriptedPeers(PeerUnreachableError("it hung up", was_sent=True), enveloped(created("orders")))
    with pytest.raises(RequestTimedOutError, match="not known"):
        create(make(2, peers=peers))
    assert len(peers.calls) == 1


def test_without_a_controller_requests_time_out() -> None:
    with pytest.raises(RequestTimedOutError, match="the active controller is unknown"):
        create(make(-1), timeout_ms=0)


def test_slow_requests_do_not_delay_others() -> None:

    lanes: list[str] = []

    class SlowPeers(ScriptedPeers):
        async def call(self, node_id: int, api: ApiKey, tree: Any, *, lane: str, **_: Any) -> Message:
            lanes.append(lane)
            await self.may_go.wait()
            return await super().call(node_id, api, tree, lane=lane)

        may_go: asyncio.Event

    async def scenario() -> None:
        peers = SlowPeers(*[enveloped(created("orders"))] * 3)
        peers.may_go = asyncio.Event()
        controller_channel = make(2, peers=peers)
        asked = [asyncio.create_task(controller_channel.create_topics([NewTopic("orders")])) for _ in range(2)]
        await asyncio.sleep(0)
        peers.may_go.set()
        await asyncio.gather(*asked)
        await controller_channel.create_topics([NewTopic("orders")])

    run(scenario())
    assert lanes == ["forwarding-0", "forwarding-1", "forwarding-0"]
