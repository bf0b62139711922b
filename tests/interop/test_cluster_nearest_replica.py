"""Consumers with a rack read from the replica in it, and from the leader when that replica is down; consumers without a
rack read from leaders."""

import json
import time
from collections.abc import Iterator

import pytest
from command_line import TOPICS, VERSIONS, Tools
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition
from java_clients import JavaClients, poll_until
from moldau_cluster import at, restore_cluster, three_nodes

from support.broker_process_cluster import BrokerProcessCluster
from support.topics import QUIET, unique

RACKS = {1: "east", 2: "north", 3: "west"}
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
BATCH = 100


@pytest.fixture(scope="module")
def running(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcessCluster]:
    with three_nodes(tmp_path_factory.mktemp("racks"), {"replica.selector.class": SELECTOR}, RACKS) as served:
        yield served


@pytest.fixture
def cluster(running: BrokerProcessCluster) -> BrokerProcessCluster:
    return restore_cluster(running)


@pytest.fixture
def topic(tools: Tools, cluster: BrokerProcessCluster) -> str:
    """A topic led by node 1, with a replica on each node."""
    name = unique()
    tools.run(TOPICS, *at(cluster), "--create", "--topic", name, "--replica-assignment", "1:2:3")
    return name


def texts(first: int) -> list[str]:
    return [f"value-{number}" for number in range(first, first + BATCH)]


def send(java: JavaClients, cluster: BrokerProcessCluster, topic: str, first: int) -> None:
    java.produce(cluster.bootstrap, topic, [{"value": value, "partition": 0} for value in texts(first)])


def test_kafkas_tools_show_the_racks_of_the_nodes(tools: Tools, cluster: BrokerProcessCluster) -> None:
    versions = tools.run(VERSIONS, *at(cluster))
    for node_id, rack in RACKS.items():
        assert f"(id: {node_id} rack: {rack} isFenced: false)" in versions


def test_a_java_consumer_reads_from_its_rack_or_else_from_the_leader(
    java: JavaClients, cluster: BrokerProcessCluster, topic: str
) -> None:
    partition = f"{topic}:0"
    send(java, cluster, topic, 0)
    near = java.consumer(cluster.bootstrap, "near", partitions=[partition], client_rack="west")
    plain = java.consumer(cluster.bootstrap, "plain", partitions=[partition])
    elsewhere = java.consumer(cluster.bootstrap, "elsewhere", partitions=[partition], client_rack="south")
    readers = [near, plain, elsewhere]
    poll_until(lambda: near.preferred_replica(partition) == 3, "it is sent to the replica in its rack")
    send(java, cluster, topic, BATCH)
    for reader in readers:
        assert reader.wait_for_records(2 * BATCH) == [*texts(0), *texts(BATCH)]
    assert plain.preferred_replica(partition) == -1
    assert elsewhere.preferred_replica(partition) == -1

    cluster.kill(3)
    send(java, cluster, topic, 2 * BATCH)
    for reader in readers:
        assert reader.wait_for_records(3 * BATCH) == [*texts(0), *texts(BATCH), *texts(2 * BATCH)]
    assert near.preferred_replica(partition) == -1
    cluster.start(3)
    cluster.wait_in_sync(topic)
    poll_until(lambda: near.preferred_replica(partition) == 3, "it is sent to its replica again")
    send(java, cluster, topic, 3 * BATCH)
    assert near.wait_for_records(4 * BATCH)[-BATCH:] == texts(3 * BATCH)


def test_a_java_consumer_keeps_reading_from_its_rack_when_the_leader_is_killed(
    java: JavaClients, cluster: BrokerProcessCluster, topic: str
) -> None:
    partition = f"{topic}:0"
    near = java.consumer(cluster.bootstrap, "near", partitions=[partition], client_rack="west")
    send(java, cluster, topic, 0)
    near.wait_for_records(BATCH)
    cluster.kill(1)
    send(java, cluster, topic, BATCH)
    assert near.wait_for_records(2 * BATCH) == [*texts(0), *texts(BATCH)]
    assert cluster.leader_of(topic) in (2, 3)


def test_a_confluent_consumer_reads_from_its_rack_or_else_from_the_leader(
    java: JavaClients, cluster: BrokerProcessCluster, topic: str
) -> None:
    fetched_from: list[int] = []

    def note(statistics: str) -> None:
        of_topic = json.loads(statistics)["topics"].get(topic, {"partitions": {}})
        fetched_from.extend(part["broker"] for name, part in of_topic["partitions"].items() if name == "0")

    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": unique("group"),
            "client.rack": "north",
            "statistics.interval.ms": 50,
            "stats_cb": note,
            "reconnect.backoff.max.ms": 100,
            "topic.metadata.refresh.fast.interval.ms": 100,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    read: list[str] = []

    def read_until(count: int, broker: int) -> None:
        """Reads until `count` records have arrived and the client fetches from that broker."""
        deadline = time.monotonic() + 40
        while len(read) < count or fetched_from[-1:] != [broker]:
            assert time.monotonic() < deadline, f"{len(read)} of {count} records, fetched from {fetched_from[-5:]}"
            read.extend(
                (message.value() or b"").decode() for message in consumer.consume(BATCH, 0.1) if message.error() is None
            )

    try:
        send(java, cluster, topic, 0)
        read_until(BATCH, 2)
        send(java, cluster, topic, BATCH)
        read_until(2 * BATCH, 2)
        cluster.kill(2)
        send(java, cluster, topic, 2 * BATCH)
        read_until(3 * BATCH, 1)
        assert read == [*texts(0), *texts(BATCH), *texts(2 * BATCH)]
    finally:
        consumer.close()
