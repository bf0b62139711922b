"""Retention and compaction in the background, configured by topic settings."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.partitions.log_maintenance import LogMaintenance
from moldau.partitions.replica_manager import ReplicaManager
from moldau.platform.clock import SystemClock
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.testing import Broker

SOON = {"log.retention.check.interval.ms": "50", "log.cleaner.backoff.ms": "50"}


@pytest.fixture(params=["memory", "files"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Broker:
    return Broker(settings={**SOON, "store": request.param, "data.dir": str(tmp_path / "data")})


def create(broker: Broker, **configs: str) -> None:
    topic = NewTopic("orders", 1, config={name.replace("_", "."): value for name, value in configs.items()})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([topic])["orders"].result(10)


def produce(broker: Broker, *records: tuple[bytes | None, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, "linger.ms": 0})
    for key, value in records:
        producer.produce("orders", value, key)
        assert producer.flush(10) == 0


def consumed(broker: Broker) -> list[tuple[bytes | None, bytes | None]]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": "earliest", "log_level": 0})
    consumer.assign([TopicPartition("orders", 0, 0)])
    records = []
    while (message := consumer.poll(10)) is not None and not message.error():
        records.append((message.key(), message.value()))
    consumer.close()
    return records


def eventually(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def test_old_records_are_deleted(broker: Broker) -> None:
    with broker:
        create(broker, retention_ms="1", segment_bytes="1024")
        produce(broker, *[(None, b"x" * 500)] * 10)
        partition = broker.node.broker.replica_manager.get("orders", 0)
        assert partition is not None
        eventually(lambda: partition.log.start_offset == 10)
        assert consumed(broker) == []
        produce(broker, (None, b"y"))
        assert partition.log.end_offset == 11


def test_retention_bytes_limits_the_size_of_a_log(broker: Broker) -> None:
    with broker:
        create(broker, retention_bytes="2000", segment_bytes="1024")
        produce(broker, *[(None, b"x" * 500)] * 20)
        partition = broker.node.broker.replica_manager.get("orders", 0)
        assert partition is not None
        eventually(lambda: partition.log.size < 4000)
        assert 0 < len(consumed(broker)) < 8


def test_a_compacted_topic_keeps_the_latest_record_of_each_key(broker: Broker) -> None:
    with broker:
        create(
            broker,
            cleanup_policy="compact",
            segment_bytes="1024",
            min_cleanable_dirty_ratio="0.01",
            delete_retention_ms="60000",
        )
        produce(broker, *[(b"key%d" % (number % 3), b"%d" % number * 100) for number in range(30)])
        produce(broker, (b"key1", None), *[(b"filler", b"f" * 900)] * 3)

        def is_compact() -> bool:
            found = consumed(broker)
            keys = [key for key, _ in found]
            return keys.count(b"key0") == keys.count(b"key1") == keys.count(b"key2") == 1

        eventually(is_compact)
        newest = dict(consumed(broker))
        assert newest[b"key1"] is None, "a tombstone is kept for delete.retention.ms"
        assert newest[b"key0"] == b"27" * 100
        assert newest[b"key2"] == b"29" * 100


def test_maintenance_continues_after_a_failed_round() -> None:
    async def main() -> None:
        housekeeping = LogMaintenance(cast(ReplicaManager, None), EffectiveSettings(BrokerSettings()), SystemClock())
        rounds = 0

        async def breaks() -> None:
            nonlocal rounds
            rounds += 1
            raise KeyError("a bug")

        repeating = asyncio.ensure_future(housekeeping._repeat(lambda: 0, breaks))
        while rounds < 3:
            await asyncio.sleep(0)
        repeating.cancel()

    asyncio.run(asyncio.wait_for(main(), 20))
