"""Readers of what killed queries left: checkpoints, topics and tables."""

import json
import time
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from kills.history import Attempt, Copy, OffsetLog, Place, Sum
from support.topics import QUIET

READ_TIMEOUT_S = 60.0
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"


def _batches(log: Path) -> list[int]:
    """Returns the batches in a log of a checkpoint, in order."""
    if not log.is_dir():
        return []
    return sorted(int(path.name) for path in log.iterdir() if path.name.isdigit())


def unfinished(checkpoint: Path) -> int | None:
    """Returns the batch that a query with this checkpoint repeats: the last one planned, if it is not committed."""
    planned, committed = _batches(checkpoint / "offsets"), _batches(checkpoint / "commits")
    return planned[-1] if planned and planned[-1] not in committed else None


def offset_log(checkpoint: Path, topic: str) -> OffsetLog:
    planned = _batches(checkpoint / "offsets")
    assert planned == list(range(len(planned))), f"the offset log has gaps: {planned}"
    # A version, metadata, and the end of the only source.
    ends = [json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]) for batch in planned]
    return OffsetLog([{int(partition): offset for partition, offset in end[topic].items()} for end in ends])


def messages(bootstrap: str, topic: str, isolation: str = READ_UNCOMMITTED) -> dict[Place, Message]:
    """Returns the records of a topic, by partition and offset, when no transaction is open."""
    deadline = time.monotonic() + READ_TIMEOUT_S
    while (stable := _ends(bootstrap, topic, READ_COMMITTED)) != (ends := _ends(bootstrap, topic, READ_UNCOMMITTED)):
        assert time.monotonic() < deadline, f"transactions of {topic} are open: {stable} of {ends}"
        time.sleep(0.1)
    consumer = _consumer(bootstrap, isolation)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    found: dict[Place, Message] = {}
    at_end: set[int] = set()
    while len(at_end) < len(ends):
        assert time.monotonic() < deadline, f"{len(found)} records of {topic} came, but not the end of all of {ends}"
        for message in consumer.consume(10_000, timeout=0.1):
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                at_end.add(partition)
                continue
            found[partition, offset] = message
    consumer.close()
    return found


def _ends(bootstrap: str, topic: str, isolation: str) -> dict[int, int]:
    consumer = _consumer(bootstrap, isolation)
    partitions = consumer.list_topics(topic, timeout=READ_TIMEOUT_S).topics[topic].partitions
    ends = {
        partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=READ_TIMEOUT_S)[1]
        for partition in partitions
    }
    consumer.close()
    return ends


def _consumer(bootstrap: str, isolation: str) -> Consumer:
    settings = {"group.id": "evidence", "enable.auto.commit": False, "enable.partition.eof": True, **QUIET}
    return Consumer({"bootstrap.servers": bootstrap, "isolation.level": isolation, **settings})


def copy_of(message: Message) -> Copy:
    place, attempt = (_numbers(message, header) for header in ("place", "attempt"))
    partition, offset = place
    return Copy((partition, offset), number_of(message), Attempt(*attempt))


def sum_of(message: Message) -> Sum:
    ((count,), (total,)) = (_numbers(message, header) for header in ("count", "sum"))
    return Sum(count, total)


def _numbers(message: Message, header: str) -> list[int]:
    """Parses a header of numbers separated by slashes."""
    value = dict(message.headers() or ())[header]
    assert isinstance(value, bytes)
    return [int(part) for part in value.split(b"/")]


def number_of(message: Message) -> int:
    return int(message.value() or b"-1")


def rows_of(table: pa.Table) -> list[tuple[Place, int]]:
    places = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    return list(zip(places, table["number"].to_pylist(), strict=True))
