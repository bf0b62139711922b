"""A seeded workload for a compacted partition, and the records that compaction must leave.

The workload can be written to several brokers, which must then have the same records at the same offsets.
"""

import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from support.partition_readers import Row

SEGMENT_BYTES = 1024 * 1024
"""The smallest segment of Kafka 4."""
T0 = 1_700_000_000_000
FILLER_BATCHES = 11
"""Batches of 100 KB that close every segment before them."""
_CODECS = 5


class Write(NamedTuple):
    """One batch. `producer` is the number of an idempotent producer, None without idempotence."""

    records: tuple[Record, ...]
    codec: int
    producer: int | None = None
    base_sequence: int = -1

    def batch(self, producer_ids: Sequence[int]) -> bytes:
        if self.producer is None:
            return build_batch(self.records, compression=self.codec)
        return build_batch(
            self.records,
            compression=self.codec,
            producer_id=producer_ids[self.producer],
            producer_epoch=0,
            base_sequence=self.base_sequence,
        )


class DeleteRecords(NamedTuple):
    before_offset: int


@dataclass
class CompactedLog:
    """The model: which records a log has, and which of them remain after compaction."""

    rows: list[Row] = field(default_factory=list)
    start: int = 0
    end: int = 0
    active_base: int = 0
    """The base offset of the active segment. Compaction does not change the records from here on."""
    _active_bytes: int = 0

    def append(self, records: Sequence[Record], size: int) -> None:
        if self._active_bytes and self._active_bytes + size > SEGMENT_BYTES:
            self.active_base, self._active_bytes = self.end, 0
        self._active_bytes += size
        for record in records:
            self.rows.append(Row(self.end, record.key, record.value, record.timestamp))
            self.end += 1

    def survivors(self, *, keeps_tombstones: bool) -> list[Row]:
        """Returns what remains of the records when all closed segments are compacted."""
        latest = {row.key: row.offset for row in self.rows if row.offset < self.active_base}
        return [
            row
            for row in self.rows
            if row.offset >= self.start
            and (
                row.offset >= self.active_base
                or (latest[row.key] == row.offset and (keeps_tombstones or row.value is not None))
            )
        ]


class CompactionWorkload:
    """Random keys, values, tombstones, codecs, plain and idempotent producers, and deletions of the oldest records."""

    def __init__(self, seed: int, size: int) -> None:
        """`size` is the approximate number of bytes to write."""
        self._random = random.Random(seed)
        self._size = size
        self.deletes_records = self._random.random() < 0.5
        self.keeps_tombstones = self._random.random() < 0.5
        self.is_cleaned_while_written = self._random.random() < 0.5
        self.max_partition_fetch_bytes = self._random.choice([1, 1_000, 100_000, 1024 * 1024])
        self.producers = self._random.randint(1, 8)
        self.log = CompactedLog()
        self._keys = self._random.choice([3, 20, 200])
        self._sequences = [0] * self.producers
        self._fillers = 0

    def steps(self) -> Iterator[Write | DeleteRecords]:
        written = 0
        chosen = self._random
        while written < self._size:
            if self.deletes_records and chosen.random() < 0.02:
                # Not all records, because Moldau then starts a new segment, and Kafka does not.
                self.log.start = max(self.log.start, chosen.randint(0, max(0, self.log.end - 1)))
                yield DeleteRecords(self.log.start)
                continue
            records = tuple(self._record() for _ in range(chosen.randint(1, 6)))
            producer = chosen.randrange(self.producers) if chosen.random() < 0.5 else None
            written += yield from self._write(records, chosen.randrange(_CODECS), producer)

    def closing_steps(self) -> Iterator[Write]:
        """Yields a record that compaction must remove, its successor, and batches that close their segment.

        When the first record is gone, all segments before it are compacted too.
        """
        self._fillers += 1
        for value in (b"removed", b"kept"):
            yield from self._write((Record(timestamp=T0, key=b"sentinel-%d" % self._fillers, value=value),), 0, None)
        for number in range(FILLER_BATCHES):
            record = Record(timestamp=T0, key=b"filler-%d" % number, value=self._text(100_000))
            yield from self._write((record,), 0, None)

    def _write(self, records: tuple[Record, ...], codec: int, producer: int | None) -> Generator[Write, None, int]:
        sequence = -1
        if producer is not None:
            sequence = self._sequences[producer]
            self._sequences[producer] += len(records)
        write = Write(records, codec, producer, sequence)
        size = len(write.batch([0] * self.producers))
        self.log.append(records, size)
        yield write
        return size

    def _record(self) -> Record:
        chosen = self._random
        size = chosen.choice([0, 10, 1_000, 20_000, 60_000])
        value = None if chosen.random() < 0.2 else self._text(size)
        # Some timestamps are out of order.
        timestamp = T0 + 100 * self.log.end + chosen.randint(-1_000, 1_000)
        return Record(timestamp=timestamp, key=b"key-%d" % chosen.randrange(self._keys), value=value)

    def _text(self, size: int) -> bytes:
        return self._random.randbytes(size // 2).hex().encode()
