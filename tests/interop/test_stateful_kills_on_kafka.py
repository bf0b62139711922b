"""A stateful query on Apache Kafka whose driver, Python workers, executors and broker are killed with SIGKILL in turn:
for readers with read_committed, the topic has every row exactly once, written with a state that has every earlier row
exactly once. There, tasks send their rows to the driver, which writes them in one transaction (decision 29).
MOLDAU_SPARK_KILLS sets how often (3)."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from apache_kafka import ApacheKafka

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'moldau[spark]'")

from kills.clusters import BROKER, LOCAL, standalone_master
from kills.stateful_check import check, kills_and_seed
from kills.stateful_harness import StatefulKills

from support.topics import Topics

pytestmark = pytest.mark.spark

KILLS, SEED = kills_and_seed(3)


class KafkaBroker:
    """The only broker of Apache Kafka, which is the leader of everything."""

    targets = (BROKER,)
    serves_without_victim = False

    def __init__(self, kafka: ApacheKafka) -> None:
        self._kafka = kafka

    @property
    def bootstrap(self) -> str:
        return self._kafka.bootstrap

    def create_topic(self, partitions: int) -> str:
        return Topics(self.bootstrap).create(partitions)

    def kill(self, target: str, chance: random.Random, topic: str, group_id: str) -> str:
        self._kafka.kill()
        return ""

    def recover(self, topics: Iterable[str]) -> None:
        self._kafka.start()


@pytest.fixture
def kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaBroker]:
    reason = ApacheKafka.available()
    if reason is not None:
        pytest.skip(f"Apache Kafka is not there: {reason}")
    with ApacheKafka(tmp_path / "kafka", heap="512m") as started:
        # Makes `Topics` wait: Kafka responds before a topic can be used.
        monkeypatch.setenv("MOLDAU_TEST_BOOTSTRAP", started.bootstrap)
        yield KafkaBroker(started)


def test_a_stateful_query_on_a_local_master_writes_every_row_to_kafka_exactly_once(
    tmp_path: Path, kafka: KafkaBroker
) -> None:
    check(StatefulKills(tmp_path, SEED, kafka, LOCAL), KILLS)


@pytest.mark.slow
def test_a_stateful_query_on_a_cluster_with_speculation_writes_every_row_to_kafka_exactly_once(
    tmp_path: Path, kafka: KafkaBroker
) -> None:
    with standalone_master(tmp_path / "spark") as master:
        check(StatefulKills(tmp_path, SEED, kafka, master), KILLS)
