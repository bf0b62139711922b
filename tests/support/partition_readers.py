"""Reads of a whole partition with several Kafka clients behind one interface."""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from moldau.client.consumer.consumer import Consumer as MoldauConsumer
from moldau.client.record import TopicPartition as MoldauPartition

READ_TIMEOUT_S = 60.0


class Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class Range(NamedTuple):
    """What to read: partition 0 of a topic from offset `start` to its end, which is `end`."""

    bootstrap: str
    topic: str
    start: int
    end: int
    max_partition_fetch_bytes: int


def read_with_librdkafka(what: Range) -> list[Row]:
    consumer = Consumer(
        {
            "bootstrap.servers": what.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "max.partition.fetch.bytes": what.max_partition_fetch_bytes,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(what.topic, 0, what.start)])
    rows: list[Row] = []
    deadline = time.monotonic() + READ_TIMEOUT_S
    try:
        while True:
            assert time.monotonic() < deadline, (
                f"librdkafka stays at {consumer.position([TopicPartition(what.topic, 0)])}"
            )
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                rows.append(Row(message.offset(), message.key(), message.value(), message.timestamp()[1]))  # type: ignore[arg-type]
            elif error.code() == KafkaError._PARTITION_EOF:
                assert message.offset() == what.end, f"librdkafka ends at {message.offset()}, not at {what.end}"
                return rows
            else:
                raise AssertionError(f"librdkafka failed: {error}")
    finally:
        consumer.close()


def read_with_kafka_python(what: Range) -> list[Row]:
    consumer = KafkaConsumer(
        bootstrap_servers=what.bootstrap,
        group_id=None,
        enable_auto_commit=False,
        max_partition_fetch_bytes=what.max_partition_fetch_bytes,
    )
    partition = PythonPartition(what.topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, what.start)
    rows: list[Row] = []
    deadline = time.monotonic() + READ_TIMEOUT_S
    try:
        while consumer.position(partition) < what.end:
            assert time.monotonic() < deadline, f"kafka-python stays at {consumer.position(partition)}"
            for records in consumer.poll(timeout_ms=500).values():
                rows += [Row(each.offset, each.key, each.value, each.timestamp) for each in records]
    finally:
        consumer.close()
    return rows


def read_with_aiokafka(what: Range) -> list[Row]:
    async def read() -> list[Row]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=what.bootstrap, max_partition_fetch_bytes=what.max_partition_fetch_bytes
        )
        await consumer.start()
        partition = AioPartition(what.topic, 0)
        rows: list[Row] = []
        try:
            consumer.assign([partition])
            consumer.seek(partition, what.start)
            while await consumer.position(partition) < what.end:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    rows += [Row(each.offset, each.key, each.value, each.timestamp) for each in records]
        finally:
            await consumer.stop()
        return rows

    return asyncio.run(asyncio.wait_for(read(), READ_TIMEOUT_S))


def read_with_moldau(what: Range) -> list[Row]:
    async def read() -> list[Row]:
        partition = MoldauPartition(what.topic, 0)
        rows: list[Row] = []
        async with MoldauConsumer(what.bootstrap, max_partition_fetch_bytes=what.max_partition_fetch_bytes) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, what.start)
            while await consumer.position(partition) < what.end:
                records = await consumer.poll(500)
                rows += [Row(each.offset, each.key, each.value, each.timestamp) for each in records]
        return rows

    return asyncio.run(asyncio.wait_for(read(), READ_TIMEOUT_S))


PARTITION_READERS: dict[str, Callable[[Range], list[Row]]] = {
    "librdkafka": read_with_librdkafka,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
    "moldau": read_with_moldau,
}
