"""What a batch of the producer carries: records that came one by one, or a section that came whole.

A ticket is whatever the caller wants back with an outcome: one for each record, or one for a section.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from moldau.client.errors import KafkaError
from moldau.records.batch import HEADER_SIZE, NO_PRODUCER_ID
from moldau.records.batch_builder import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    Section,
    build_batch,
    encode_batch,
)
from moldau.records.record import Record

_RECORD_OVERHEAD = 12
"""Of lengths, attributes and deltas: an estimate, a little more than most records need."""
_HEADER_OVERHEAD = 3


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH


class RecordResult(NamedTuple):
    """Where that is for which there is a ticket."""

    handle: Any
    offset: int
    """-1 where the broker does not say."""
    timestamp: int


class BatchPayload(Protocol):
    @property
    def count(self) -> int:
        """How many records, which is how many sequence numbers."""

    @property
    def size(self) -> int:
        """In bytes, about."""

    @property
    def handles(self) -> list[Any]: ...

    def build(self, writer: ProducerIdAndEpoch, base_sequence: int) -> bytes:
        """The batch as it travels."""

    def split(self) -> tuple["BatchPayload", "BatchPayload"] | None:
        """The same in two batches; None if it cannot be split."""

    def too_large_error(self, refusal: KafkaError) -> KafkaError:
        """What to say when the broker has refused for its size what cannot be split."""

    def record_results(self, base_offset: int, log_append_time_ms: int) -> Iterator[RecordResult]: ...


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

    def build(self, writer: ProducerIdAndEpoch, base_sequence: int) -> bytes:
        return build_batch(
            self.records,
            compression=self.compression,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            base_sequence=base_sequence,
        )

    def split(self) -> tuple[Self, Self] | None:
        if self.count < 2:
            return None
        middle = self.count // 2
        make = type(self)
        return (
            make(self.compression, self.records[:middle], self.handles[:middle]),
            make(self.compression, self.records[middle:], self.handles[middle:]),
        )

    def too_large_error(self, refusal: KafkaError) -> KafkaError:
        return refusal

    def record_results(self, base_offset: int, log_append_time_ms: int) -> Iterator[RecordResult]:
        for number, (handle, record) in enumerate(zip(self.handles, self.records, strict=True)):
            offset = -1 if base_offset < 0 else base_offset + number
            yield RecordResult(
                handle, offset, record.timestamp if log_append_time_ms < 0 else log_append_time_ms
            )


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

    @property
    def handles(self) -> list[Any]:
        return [self.handle]

    def build(self, writer: ProducerIdAndEpoch, base_sequence: int) -> bytes:
        return encode_batch(
            self.section.data,
            base_offset=0,
            leader_epoch=NO_LEADER_EPOCH,
            attributes=self.section.compression,
            last_offset_delta=self.section.count - 1,
            base_timestamp=self.section.base_timestamp,
            max_timestamp=self.section.max_timestamp,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            base_sequence=base_sequence,
            count=self.section.count,
        )

    def split(self) -> None:
        return None

    def too_large_error(self, refusal: KafkaError) -> KafkaError:
        text = (
            f"a batch of {HEADER_SIZE + self.size} bytes that was built beforehand, of {self.count} records, is more"
            " than the topic takes, and it cannot be split: build smaller ones (batch.size), or raise the topic's"
            " max.message.bytes"
        )
        return KafkaError(refusal.code, f"{text} ({refusal.message})" if refusal.message else text)

    def record_results(self, base_offset: int, log_append_time_ms: int) -> Iterator[RecordResult]:
        timestamp = self.section.base_timestamp if log_append_time_ms < 0 else log_append_time_ms
        yield RecordResult(self.handle, base_offset, timestamp)


def estimate_record_size(record: Record) -> int:
    """About how many bytes a record takes in a batch."""
    size = _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += _HEADER_OVERHEAD + len(name) + len(value or b"")
    return size
