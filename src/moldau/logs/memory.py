"""Logs in memory, for tests and temporary brokers."""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from uuid import UUID

from moldau.errors import OffsetOutOfRangeError
from moldau.logs.compaction import (
    OFFSET_MAP_BYTES_MAX,
    OffsetMap,
    TransactionOutcomes,
    clean_batch,
    has_record_from,
    is_last_of_producer,
    is_past_min_lag,
    should_compact,
)
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.producer_state import PRODUCER_EXPIRATION_MS_DEFAULT, ProducerStateManager
from moldau.logs.store import (
    BATCHES_SKIPPED_MAX,
    EMPTY_SLICES,
    BatchTime,
    Log,
    LogName,
    LogStore,
    RecordSlices,
    TimestampAndOffset,
)
from moldau.logs.timestamp_lookup import first_record_at_or_after, max_timestamp_record
from moldau.logs.transaction_index import AbortedTransaction, TransactionIndex
from moldau.records.batch import HEADER_SIZE, Batch, is_data
from moldau.settings.topic import TopicSettings

_BATCHES_PER_YIELD = 16
"""How many batches a compaction handles before it yields to the event loop."""


class MemoryLog(Log):
    """A list of batches, searched by last offset. Retention and compaction treat each batch as a segment."""

    def __init__(self, name: LogName, topic_id: UUID, settings: TopicSettings, producer_expiration_ms: int) -> None:
        self.name = name
        self.topic_id = topic_id
        self.settings = settings
        self.start_offset = self.end_offset = self.durable_offset = 0
        self.producers = ProducerStateManager()
        self.epochs = LeaderEpochCache()
        self._producer_expiration_ms = producer_expiration_ms
        self._producers_at_start = ProducerStateManager()
        """The producer state before the first batch."""
        self._aborted = TransactionIndex()
        self._batches: list[bytes] = []
        self._last_offsets: list[int] = []
        self._max_timestamps: list[int] = []
        self._size = 0
        self._cleaned_offset = 0
        """The offset below which all records are compacted."""
        self._truncations = 0
        """How often batches were removed. A compaction discards its result if this number has changed."""

    @property
    def size(self) -> int:
        return self._size

    async def append(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            # Copy the batch, because it may be in a receive buffer that will be reused.
            self._batches.append(batch.to_bytes())
            self._last_offsets.append(batch.last_offset)
            self._max_timestamps.append(batch.max_timestamp)
            self._size += batch.size
            self.end_offset = batch.next_offset
            if batch.producer_id >= 0:
                aborted = self.producers.update(batch)
                if aborted is not None:
                    self._aborted.append(aborted)
            if batch.leader_epoch != self.epochs.latest:
                self.epochs.assign(batch.leader_epoch, batch.base_offset)

    async def flush(self) -> None:
        self.durable_offset = self.end_offset

    def _indexes(self, offset: int, below: int) -> range:
        """Returns the indexes of the batches that end at or after `offset` and before `below`."""
        return range(bisect_left(self._last_offsets, offset), bisect_left(self._last_offsets, below))

    async def read(
        self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True, skip_empty: bool = False
    ) -> RecordSlices:
        parts: list[bytes] = []
        size = 0
        indexes = self._indexes(offset, below)
        if skip_empty:
            while len(indexes) > 1 and not has_record_from(Batch(self._batches[indexes[0]]), offset):
                indexes = indexes[1:]
        for index in indexes:
            data = self._batches[index]
            if size + len(data) > bytes_max and (parts or not min_one_batch):
                break
            if skip_empty and parts and len(parts[-1]) == len(data) == HEADER_SIZE:
                size -= len(parts.pop())
                break
            parts.append(data)
            size += len(data)
        return RecordSlices(parts, size) if parts else EMPTY_SLICES

    async def read_committed(
        self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True
    ) -> tuple[RecordSlices, Sequence[AbortedTransaction]]:
        records = await self.read(offset, bytes_max, below, min_one_batch=min_one_batch, skip_empty=True)
        found: list[AbortedTransaction] = []
        if records.size and self._aborted:
            last = records.parts[-1]
            assert isinstance(last, bytes)
            self._aborted.find(offset, Batch(last).next_offset, found)
        return records, found

    async def offset_for_timestamp(self, timestamp_ms: int, below: int) -> TimestampAndOffset | None:
        for index in self._indexes(self.start_offset, below):
            if self._max_timestamps[index] >= timestamp_ms:
                found = first_record_at_or_after(Batch(self._batches[index]), timestamp_ms, self.start_offset)
                if found is not None:
                    return found
        return None

    async def max_timestamp(self, below: int) -> TimestampAndOffset | None:
        latest: TimestampAndOffset | None = None
        for index in self._indexes(self.start_offset, below):
            if latest is None or self._max_timestamps[index] > latest.timestamp_ms:
                found = max_timestamp_record(Batch(self._batches[index]), self.start_offset)
                if found is not None and (latest is None or found.timestamp_ms > latest.timestamp_ms):
                    latest = found
        return latest

    async def find_batch_time(self, offset: int, below: int) -> BatchTime | None:
        first = bisect_left(self._last_offsets, offset)
        for skipped, data in enumerate(islice(self._batches, first, None), 1):
            batch = Batch(data)
            if batch.base_offset >= below:
                break
            if skipped > BATCHES_SKIPPED_MAX or is_data(batch.attributes, batch.count):
                return BatchTime(max(offset, batch.base_offset), batch.max_timestamp, batch.is_log_append_time)
        return None

    async def truncate_to(self, offset: int) -> None:
        if offset >= self.end_offset:
            return
        self._truncations += 1
        keep = bisect_left(self._last_offsets, offset)
        self._size -= sum(map(len, self._batches[keep:]))
        del self._batches[keep:], self._last_offsets[keep:], self._max_timestamps[keep:]
        if offset < self.start_offset:
            self.start_offset = self.end_offset = offset
        else:
            # Batches are deleted whole, so the log may end before the requested offset.
            self.end_offset = max(self.start_offset, self._last_offsets[-1] + 1 if keep else 0)
        self.durable_offset = self.end_offset
        self._cleaned_offset = min(self._cleaned_offset, self.end_offset)
        self.epochs.truncate_from_end(self.end_offset)
        self._aborted.truncate_from_end(self.end_offset)
        self.producers.rebuild(self._producers_at_start.snapshot(), map(Batch, self._batches))

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        self._truncations += 1
        self._batches.clear()
        self._last_offsets.clear()
        self._max_timestamps.clear()
        self._size = 0
        self.start_offset = self.end_offset = self.durable_offset = self._cleaned_offset = offset
        self.epochs.clear()
        self._aborted = TransactionIndex()
        self.producers.rebuild(None, ())
        self._producers_at_start.rebuild(None, ())

    async def advance_start_offset(self, offset: int) -> None:
        if offset > self.end_offset:
            raise OffsetOutOfRangeError(f"{self.name} ends at {self.end_offset}, before {offset}")
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.truncate_from_start(offset)
            self._aborted.truncate_from_start(offset)
            self._delete_batches(bisect_left(self._last_offsets, offset))

    def _delete_batches(self, count: int) -> None:
        if count:
            self._truncations += 1
            for data in self._batches[:count]:
                self._producers_at_start.update(Batch(data))
            # Only records below the high watermark are deleted.
            self._producers_at_start.unstable.forget_committed(self.start_offset)
            self._size -= sum(map(len, self._batches[:count]))
            del self._batches[:count], self._last_offsets[:count], self._max_timestamps[:count]

    async def apply_retention(self, now_ms: int, below: int) -> None:
        self.producers.expire(now_ms, self._producer_expiration_ms)
        self._producers_at_start.expire(now_ms, self._producer_expiration_ms)
        settings = self.settings
        if "delete" not in settings.cleanup_policy:
            return
        expired = 0
        size = self._size
        for index, data in enumerate(self._batches):
            too_old = 0 <= settings.retention_ms < now_ms - self._max_timestamps[index]
            too_much = 0 <= settings.retention_bytes <= size - len(data)
            if self._last_offsets[index] >= below or not (too_old or too_much):
                break
            size -= len(data)
            expired = index + 1
        if expired:
            await self.advance_start_offset(max(self.start_offset, self._last_offsets[expired - 1] + 1))

    async def compact(self, now_ms: int, below: int) -> bool:
        if "compact" not in self.settings.cleanup_policy:
            return False
        first_dirty = bisect_left(self._last_offsets, max(self._cleaned_offset, self.start_offset))
        end = bisect_left(self._last_offsets, below)
        for index in range(first_dirty, end):
            if not is_past_min_lag(self.settings, self._max_timestamps[index], now_ms):
                end = index
                break
        if first_dirty >= end:
            return False
        total_bytes = sum(map(len, self._batches[:end]))
        dirty_bytes = sum(map(len, self._batches[first_dirty:end]))
        if not should_compact(self.settings, total_bytes, dirty_bytes, self._max_timestamps[first_dirty], now_ms):
            return False

        truncations = self._truncations
        batches = self._batches[:end]
        offsets = OffsetMap(OFFSET_MAP_BYTES_MAX, self._cleaned_offset)
        aborted = list(self._aborted)
        outcomes = TransactionOutcomes()
        outcomes.add_aborted(aborted)
        for number, data in enumerate(batches):
            batch = Batch(data)
            is_obsolete = outcomes.is_obsolete(batch)
            if number >= first_dirty and not offsets.add(batch, is_obsolete=is_obsolete):
                break
            if number % _BATCHES_PER_YIELD == 0:
                await asyncio.sleep(0)
        outcomes = TransactionOutcomes()
        outcomes.add_aborted(aborted)
        kept: list[Batch] = []
        for number, data in enumerate(batches):
            batch = Batch(data)
            is_last = number == end - 1
            remaining = clean_batch(
                batch,
                offsets,
                now_ms=now_ms,
                delete_retention_ms=self.settings.delete_retention_ms,
                retain_empty=is_last or is_last_of_producer(batch, self.producers),
                is_obsolete=outcomes.is_obsolete(batch),
            )
            if remaining is not None:
                kept.append(remaining)
            if number % _BATCHES_PER_YIELD == 0:
                await asyncio.sleep(0)
        if self._truncations != truncations:
            return False
        self._truncations += 1
        self._aborted.truncate_from_start(self._last_offsets[end - 1] + 1)
        for each in self._aborted:
            outcomes.index.append(each)
        self._aborted = outcomes.index
        self._batches[:end] = [batch.to_bytes() for batch in kept]
        self._last_offsets[:end] = [batch.last_offset for batch in kept]
        self._max_timestamps[:end] = [batch.max_timestamp for batch in kept]
        self._size = sum(map(len, self._batches))
        self._cleaned_offset = offsets.end_offset
        return True

    def configure(self, settings: TopicSettings) -> None:
        self.settings = settings

    async def close(self) -> None:
        await self.flush()


class MemoryLogStore(LogStore):
    def __init__(self, producer_expiration_ms: int = PRODUCER_EXPIRATION_MS_DEFAULT) -> None:
        self._producer_expiration_ms = producer_expiration_ms
        self._logs: dict[LogName, MemoryLog] = {}

    async def start(self) -> None:
        pass

    def list_logs(self) -> Sequence[tuple[LogName, UUID]]:
        return [(log.name, log.topic_id) for log in self._logs.values()]

    async def open(self, name: LogName, topic_id: UUID, settings: TopicSettings) -> MemoryLog:
        log = self._logs.get(name)
        if log is not None and log.topic_id != topic_id:
            await self.move_to_stray(name)
            log = None
        if log is None:
            log = self._logs[name] = MemoryLog(name, topic_id, settings, self._producer_expiration_ms)
        log.configure(settings)
        return log

    async def remove(self, name: LogName) -> None:
        self._logs.pop(name, None)

    async def move_to_stray(self, name: LogName) -> None:
        self._logs.pop(name, None)

    async def checkpoint_high_watermarks(self) -> None:
        pass

    async def close(self, broker_epoch: int = -1) -> None:
        for log in self._logs.values():
            await log.close()

    def space(self) -> tuple[int, int]:
        """Returns -1 for both sizes, which means "unknown" in Kafka."""
        return -1, -1
