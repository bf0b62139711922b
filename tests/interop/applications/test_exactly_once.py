"""Kafka Streams with `exactly_once_v2`, Kafka Connect's exactly-once source, and a Java application that consumes,
transforms and produces in transactions, killed at random.

The application, and nodes of the cluster, are killed with SIGKILL while input arrives. The output, read with
read_committed, is what the input gives when every record is processed once. MOLDAU_APPLICATION_KILLS sets the number of
kills of the long tests (20).
"""

import itertools
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from command_line import TRANSACTIONS, Tools
from moldau_cluster import FEATURES

from applications.application_process import ApplicationProcess, java_application, write_properties
from applications.cluster_under_test import ClusterUnderTest
from applications.connect import EXACTLY_ONCE_WORKER, distributed_worker, file_source
from moldau.client import ConsumerRecord
from support.log_reader import all_records
from support.topics import unique

JAVA = Path(__file__).parent / "java"
PARTITIONS = 3
LATEST_TRANSACTION_VERSION = 2
WORDS = [f"word{number}" for number in range(100)]
KILLS = int(os.environ.get("MOLDAU_APPLICATION_KILLS", "20"))
SEED = int(os.environ.get("MOLDAU_SEED", "1"))
SAMPLE = 3
"""Kills of the short tests: the application, a node, and both."""
PROGRESS_TIMEOUT_S = 120
PROGRESS_INTERVAL_S = 0.5
"""All output is read to see progress, so this is done less often than other checks."""
READ_TIMEOUT_S = 60
WRITE_INTERVAL_S = 0.01

numbers_of_kills = pytest.mark.parametrize("kills", [SAMPLE, pytest.param(KILLS, marks=pytest.mark.slow)])


def committed(cluster: ClusterUnderTest, topic: str) -> list[ConsumerRecord]:
    return all_records(cluster.bootstrap, topic, READ_TIMEOUT_S, "read_committed")


@contextmanager
def written_steadily(write: Callable[[int], None]) -> Iterator[None]:
    """Calls `write` with 0, 1, 2… from a thread."""
    stopped = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            for number in itertools.count():
                if stopped.wait(WRITE_INTERVAL_S):
                    return
                write(number)
        except Exception as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
    assert not failures, failures


class KilledApplication:
    """An application that is killed and started again, on a cluster whose nodes are killed and restarted. `with` starts
    it, and stops it at the end."""

    def __init__(self, cluster: ClusterUnderTest, target: str, start: Callable[[int], ApplicationProcess]) -> None:
        self._cluster = cluster
        self._target = target
        self._start = start
        self._chance = random.Random(SEED)
        self.starts = 0

    def __enter__(self) -> Self:
        self._next()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.__exit__(kind, error, trace)

    def _next(self) -> None:
        self.starts += 1
        self._process = self._start(self.starts)

    def run(self, count: int) -> None:
        """Kills the application, a node, and both, in turn, each time after some more output was committed."""
        for number in range(count):
            self._wait_for_progress()
            # Kills shall happen at any moment of a transaction; commits are 100 ms apart.
            time.sleep(self._chance.uniform(0, 0.3))
            node_dies, application_dies = number % 3 != 0, number % 3 != 1
            if node_dies:
                self._cluster.kill(self._chance.choice(sorted(self._cluster.alive)))
            if application_dies:
                self._process.kill()
                self._next()
            self._wait_for_progress()
            if node_dies:
                self._cluster.restore()

    def kill(self) -> None:
        self._process.kill()

    def _wait_for_progress(self) -> None:
        count = len(committed(self._cluster, self._target))
        self.wait_until(lambda: len(committed(self._cluster, self._target)) > count, "there is more output")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        self._process.wait_until(condition, what, PROGRESS_TIMEOUT_S, PROGRESS_INTERVAL_S)


# Kafka Streams


def start_word_count(
    directory: Path, cluster: ClusterUnderTest, name: str, source: str, target: str, number: int
) -> ApplicationProcess:
    settings = {
        "application.id": name,
        "bootstrap.servers": cluster.bootstrap,
        # Every second instance has the local state of its predecessor, and its transactional ids.
        "state.dir": directory / f"state-{number // 2}",
        "num.stream.threads": 2,
        "replication.factor": 3,
        "commit.interval.ms": 100,
        # Every change of a count is written, not the latest of a commit interval.
        "statestore.cache.max.bytes": 0,
        "processing.guarantee": "exactly_once_v2",
        "consumer.auto.offset.reset": "earliest",
        "consumer.session.timeout.ms": 6_000,
        "consumer.heartbeat.interval.ms": 500,
    }
    properties = write_properties(directory / f"streams-{number}.properties", settings)
    return java_application(
        directory / f"streams-{number}.log", str(JAVA / "WordCount.java"), properties, source, target
    )


def check_counts(found: Sequence[ConsumerRecord], lines: Sequence[str]) -> None:
    """Checks that every count of every word was written once, in order."""
    expected = Counter(word for line in lines for word in line.split())
    counts: dict[str, list[int]] = defaultdict(list)
    for record in found:
        counts[(record.key or b"").decode()].append(int(record.value or b""))
    assert counts == {word: list(range(1, count + 1)) for word, count in expected.items()}


