"""Everything can be begun while a node of the cluster is dead, as fast as with all nodes."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic  # type: ignore[attr-defined]

from support.broker_process import START_TIMEOUT_S, clean_environment
from support.broker_process_cluster import BrokerProcessCluster
from support.time_limit import within
from support.topics import QUIET, unique
from support.wire import CREATE_TOPICS, INIT_PRODUCER_ID, WireClient

OFFSETS_TOPIC = "__consumer_offsets"
INVALID_REPLICATION_FACTOR = 38
SOON_S = 10.0
"""Generous for a busy machine, but far below the timeouts of the clients (30 and 60 s)."""
GROUP_TIMEOUT_S = 20.0
CREATE_PARTITIONS = 37

Degraded = tuple[BrokerProcessCluster, int]
"""A cluster and the node that is dead."""


def create(cluster: BrokerProcessCluster, topic: str, partitions: int = 3) -> None:
    """Creates a topic with three replicas and librdkafka's timeouts."""
    admin = cluster.admin()
    admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result()


def produce(cluster: BrokerProcessCluster, topic: str, *values: str) -> None:
    """Sends records with acks=all and idempotence, which needs a block of producer ids."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **QUIET})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(GROUP_TIMEOUT_S) == 0
    assert failures == []


def consume(
    cluster: BrokerProcessCluster, topic: str, group: str, count: int, timeout_s: float = GROUP_TIMEOUT_S
) -> list[str]:
    """Reads and commits as the only member of a group."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest", **QUIET}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([topic])
    values: list[str] = []
    deadline = time.monotonic() + timeout_s
    try:
        while len(values) < count:
            assert time.monotonic() < deadline, f"{len(values)} of {count} records"
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                values.append((message.value() or b"").decode())
        committed = consumer.commit(asynchronous=False)
        assert committed is not None
        assert all(each.error is None for each in committed)
    finally:
        consumer.close()
    return values


def assert_placed_around(cluster: BrokerProcessCluster, topic: str, dead: int) -> None:
    """The dead node has the last replica of each partition. It is in no ISR and leads nothing."""
    for partition in cluster.metadata().topics[topic].partitions.values():
        assert partition.replicas[-1] == dead
        assert len(partition.replicas) == 3
        assert sorted(partition.isrs) == sorted(set(partition.replicas) - {dead})
        assert partition.leader == partition.replicas[0]


def kill(cluster: BrokerProcessCluster, role: str) -> int:
    """Kills the active controller or another node, and returns its id."""
    controller, _ = cluster.quorum()
    victim = controller if role == "controller" else next(each for each in cluster.nodes if each != controller)
    cluster.kill(victim)
    return victim


@pytest.fixture(params=["controller", "other"], scope="module")
def degraded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Degraded]:
    """Three nodes, one of them killed before the first topic and the first group; with the id of that node."""
    with BrokerProcessCluster(tmp_path_factory.mktemp("degraded")) as cluster:
        dead = kill(cluster, request.param)
        cluster.wait_until(lambda: cluster.fenced_brokers() == [dead], "the dead node is fenced")
        yield cluster, dead


def test_the_first_topic_and_the_first_group_begin_at_once(degraded: Degraded) -> None:
    cluster, dead = degraded
    topic = unique()
    with within(SOON_S):
        create(cluster, topic)
    assert_placed_around(cluster, topic, dead)
    with within(SOON_S):
        produce(cluster, topic, "1", "2")
    with within(SOON_S * 2):
        assert sorted(consume(cluster, topic, unique("group"), 2)) == ["1", "2"]
    assert_placed_around(cluster, OFFSETS_TOPIC, dead)


def test_partitions_are_added_at_once(degraded: Degraded) -> None:
    cluster, dead = degraded
    topic = unique()
    create(cluster, topic, partitions=1)
    admin = cluster.admin()
    with within(SOON_S):
        admin.create_partitions([NewPartitions(topic, 5)])[topic].result()
    assert len(cluster.metadata().topics[topic].partitions) == 5
    assert_placed_around(cluster, topic, dead)


def test_missing_topics_are_created_automatically(degraded: Degraded) -> None:
    cluster, dead = degraded
    topic = unique()
    with within(SOON_S):
        produce(cluster, topic, "1")
    assert_placed_around(cluster, topic, dead)


