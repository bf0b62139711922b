"""The cleaner: compacts groups of closed segments into new segment files.

Closed segments never change, and the cleaner writes only new files. So the cleaner runs concurrently with all other
operations. Afterwards the log replaces the old files with the new files.
"""

import asyncio
from collections.abc import Iterator

from moldau.logs.compaction import (
    OFFSET_MAP_BYTES_MAX,
    LogToClean,
    OffsetMap,
    clean_batch,
    is_last_of_producer,
    is_past_min_lag,
    should_compact,
)
from moldau.logs.files.file_names import CLEANED_SUFFIX, LOG_SUFFIX
from moldau.logs.files.indexes import OFFSET_RANGE
from moldau.logs.files.scan import scan_batches
from moldau.logs.files.segment import LogSegment
from moldau.logs.producer_state import ProducerStateManager
from moldau.platform.disk import Buffer, Disk
from moldau.records.batch import Batch
from moldau.settings.topic import TopicSettings

_BYTES_PER_YIELD = 256 * 1024
"""How many bytes the cleaner reads before it writes the result and yields to the event loop."""


class Cleaner:
    """One round of compaction of one log."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        settings: TopicSettings,
        producers: ProducerStateManager,
        *,
        now_ms: int,
        cleaned_offset: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._producers = producers
        self._now_ms = now_ms
        self._cleaned_offset = cleaned_offset
        self._segments: list[LogSegment] = []
        self._offsets = OffsetMap(OFFSET_MAP_BYTES_MAX)

    @property
    def end_offset(self) -> int:
        """The offset below which the log is clean when cleaned segments have replaced all selected segments."""
        return self._offsets.end_offset

    async def plan(self, closed: list[LogSegment], below: int) -> bool:
        """Selects the segments to clean and maps the dirty keys. Returns False if too little of the log is dirty."""
        for segment in closed:
            if segment.next_offset > below:
                break
            segment.load_timestamps()
            if not is_past_min_lag(self._settings, segment.max_timestamp, self._now_ms):
                break
            self._segments.append(segment)
            await asyncio.sleep(0)
        dirty = [segment for segment in self._segments if segment.next_offset > self._cleaned_offset]
        if not dirty:
            return False
        dirty_bytes = sum(segment.size for segment in dirty)
        log_to_clean = LogToClean(
            clean_bytes=sum(segment.size for segment in self._segments) - dirty_bytes,
            dirty_bytes=dirty_bytes,
            oldest_dirty_ms=dirty[0].first_timestamp,
        )
        if not should_compact(self._settings, log_to_clean, self._now_ms):
            return False
        for segment in dirty:
            bytes_read = 0
            position = segment.position_of(self._cleaned_offset)
            for _, batch in scan_batches(segment.file, position, segment.size):
                if not self._offsets.add(batch):
                    return True
                bytes_read += batch.size
                if bytes_read >= _BYTES_PER_YIELD:
                    bytes_read = 0
                    await asyncio.sleep(0)
        return True

    def groups(self) -> Iterator[list[LogSegment]]:
        """Yields groups of adjacent segments that fit into one segment, so that few small segments remain."""
        group: list[LogSegment] = []
        size = 0
        for segment in self._segments:
            if segment.base_offset >= self._offsets.end_offset:
                break
            if group and (
                size + segment.size > self._settings.segment_bytes
                or segment.next_offset - group[0].base_offset > OFFSET_RANGE
            ):
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield group

    async def clean(self, group: list[LogSegment]) -> LogSegment | None:
        """Writes the remaining batches of the group into a new segment with the suffix .cleaned, and flushes the file.

        Returns None if the group is a single segment that does not change.
        """
        cleaned = LogSegment(
            self._disk,
            self._directory,
            group[0].base_offset,
            self._settings.index_interval_bytes,
            file_suffix=LOG_SUFFIX + CLEANED_SUFFIX,
        )
        try:
            cleaned.clear()
            changed = await self._write(group, cleaned)
            if changed or len(group) > 1:
                await cleaned.file.sync()
                cleaned.seal()
                cleaned.next_offset = group[-1].next_offset
                return cleaned
        except BaseException:
            self._disk.remove(cleaned.path(LOG_SUFFIX + CLEANED_SUFFIX))
            raise
        self._disk.remove(cleaned.path(LOG_SUFFIX + CLEANED_SUFFIX))
        return None

    async def _write(self, group: list[LogSegment], cleaned: LogSegment) -> bool:
        changed = False
        parts: list[Buffer] = []
        pending: list[Batch] = []
        bytes_read = 0
        for segment in group:
            for position, batch in scan_batches(segment.file, 0, segment.size):
                # Keep the last batch, if necessary without records, so that the new segment covers the offsets of all
                # old segments. Recovery deletes the old segments in the offset range of the new segment, and there
                # are no gaps between segments.
                is_last = segment is group[-1] and position + batch.size == segment.size
                remaining = clean_batch(
                    batch,
                    self._offsets,
                    now_ms=self._now_ms,
                    delete_retention_ms=self._settings.delete_retention_ms,
                    retain_empty=is_last or is_last_of_producer(batch, self._producers),
                )
                changed = changed or remaining is not batch
                if remaining is not None:
                    parts += remaining.parts()
                    pending.append(remaining)
                bytes_read += batch.size
                if bytes_read >= _BYTES_PER_YIELD or is_last:
                    self._flush(cleaned, parts, pending)
                    bytes_read = 0
                    await asyncio.sleep(0)
        self._flush(cleaned, parts, pending)
        return changed

    def _flush(self, cleaned: LogSegment, parts: list[Buffer], pending: list[Batch]) -> None:
        if pending:
            position = cleaned.file.append(parts)
            for batch in pending:
                cleaned.register_batch(batch, position)
                position += batch.size
            parts.clear()
            pending.clear()
