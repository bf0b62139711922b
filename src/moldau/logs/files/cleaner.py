"""Compaction of segment files: which segments are due, and a new segment made from a group of old ones.

It reads closed segments, which never change, and writes a file of its own, so it may run beside everything
else; putting the new file in place is the log's part.
"""

import asyncio
from collections.abc import Iterator

from moldau.logs.compaction import OffsetMap, clean_batch
from moldau.logs.compaction_policy import (
    OFFSET_MAP_BYTES_MAX,
    LogToClean,
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
"""How much is read before others get their turn, and written at once."""


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
        """Everything below it is clean once all groups are in place."""
        return self._offsets.end_offset

    async def plan(self, closed: list[LogSegment], below: int) -> bool:
        """Finds what may be cleaned and, if enough of it is dirty, the last offset of each key in that."""
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
            seen = 0
            position = segment.position_of(self._cleaned_offset)
            for _, batch in scan_batches(segment.file, position, segment.size):
                if not self._offsets.add(batch):
                    return True
                seen += batch.size
                if seen >= _BYTES_PER_YIELD:
                    seen = 0
                    await asyncio.sleep(0)
        return True

    def groups(self) -> Iterator[list[LogSegment]]:
        """Neighbours that fit into one segment together, so that small leftovers do not stay small for ever."""
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
        """A new segment with what is left of the group, synced, under its temporary name; None if all is left."""
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
        seen = 0
        for segment in group:
            for position, batch in scan_batches(segment.file, 0, segment.size):
                # The last batch stays, empty if need be: the range of offsets in the new segment
                # tells recovery which old segments it replaces, and segments leave no gaps between them.
                is_last = segment is group[-1] and position + batch.size == segment.size
                left = clean_batch(
                    batch,
                    self._offsets,
                    now_ms=self._now_ms,
                    delete_retention_ms=self._settings.delete_retention_ms,
                    retain_empty=is_last or is_last_of_producer(batch, self._producers),
                )
                changed = changed or left is not batch
                if left is not None:
                    parts += left.parts()
                    pending.append(left)
                seen += batch.size
                if seen >= _BYTES_PER_YIELD or is_last:
                    self._flush(cleaned, parts, pending)
                    seen = 0
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
