"""What Java clients and confluent-kafka begin while one of three nodes is dead: the same on Moldau and on Apache Kafka
(`MOLDAU_TEST_BROKER=kafka`)."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from broker_under_test import AGAINST_KAFKA
from command_line import TOPICS, Tools
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from java_clients import JavaClients, partitions_of, wait_until_shared
from kafka_cluster import KafkaCluster
from moldau_cluster import OFFSETS_TOPIC, three_nodes

from support.broker_process_cluster import BrokerProcessCluster
from support.time_limit import within
from support.topics import QUIET, unique

DEAD = 2
LIVE = [1, 3]
PARTITIONS = 4
FENCED_TIMEOUT_S = 60
SOON_S = 10.0
"""Generous for a busy machine, but far below the timeouts of the clients (30 and 60 s)."""
SETTINGS = {"offsets.topic.num.partitions": str(PARTITIONS), "group.initial.rebalance.delay.ms": "0"}


class DegradedCluster:
    def __init__(self, nodes: BrokerProcessCluster | KafkaCluster) -> None:
        self.bootstrap = nodes.bootstrap
        self.admin = AdminClient({"bootstrap.servers": nodes.bootstrap, **QUIET})

    def wait_until_fenced(self) -> None:
        deadline = time.monotonic() + FENCED_TIMEOUT_S
        while self._listed() != set(LIVE):
            assert time.monotonic() < deadline, "the dead node is still listed"
            time.sleep(0.05)

    def _listed(self) -> set[int] | None:
        """Returns the listed nodes; None without a response, for example because the request was sent to the dead
        node."""
        try:
            return set(self.admin.list_topics(timeout=10).brokers)
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                raise
            return None

    def assert_placed(self, topic: str, partitions: int) -> None:
        """The dead node has the last replica of each partition. It is in no ISR and leads nothing."""
        deadline = time.monotonic() + SOON_S
        # Kafka responds before the brokers have applied the change.
        while topic not in (found := self.admin.list_topics(timeout=20).topics) or (
            len(found[topic].partitions) < partitions
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(found[topic].partitions) == partitions
        for each in found[topic].partitions.values():
            assert each.replicas[-1] == DEAD
            assert sorted(each.replicas) == [1, 2, 3]
            assert sorted(each.isrs) == LIVE
            assert each.leader == each.replicas[0]


@pytest.fixture(scope="module")
def cluster(jvm: JavaClients, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DegradedCluster]:
    """Three nodes, one of them killed before the first topic and the first group."""
    directory = tmp_path_factory.mktemp("degraded")
    with ExitStack() as stack:
        nodes: BrokerProcessCluster | KafkaCluster
        if AGAINST_KAFKA:
            nodes = stack.enter_context(KafkaCluster(directory, 3, SETTINGS))
        else:
            nodes = stack.enter_context(three_nodes(directory, SETTINGS))
        degraded = DegradedCluster(nodes)
        deadline = time.monotonic() + FENCED_TIMEOUT_S
        while len(degraded.admin.list_topics(timeout=20).brokers) < 3:
            assert time.monotonic() < deadline, "not all nodes are registered"
            time.sleep(0.05)
        nodes.kill(DEAD)
        degraded.wait_until_fenced()
        yield degraded


def test_confluent_kafka_creates_topics_and_partitions(cluster: DegradedCluster) -> None:
    topic = unique()
    with within(SOON_S):
        cluster.admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result()
    cluster.assert_placed(topic, PARTITIONS)
    with within(SOON_S):
        cluster.admin.create_partitions([NewPartitions(topic, PARTITIONS + 2)])[topic].result()
    cluster.assert_placed(topic, PARTITIONS + 2)


def test_java_creates_topics_and_partitions(java: JavaClients, cluster: DegradedCluster) -> None:
    topic = unique()
    with within(SOON_S):
        java.admin(cluster.bootstrap, "createTopic", topic=topic, partitions=PARTITIONS)
    cluster.assert_placed(topic, PARTITIONS)
    with within(SOON_S):
        java.admin(cluster.bootstrap, "createPartitions", topic=topic, partitions=PARTITIONS + 2)
    cluster.assert_placed(topic, PARTITIONS + 2)


def test_kafka_topics_creates_a_topic_on_a_named_dead_broker(tools: Tools, cluster: DegradedCluster) -> None:
    topic = unique()
    server = ("--bootstrap-server", cluster.bootstrap)
    with within(SOON_S):
        tools.run(TOPICS, *server, "--create", "--topic", topic, "--replica-assignment", "1:3:2,3:1:2")
    cluster.assert_placed(topic, 2)


def test_the_first_group_gets_its_assignment(java: JavaClients, cluster: DegradedCluster) -> None:
    topic, group = unique(), unique("group")
    cluster.admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result()
    cluster.assert_placed(topic, PARTITIONS)
    with within(SOON_S * 2):
        members = [java.consumer(cluster.bootstrap, name, topic, group_id=group) for name in ("left", "right")]
        wait_until_shared(members, partitions_of(topic, PARTITIONS))
    cluster.assert_placed(OFFSETS_TOPIC, PARTITIONS)
    records = [{"value": str(number), "partition": number % PARTITIONS} for number in range(8)]
    with within(SOON_S):
        java.produce(cluster.bootstrap, topic, records, acks="all", enable_idempotence=True)
    java.wait_until(lambda: sum(len(each.values) for each in members) == 8, "all records are read")
    for member in members:
        member.commit()
    committed = java.admin(cluster.bootstrap, "listGroupOffsets", group=group)
    assert sorted(offset for offset, _ in committed.values()) == [2] * PARTITIONS
