"""Forwarding to the active controller, inter-broker APIs and startup: dispatchers of two nodes, one of them the
controller, with encoded messages between them."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.client.net.api_versions import SUPPORTED_VERSIONS
from moldau.controller.channel import NodeToControllerChannel
from moldau.errors import NotControllerError, PeerUnreachableError
from moldau.handlers import REGISTRY
from moldau.metadata.image import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE, TOPIC_RESOURCE
from moldau.network.connection import CloseConnectionError
from moldau.raft.raft_client import METADATA_TOPIC_ID
from moldau.server import dispatcher as dispatcher_module
from moldau.server.api import Broker, ClientConnection, RequestContext
from moldau.server.dispatcher import Dispatcher
from moldau.server.forwarding import execute_forwarded
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder, has_flexible_header
from moldau.wire.frames import encode_request_header, skip_tagged_fields
from support.admin_broker import AdminBroker, broker_image, image_of

CLIENTS, NODES = "CLIENTS", "NODES"
SETTINGS = BrokerSettings(
    listen=("CLIENTS://127.0.0.1:9092", "NODES://127.0.0.1:9093"), inter_broker_listener_name=NODES
)


class Clock:
    now_ms = 0

    def monotonic_us(self) -> int:
        return Clock.now_ms * 1_000

    def monotonic_ms(self) -> int:
        Clock.now_ms += 1
        return Clock.now_ms


class Wire:
    """Sends encoded requests to the dispatchers of other nodes; `breaks` is raised once instead of a response."""

    def __init__(self) -> None:
        self.nodes: dict[int, Dispatcher] = {}
        self.recorded: list[tuple[int, ApiKey]] = []
        self.refuses: PeerUnreachableError | None = None
        self.breaks: PeerUnreachableError | None = None

    async def call(
        self, node_id: int, api: ApiKey, tree: Mapping[str, Any], *, lane: str, timeout_ms: int | None = None
    ) -> Message:
        await asyncio.sleep(0)
        if self.refuses is not None:
            refuses, self.refuses = self.refuses, None
            raise refuses
        self.recorded.append((node_id, api))
        response = await send(self.nodes[node_id], api, tree, listener=NODES)
        if self.breaks is not None:
            raise self.breaks
        return response


class Deciding:
    """A fake controller that decides only while it is active."""

    def __init__(self, broker: AdminBroker, is_active: bool) -> None:
        self.is_active = is_active
        self._decides = broker.controller
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            if not self.is_active:
                raise NotControllerError("not the controller")
            self.calls.append(name)
            return await getattr(self._decides, name)(*arguments, **named)

        return call


class Quorum:
    """The quorum as one node sees it."""

    def __init__(self, nodes: "TwoNodes", node_id: int) -> None:
        self._nodes = nodes
        self._node_id = node_id

    @property
    def leader_id(self) -> int:
        return self._nodes.leader_id

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self._node_id

    def describe(self) -> Any:
        return SimpleNamespace(endpoints=[SimpleNamespace(node_id=self._node_id, endpoints=[])])


class TwoNodes:
    def __init__(self, controller_id: int = 2) -> None:
        self.leader_id = controller_id
        self.wire = Wire()
        self.platform = SimpleNamespace(clock=Clock())
        self.admins = AdminBroker(image_of({"a": 1, "b": 1}, brokers=[broker_image(2)]))
        self.controllers = {number: Deciding(self.admins, number == controller_id) for number in (1, 2)}
        self.brokers = {number: self._broker(number) for number in (1, 2)}
        self.wire.nodes = {number: Dispatcher(each, REGISTRY) for number, each in self.brokers.items()}

    def _broker(self, number: int) -> Broker:
        controller: Any = self.controllers[number]
        metadata: Any = self.admins.metadata
        peers: Any = self.wire
        quorum: Any = Quorum(self, number)
        ready = asyncio.Event()
        ready.set()
        broker = Broker(
            broker_id=number,
            platform=cast(Any, self.platform),
            settings=EffectiveSettings(SETTINGS, metadata.image),
            metadata=metadata,
            controller=controller,
            replica_manager=cast(Any, None),
            groups=cast(Any, None),
            transactions=cast(Any, None),
            transaction_verifier=cast(Any, None),
            marker_writer=cast(Any, None),
            late_requests=cast(Any, None),
            fetch_session_cache=cast(Any, None),
            producer_ids=cast(Any, None),
            shutdown_callbacks=cast(Any, None),
            quorum=quorum,
            controller_channel=NodeToControllerChannel(
                number, controller, quorum, peers, metadata, cast(Any, self.platform.clock)
            ),
            auto_topic_creation=cast(Any, None),
            lag_sampler=cast(Any, None),
            peers=peers,
            lifecycle=cast(Any, None),
            replication=cast(Any, None),
            availability=cast(Any, None),
            ready=ready,
        )
        broker.controller_channel.local_handler = partial(execute_forwarded, broker=broker)
        return broker

    def move_controller(self, node_id: int) -> None:
        self.leader_id = node_id
        for number, controller in self.controllers.items():
            controller.is_active = number == node_id

    async def send(self, node_id: int, api: ApiKey, tree: Mapping[str, Any], version: int | None = None) -> Message:
        return await send(self.wire.nodes[node_id], api, tree, version=version)

    @property
    def topics(self) -> list[str]:
        return sorted(self.admins.metadata.image.topics)


def frame_of(api: ApiKey, version: int, tree: Mapping[str, Any]) -> memoryview:
    frame = encode_request_header(api, version, 77, "a client")
    encoder(api, version, "request")(frame, tree)
    return memoryview(frame)


async def send(
    dispatcher: Dispatcher, api: ApiKey, tree: Mapping[str, Any], *, version: int | None = None, listener: str = CLIENTS
) -> Message:
    if version is None:
        version = SUPPORTED_VERSIONS[api].maximum if api in SUPPORTED_VERSIONS else REGISTRY[api].max_version
    parts = await dispatcher.handle(
        ClientConnection("10.1.2.3:4567", listener), frame_of(api, version, tree), lambda: None
    )
    assert parts is not None
    data = memoryview(b"".join(bytes(part) for part in parts))
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert int.from_bytes(data[4:8], "big") == 77
    start = skip_tagged_fields(data, 8) if has_flexible_header(api, version) and api != ApiKey.API_VERSIONS else 8
    return decoder(api, version, "response")(data[start:])


def delete(*names: str, timeout_ms: int = 5_000) -> dict[str, Any]:
    return {"topics": [{"name": name, "topic_id": None} for name in names], "timeout": timeout_ms}


def codes(response: Message) -> dict[str, int]:
    return {each.name: each.error_code for each in response.responses}


def run(story: Callable[[], Any]) -> Any:
    return asyncio.run(story())


def test_any_node_forwards_to_the_controller() -> None:
    async def story() -> None:
        nodes = TwoNodes()
        assert codes(await nodes.send(1, ApiKey.DELETE_TOPICS, delete("a", "nope"))) == {"a": 0, "nope": 3}
        assert nodes.topics == ["b"]
        assert nodes.wire.recorded == [(2, ApiKey.ENVELOPE)]
        assert codes(await nodes.send(2, ApiKey.DELETE_TOPICS, delete("b"))) == {"b": 0}
        assert nodes.wire.recorded == [(2, ApiKey.ENVELOPE)], "it asks itself without the network"

    run(story)


@pytest.mark.parametrize("version", [1, 3, 4, 5])
def test_a_forwarded_request_keeps_the_clients_identity(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    served = REGISTRY[ApiKey.DELETE_TOPICS]
    seen: list[RequestContext] = []

    async def spy(request: Any, session: RequestContext, broker: Broker) -> Any:
        seen.append(session)
        return await served.handler(request, session, broker)

    monkeypatch.setitem(REGISTRY, ApiKey.DELETE_TOPICS, served._replace(handler=spy))

    async def story() -> None:
        nodes = TwoNodes()
        tree = {"topic_names": ["a"], "timeout": 5_000}
        response = await nodes.send(1, ApiKey.DELETE_TOPICS, tree, version)
        assert codes(response) == {"a": 0}

    run(story)
    (session,) = seen
    assert (session.api_version, session.client_id, session.client_host) == (version, "a client", "/10.1.2.3")
    assert session.is_forwarded


def test_forwarding_follows_a_controller_that_moves() -> None:
    async def story() -> None:
        nodes = TwoNodes()
        nodes.controllers[2].is_active = False
        pending = asyncio.create_task(nodes.send(1, ApiKey.DELETE_TOPICS, delete("a")))
        while not nodes.wire.recorded:
            await asyncio.sleep(0)
        nodes.move_controller(1)
        assert codes(await pending) == {"a": 0}
        assert nodes.controllers[1].calls == ["delete_topics"]
        assert nodes.controllers[2].calls == []

    run(story)


def test_forwarding_follows_a_controller_that_moves_away_from_this_node() -> None:
    async def story() -> None:
        nodes = TwoNodes(controller_id=1)
        nodes.controllers[1].is_active = False
        pending = asyncio.create_task(nodes.send(1, ApiKey.DELETE_TOPICS, delete("a")))
        await asyncio.sleep(0)
        nodes.move_controller(2)
        assert codes(await pending) == {"a": 0}
        assert nodes.controllers[2].calls == ["delete_topics"]

    run(story)


def test_an_unreachable_controller_is_retried() -> None:
    async def story() -> None:
        nodes = TwoNodes()
        nodes.wire.refuses = PeerUnreachableError("refused", is_connection_refused=True)
        assert codes(await nodes.send(1, ApiKey.DELETE_TOPICS, delete("a"))) == {"a": 0}

    run(story)


def test_a_request_that_may_have_been_executed_is_not_retried() -> None:
    async def story() -> None:
        nodes = TwoNodes()
        nodes.wire.breaks = PeerUnreachableError("the connection ended", was_sent=True)
        response = await nodes.send(1, ApiKey.DELETE_TOPICS, delete("a"))
        assert codes(response) == {"a": 7}
        assert "not known" in response.responses[0].error_message
        assert nodes.wire.recorded == [(2, ApiKey.ENVELOPE)]

    run(story)


def test_without_a_controller_the_api_returns_its_own_error() -> None:
    async def story() -> None:
        nodes = TwoNodes()
        nodes.leader_id = -1
        assert codes(await nodes.send(1, ApiKey.DELETE_TOPICS, delete("a", "b", timeout_ms=10))) == {"a": 7, "b": 7}
        more = {"topics": [{"name": "a", "count": 3, "assignments": None}], "timeout": 10, "validate_only": False}
        response = await nodes.send(1, ApiKey.CREATE_PARTITIONS, more)
        assert [(each.name, each.error_code) for each in response.results] == [("a", 7)]

    run(story)


# Envelopes


def envelope(request: bytes | memoryview) -> dict[str, Any]:
    return {"request_data": request, "request_principal": None, "client_host_address": b""}


@pytest.mark.parametrize(
    ("request_data", "code"),
    [
        (frame_of(ApiKey.METADATA, 4, {"topics": None}), 42),
        (frame_of(ApiKey.DELETE_TOPICS, 6, delete("a"))[:-3], 42),
        (b"", 42),
        (bytes(encode_request_header(ApiKey.DELETE_TOPICS, 6, 1, "x"))[:2] + b"\x00\x63" + bytes(20), 35),
        (frame_of(ApiKey.ENVELOPE, 0, envelope(b"x")), 42),
    ],
)
def test_an_envelope_with_another_api_is_rejected(request_data: bytes, code: int) -> None:
    async def story() -> None:
        nodes = TwoNodes()
        response = await send(nodes.wire.nodes[2], ApiKey.ENVELOPE, envelope(request_data), listener=NODES)
        assert (response.error_code, response.response_data) == (code, None)
        assert nodes.topics == ["a", "b"]

    run(story)


def test_the_leader_of_the_quorum_describes_it_without_an_active_controller() -> None:
    async def story() -> None:
        nodes = TwoNodes()
        nodes.controllers[2].is_active = False
        response = await nodes.send(1, ApiKey.DESCRIBE_QUORUM, {"topics": []})
        assert (response.error_code, [each.node_id for each in response.nodes]) == (0, [2])

    run(story)


def test_an_envelope_is_not_forwarded_again() -> None:
    async def story() -> None:
        nodes = TwoNodes()
        request = frame_of(ApiKey.DELETE_TOPICS, 6, delete("a"))
        response = await send(nodes.wire.nodes[1], ApiKey.ENVELOPE, envelope(request), listener=NODES)
        assert response.error_code == 41
        assert nodes.wire.recorded == []

    run(story)


def test_inter_broker_apis_are_rejected_on_other_listeners() -> None:
    async def story() -> None:
        nodes = TwoNodes()
        request = frame_of(ApiKey.DELETE_TOPICS, 6, delete("a"))
        with pytest.raises(CloseConnectionError, match=r"ENVELOPE .* NODES; 10\.1\.2\.3:4567 sent it on CLIENTS"):
            await nodes.send(2, ApiKey.ENVELOPE, envelope(request))
        assert nodes.topics == ["a", "b"]

    run(story)


def test_inter_broker_apis_are_advertised_on_their_listener_only() -> None:
    software = {"client_software_name": "x", "client_software_version": "1"}

    async def named(listener: str) -> set[int]:
        dispatcher = TwoNodes().wire.nodes[1]
        response = await send(dispatcher, ApiKey.API_VERSIONS, software, listener=listener)
        return {each.api_key for each in response.api_keys}

    inter_broker = {int(key) for key, served in REGISTRY.items() if served.inter_broker}
    assert ApiKey.ENVELOPE in inter_broker
    assert asyncio.run(named(NODES)) - asyncio.run(named(CLIENTS)) == inter_broker


# Configs, of which a node hands on a part


def config(kind: int, name: str, **values: str) -> dict[str, Any]:
    configs = [{"name": key.replace("_", "."), "config_operation": 0, "value": value} for key, value in values.items()]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def altered(response: Message) -> dict[tuple[int, str], int]:
    return {(each.resource_type, each.resource_name): each.error_code for each in response.responses}


def test_a_broker_alters_its_own_configs_and_forwards_the_rest() -> None:
    async def story() -> None:
        nodes = TwoNodes()
        resources = [
            config(TOPIC_RESOURCE, "a", retention_ms="1000"),
            config(BROKER_RESOURCE, "1", log_cleaner_backoff_ms="7"),
            config(BROKER_RESOURCE, "2", log_cleaner_backoff_ms="7"),
            config(BROKER_LOGGER_RESOURCE, "1", moldau_tests_forwarding="DEBUG"),
            config(TOPIC_RESOURCE, "nope", retention_ms="1000"),
        ]
        tree = {"resources": resources, "validate_only": False}
        response = await nodes.send(1, ApiKey.INCREMENTAL_ALTER_CONFIGS, tree)
        found = altered(response)
        assert found[TOPIC_RESOURCE, "a"] == 0
        assert found[BROKER_RESOURCE, "1"] == 0
        assert found[BROKER_RESOURCE, "2"] == 42, "that broker has to be asked"
        assert found[TOPIC_RESOURCE, "nope"] == 3
        assert nodes.wire.recorded == [(2, ApiKey.ENVELOPE)]
        image = nodes.admins.metadata.image
        assert {each.name: dict(values) for each, values in image.configs.items()} == {
            "a": {"retention.ms": "1000"},
            "1": {"log.cleaner.backoff.ms": "7"},
        }

    run(story)


def test_alter_configs_is_forwarded_too() -> None:
    async def story() -> None:
        nodes = TwoNodes()
        resource = {
            "resource_type": TOPIC_RESOURCE,
            "resource_name": "a",
            "configs": [{"name": "retention.ms", "value": "1000"}],
        }
        response = await nodes.send(1, ApiKey.ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
        assert altered(response) == {(TOPIC_RESOURCE, "a"): 0}
        assert nodes.wire.recorded == [(2, ApiKey.ENVELOPE)]

    run(story)


# Before the node is ready


def fetch(topic_id: Any) -> dict[str, Any]:
    return {
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1,
        "topics": [{"topic_id": topic_id, "partitions": []}],
        "forgotten_topics_data": [],
    }


def test_client_requests_wait_until_the_node_is_ready() -> None:
    async def story() -> None:
        nodes = TwoNodes()
        nodes.brokers[1].ready.clear()
        pending = asyncio.create_task(
            nodes.send(
                1,
                ApiKey.DESCRIBE_CLUSTER,
                {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": False},
            )
        )
        for _ in range(20):
            await asyncio.sleep(0)
        assert not pending.done()
        nodes.brokers[1].ready.set()
        assert (await pending).cluster_id == "the-cluster"

    run(story)


def test_a_client_that_waits_too_long_for_a_starting_node_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "READY_TIMEOUT_S", 0.001)

    async def story() -> None:
        nodes = TwoNodes()
        nodes.brokers[1].ready.clear()
        with pytest.raises(CloseConnectionError, match="could not join its cluster"):
            await nodes.send(1, ApiKey.DELETE_TOPICS, delete("a"))

    run(story)


def test_parked_requests_of_a_starting_node_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "PARKED_BYTES_MAX", 100)

    async def story() -> None:
        nodes = TwoNodes()
        nodes.brokers[1].ready.clear()
        first = asyncio.create_task(nodes.send(1, ApiKey.DELETE_TOPICS, delete("a")))
        await asyncio.sleep(0)
        with pytest.raises(CloseConnectionError, match="too many"):
            await nodes.send(1, ApiKey.DELETE_TOPICS, delete("b" * 80))
        nodes.brokers[1].ready.set()
        assert codes(await first) == {"a": 0}

    run(story)


def test_inter_broker_requests_do_not_wait_until_the_node_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []

    async def fetch_metadata(request: Any, session: RequestContext, broker: Broker) -> Any:
        fetched.append(request.topics[0].topic_id)
        return {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": []}

    served = REGISTRY[ApiKey.FETCH]
    monkeypatch.setitem(REGISTRY, ApiKey.FETCH, served._replace(handler=fetch_metadata))

    async def story() -> None:
        nodes = TwoNodes()
        nodes.brokers[2].ready.clear()
        request = frame_of(ApiKey.DELETE_TOPICS, 6, delete("a"))
        response = await send(nodes.wire.nodes[2], ApiKey.ENVELOPE, envelope(request), listener=NODES)
        assert response.error_code == 0
        software = {"client_software_name": "x", "client_software_version": "1"}
        assert (await nodes.send(2, ApiKey.API_VERSIONS, software)).error_code == 0
        await nodes.send(2, ApiKey.FETCH, fetch(METADATA_TOPIC_ID), 13)
        waits = asyncio.create_task(nodes.send(2, ApiKey.FETCH, fetch(None), 13))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waits.done()
        nodes.brokers[2].ready.set()
        await waits

    run(story)
    assert fetched == [METADATA_TOPIC_ID, None]