def test_the_commands_report_the_dead_node_and_not_a_failure(degraded: Degraded) -> None:
    cluster, dead = degraded
    topic = unique()
    with within(SOON_S):
        assert (
            moldau(cluster, "topic", "create", topic, "--replicas", "3", "--partitions", "1") == f"{topic}: created\n"
        )
    with within(SOON_S):
        moldau(cluster, "topic", "alter", topic, "--partitions", "2")
    status = moldau(cluster, "cluster", "status")
    (row,) = (line.split() for line in status.splitlines() if line.split()[:1] == [str(dead)])
    state, _, leaders, replicas, out_of_sync = row[3:8]
    assert (state, leaders) == ("down", "0")
    assert int(replicas) == int(out_of_sync) >= 2
    assert "under-replicated: " in status


def moldau(cluster: BrokerProcessCluster, *arguments: str) -> str:
    environment = {**clean_environment(), "MOLDAU_BOOTSTRAP": cluster.bootstrap}
    command = [sys.executable, "-m", "moldau", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("timeout_ms", [1, 50, 60_000])
def test_the_timeout_of_a_request_does_not_matter(degraded: Degraded, timeout_ms: int) -> None:
    cluster, _ = degraded
    for node in cluster.nodes.values():
        if node.process is None:
            continue
        topic = unique()
        new = {"name": topic, "num_partitions": 1, "replication_factor": 3, "assignments": [], "configs": []}
        more = {"name": topic, "count": 2, "assignments": None}
        with WireClient(node.bootstrap) as wire, within(SOON_S):
            request = {"timeout": timeout_ms, "validate_only": False}
            created = wire.request(CREATE_TOPICS, 7, {"topics": [new], **request})["topics"]
            assert [(each["error_code"], each["error_message"]) for each in created] == [(0, None)]
            added = wire.request(CREATE_PARTITIONS, 3, {"topics": [more], **request})["results"]
            assert [(each["error_code"], each["error_message"]) for each in added] == [(0, None)]


def test_every_node_allocates_producer_ids(degraded: Degraded) -> None:
    cluster, _ = degraded
    tree = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    ids = []
    for node in cluster.nodes.values():
        if node.process is not None:
            with WireClient(node.bootstrap) as wire, within(SOON_S):
                response = wire.request(INIT_PRODUCER_ID, 4, tree)
            assert response["error_code"] == 0
            ids.append(response["producer_id"])
    assert len(set(ids)) == 2


# A node that dies later


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcessCluster]:
    with BrokerProcessCluster(tmp_path_factory.mktemp("running")) as cluster:
        yield cluster


@pytest.fixture
def healthy(running: BrokerProcessCluster) -> Iterator[BrokerProcessCluster]:
    yield running
    for node_id, node in running.nodes.items():
        if node.process is None:
            running.start(node_id)
        else:
            running.resume(node_id)
    for topic in running.metadata().topics:
        running.wait_in_sync(topic)


def pause_other(cluster: BrokerProcessCluster) -> tuple[int, int]:
    """Pauses a node that is not the active controller. Returns the controller and the paused node."""
    controller, _ = cluster.quorum()
    victim = next(each for each in cluster.nodes if each != controller)
    cluster.pause(victim)
    return controller, victim


def test_a_node_that_hangs_delays_a_new_topic_only_briefly(tmp_path: Path) -> None:
    # The hung node is not fenced during the test, because that would end the wait too.
    with BrokerProcessCluster(tmp_path, settings={"broker.session.timeout.ms": "60000"}) as cluster:
        controller, victim = pause_other(cluster)
        for _ in range(2):
            with within(SOON_S):
                create_through(cluster, controller, unique())
        cluster.resume(victim)
        assert cluster.fenced_brokers() == []


def test_a_node_that_dies_while_a_topic_waits_for_it_causes_no_error(healthy: BrokerProcessCluster) -> None:
    controller, victim = pause_other(healthy)
    creation = ConcurrentCall(lambda: create_through(healthy, controller, unique()))
    time.sleep(0.2)
    healthy.kill(victim)
    with within(SOON_S):
        creation.result()


