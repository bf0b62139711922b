"""The relay of an outbox against Apache Kafka: it is killed under load, and every committed event is sent once."""

from pathlib import Path

import pytest
from apache_kafka import ApacheKafka, KafkaUnavailable, fetch

from support.outbox import kill_relays
from support.postgres import PostgresServer

KILLS = 5


def test_every_committed_event_is_sent_to_kafka_once(postgres: PostgresServer, tmp_path: Path) -> None:
    try:
        fetch()
    except KafkaUnavailable as reason:
        pytest.skip(f"Apache Kafka is not there: {reason}")
    with ApacheKafka(tmp_path / "kafka", {"num.partitions": "3"}, heap="512m") as kafka:
        kill_relays(postgres.url, kafka.bootstrap, tmp_path / "relay.out", KILLS, seed=2)
