"""MirrorMaker 2 mirrors topics and consumer groups both ways between the cluster under test and another broker, while a
node is killed.

MirrorMaker promises at-least-once delivery. Here its producers are idempotent and none of its tasks fails, so every
record is mirrored once: to the same partition and offset, with key, value, headers and timestamp.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from apache_kafka import ApacheKafka
from broker_under_test import AGAINST_KAFKA
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from applications.application_process import ApplicationProcess, java_application, write_properties
from applications.cluster_under_test import REPLICAS, ClusterUnderTest
from support.broker_process import BrokerProcess
from support.log_reader import all_records
from support.topics import unique

MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
PARTITIONS = 3
RECORDS = 1_500
FIRST_TIMESTAMP_MS = 1_700_000_000_000
RETENTION_MS = str(100 * 365 * 24 * 3_600_000)
TIMEOUT_S = 60
FLOW = {
    "enabled": "true",
    "sync.group.offsets.enabled": "true",
    # Every record gets an offset sync, so that the end of a partition is translated exactly.
    "offset.lag.max": "0",
    "refresh.topics.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    "sync.topic.configs.interval.seconds": "1",
    "sync.group.offsets.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "emit.heartbeats.interval.seconds": "1",
}


@dataclass(frozen=True)
class Side:
    """One of the two clusters, with its alias in MirrorMaker."""

    alias: str
    bootstrap: str
    replicas: int

    def admin(self) -> AdminClient:
        """Returns a new client: librdkafka keeps the coordinator of a group, although it was killed."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, topic: str) -> None:
        new = NewTopic(topic, PARTITIONS, self.replicas, config={"retention.ms": RETENTION_MS})
        # A client must exist until its response arrives.
        admin = self.admin()
        admin.create_topics([new], operation_timeout=20)[topic].result(40)

    def topics(self, name: str) -> set[str]:
        """Returns the topics with this in their name."""
        return {topic for topic in self.admin().list_topics(timeout=20).topics if name in topic}

    def ends(self, topic: str) -> dict[int, int]:
        """Returns the end offsets by partition; none if the topic does not exist."""
        admin = self.admin()
        found = admin.list_topics(timeout=20).topics.get(topic)
        if found is None:
            return {}
        partitions = {TopicPartition(topic, each): OffsetSpec.latest() for each in found.partitions}
        try:
            return {each.partition: end.result(20).offset for each, end in admin.list_offsets(partitions).items()}
        except KafkaException:
            # A partition may have no leader for a moment.
            return {}

    def records(self, topic: str) -> list[tuple[object, ...]]:
        return [
            (each.partition, each.offset, each.key, each.value, each.headers, each.timestamp, each.is_log_append_time)
            for each in all_records(self.bootstrap, topic, TIMEOUT_S)
        ]

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        partitions = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, partitions)]
        admin = self.admin()
        admin.alter_consumer_group_offsets(request)[group].result(20)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        admin = self.admin()
        try:
            response = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(20)
        except KafkaException:
            return {}
        return {(each.topic, each.partition): each.offset for each in response.topic_partitions}

    def retention_ms(self, topic: str) -> str | None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        admin = self.admin()
        value: str | None = admin.describe_configs([resource])[resource].result(20)["retention.ms"].value
        return value


@pytest.fixture
def left(cluster: ClusterUnderTest) -> Side:
    return Side("left", cluster.bootstrap, REPLICAS)


@pytest.fixture
def right(cluster: ClusterUnderTest, tmp_path: Path) -> Iterator[Side]:
    """Apache Kafka beside three Moldau nodes, Moldau beside five."""
    with_kafka = AGAINST_KAFKA or not cluster.dead
    broker = ApacheKafka(tmp_path / "right", heap="384m") if with_kafka else BrokerProcess(tmp_path / "right")
    with broker as started:
        yield Side("right", started.bootstrap, 1)


def mirror_maker(directory: Path, left: Side, right: Side, topics: str, groups: str) -> ApplicationProcess:
    settings: dict[str, object] = {"clusters": f"{left.alias},{right.alias}"}
    for source, target in ((left, right), (right, left)):
        flow = {
            **FLOW,
            "topics": topics,
            "groups": groups,
            "replication.factor": target.replicas,
            "checkpoints.topic.replication.factor": target.replicas,
            "heartbeats.topic.replication.factor": target.replicas,
            "offset-syncs.topic.replication.factor": source.replicas,
        }
        worker = {
            "bootstrap.servers": target.bootstrap,
            "config.storage.replication.factor": target.replicas,
            "offset.storage.replication.factor": target.replicas,
            "status.storage.replication.factor": target.replicas,
            "plugin.discovery": "service_load",
            "producer.enable.idempotence": "true",
            # A request that Java's admin client prepared for a killed node fails after this time; 60 s by default.
            "admin.default.api.timeout.ms": 5_000,
            "admin.request.timeout.ms": 5_000,
        }
        settings |= {f"{source.alias}->{target.alias}.{name}": value for name, value in flow.items()}
        settings |= {f"{target.alias}.{name}": value for name, value in worker.items()}
    properties = write_properties(directory / "mirror-maker.properties", settings)
    return java_application(directory / "mirror-maker.log", MAIN, properties)