def create_through(cluster: BrokerProcessCluster, node_id: int, topic: str) -> None:
    """Sends CreateTopics to this node."""
    new = {"name": topic, "num_partitions": 3, "replication_factor": 3, "assignments": [], "configs": []}
    with WireClient(cluster.nodes[node_id].bootstrap) as wire:
        tree = {"topics": [new], "timeout": 60_000, "validate_only": False}
        (created,) = wire.request(CREATE_TOPICS, 7, tree)["topics"]
    assert (created["error_code"], created["error_message"]) == (0, None)


class ConcurrentCall:
    """A call in another thread."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


def test_a_new_group_begins_although_its_coordinator_has_died(healthy: BrokerProcessCluster) -> None:
    topic = unique()
    create(healthy, topic)
    produce(healthy, topic, "1")
    consume(healthy, topic, unique("group"), 1)
    victim = healthy.leader_of(OFFSETS_TOPIC)
    # With four partitions, 20 group ids have coordinators on all nodes.
    groups = [unique("group") for _ in range(20)]
    healthy.kill(victim)
    for group in groups:
        # Each within GROUP_TIMEOUT_S.
        assert consume(healthy, topic, group, 1) == ["1"]


# Nodes that never registered


def test_replicas_are_not_placed_on_nodes_that_never_registered(tmp_path: Path) -> None:
    cluster = BrokerProcessCluster(tmp_path)
    try:
        for node_id in (1, 2):
            cluster.nodes[node_id].spawn()
        for node_id in (1, 2):
            cluster.nodes[node_id].wait_ready()
        with pytest.raises(KafkaException) as refused, within(SOON_S):
            create(cluster, "orders")
        assert refused.value.args[0].code() == INVALID_REPLICATION_FACTOR
        admin = cluster.admin()
        admin.create_topics([NewTopic("orders", 1, 2)])["orders"].result()
        produce(cluster, "orders", "1")
        # The third node has to start meanwhile.
        consumption = ConcurrentCall(
            lambda: assert_equal(consume(cluster, "orders", "readers", 1, START_TIMEOUT_S), ["1"])
        )
        time.sleep(1)
        assert OFFSETS_TOPIC not in cluster.metadata().topics
        cluster.start(3)
        consumption.result()
        assert {len(each.replicas) for each in cluster.metadata().topics[OFFSETS_TOPIC].partitions.values()} == {3}
    finally:
        for node in cluster.nodes.values():
            if node.process is not None:
                node.kill()


def assert_equal(actual: list[str], expected: list[str]) -> None:
    assert actual == expected


# Five nodes


def test_five_nodes_begin_and_continue_with_one_dead_and_one_killed_later(tmp_path: Path) -> None:
    with BrokerProcessCluster(tmp_path, count=5) as cluster:
        first = kill(cluster, "other")
        cluster.wait_until(lambda: cluster.fenced_brokers() == [first], "the dead node is fenced")
        with within(SOON_S):
            create(cluster, "orders", partitions=6)
        for partition in cluster.metadata().topics["orders"].partitions.values():
            assert first not in partition.replicas, "four live nodes are enough for three replicas"
            assert sorted(partition.isrs) == sorted(partition.replicas)
        produce(cluster, "orders", *map(str, range(10)))
        assert len(consume(cluster, "orders", "early", 10)) == 10

        second = cluster.leader_of("orders")
        group = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "late", "auto.offset.reset": "earliest", **QUIET}
        )
        read: list[str] = []
        try:
            group.subscribe(["orders"])
            read_until(group, read, 10)
            cluster.kill(second)
            with within(SOON_S * 2):
                produce(cluster, "orders", *map(str, range(10, 20)))
            read_until(group, read, 20)
        finally:
            group.close()
        assert sorted(read, key=int) == list(map(str, range(20)))
        with within(SOON_S):
            create(cluster, "more", partitions=3)
        produce(cluster, "more", "1")
        with within(SOON_S * 2):
            assert consume(cluster, "more", "later", 1) == ["1"]
        committed = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "early", **QUIET})
        offsets = committed.committed([TopicPartition("orders", each) for each in range(6)], timeout=GROUP_TIMEOUT_S)
        committed.close()
        assert sum(each.offset for each in offsets if each.offset > 0) == 10


def read_until(consumer: Consumer, values: list[str], count: int) -> None:
    deadline = time.monotonic() + GROUP_TIMEOUT_S
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count} records"
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append((message.value() or b"").decode())
