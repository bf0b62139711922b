"""The client's view of a cluster: bootstrap, metadata, leaders, coordinators, connections."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from moldau.client.admin.admin import Admin
from moldau.client.consumer.offset_lookup import EARLIEST, list_offsets
from moldau.client.errors import ClientClosedError, ConnectionLostError, ErrorCode, KafkaError, RequestTimedOutError
from moldau.client.net.api_versions import FinalizedFeatures
from moldau.client.net.cluster import Cluster, parse_bootstrap
from moldau.client.net.connection import Connection
from moldau.client.net.connection_pool import BrokerConnections
from moldau.client.net.metadata import BrokerInfo, Metadata
from moldau.client.record import TopicPartition
from moldau.concurrency.backoff import Backoff
from moldau.testing import Broker
from moldau.testing.simulation.platform.loop import SimulatedLoop
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message
from support.scripted_broker import NODE, Disconnect, Hang, ReceivedRequest, ScriptedBroker, ScriptedResponse, Tree

ORDERS = TopicPartition("orders", 0)
PATIENCE_MS = 10_000


def with_cluster(
    test: Callable[[ScriptedBroker, Cluster], Coroutine[Any, Any, None]],
    scripts: dict[ApiKey, Any] | None = None,
    **settings: Any,
) -> None:
    async def main() -> None:
        async with (
            ScriptedBroker(scripts, topics={"orders": 2}) as broker,
            Cluster(broker.bootstrap, retry_backoff_ms=1, **settings) as cluster,
        ):
            await test(broker, cluster)

    asyncio.run(main())


def leader_message(leader_id: int, leader_epoch: int) -> Message:
    return Message(leader_id=leader_id, leader_epoch=leader_epoch)


def coordinator(node: int = NODE, code: int = 0) -> Tree:
    found = {"key": "g", "node_id": node, "host": "", "port": 1, "error_code": code, "error_message": None}
    return {"throttle_time": 0, "coordinators": [found]}


# Bootstrap


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("localhost:9093", [("localhost", 9093)]),
        ("one, two:7", [("one", 9092), ("two", 7)]),
        (["[::1]:9092", "[fe80::1]"], [("::1", 9092), ("fe80::1", 9092)]),
    ],
)
def test_bootstrap_servers_are_read(given: Any, addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(given) == addresses


@pytest.mark.parametrize("given", ["", " , ", [], "host:", ":9092", "host:0", "host:70000", "host:x"])
def test_invalid_bootstrap_servers_are_rejected(given: Any) -> None:
    with pytest.raises(ValueError, match="bootstrap server"):
        parse_bootstrap(given)


def test_a_dead_bootstrap_server_is_passed_over() -> None:
    async def main() -> None:
        async with ScriptedBroker() as dead:
            pass
        async with (
            ScriptedBroker() as broker,
            Cluster([dead.bootstrap, broker.bootstrap], random=random.Random(0)) as cluster,
        ):
            assert list(cluster.brokers) == [NODE]
            assert cluster.cluster_id == "scripted"
            # The address given and the one advertised are the same: one connection serves both.
            await cluster.connection(NODE)
            assert broker.connections == 1

    asyncio.run(main())


def test_a_refused_connection_is_an_error_in_time() -> None:
    async def main() -> None:
        async with ScriptedBroker() as dead:
            pass
        with pytest.raises(ConnectionLostError, match=str(dead.port)):
            async with Cluster(dead.bootstrap, request_timeout_ms=200, retry_backoff_ms=10):
                pass

    asyncio.run(main())


def test_a_broker_that_never_responds_is_an_error_in_time() -> None:
    async def main() -> None:
        async with ScriptedBroker({ApiKey.METADATA: lambda _: Hang}) as broker:
            with pytest.raises(RequestTimedOutError):
                async with Cluster(broker.bootstrap, request_timeout_ms=100, retry_backoff_ms=10):
                    pass

    asyncio.run(main())


class Silence:
    """A connection without any responses."""

    is_open = True
    in_flight = 0
    reauthenticate_at = None
    finalized_features = FinalizedFeatures()

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)

    async def call(self, api: ApiKey, tree: Any, *, timeout_ms: int) -> Message:
        await asyncio.sleep(timeout_ms / 1000)
        self.is_open = False
        raise RequestTimedOutError("silence")

    def close(self) -> None:
        self.is_open = False


class Talk(Silence):
    async def call(self, api: ApiKey, tree: Any, *, timeout_ms: int) -> Message:
        broker = Message(node_id=NODE, host=self.address[0], port=self.address[1], rack=None)
        return Message(error_code=0, brokers=[broker], cluster_id="c", controller_id=NODE, topics=[])


class Mute(Talk):
    """A node that responds to Metadata requests only."""

    async def call(self, api: ApiKey, tree: Any, *, timeout_ms: int, **versions: int | None) -> Message:
        if api is not ApiKey.METADATA:
            return await Silence.call(self, api, tree, timeout_ms=timeout_ms)
        return Message(error_code=0, brokers=BROKERS, cluster_id="c", controller_id=1, topics=[])


class Well(Mute):
    async def call(self, api: ApiKey, tree: Any, *, timeout_ms: int, **versions: int | None) -> Message:
        if api is not ApiKey.METADATA:
            found = Message(node_id=2, error_code=0, error_message=None)
            return Message(coordinators=[found])
        return await super().call(api, tree, timeout_ms=timeout_ms)


BROKERS = [Message(node_id=number, host=host, port=9092, rack=None) for number, host in ((1, "mute"), (2, "well"))]


@pytest.mark.parametrize("seed", range(4))
def test_a_coordinator_is_found_although_one_node_hangs(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    async def connect(host: str, port: int, **_: Any) -> Silence:
        return (Mute if host == "mute" else Well)(host, port)

    monkeypatch.setattr(Connection, "open", connect)

    async def find() -> float:
        async with Cluster("mute", random=random.Random(seed)) as cluster:
            assert await cluster.coordinator_of("g") == 2
            return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        assert runner.run(find()) < 16


def test_a_recently_failed_node_is_tried_last_even_if_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(host: str, port: int, **_: Any) -> Silence:
        return Silence(host, port)

    monkeypatch.setattr(Connection, "open", connect)

    async def scenario() -> None:
        settings: Any = {"client_id": "c", "random": random.Random(0), "timeout_ms": 30_000}
        nodes = BrokerConnections([("a", 1), ("b", 1), ("c", 1)], **settings)
        nodes.set_brokers({number: BrokerInfo(number, host, 1) for number, host in enumerate("abc")})
        await asyncio.sleep(1)
        connected = [await nodes.connection(number, "", 1_000) for number in (0, 1)]
        fetching = await nodes.connection(0, "fetch", 1_000)

        async def best() -> Connection:
            return await nodes.connection(None, "", 1_000)

        connected[1].in_flight = 1  # type: ignore[misc]
        assert await best() is connected[0]
        nodes.note_failure(fetching)
        assert await best() is connected[1]
        nodes.note_failure(connected[1])
        assert (await best()).address == ("c", 1)
        # What has been well for so long is as good as any other.
        await asyncio.sleep(31)
        connected[1].in_flight = 0  # type: ignore[misc]
        (await best()).in_flight = 1  # type: ignore[misc]
        assert len({(await best()).address for _ in range(20)}) == 2

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(scenario())


def start_in_virtual_time(monkeypatch: pytest.MonkeyPatch, servers: str) -> tuple[float, bool]:
    """How many seconds a cluster with a timeout of 30 takes to start, and whether it does. Servers called `deaf` take
    no connection, those called `silent` take one and say nothing."""

    async def connect(host: str, port: int, *, client_id: str, timeout_ms: int, **_: Any) -> Silence:
        if host.startswith("deaf"):
            await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimedOutError(host)
        return (Silence if host.startswith("silent") else Talk)(host, port)

    monkeypatch.setattr(Connection, "open", connect)

    async def start() -> tuple[float, bool]:
        cluster = Cluster(servers, request_timeout_ms=30_000)
        try:
            await cluster.start()
        except RequestTimedOutError:
            pass
        took_s = asyncio.get_running_loop().time()
        await cluster.close()
        return took_s, bool(cluster.brokers)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(start())


@pytest.mark.parametrize("servers", ["deaf1,deaf2,deaf3", "silent1,silent2,silent3", "deaf1,silent2"])
def test_many_servers_that_hang_take_no_longer_than_one(monkeypatch: pytest.MonkeyPatch, servers: str) -> None:
    took_s, has_started = start_in_virtual_time(monkeypatch, servers)
    assert not has_started
    assert took_s < 30.1


@pytest.mark.parametrize("servers", ["deaf1,well", "silent1,well", "deaf1,silent2,well"])
def test_a_server_that_hangs_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch, servers: str) -> None:
    took_s, has_started = start_in_virtual_time(monkeypatch, servers)
    assert has_started
    # Nor is it waited for a second time.
    assert took_s < 17


def test_connecting_counts_against_the_time_of_a_call() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.API_VERSIONS] = lambda _: Hang
        async with asyncio.timeout(PATIENCE_MS / 1000):
            with pytest.raises(RequestTimedOutError):
                await cluster.call(NODE, ApiKey.LIST_GROUPS, {}, timeout_ms=20, lane="another")

    with_cluster(test)


# Metadata


def test_a_failing_metadata_listener_does_not_affect_others() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        def fail() -> None:
            raise ZeroDivisionError

        changes = [asyncio.Event(), asyncio.Event()]
        cluster.on_update(fail)
        cluster.on_update(lambda: next(each for each in changes if not each.is_set()).set())
        cluster.track(["orders"])
        for count, changed in enumerate(changes, 3):
            broker.topics["orders"] = count
            cluster.refresh_soon()
            await asyncio.wait_for(changed.wait(), PATIENCE_MS / 1000)

    with_cluster(test)


def test_an_error_that_this_client_does_not_know_is_one_of_the_topic() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        told = broker.scripts[ApiKey.METADATA]

        def unknown(received: ReceivedRequest) -> ScriptedResponse:
            tree = told(received)
            assert isinstance(tree, dict)
            tree["topics"][0]["error_code"] = 9_999
            return tree

        broker.scripts[ApiKey.METADATA] = unknown
        await cluster.refresh(["orders"])
        assert cluster.topic_errors == {"orders": ErrorCode.unknown_server_error}

    with_cluster(test)


def test_metadata_refreshes_continue_after_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        update, failures = Metadata.update, [ZeroDivisionError(), ZeroDivisionError()]

        def sometimes(metadata: Metadata, answer: Message, *, all_topics: bool) -> bool:
            if failures:
                raise failures.pop()
            return update(metadata, answer, all_topics=all_topics)

        monkeypatch.setattr(Metadata, "update", sometimes)
        changed = asyncio.Event()
        cluster.on_update(changed.set)
        cluster.track(["orders"])
        cluster.refresh_soon()
        await asyncio.wait_for(changed.wait(), PATIENCE_MS / 1000)

    with_cluster(test)


def test_tracked_topics_are_in_the_metadata_and_others_are_not() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.topics["payments"] = 1
        assert cluster.topics == {}
        cluster.track(["orders"])
        await cluster.refresh()
        assert list(cluster.topics) == ["orders"]
        await cluster.refresh(all_topics=True)
        assert list(cluster.topics) == ["orders", "payments"]
        assert [each.index for each in cluster.topics["orders"].partitions] == [0, 1]

    with_cluster(test)


def test_a_deleted_topic_disappears() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        cluster.track(["orders"])
        await cluster.refresh()
        del broker.topics["orders"]
        await cluster.refresh()
        assert cluster.topics == {}
        assert cluster.topic_errors == {"orders": ErrorCode.unknown_topic_or_partition}

    with_cluster(test)


def test_metadata_listeners_are_notified_of_changes_only() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        heard: list[list[int]] = []
        forget = cluster.on_update(lambda: heard.append([len(topic.partitions) for topic in cluster.topics.values()]))
        cluster.track(["orders"])
        await cluster.refresh()
        await cluster.refresh()
        assert heard == [[2]]
        broker.topics["orders"] = 5
        await cluster.refresh()
        assert heard == [[2], [5]]
        forget()
        broker.topics["orders"] = 6
        await cluster.refresh()
        assert len(heard) == 2

    with_cluster(test)


def test_a_stale_leader_does_not_replace_a_newer_one() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.leader_epoch = 5
        await cluster.refresh(["orders"])
        broker.leader_epoch = 3
        await cluster.refresh(["orders"])
        assert cluster.topics["orders"].partitions[0].leader_epoch == 5
        cluster.learn_leader(ORDERS, leader_message(NODE, 9), ())
        cluster.learn_leader(TopicPartition("orders", 1), leader_message(NODE, 4), ())
        assert [each.leader_epoch for each in cluster.topics["orders"].partitions] == [9, 5]
        assert cluster.has_newer_leader(ORDERS, 8)
        assert not cluster.has_newer_leader(ORDERS, 9)
        cluster.learn_leader(ORDERS, leader_message(-1, -1), ())
        cluster.learn_leader(ORDERS, None, ())
        assert cluster.known_leader_of(ORDERS) == NODE

    with_cluster(test)


def test_the_address_of_a_new_leader_comes_with_the_leader() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.refresh(["orders"])
        cluster.learn_leader(ORDERS, leader_message(8, 1), ())
        assert cluster.known_leader_of(ORDERS) == NODE, "a leader without an address cannot be used"
        other = Message(node_id=9, host="127.0.0.1", port=1, rack=None)
        endpoint = Message(node_id=8, host="127.0.0.1", port=broker.port, rack="r")
        cluster.learn_leader(ORDERS, leader_message(8, 1), [other, endpoint])
        assert cluster.known_leader_of(ORDERS) == 8
        assert set(cluster.brokers) == {NODE, 8}
        assert (await cluster.connection(8)).is_open

    with_cluster(test)


def test_a_missing_topic_does_not_make_older_leader_epochs_valid() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        cluster.track(["orders"])
        broker.leader_epoch = 5
        await cluster.refresh()
        told = broker.topics.pop("orders")
        await cluster.refresh()
        assert cluster.topics == {}
        broker.topics["orders"], broker.leader_epoch = told, 3
        await cluster.refresh()
        assert cluster.topics["orders"].partitions[0].leader_epoch == 5
        broker.leader_epoch = 6
        await cluster.refresh()
        assert cluster.topics["orders"].partitions[0].leader_epoch == 6

    with_cluster(test)


@pytest.mark.parametrize("all_topics", [False, True])
def test_a_deleted_topic_is_removed_from_the_metadata(all_topics: bool) -> None:
    def told(*topics: Message) -> Message:
        return Message(brokers=[], cluster_id="c", controller_id=NODE, topics=list(topics))

    partition = Message(
        partition_index=0, leader_id=1, leader_epoch=5, replica_nodes=[1], isr_nodes=[1], offline_replicas=[]
    )
    orders = Message(name="orders", error_code=0, topic_id=UUID(int=1), partitions=[partition], is_internal=False)
    metadata = Metadata()
    metadata.update(told(orders), all_topics=False)
    metadata.update(told(Message(name="orders", error_code=3)), all_topics=False)
    if all_topics:
        metadata.update(told(), all_topics=True)
    else:
        metadata.retain_topics([])
    partition.leader_epoch = 2
    metadata.update(told(orders), all_topics=False)
    assert metadata.topics["orders"].partitions[0].leader_epoch == 2


def test_a_recreated_topic_starts_with_new_epochs() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.leader_epoch = 5
        await cluster.refresh(["orders"])
        broker.leader_epoch = 0
        # The scripted broker's topic ids go by the place in its list.
        broker.topics = {"another": 1, "orders": 2}
        await cluster.refresh(["orders"])
        assert cluster.topics["orders"].partitions[0].leader_epoch == 0

    with_cluster(test)


def test_requests_for_the_same_metadata_are_made_once() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        before = broker.count(ApiKey.METADATA)
        await asyncio.gather(*(cluster.refresh(["orders"]) for _ in range(10)))
        assert broker.count(ApiKey.METADATA) == before + 1
        await asyncio.gather(cluster.refresh(["orders"]), cluster.refresh(["payments"]))
        assert broker.count(ApiKey.METADATA) == before + 3

    with_cluster(test)


def test_metadata_out_of_date_is_fetched_in_the_background() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        cluster.track(["orders"])
        changed = asyncio.Event()
        cluster.on_update(changed.set)
        cluster.refresh_soon()
        await asyncio.wait_for(changed.wait(), PATIENCE_MS / 1000)
        assert list(cluster.topics) == ["orders"]

    with_cluster(test)


def test_metadata_is_fetched_again_when_it_is_old() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        cluster.track(["orders"])
        changed = asyncio.Event()
        cluster.on_update(changed.set)
        await asyncio.wait_for(changed.wait(), PATIENCE_MS / 1000)

    with_cluster(test, metadata_max_age_ms=10)


def test_untracked_topics_are_dropped_and_fetched_again() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.topics["payments"] = 1
        cluster.track(["payments"])
        assert await cluster.leader_of(ORDERS) == NODE
        cluster.refresh_soon()
        while "orders" in cluster.topics:
            await asyncio.sleep(0)
        assert list(cluster.topics) == ["payments"]
        assert await cluster.leader_of(ORDERS) == NODE

    with_cluster(test)


def test_leader_of_waits_for_a_leader() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        late = TopicPartition("late", 0)
        waiting = asyncio.create_task(cluster.leader_of(late))
        while broker.count(ApiKey.METADATA) < 4:
            await asyncio.sleep(0)
        broker.topics["late"] = 1
        assert await waiting == NODE
        assert cluster.known_leader_of(late) == NODE

    with_cluster(test)


@pytest.mark.parametrize("partition", [TopicPartition("nothing", 0), TopicPartition("orders", 2)])
def test_leader_of_a_missing_partition_raises(partition: TopicPartition) -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(KafkaError) as raised:
            await cluster.leader_of(partition, timeout_ms=500)
        assert raised.value.code is ErrorCode.unknown_topic_or_partition

    with_cluster(test)


def test_topics_are_created_by_brokers_only_on_request() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.wait_for_topics(["orders"])
        assert not broker.received_requests[-1].request.allow_auto_topic_creation
        with pytest.raises(KafkaError):
            await cluster.wait_for_topics(["new"], create=True, timeout_ms=500)
        assert broker.received_requests[-1].request.allow_auto_topic_creation
        assert [each.name for each in broker.received_requests[-1].request.topics] == ["new"]

    with_cluster(test)


def test_a_topic_in_creation_is_requested_again_soon() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        cluster.retry_backoff_ms = cluster.retry_backoff_max_ms = 60_000
        created = asyncio.create_task(cluster.wait_for_topics(["new"], create=True))
        while broker.received_requests[-1].api is not ApiKey.METADATA or not _creates_topics(broker):
            await asyncio.sleep(0)
        broker.topics["new"] = 1
        await asyncio.wait_for(created, 10)

    with_cluster(test)


def test_a_topic_that_was_not_created_is_unknown_even_if_the_last_attempt_timed_out() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        respond, attempts = broker.scripts[ApiKey.METADATA], iter([True])
        broker.scripts[ApiKey.METADATA] = lambda request: respond(request) if next(attempts, False) else Hang
        with pytest.raises(KafkaError) as raised:
            await cluster.wait_for_topics(["new"], create=True, timeout_ms=500)
        assert raised.value.code is ErrorCode.unknown_topic_or_partition

    with_cluster(test)


def _creates_topics(broker: ScriptedBroker) -> bool:
    return bool(broker.received_requests[-1].request.allow_auto_topic_creation)


# Coordinators


def test_a_coordinator_is_cached_until_it_is_forgotten() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        assert await cluster.coordinator_of("g") == NODE
        assert await cluster.coordinator_of("g") == NODE
        assert broker.count(ApiKey.FIND_COORDINATOR) == 1
        cluster.forget_coordinator("g")
        assert await cluster.coordinator_of("g") == NODE
        assert broker.count(ApiKey.FIND_COORDINATOR) == 2

    with_cluster(test, {ApiKey.FIND_COORDINATOR: lambda _: coordinator()})


def test_a_missing_coordinator_is_looked_up_again() -> None:
    codes = [ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress, ErrorCode.none]
    remaining = iter(codes)

    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        assert await cluster.coordinator_of("g") == NODE
        assert broker.count(ApiKey.FIND_COORDINATOR) == len(codes)

    with_cluster(test, {ApiKey.FIND_COORDINATOR: lambda _: coordinator(code=next(remaining))})


@pytest.mark.parametrize("code", [ErrorCode.group_authorization_failed, ErrorCode.invalid_group_id])
def test_a_fatal_error_is_raised_at_once(code: ErrorCode) -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(KafkaError) as raised:
            await cluster.coordinator_of("g")
        assert raised.value.code is code
        assert broker.count(ApiKey.FIND_COORDINATOR) == 1

    with_cluster(test, {ApiKey.FIND_COORDINATOR: lambda _: coordinator(code=code)})


# Connections


def test_lanes_have_connections_of_their_own() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        general = await cluster.connection(NODE)
        assert await cluster.connection(NODE) is general
        assert await cluster.connection(None) is general
        group = await cluster.connection(NODE, "group")
        assert group is not general
        assert broker.connections == 2
        first, second = await asyncio.gather(cluster.connection(NODE, "x"), cluster.connection(NODE, "x"))
        assert first is second
        assert broker.connections == 3

    with_cluster(test)


def test_a_lost_connection_is_reported_and_reopened() -> None:
    lost = iter([True, False])

    def find(received: ReceivedRequest) -> ScriptedResponse:
        return Disconnect if next(lost) else coordinator()

    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        tree = {"key_type": 0, "coordinator_keys": ["g"]}
        with pytest.raises(ConnectionLostError):
            await cluster.call(NODE, ApiKey.FIND_COORDINATOR, tree)
        answer = await cluster.call(NODE, ApiKey.FIND_COORDINATOR, tree)
        assert answer.coordinators[0].node_id == NODE
        assert broker.count(ApiKey.FIND_COORDINATOR) == 2

    with_cluster(test, {ApiKey.FIND_COORDINATOR: find})


def test_an_unknown_node_cannot_be_called() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(ConnectionLostError, match="node 99 is not among"):
            await cluster.call(99, ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []})

    with_cluster(test)


def test_a_closed_cluster_makes_no_connections() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.close()
        with pytest.raises(ClientClosedError):
            await cluster.connection(NODE)

    with_cluster(test)


def test_calls_on_a_closed_client_are_not_tried_again() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.close()
        async with asyncio.timeout(PATIENCE_MS / 1000):
            for call in (
                Admin(cluster).list_topics(),
                cluster.leader_of(ORDERS),
                cluster.coordinator_of("g"),
                list_offsets(cluster, {ORDERS: 0}),
            ):
                with pytest.raises(ClientClosedError):
                    await call

    with_cluster(test)


def test_close_fails_pending_connections_and_refreshes() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.API_VERSIONS] = broker.scripts[ApiKey.METADATA] = lambda _: Hang
        waiting = [
            asyncio.create_task(cluster.connection(NODE, "another")),
            asyncio.create_task(cluster.connection(NODE, "another")),
            asyncio.create_task(cluster.refresh()),
        ]
        await asyncio.sleep(0.01)
        waiting[0].cancel()
        await asyncio.sleep(0)
        await cluster.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert all(isinstance(each, ClientClosedError) for each in outcomes[1:]), outcomes

    with_cluster(test)


def test_closing_a_cluster_leaves_no_task_running() -> None:
    async def main() -> None:
        async with Broker(topics=["orders"]) as broker:
            async with Cluster(broker.bootstrap) as cluster:
                await cluster.leader_of(ORDERS)
                cluster.refresh_soon()
            names = [task.get_name() for task in asyncio.all_tasks()]
            assert not [name for name in names if name.startswith("moldau ")]

    asyncio.run(main())


# Offsets of logs


def test_invalid_list_offsets_responses_are_errors() -> None:
    def offsets(*partitions: int) -> Tree:
        told = [
            {"partition_index": each, "error_code": 0, "offset": each + 10, "timestamp": -1, "leader_epoch": 0}
            for each in partitions
        ]
        return {"throttle_time": 0, "topics": [{"name": "orders", "partitions": told}]}

    answers = iter([offsets(), offsets(1, 5), offsets(0)])
    other = TopicPartition("orders", 1)

    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        found = await list_offsets(cluster, {ORDERS: EARLIEST, other: EARLIEST})
        assert {each: at.offset for each, at in found.items()} == {ORDERS: 10, other: 11}

    with_cluster(test, {ApiKey.LIST_OFFSETS: lambda _: next(answers)})


def test_the_error_after_a_timeout_is_the_last_cause() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        causes = iter([KafkaError(ErrorCode.leader_not_available, "orders-0 has no leader")])

        async def leader_of(*_: Any, **__: Any) -> int:
            raise next(causes, RequestTimedOutError("no broker returned metadata within 1 ms"))

        cluster.leader_of = leader_of  # type: ignore[method-assign]
        with pytest.raises(KafkaError, match="orders-0 has no leader"):
            await list_offsets(cluster, {ORDERS: EARLIEST}, timeout_ms=250)

    with_cluster(test, {})


def test_a_partition_missing_from_all_responses_is_an_error() -> None:
    async def test(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(KafkaError, match="the response lacks orders-0"):
            await list_offsets(cluster, {ORDERS: EARLIEST}, timeout_ms=500)

    with_cluster(test, {ApiKey.LIST_OFFSETS: lambda _: {"throttle_time": 0, "topics": []}})


def test_backoff_grows_to_a_limit_with_jitter() -> None:
    backoff = Backoff(random.Random(3), 100, 1_000)
    waits = [backoff.next_delay_ms() for _ in range(40)]
    for wait, middle in zip(waits, [100, 200, 400, 800] + [1_000] * 36, strict=True):
        assert 0.8 * middle <= wait <= 1.2 * middle
    assert len(dict.fromkeys(waits)) > 20
    backoff.reset()
    assert backoff.next_delay_ms() <= 120
