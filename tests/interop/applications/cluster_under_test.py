"""A cluster that applications use while a node is killed: Moldau, or Apache Kafka with `MOLDAU_TEST_BROKER=kafka`."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from broker_under_test import AGAINST_KAFKA
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic, OffsetSpec  # type: ignore[attr-defined]
from java_clients import poll_until
from kafka_cluster import KafkaCluster
from moldau_cluster import moldau_nodes

from moldau.client import Cluster
from support.broker_process_cluster import BrokerProcessCluster

REPLICAS = 3
RECOVERY_TIMEOUT_S = 60
SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
}


class ClusterUnderTest:
    """Nodes of which some are dead from the start, and one more may be killed."""

    def __init__(self, nodes: BrokerProcessCluster | KafkaCluster, dead: frozenset[int]) -> None:
        self._nodes = nodes
        self.dead = dead
        self._killed: set[int] = set()
        self.admin = AdminClient({"bootstrap.servers": nodes.bootstrap, "log_level": 0})

    @property
    def bootstrap(self) -> str:
        """All addresses, also of dead nodes: a user's configuration names all."""
        return self._nodes.bootstrap

    @property
    def alive(self) -> set[int]:
        return set(self._nodes.nodes) - self.dead - self._killed

    def metadata(self) -> ClusterMetadata:
        return self.admin.list_topics(timeout=20)

    def create_topic(self, topic: str, partitions: int = 1, replicas: int = REPLICAS, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        new = NewTopic(topic, partitions, replicas, config=named)
        self.admin.create_topics([new], operation_timeout=20, request_timeout=30)[topic].result(40)
        self.wait_in_sync()

    def wait_in_sync(self) -> None:
        """Waits until the living nodes are registered and all their replicas are in sync."""

        def is_in_sync() -> bool:
            found = self.metadata()
            return set(found.brokers) == self.alive and all(
                each.leader in self.alive and set(each.replicas) & self.alive <= set(each.isrs)
                for topic in found.topics.values()
                for each in topic.partitions.values()
            )

        poll_until(is_in_sync, "all replicas are in sync", RECOVERY_TIMEOUT_S)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        leader: int = self.metadata().topics[topic].partitions[partition].leader
        return leader

    def record_count(self, topic: str) -> int:
        """Returns the sum of the end offsets of all partitions."""
        partitions = [TopicPartition(topic, each) for each in self.metadata().topics[topic].partitions]
        ends = self.admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()))
        return sum(end.result(20).offset for end in ends.values())

    def coordinator_of(self, group: str) -> int:
        async def find() -> int:
            async with Cluster(self.bootstrap) as cluster:
                return await cluster.coordinator_of(group)

        return asyncio.run(find())

    def producer(self, **settings: object) -> Producer:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0, **named})

    def kill(self, node_id: int) -> None:
        """Kills a node with SIGKILL."""
        self._killed.add(node_id)
        self._nodes.kill(node_id)

    def restore(self) -> None:
        """Restarts the nodes that a test killed; those that are dead from the start stay dead."""
        for node_id in sorted(self._killed):
            self._nodes.start(node_id)
            self._killed.remove(node_id)
        self.wait_in_sync()


@contextmanager
def cluster_under_test(directory: Path, count: int, dead: frozenset[int]) -> Iterator[ClusterUnderTest]:
    """Starts all nodes, then kills those that shall be dead: before any topic exists."""
    with ExitStack() as stack:
        nodes: BrokerProcessCluster | KafkaCluster
        if AGAINST_KAFKA:
            nodes = stack.enter_context(KafkaCluster(directory, count, SETTINGS))
        else:
            nodes = stack.enter_context(moldau_nodes(directory, count, SETTINGS))
        for node_id in dead:
            nodes.kill(node_id)
        cluster = ClusterUnderTest(nodes, dead)
        cluster.wait_in_sync()
        yield cluster
