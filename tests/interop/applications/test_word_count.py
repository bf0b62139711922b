"""Kafka Streams and quixstreams count words while a node is killed.

Each application uses a repartition topic, a RocksDB store and its changelog topic, with at-least-once processing. Its
producers are idempotent and the application itself runs on through the kill, so the counts are exact.
"""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from applications.application_process import ApplicationProcess, java_application, write_properties
from applications.cluster_under_test import ClusterUnderTest
from applications.python_environment import EnvironmentUnavailable, python_with
from support.log_reader import all_records
from support.topics import unique

KAFKA_STREAMS = Path(__file__).parent / "java" / "WordCount.java"
QUIXSTREAMS = Path(__file__).parent / "python" / "word_count.py"
QUIXSTREAMS_VERSION = "quixstreams==3.28.1"
PARTITIONS = 3
LINES = 2_000
WORDS = [f"word{number}" for number in range(200)]
TIMEOUT_S = 60

Start = Callable[[Path, ClusterUnderTest, str, str, str], ApplicationProcess]


def make_lines(seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=5)) for _ in range(LINES)]


def count_words(lines: Sequence[str]) -> dict[str, int]:
    return dict(Counter(word for line in lines for word in line.split()))


def start_kafka_streams(
    directory: Path, cluster: ClusterUnderTest, name: str, source: str, target: str
) -> ApplicationProcess:
    settings = {
        "application.id": name,
        "bootstrap.servers": cluster.bootstrap,
        "state.dir": directory / "state",
        "num.stream.threads": 2,
        "replication.factor": 3,
        "commit.interval.ms": 200,
        # Every change of a count is written, not the latest of a commit interval.
        "statestore.cache.max.bytes": 0,
        "processing.guarantee": "at_least_once",
        "consumer.auto.offset.reset": "earliest",
    }
    directory.mkdir()
    properties = write_properties(directory / "streams.properties", settings)
    return java_application(directory / "streams.log", str(KAFKA_STREAMS), properties, source, target)


def start_quixstreams(
    directory: Path, cluster: ClusterUnderTest, name: str, source: str, target: str
) -> ApplicationProcess:
    try:
        python = python_with(QUIXSTREAMS_VERSION)
    except EnvironmentUnavailable as reason:
        pytest.skip(f"quixstreams is not there: {reason}")
    directory.mkdir()
    arguments = (cluster.bootstrap, name, str(directory / "state"), source, target)
    return ApplicationProcess(directory / "streams.log", [str(python), str(QUIXSTREAMS), *arguments])


def send(cluster: ClusterUnderTest, topic: str, lines: Sequence[str], during: Callable[[], None] | None = None) -> None:
    """Sends lines, with `during` called in the middle."""
    producer = cluster.producer(linger_ms=0)
    for number, line in enumerate(lines):
        producer.produce(topic, line.encode(), partition=number % PARTITIONS)
        if during is not None:
            if number == len(lines) // 2:
                during()
            if number % 20 == 0:
                producer.poll(0)
                time.sleep(0.02)
    assert producer.flush(60) == 0


def wait_for_counts(
    cluster: ClusterUnderTest, application: ApplicationProcess, topic: str, lines: Sequence[str]
) -> None:
    """Waits until all words are counted, and checks that the topic has every count of every word once, in order."""
    expected = count_words(lines)

    def is_counted() -> bool:
        try:
            return cluster.record_count(topic) >= sum(expected.values())
        except KafkaException:
            # A leader was killed, and the client does not know the next one yet.
            return False

    application.wait_until(is_counted, "all words are counted", TIMEOUT_S)
    found: dict[str, list[int]] = defaultdict(list)
    for record in all_records(cluster.bootstrap, topic, TIMEOUT_S):
        found[(record.key or b"").decode()].append(int(record.value or b""))
    assert found == {word: list(range(1, count + 1)) for word, count in expected.items()}


@pytest.mark.parametrize("start", [start_kafka_streams, start_quixstreams], ids=["Kafka Streams", "quixstreams"])
def test_word_count(cluster: ClusterUnderTest, tmp_path: Path, start: Start) -> None:
    name, source, target = unique("wordcount"), unique("lines"), unique("counts")
    for topic in (source, target):
        cluster.create_topic(topic, PARTITIONS)
    first, second, third = make_lines(1), make_lines(2), make_lines(3)
    send(cluster, source, first)
    with start(tmp_path / "first", cluster, name, source, target) as application:
        wait_for_counts(cluster, application, target, first)
        victim = cluster.coordinator_of(name)
        send(cluster, source, second, during=lambda: cluster.kill(victim))
        wait_for_counts(cluster, application, target, first + second)
    # An instance without local state restores its counts from the changelog.
    with start(tmp_path / "second", cluster, name, source, target) as successor:
        send(cluster, source, third)
        wait_for_counts(cluster, successor, target, first + second + third)