def send(side: Side, topic: str, numbers: range, during: Callable[[], None] | None = None) -> None:
    """Sends records with everything that MirrorMaker must keep; `during` is called in the middle."""
    producer = Producer({"bootstrap.servers": side.bootstrap, "enable.idempotence": True, "log_level": 0})
    for number in numbers:
        producer.produce(
            topic,
            None if number % 50 == 0 else b"value %06d" % number,
            None if number % 7 == 0 else b"key %d" % (number % 11),
            number % PARTITIONS,
            timestamp=FIRST_TIMESTAMP_MS + number,
            headers=[("number", b"%d" % number), ("empty", b""), ("null", None)][: number % 4],
        )
        if during is not None:
            if number == numbers[len(numbers) // 2]:
                during()
            if number % 20 == 0:
                producer.poll(0)
                time.sleep(0.02)
    assert producer.flush(60) == 0


def wait_until_mirrored(process: ApplicationProcess, source: Side, target: Side, topic: str, count: int) -> None:
    mirrored = f"{source.alias}.{topic}"
    process.wait_until(
        lambda: sum(target.ends(mirrored).values()) >= count, f"{topic} is mirrored to {target.alias}", TIMEOUT_S
    )
    found = source.records(topic)
    assert len(found) == count
    assert target.records(mirrored) == found


def check_group(process: ApplicationProcess, source: Side, target: Side, group: str, topic: str) -> None:
    """Commits the ends of the partitions, and checks that MirrorMaker commits them on the other side."""
    ends = source.ends(topic)
    source.commit(group, topic, ends)
    expected = {(f"{source.alias}.{topic}", partition): end for partition, end in ends.items()}
    process.wait_until(lambda: target.committed(group) == expected, f"{group} is at {expected}", TIMEOUT_S)


def check_group_in_the_middle(process: ApplicationProcess, source: Side, target: Side, group: str, topic: str) -> None:
    """Checks that the group is mirrored to offsets that are not later than its own: no record is skipped. MirrorMaker
    keeps few of the older offset syncs, so the group may be mirrored to earlier ones."""
    middle = RECORDS // PARTITIONS * 3 // 2
    source.commit(group, topic, dict.fromkeys(range(PARTITIONS), middle))
    process.wait_until(lambda: len(target.committed(group)) == PARTITIONS, f"{group} is mirrored", TIMEOUT_S)
    committed = target.committed(group)
    assert set(committed) == {(f"{source.alias}.{topic}", partition) for partition in range(PARTITIONS)}
    assert all(0 < offset <= middle for offset in committed.values()), committed


def test_mirror_maker(cluster: ClusterUnderTest, left: Side, right: Side, tmp_path: Path) -> None:
    name = unique("mirror")
    orders, invoices = f"{name}-orders", f"{name}-invoices"
    flows = ((left, right, orders, f"{name}-shop"), (right, left, invoices, f"{name}-office"))
    for source, _, topic, _ in flows:
        source.create_topic(topic)
        send(source, topic, range(RECORDS))
    with mirror_maker(tmp_path, left, right, f"{name}.*", f"{name}.*") as process:
        for source, target, topic, group in flows:
            wait_until_mirrored(process, source, target, topic, RECORDS)
            check_group(process, source, target, group, topic)
            assert target.retention_ms(f"{source.alias}.{topic}") == RETENTION_MS
        victim = cluster.leader_of(orders)
        send(left, orders, range(RECORDS, 2 * RECORDS), during=lambda: cluster.kill(victim))
        send(right, invoices, range(RECORDS, 2 * RECORDS))
        for source, target, topic, group in flows:
            wait_until_mirrored(process, source, target, topic, 2 * RECORDS)
            check_group(process, source, target, group, topic)
        check_group_in_the_middle(process, left, right, f"{name}-slow", orders)
    # What was mirrored is not mirrored back.
    assert left.topics(name) == {orders, f"right.{invoices}"}
    assert right.topics(name) == {invoices, f"left.{orders}"}
