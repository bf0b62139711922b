"""Partitions and consumed records, as users of the client see them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from moldau.records.batch import Batch
from moldau.records.compression import DECOMPRESSED_BYTES_MAX
from moldau.records.record import Header, iterate_records
from moldau.wire.codec import Message


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ConsumerRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970; -1 if the record has none."""
    is_log_append_time: bool
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    leader_epoch: int = -1


def decode_records(
    source: TopicPartition, batch: Batch, from_offset: int = 0, limit: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[ConsumerRecord]:
    """Yields the records of a batch from an offset on. A control batch has none. Raises CorruptRecordError."""
    if batch.is_control:
        return
    topic, partition = source
    is_log_append_time, leader_epoch = batch.is_log_append_time, batch.leader_epoch
    for offset, timestamp, key, value, headers in iterate_records(batch, limit):
        if offset >= from_offset:
            yield ConsumerRecord(
                topic, partition, offset, timestamp, is_log_append_time, key, value, headers, leader_epoch
            )


def is_valid_topic_name(name: object) -> bool:
    """Returns whether a name can be encoded in a request. Brokers decide which names are allowed."""
    if not isinstance(name, str) or not name:
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns the partition indexes of each topic, as requests group them."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def nest_by_topic(entries: Iterable[tuple[TopicPartition, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns the `topics` field of a request, with one entry per topic and the given entries of its partitions."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition, entry in entries:
        topics.setdefault(partition.topic, []).append(entry)
    return [{"name": name, "partitions": each} for name, each in topics.items()]


def iterate_partitions(topics: Iterable[Message]) -> Iterator[tuple[TopicPartition, Message]]:
    """Yields each partition in the `topics` field of a response, with its entry."""
    for topic in topics:
        for each in topic.partitions:
            yield TopicPartition(topic.name, each.partition_index), each
