"""Topics with everything a read can meet (empty keys and values, headers, compression, both timestamp types, deleted
records, committed and aborted transactions), written by librdkafka, and helpers to read them through two data
sources."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from pyspark.sql import DataFrame, Row, SparkSession

from support.topics import QUIET, Topics, unique

FIRST_MS = 1_700_000_000_000
"""Timestamp of the first record; each following one is a second later."""
RECORDS = 120
PARTITIONS = 3
DELETED_BEFORE = 7
WAIT_S = 30.0

Options = Mapping[str, object]


@dataclass(frozen=True)
class SparkTopics:
    """Topics of one broker, by what is special about them."""

    bootstrap: str
    plain: str
    """Three partitions; record n is in partition n % 3 and has the timestamp FIRST_MS + 1000 n."""
    appended: str
    """Its records have log append time."""
    truncated: str
    """The first of its two partitions has lost its first records."""
    empty: str
    committed: str | None = None
    """With committed, aborted and open transactions; None without transactions."""

    @property
    def pattern(self) -> str:
        return f"{self.plain}|{self.appended}|{self.empty}"

    def at(self, topic: str, offsets: Mapping[int, int]) -> str:
        """Returns offsets (or timestamps) by partition of one topic, in the form of the options."""
        return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


def write(topics: Topics) -> SparkTopics:
    # The timestamps are long ago, so retention must not delete the records.
    plain = topics.create(partitions=PARTITIONS, retention_ms=-1)
    appended = topics.create(message_timestamp_type="LogAppendTime")
    truncated, empty = topics.create(partitions=2), topics.create()
    for compression in ("none", "gzip", "lz4"):
        _produce_share(topics.bootstrap, plain, compression)
    producer = _producer(topics.bootstrap)
    for number in range(20):
        producer.produce(appended, b"appended %d" % number)
        producer.produce(truncated, b"truncated %d" % number, partition=number % 2)
    assert producer.flush(WAIT_S) == 0
    deleted = topics.admin.delete_records([TopicPartition(truncated, 0, DELETED_BEFORE)])
    for done in deleted.values():
        done.result(WAIT_S)
    return SparkTopics(topics.bootstrap, plain, appended, truncated, empty)


def _producer(bootstrap: str, **settings: object) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, **named, **QUIET})


def _produce_share(bootstrap: str, topic: str, compression: str) -> None:
    """Writes a third of the records, to all partitions, with this compression."""
    share = ("none", "gzip", "lz4").index(compression)
    producer = _producer(bootstrap, compression_type=compression)
    for number in range(share * RECORDS // 3, (share + 1) * RECORDS // 3):
        headers: list[tuple[str, str | bytes | None]] = [("kind", b"a"), ("kind", None), ("", b"")]
        producer.produce(
            topic,
            key=None if number % 4 == 0 else b"key %d" % (number % 10),
            value=None if number % 11 == 0 else b"" if number % 13 == 0 else b"value %d \xff" % number,
            headers=headers[: number % 4],
            partition=number % PARTITIONS,
            timestamp=FIRST_MS + 1000 * number,
        )
    assert producer.flush(WAIT_S) == 0


class Transactions:
    """A topic with a committed transaction, an aborted one, a committed one, and one that stays open until exit."""

    def __init__(self, topics: Topics) -> None:
        self.topic = topics.create(partitions=2)
        self._producer = _producer(topics.bootstrap, transactional_id=unique("writer"), transaction_timeout_ms=600_000)
        self._producer.init_transactions(WAIT_S)
        for what in ("first", "aborted", "second", "open"):
            self._producer.begin_transaction()
            for number in range(6):
                self._producer.produce(self.topic, b"%s %d" % (what.encode(), number), partition=number % 2)
            assert self._producer.flush(WAIT_S) == 0
            if what == "aborted":
                self._producer.abort_transaction(WAIT_S)
            elif what != "open":
                self._producer.commit_transaction(WAIT_S)

    def close(self) -> None:
        self._producer.abort_transaction(WAIT_S)


def batch(spark: SparkSession, source: str, bootstrap: str, options: Options) -> DataFrame:
    return spark.read.format(source).options(**_with_bootstrap(bootstrap, options)).load()


def stream(spark: SparkSession, source: str, bootstrap: str, options: Options) -> DataFrame:
    return spark.readStream.format(source).options(**_with_bootstrap(bootstrap, options)).load()


def _with_bootstrap(bootstrap: str, options: Options) -> dict[str, Any]:
    return {"kafka.bootstrap.servers": bootstrap, **options}


def in_order(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def planned(checkpoint: Path) -> list[dict[str, dict[str, int]]]:
    """Returns the end offsets of each micro-batch, from the checkpoint."""
    files = sorted((path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()), key=_number)
    ends = [json.loads(path.read_text().splitlines()[2]) for path in files]
    return [{topic: at for topic, at in end.items() if not topic.startswith("@")} for end in ends]


def _number(path: Path) -> int:
    return int(path.name)


@dataclass(frozen=True)
class Streamed:
    rows: list[Row]
    ends: list[dict[str, dict[str, int]]]


def stream_to_end(frame: DataFrame, directory: Path, *, columns: tuple[str, ...] = ("*",)) -> Streamed:
    """Returns all rows that a stream has now, and the end offsets of its micro-batches."""
    name = unique("streamed").replace("-", "_")
    checkpoint = directory / name
    writer = frame.select(*columns).writeStream.format("memory").queryName(name)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return Streamed(in_order(frame.sparkSession.table(name)), planned(checkpoint))


@dataclass(frozen=True)
class Read:
    """A record as librdkafka returns it."""

    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str | bytes | None], ...]


def read_with_librdkafka(bootstrap: str, topic: str, count: int) -> list[Read]:
    """Returns all records of a topic ordered by partition and offset; fails if there are more or fewer than `count`."""
    settings = {"group.id": unique("reader"), "enable.auto.commit": False, "enable.partition.eof": True, **QUIET}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    partitions = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: list[Message] = []
    at_end: set[int | None] = set()
    deadline = time.monotonic() + WAIT_S
    while len(found) < count or len(at_end) < len(partitions):
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        for message in consumer.consume(count, timeout=0.1):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                found.append(message)
    consumer.close()
    assert len(found) == count, f"{topic} holds {len(found)} records instead of {count}"
    found.sort(key=lambda message: (message.partition(), message.offset()))
    assert not any(message.error() for message in found)
    return [Read(message.partition(), message.key(), message.value(), tuple(headers_of(message))) for message in found]


def headers_of(message: Message) -> list[tuple[str, str | bytes | None]]:
    headers = message.headers() or []
    assert isinstance(headers, list)
    return headers
