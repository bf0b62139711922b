"""The segments of a log in files, and the policy for rolling the active segment."""

from bisect import bisect_right
from collections.abc import Iterator

import crc32c

from moldau.logs.files.indexes import OFFSET_RANGE
from moldau.logs.files.scan import scan_headers
from moldau.logs.files.segment import LogSegment
from moldau.logs.store import EMPTY_SLICES, FileSlice, LogName, RecordSlices
from moldau.logs.transaction_index import AbortedTransaction
from moldau.records.batch import Batch
from moldau.settings.topic import TopicSettings

_INDEX_ENTRY_SIZE = 12
"""The entry size of the time index, in bytes. Entries of the offset index are smaller."""

_CACHED_INDEXES_MAX = 2
"""How many closed segments keep their indexes in memory after a read."""


class RollPolicy:
    """Decides when a log rolls, by segment.bytes, segment.ms with its jitter, and segment.index.bytes."""

    def __init__(self, name: LogName, settings: TopicSettings) -> None:
        self._segment_bytes = settings.segment_bytes
        self._index_entries_max = max(1, settings.segment_index_bytes // _INDEX_ENTRY_SIZE)
        roll_ms = settings.segment_ms
        if "compact" in settings.cleanup_policy:
            roll_ms = min(roll_ms, settings.max_compaction_lag_ms)
        jitter_ms = min(settings.segment_jitter_ms, roll_ms)
        if jitter_ms:
            # The jitter comes from the log name, so that logs differ and a simulation can be repeated.
            roll_ms -= crc32c.crc32c(str(name).encode()) % jitter_ms
        self._roll_ms = roll_ms

    def should_roll(self, active: LogSegment, size: int, last: Batch) -> bool:
        """Returns whether batches of `size` bytes in total need a new segment. `last` is the last batch."""
        if last.last_offset - active.base_offset > OFFSET_RANGE:
            return True
        if not active.size:
            return False
        return (
            active.size + size > self._segment_bytes
            or (active.first_timestamp >= 0 and last.max_timestamp - active.first_timestamp > self._roll_ms)
            or len(active.offset_index) >= self._index_entries_max
        )

    def is_expired(self, active: LogSegment, now_ms: int) -> bool:
        return active.first_timestamp >= 0 and now_ms - active.first_timestamp > self._roll_ms


class LogSegments:
    """The segments of a log in ascending order, at least one. The last segment is the active segment."""

    def __init__(self, segments: list[LogSegment]) -> None:
        self._segments = segments
        self.base_offsets = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.unfinalized: list[LogSegment] = []
        """Closed segments that may not be flushed yet, or whose indexes are not written to their files yet."""
        self._with_indexes: list[LogSegment] = []
        """Closed segments with their indexes in memory, the least recently added first."""
        for segment in self.closed:
            self.cache_indexes(segment)

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, number: int) -> LogSegment:
        return self._segments[number]

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    @property
    def closed(self) -> list[LogSegment]:
        return self._segments[:-1]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    # Changes

    def add(self, segment: LogSegment) -> None:
        """Closes the active segment and makes this one active."""
        self.unfinalized.append(self.active)
        self._segments.append(segment)
        self.base_offsets.append(segment.base_offset)
        self.active = segment

    def remove_first(self) -> LogSegment:
        segment = self._segments.pop(0)
        self.base_offsets.pop(0)
        if segment in self._with_indexes:
            self._with_indexes.remove(segment)
        return segment

    def truncate(self, count: int) -> list[LogSegment]:
        """Keeps the first `count` segments, of which the last becomes active, and returns the others."""
        removed = self._segments[count:]
        del self._segments[count:], self.base_offsets[count:]
        self.active = self._segments[-1]
        closed = self.closed
        self.unfinalized = [segment for segment in self.unfinalized if segment in closed]
        self._with_indexes = [segment for segment in self._with_indexes if segment in closed]
        return removed

    def reset(self, segment: LogSegment) -> None:
        self._segments[:] = [segment]
        self.base_offsets[:] = [segment.base_offset]
        self.active = segment
        self.unfinalized = []
        self._with_indexes = []

    def has_group(self, group: list[LogSegment]) -> bool:
        first = self.count_up_to(group[0].base_offset) - 1
        return self._segments[first : first + len(group)] == group

    def replace_group(self, group: list[LogSegment], segment: LogSegment) -> None:
        first = self.count_up_to(group[0].base_offset) - 1
        self._segments[first : first + len(group)] = [segment]
        self.base_offsets[first : first + len(group)] = [segment.base_offset]
        self._with_indexes = [each for each in self._with_indexes if each not in group]

    def cache_indexes(self, segment: LogSegment) -> None:
        """Keeps the indexes of a segment in memory after a use. Drops the oldest indexes if the cache is full. Does
        nothing for the active segment."""
        cached = self._with_indexes
        if segment is self.active or segment in cached or not segment.has_loaded_indexes:
            return
        cached.append(segment)
        if len(cached) > _CACHED_INDEXES_MAX:
            evicted = cached.pop(0)
            if evicted not in self.unfinalized:
                evicted.drop_indexes()

    def count_up_to(self, offset: int) -> int:
        """Returns how many segments start at or below `offset`."""
        return bisect_right(self.base_offsets, offset)

    # Lookups

    def read(self, offset: int, bytes_max: int, below: int, min_one_batch: bool, skip_empty: bool) -> RecordSlices:
        segments = self._segments
        for number in range(max(0, bisect_right(self.base_offsets, offset) - 1), len(segments)):
            segment = segments[number]
            start = segment.position_of_record(offset) if skip_empty else segment.position_of(offset)
            end = segment.size if below >= segment.next_offset else segment.position_of(below)
            if start < end:
                size = end - start
                if size > bytes_max:
                    size = _size_within_limit(segment, start, bytes_max, min_one_batch)
                empty = segment.empty_batches
                if skip_empty and (empty.positions or start < empty.known_from):
                    # A client may not advance over many empty batches.
                    size = empty.first_run(segment.file, start, start + size) - start
                self.cache_indexes(segment)
                return RecordSlices((FileSlice(segment.file, start, size),), size) if size else EMPTY_SLICES
            self.cache_indexes(segment)
            if end < segment.size:
                break
        return self._read_last_batch(offset, bytes_max, below, min_one_batch) if skip_empty else EMPTY_SLICES

    def _read_last_batch(self, offset: int, bytes_max: int, below: int, min_one_batch: bool) -> RecordSlices:
        for segment in reversed(self.in_range(offset, below)):
            end = segment.size if below >= segment.next_offset else segment.position_of(below)
            last = segment.last_batch(offset, end)
            self.cache_indexes(segment)
            if last is not None:
                if last.size > bytes_max and not min_one_batch:
                    break
                return RecordSlices((FileSlice(segment.file, last.position, last.size),), last.size)
        return EMPTY_SLICES

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """Returns the aborted transactions with records from offset `start` on and before `end`.

        Their markers may be in any later segment. Raises CorruptRecordError.
        """
        found: list[AbortedTransaction] = []
        for segment in self._segments[max(0, self.count_up_to(start) - 1) :]:
            if segment.has_aborted_transactions:
                is_complete = segment.transaction_index.find(start, end, found)
                if segment is not self.active:
                    self.cache_indexes(segment)
                if is_complete:
                    break
        return found

    def end_offset_of(self, records: RecordSlices, below: int) -> int:
        """Returns the end offset of records that `read` has returned. They end before `below`."""
        last = records.parts[-1]
        assert isinstance(last, FileSlice)
        end = last.position + last.size
        for segment in self._segments:
            if segment.file is last.file:
                following = next(scan_headers(segment.file, end, segment.size), None)
                end_offset: int = segment.next_offset if following is None else following.base_offset
                return min(below, end_offset)
        return below

    def in_range(self, start_offset: int, below: int) -> list[LogSegment]:
        """Returns the segments with offsets from `start_offset` on and before `below`."""
        first = max(0, self.count_up_to(start_offset) - 1)
        return [segment for segment in self._segments[first:] if segment.base_offset < below]


def _size_within_limit(segment: LogSegment, start: int, bytes_max: int, min_one_batch: bool) -> int:
    """Returns the size of a read from position `start` if more than bytes_max bytes are available there.

    The read has only whole batches. After a truncated batch, some clients do not advance over removed records.
    """
    boundary = segment.batch_start_before(start + bytes_max)
    if boundary > start:
        return boundary - start
    size = 0
    for header in scan_headers(segment.file, start, segment.size):
        if size + header.size > bytes_max:
            return header.size if min_one_batch and not size else size
        size += header.size
    return size
