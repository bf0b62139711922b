"""Batches of the producer, and their payload: records sent one by one, or a section of already encoded records.

A handle is an opaque object that the caller passes with a record or section and gets back with the result.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from moldau.client.errors import KafkaError
from moldau.client.record import TopicPartition
from moldau.records.batch import HEADER_SIZE, NO_PRODUCER_ID, NO_SEQUENCE, SEQUENCE_LIMIT, TRANSACTIONAL_MASK
from moldau.records.batch_builder import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, Section, build_batch, encode_batch
from moldau.records.record import Record

_RECORD_OVERHEAD_BYTES = 12
"""The estimated size of lengths, attributes and deltas per record, slightly more than most records need."""
_HEADER_OVERHEAD_BYTES = 3


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH


RecordResult = tuple[Any, int, int]
"""The caller's handle of a record or of a section (already encoded records), then the offset (-1 if unknown) and the
timestamp of its first record."""


@dataclass(slots=True)
class RecordsPayload:
    compression: int
    records: list[Record] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def size(self) -> int:
        return sum(map(estimate_record_size, self.records))

    def build(self, producer: ProducerIdAndEpoch, base_sequence: int, transactional: bool) -> bytes:
        return build_batch(
            self.records,
            compression=self.compression,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )

    def split(self) -> "tuple[RecordsPayload, RecordsPayload] | None":
        """Returns the two halves; None if there is only one record."""
        middle = self.count // 2
        if middle == 0:
            return None
        first = RecordsPayload(self.compression, self.records[:middle], self.handles[:middle])
        return first, RecordsPayload(self.compression, self.records[middle:], self.handles[middle:])

    def too_large_error(self, error: KafkaError) -> KafkaError:
        return error

    def record_results(self, base_offset: int, log_append_time_ms: int) -> Iterator[RecordResult]:
        for number, (handle, record) in enumerate(zip(self.handles, self.records, strict=True)):
            offset = -1 if base_offset < 0 else base_offset + number
            yield handle, offset, record.timestamp if log_append_time_ms < 0 else log_append_time_ms


@dataclass(slots=True)
class SectionPayload:
    section: Section
    handle: Any

    @property
    def count(self) -> int:
        return self.section.count

    @property
    def size(self) -> int:
        return len(self.section.data)

    def build(self, producer: ProducerIdAndEpoch, base_sequence: int, transactional: bool) -> bytes:
        return encode_batch(
            self.section.data,
            base_offset=0,
            leader_epoch=NO_LEADER_EPOCH,
            attributes=self.section.compression | transactional * TRANSACTIONAL_MASK,
            last_offset_delta=self.section.count - 1,
            base_timestamp=self.section.base_timestamp,
            max_timestamp=self.section.max_timestamp,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=base_sequence,
            count=self.section.count,
        )

    def split(self) -> None:
        return None

    def too_large_error(self, error: KafkaError) -> KafkaError:
        text = (
            f"a prebuilt batch of {self.count} records ({HEADER_SIZE + self.size} bytes) is larger than the topic"
            " allows and cannot be split: build smaller ones (batch.size), or raise the topic's max.message.bytes"
        )
        return KafkaError(error.code, f"{text} ({error.message})" if error.message else text)

    def record_results(self, base_offset: int, log_append_time_ms: int) -> Iterator[RecordResult]:
        timestamp = self.section.base_timestamp if log_append_time_ms < 0 else log_append_time_ms
        yield self.handle, base_offset, timestamp


BatchPayload = RecordsPayload | SectionPayload


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """One batch of a partition, from its first record to its result."""

    partition: TopicPartition
    order: tuple[int, ...]
    """The sort key among all batches of the producer. It is the batch number, followed by 0 or 1 for each split."""
    created_ms: int
    payload: BatchPayload
    size: int
    """The approximate size in bytes. Records are counted before compression, and sections as they are encoded."""
    is_full: bool = False
    producer_id_and_epoch: ProducerIdAndEpoch | None = None
    base_sequence: int = NO_SEQUENCE
    data: bytes = b""
    """The encoded batch; empty until the batch is drained."""
    attempts: int = 0
    leader_epoch: int = -1
    """The epoch of the leader to which the batch was last sent; -1 if it is unknown."""
    is_possibly_written: bool = False
    """Whether the broker may have written the batch in an earlier attempt."""
    last_error: KafkaError | None = None

    @property
    def is_open(self) -> bool:
        return not self.is_full and self.attempts == 0

    def split(self) -> "list[ProducerBatch] | None":
        """Returns two halves, which together have the sequence numbers of this batch; None if it cannot be split."""
        payloads = self.payload.split()
        if payloads is None:
            return None
        batches, sequence = [], self.base_sequence
        for number, payload in enumerate(payloads):
            order, size = (*self.order, number), HEADER_SIZE + payload.size
            batches.append(replace(self, order=order, payload=payload, size=size, base_sequence=sequence, data=b""))
            if sequence != NO_SEQUENCE:
                sequence = (sequence + payload.count) % SEQUENCE_LIMIT
        return batches


class ProduceResult(NamedTuple):
    """The final outcome of a batch: acknowledged, or failed with an error."""

    batch: ProducerBatch
    base_offset: int = -1
    """-1 if the broker did not return the offset."""
    log_append_time_ms: int = -1
    """The broker's timestamp if the topic uses LogAppendTime, else -1."""
    error: KafkaError | None = None


def estimate_record_size(record: Record) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += _HEADER_OVERHEAD_BYTES + len(name) + len(value or b"")
    return size
