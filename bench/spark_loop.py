"""A tuned librdkafka loop that reads a topic, converts it to Arrow, writes Parquet or copies it: ten thousand messages
per call, deep queues, no callbacks. The Spark benchmarks use it with and without Spark."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGES_PER_CALL = 10_000
STALL_S = 60.0
ROWS_PER_GROUP = 200_000


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1 << 18,
            "socket.nagle.disable": True,
            "log_level": 3,
        }
    )


def _producer(bootstrap: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1 << 19,
            "delivery.report.only.error": True,
            "socket.nagle.disable": True,
        }
    )


def to_the_end(bootstrap: str, topic: str, partitions: Sequence[int]) -> Iterator[list[Message]]:
    """Yields all messages that the partitions hold now."""
    consumer = _consumer(bootstrap)
    everything = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions]
    left = 0
    for one in everything:
        first, end = consumer.get_watermark_offsets(one, timeout=30)
        left += end - first
    consumer.assign(everything)
    last = time.monotonic()
    while left > 0:
        messages = consumer.consume(MESSAGES_PER_CALL, timeout=0.05)
        for message in messages:
            if (error := message.error()) is not None:
                raise KafkaException(error)
        if messages:
            last = time.monotonic()
            left -= len(messages)
            yield messages
        elif time.monotonic() - last > STALL_S:
            raise TimeoutError(f"{left} records of {topic} have not come")
    consumer.close()


def count_bytes(bootstrap: str, topic: str, partitions: Sequence[int]) -> tuple[int, int]:
    """Reads every value; returns the number of messages and their bytes."""
    records = size = 0
    for messages in to_the_end(bootstrap, topic, partitions):
        records += len(messages)
        for message in messages:
            size += len(message.value() or b"")
    return records, size


def to_arrow(messages: Sequence[Message]) -> pa.RecordBatch:
    """Returns the columns of Spark's Kafka connector."""
    import pyarrow as pa

    times = [message.timestamp() for message in messages]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([message.key() for message in messages], pa.binary()),
            pa.array([message.value() for message in messages], pa.binary()),
            pa.array([message.topic() for message in messages], pa.string()),
            pa.array([message.partition() for message in messages], pa.int32()),
            pa.array([message.offset() for message in messages], pa.int64()),
            pa.array([time_ms * 1000 for _, time_ms in times], pa.timestamp("us", tz="UTC")),
            pa.array([kind - 1 for kind, _ in times], pa.int32()),
        ],
        names=["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"],
    )


def to_parquet(bootstrap: str, topic: str, partitions: Sequence[int], into: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    into.mkdir(parents=True)
    writer: Any = None
    waiting: list[pa.RecordBatch] = []
    records = 0
    for messages in to_the_end(bootstrap, topic, partitions):
        waiting.append(to_arrow(messages))
        records += len(messages)
        writer = writer or pq.ParquetWriter(into / "part-0.parquet", waiting[0].schema, compression="snappy")
        if sum(len(batch) for batch in waiting) >= ROWS_PER_GROUP:
            writer.write_table(pa.Table.from_batches(waiting))
            waiting.clear()
    if waiting:
        writer.write_table(pa.Table.from_batches(waiting))
    writer.close()
    return records


def copy(bootstrap: str, topic: str, partitions: Sequence[int], into: str) -> int:
    """Copies every key and value to another topic; returns when all are acknowledged."""
    producer = _producer(bootstrap)
    refused: list[str] = []

    def report(error: Any, message: Any) -> None:
        if error is not None:
            refused.append(str(error))

    records = 0
    for messages in to_the_end(bootstrap, topic, partitions):
        sending = [{"key": message.key(), "value": message.value()} for message in messages]
        while len(producer) > 1_000_000:
            producer.poll(0.01)
        if producer.produce_batch(into, sending, on_delivery=report) != len(sending):
            raise RuntimeError("librdkafka did not take every record")
        records += len(sending)
        producer.poll(0)
    if producer.flush(STALL_S) > 0 or refused:
        raise RuntimeError(f"not every record was acknowledged: {refused[:1]}")
    return records


def one_by_one(bootstrap: str, topic: str, count: int) -> Iterator[Callable[[], None]]:
    """Yields a function that sends a row and returns when it is acknowledged."""
    producer = _producer(bootstrap)

    def send() -> None:
        producer.produce(topic, b"one row", partition=0)
        if producer.flush(STALL_S) > 0:
            raise RuntimeError("a row was not acknowledged")

    for _ in range(count):
        yield send


def fill(bootstrap: str, topic: str, partitions: int, records: int, value_bytes: int, batch_bytes: int) -> None:
    """Writes rows with unique keys and values, evenly over the partitions."""
    chance = random.Random(1)
    pool = chance.randbytes(1 << 20)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 20,
            "batch.size": batch_bytes,
            "batch.num.messages": 1_000_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1 << 19,
            "delivery.report.only.error": True,
        }
    )
    for first in range(0, records, MESSAGES_PER_CALL):
        count = min(MESSAGES_PER_CALL, records - first)
        starts = [chance.randrange(len(pool) - value_bytes) for _ in range(count)]
        rows = [
            {"key": b"%08d" % (first + number), "value": pool[start : start + value_bytes]}
            for number, start in enumerate(starts)
        ]
        while len(producer) > 500_000:
            producer.poll(0.01)
        if producer.produce_batch(topic, rows, partition=first // MESSAGES_PER_CALL % partitions) != count:
            raise RuntimeError("librdkafka did not take every record")
        producer.poll(0)
    if producer.flush(STALL_S) > 0:
        raise RuntimeError("not every record was acknowledged")
