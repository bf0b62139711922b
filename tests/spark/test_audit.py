"""The replica audit on real Spark and real nodes: it passes a healthy cluster under load, and finds what was changed in
the files of a follower, whether its node is running or stopped."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import moldau.spark
from moldau.cli.commands import app
from moldau.cli.exit_codes import ExitCode
from moldau.records.batch import split
from moldau.spark.audit.findings import Difference, PartitionResult
from moldau.spark.audit.run import AuditOptions, audit
from support.broker_process_cluster import BrokerProcessCluster

pytestmark = pytest.mark.spark

SEGMENT_BYTES = "20000"
STALL_TIMEOUT_MS = 5_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcessCluster]:
    with BrokerProcessCluster(tmp_path_factory.mktemp("audit")) as running:
        yield running


class AuditedTopic:
    """A topic on three nodes with records in several segments."""

    def __init__(self, cluster: BrokerProcessCluster, name: str, *, partitions: int = 1, **configs: str) -> None:
        self.cluster = cluster
        self.name = name
        cluster.create_topic(name, partitions=partitions, segment_bytes=SEGMENT_BYTES, **configs)
        self.produce(1_200, partitions)
        cluster.wait_in_sync(name)

    def produce(self, count: int, partitions: int = 1) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "linger.ms": 1})
        for number in range(count):
            producer.produce(
                self.name,
                f"value {number}",
                key=str(number % 40),
                partition=number % partitions,
                headers={"number": str(number)},
            )
            if number % 20 == 0:
                producer.flush()
        assert producer.flush(60) == 0

    def followers(self) -> list[int]:
        leader = self.cluster.leader_of(self.name)
        return [node_id for node_id in sorted(self.cluster.nodes) if node_id != leader]

    def segments(self, node_id: int) -> list[Path]:
        return sorted((self.cluster.nodes[node_id].data_dir / f"{self.name}-0").glob("*.log"))

    def audit(self, spark: SparkSession) -> tuple[Difference, ...]:
        """Returns the differences in partition 0."""
        result, *_ = run_audit(spark, self.cluster, self.name)
        return result.differences


def run_audit(spark: SparkSession, cluster: BrokerProcessCluster, *topics: str) -> list[PartitionResult]:
    connection = {"bootstrap": cluster.bootstrap}
    return audit(spark, AuditOptions(connection, topics or None, STALL_TIMEOUT_MS))


def flip_byte(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def last_byte_of_batch(path: Path, number: int) -> tuple[int, int]:
    """Returns the position of the last byte of a batch, and the base offset of the batch."""
    position = 0
    for each, batch in enumerate(split(path.read_bytes(), allow_partial=True)):
        position += batch.size
        if each == number:
            return position - 1, batch.base_offset
    raise AssertionError(f"{path} has no batch {number}")


def batches_end_in(path: Path, size: int) -> int:
    """Returns the end offset of the whole batches in the first `size` bytes."""
    return [batch.next_offset for batch in split(path.read_bytes()[:size], allow_partial=True)][-1]


def test_a_flipped_byte_and_a_truncated_file_are_found_and_the_rest_is_equal(
    spark: SparkSession, cluster: BrokerProcessCluster
) -> None:
    topic = AuditedTopic(cluster, "orders", partitions=2)
    compacted = AuditedTopic(cluster, "customers", cleanup_policy="compact")
    flipped, truncated = topic.followers()
    position, offset = last_byte_of_batch(topic.segments(flipped)[0], 3)
    flip_byte(topic.segments(flipped)[0], position)
    closed = topic.segments(truncated)[0]
    size = closed.stat().st_size // 2
    end = batches_end_in(closed, size)
    os.truncate(closed, size)

    differing, equal, by_key = run_audit(spark, cluster, topic.name, compacted.name)

    first, second = sorted(differing.differences, key=lambda each: each.replica == truncated)
    assert (first.replica, first.offset, first.count) == (flipped, offset, 1)
    assert first.what.startswith("the checksum of the batch is wrong: byte ")
    assert "in the record at offset" in first.what
    assert (second.replica, second.offset) == (truncated, end)
    assert "its log file may be shorter" in second.what
    assert equal.is_equal
    assert equal.units > 20
    assert (by_key.is_equal, by_key.units) == (True, 40)


def test_the_source_reads_a_named_replica(spark: SparkSession, cluster: BrokerProcessCluster) -> None:
    topic = AuditedTopic(cluster, "named")

    def count(node_id: int) -> int:
        options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic.name, "replica": str(node_id)}
        found: int = spark.read.format("moldau").options(**options).load().select("value").distinct().count()
        return found

    assert [count(node_id) for node_id in cluster.nodes] == [1_200] * 3
    damaged, intact = topic.followers()
    position, offset = last_byte_of_batch(topic.segments(damaged)[0], 3)
    flip_byte(topic.segments(damaged)[0], position)

    with pytest.raises(PySparkException, match=f"named-0 could not be read from broker {damaged} at offset {offset}"):
        count(damaged)
    assert count(intact) == 1_200


@pytest.mark.slow
def test_a_healthy_cluster_is_equal_under_load(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "500"}
    with BrokerProcessCluster(tmp_path, settings=settings) as cluster:
        topics = [
            AuditedTopic(cluster, "plain", partitions=2),
            AuditedTopic(cluster, "compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01"),
            AuditedTopic(cluster, "short", retention_bytes="30000"),
        ]
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                for topic in topics:
                    topic.produce(100)

        writer = threading.Thread(target=load)
        writer.start()
        try:
            for _ in range(3):
                results = run_audit(spark, cluster)
                assert [each for result in results for each in result.differences] == []
                assert {"plain", "compacted", "short"} <= {each.planned.topic for each in results}
        finally:
            stop.set()
            writer.join()
        assert all(each.units for each in results if each.planned.topic == "plain")
        start = {each.planned.topic: each.planned.start for each in results}
        assert start["short"] > 0, "retention deleted nothing"


def change_files_of(cluster: BrokerProcessCluster, node_id: int, change: Callable[[], None], *, clean: bool) -> None:
    """Stops or kills a node, changes its files, and starts it."""
    node = cluster.nodes[node_id]
    if clean:
        node.stop()
    else:
        node.kill()
    change()
    cluster.start(node_id)


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_byte_flipped_while_the_node_was_down_is_found(
    spark: SparkSession, cluster: BrokerProcessCluster, clean: bool
) -> None:
    topic = AuditedTopic(cluster, f"flipped-{clean}")
    follower = topic.followers()[0]
    segment = topic.segments(follower)[0]
    position, offset = last_byte_of_batch(segment, 5)

    change_files_of(cluster, follower, lambda: flip_byte(segment, position), clean=clean)
    cluster.wait_in_sync(topic.name)

    (difference,) = topic.audit(spark)
    assert (difference.replica, difference.offset, difference.count) == (follower, offset, 1)
    assert "checksum" in difference.what


@pytest.mark.slow
def test_a_tail_truncated_above_the_recovery_point_is_fetched_again(
    spark: SparkSession, cluster: BrokerProcessCluster
) -> None:
    topic = AuditedTopic(cluster, "healed")
    follower = topic.followers()[0]
    segment = topic.segments(follower)[-1]

    change_files_of(cluster, follower, lambda: os.truncate(segment, segment.stat().st_size - 200), clean=False)
    cluster.wait_in_sync(topic.name)

    assert topic.audit(spark) == ()


@pytest.mark.slow
def test_a_log_truncated_below_the_recovery_point_is_found(spark: SparkSession, cluster: BrokerProcessCluster) -> None:
    topic = AuditedTopic(cluster, "lost")
    follower = topic.followers()[0]
    first = topic.segments(follower)[0]

    change_files_of(cluster, follower, lambda: os.truncate(first, 1_000), clean=True)

    (difference,) = topic.audit(spark)
    assert difference.replica == follower
    assert difference.offset is not None
    assert difference.offset <= batches_end_in(first, 1_000)


@pytest.mark.slow
@pytest.mark.parametrize("position", [3, 10, 16], ids=["base offset", "length", "magic"])
def test_a_damaged_header_is_found(spark: SparkSession, cluster: BrokerProcessCluster, position: int) -> None:
    topic = AuditedTopic(cluster, f"header-{position}")
    follower = topic.followers()[0]
    flip_byte(topic.segments(follower)[0], position)

    (difference,) = topic.audit(spark)

    assert (difference.replica, difference.offset) == (follower, 0)


@pytest.mark.slow
def test_damage_of_the_leader_is_named_as_the_leaders(spark: SparkSession, cluster: BrokerProcessCluster) -> None:
    topic = AuditedTopic(cluster, "leader")
    leader = cluster.leader_of(topic.name)
    position, offset = last_byte_of_batch(topic.segments(leader)[0], 2)
    flip_byte(topic.segments(leader)[0], position)

    (difference,) = topic.audit(spark)

    assert (difference.replica, difference.offset) == (leader, offset)
    assert difference.reference in topic.followers()


@pytest.mark.slow
def test_damage_of_a_compacted_replica_is_found(spark: SparkSession, cluster: BrokerProcessCluster) -> None:
    topic = AuditedTopic(cluster, "damaged-table", cleanup_policy="compact")
    follower = topic.followers()[0]
    position, offset = last_byte_of_batch(topic.segments(follower)[-1], 0)
    flip_byte(topic.segments(follower)[-1], position)

    (difference,) = topic.audit(spark)

    assert (difference.replica, difference.offset) == (follower, offset)
    assert "damaged" in difference.what


@pytest.mark.slow
def test_the_command_prints_differences_and_exits_with_1(
    spark: SparkSession, cluster: BrokerProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = AuditedTopic(cluster, "printed")
    keep_session(monkeypatch, spark)
    healthy = invoke(cluster, topic.name)
    assert healthy.exit_code == 0, healthy.output
    assert "printed: 3 replicas of 1 partition are equal up to the high watermark" in healthy.stdout

    follower = topic.followers()[0]
    position, offset = last_byte_of_batch(topic.segments(follower)[0], 1)
    flip_byte(topic.segments(follower)[0], position)

    text = invoke(cluster, topic.name)
    assert text.exit_code == 1
    assert (
        f"printed-0: replica on broker {follower} at offset {offset}: the checksum of the batch is wrong" in text.stdout
    )
    assert "printed: replicas differ in 1 of 1 partition" in text.stdout
    as_json = invoke(cluster, topic.name, "--json")
    assert as_json.exit_code == 1
    line = json.loads(as_json.stdout)
    assert (line["topic"], line["equal"], line["compared"]) == ("printed", False, "batches")
    assert [(each["replica"], each["offset"]) for each in line["differences"]] == [(follower, offset)]


@pytest.mark.slow
def test_a_replica_on_a_node_that_is_down_is_a_difference(
    spark: SparkSession, cluster: BrokerProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = AuditedTopic(cluster, "down")
    follower = topic.followers()[0]
    cluster.kill(follower)
    try:
        cluster.wait_until(lambda: follower not in cluster.isr(topic.name), "the ISR has shrunk")
        (difference,) = topic.audit(spark)
    finally:
        cluster.start(follower)
    assert difference.replica == follower

    keep_session(monkeypatch, spark)
    unknown = invoke(cluster, "no-such-topic")
    assert unknown.exit_code == ExitCode.NOT_FOUND
    assert "moldau topic list" in unknown.stderr


def keep_session(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    """Lets a command use the session of the tests, which it would stop."""

    class Kept:
        def __getattr__(self, name: str) -> object:
            return (lambda: None) if name == "stop" else getattr(spark, name)

    monkeypatch.setattr(moldau.spark, "session", lambda *_, **__: Kept(), raising=False)


def invoke(cluster: BrokerProcessCluster, *arguments: str):  # type: ignore[no-untyped-def]
    command: Sequence[str] = ["cluster", "audit", "--timeout", "5", *arguments]
    return CliRunner().invoke(app, command, env={"MOLDAU_BOOTSTRAP": cluster.bootstrap})