@numbers_of_kills
def test_word_count(cluster: ClusterUnderTest, tmp_path: Path, kills: int) -> None:
    name, source, target = unique("wordcount"), unique("lines"), unique("counts")
    for topic in (source, target):
        cluster.create_topic(topic, PARTITIONS)
    chance = random.Random(7)
    lines: list[str] = []
    producer = cluster.producer(linger_ms=0)

    def write(number: int) -> None:
        lines.append(" ".join(chance.choices(WORDS, k=5)))
        producer.produce(source, lines[-1].encode(), partition=number % PARTITIONS)
        producer.poll(0)

    def start(number: int) -> ApplicationProcess:
        return start_word_count(tmp_path, cluster, name, source, target, number)

    with KilledApplication(cluster, target, start) as application:
        with written_steadily(write):
            application.run(kills)
        assert producer.flush(60) == 0
        application.wait_until(lambda: len(committed(cluster, target)) >= 5 * len(lines), "all words are counted")
    check_counts(committed(cluster, target), lines)


# Kafka Connect


@numbers_of_kills
def test_connect_source(cluster: ClusterUnderTest, tmp_path: Path, kills: int) -> None:
    """A worker copies lines of a file to a topic. The offset in the file is part of the transaction with the lines."""
    topic, group, name, file = unique("lines"), unique("workers"), unique("source"), tmp_path / "source.txt"
    cluster.create_topic(topic)
    lines: list[str] = []

    def start(number: int) -> ApplicationProcess:
        worker = distributed_worker(tmp_path, cluster.bootstrap, group, number, EXACTLY_ONCE_WORKER)
        if number == 1:
            worker.wait_until_ready()
            worker.create_connector(name, {**file_source(file, topic), "exactly.once.support": "required"})
        return worker.process

    def write(number: int) -> None:
        lines.append(f"line {number:06}")
        with file.open("a") as opened:
            opened.write(f"{lines[-1]}\n")

    file.touch()
    with KilledApplication(cluster, topic, start) as application:
        with written_steadily(write):
            application.run(kills)
        application.wait_until(lambda: len(committed(cluster, topic)) >= len(lines), "all lines are copied")
    assert [(record.value or b"").decode() for record in committed(cluster, topic)] == lines


# Consume, transform, produce


@pytest.fixture
def transaction_version(request: pytest.FixtureRequest, cluster: ClusterUnderTest, tools: Tools) -> Iterator[int]:
    """The finalized level of the feature during a test. Java uses TV1 below level 2."""

    def finalize(level: int) -> None:
        if level < LATEST_TRANSACTION_VERSION:
            tools.run(FEATURES, *at, "downgrade", "--feature", f"transaction.version={level}")
        else:
            tools.run(FEATURES, *at, "upgrade", "--feature", f"transaction.version={level}")

    at = ("--bootstrap-server", cluster.bootstrap)
    level: int = request.param
    if level == LATEST_TRANSACTION_VERSION:
        yield level
        return
    finalize(level)
    yield level
    cluster.restore()
    finalize(LATEST_TRANSACTION_VERSION)


@pytest.mark.parametrize(
    "transaction_version",
    [2, 1, pytest.param(0, marks=pytest.mark.slow)],
    ids=lambda level: f"transaction.version={level}",
    indirect=True,
)
@numbers_of_kills
def test_java_copies_a_topic(
    cluster: ClusterUnderTest, tools: Tools, tmp_path: Path, transaction_version: int, kills: int
) -> None:
    source, target, group, worker = unique("source"), unique("target"), unique("group"), unique("worker")
    for topic in (source, target):
        cluster.create_topic(topic, PARTITIONS)
    producer = cluster.producer(linger_ms=0)
    sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]

    def write(number: int) -> None:
        partition, value = number % PARTITIONS, b"%06d" % number
        sent[partition].append(value)
        producer.produce(source, value, partition=partition)
        producer.poll(0)

    def start(number: int) -> ApplicationProcess:
        arguments = (cluster.bootstrap, source, target, group, worker)
        return java_application(tmp_path / f"copy-{number}.log", str(JAVA / "ExactlyOnceCopy.java"), *arguments)

    with KilledApplication(cluster, target, start) as application:
        with written_steadily(write):
            application.run(kills)
        assert producer.flush(60) == 0
        count = sum(map(len, sent))
        application.wait_until(lambda: len(committed(cluster, target)) >= count, "all records are copied")
        application.kill()
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for record in committed(cluster, target):
        found[record.partition].append(record.value or b"")
    assert found == sent
    described = tools.run(
        TRANSACTIONS, "--bootstrap-server", cluster.bootstrap, "describe", "--transactional-id", worker
    )
    [row] = [line.split() for line in described.splitlines() if worker in line]
    epoch = int(row[3])
    # With TV2 every transaction has its own epoch. With TV1 a start needs one, and one more to abort a transaction.
    assert (epoch > 3 * application.starts) == (transaction_version == LATEST_TRANSACTION_VERSION)
