"""The cleaner: compacts groups of closed segments into new segment files, which then replace the old files.

Closed segments never change, and the cleaner writes only new files. So it runs concurrently with all other operations
until a new file is complete.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from moldau.logs.compaction import (
    OFFSET_MAP_BYTES_MAX,
    OffsetMap,
    TransactionOutcomes,
    clean_batch,
    is_last_of_producer,
    is_past_min_lag,
    should_compact,
)
from moldau.logs.files.file_names import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX
from moldau.logs.files.indexes import OFFSET_RANGE
from moldau.logs.files.recovery import delete_segment_files
from moldau.logs.files.scan import scan_batches
from moldau.logs.files.segment import LogSegment
from moldau.logs.transaction_index import TransactionIndex
from moldau.platform.disk import Buffer
from moldau.records.batch import Batch

if TYPE_CHECKING:
    from moldau.logs.files.log import FileLog

_BYTES_PER_YIELD = 256 * 1024
"""How many bytes the cleaner reads before it writes the result and yields to the event loop."""


class Cleaner:
    """One round of compaction of one log."""

    def __init__(self, log_: "FileLog", now_ms: int) -> None:
        self._log = log_
        self._settings = log_.settings
        self._now_ms = now_ms
        self._cleaned_offset = max(log_.checkpoints.cleaned_offsets.get(log_.name), log_.start_offset)
        self._truncations = log_.truncations
        self._segments: list[LogSegment] = []
        """The segments of this round."""
        self._offsets = OffsetMap(OFFSET_MAP_BYTES_MAX)
        self._outcomes = TransactionOutcomes()

    async def run(self, below: int) -> bool:
        """Compacts records with offsets less than `below`. Returns False if there was too little to clean, or if the
        log was truncated meanwhile."""
        log_, cleaned_offsets = self._log, self._log.checkpoints.cleaned_offsets
        if not await self._plan(min(below, log_.durable_offset)):
            return False
        # Checkpoint the recovery point before compaction creates gaps. Recovery expects no gaps in the segments that it
        # reads.
        async with log_.maintenance():
            await log_.checkpoint_recovery_point()
        for group in self._groups():
            cleaned = await self.clean(group)
            if cleaned is not None and not await self._swap(group, cleaned):
                return False
        async with log_.maintenance():
            if log_.truncations != self._truncations:
                return False
            cleaned_offsets.set(log_.name, self._offsets.end_offset)
            await cleaned_offsets.flush()
        return True

    async def _plan(self, below: int) -> bool:
        """Selects the segments to clean and maps the dirty keys. Returns False if too little of the log is dirty."""
        unfinalized = self._log.segments.unfinalized
        for segment in [each for each in self._log.segments.closed if each not in unfinalized]:
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
        total_bytes, dirty_bytes = (sum(segment.size for segment in each) for each in (self._segments, dirty))
        oldest_dirty_ms = next((segment.first_timestamp for segment in dirty if segment.size), self._now_ms)
        if not should_compact(self._settings, total_bytes, dirty_bytes, oldest_dirty_ms, self._now_ms):
            return False
        outcomes = TransactionOutcomes()
        for segment in dirty:
            self._add_aborted(outcomes, segment)
            bytes_read = 0
            position = segment.position_of(self._cleaned_offset)
            self._log.segments.cache_indexes(segment)
            for _, batch in scan_batches(segment.file, position, segment.size):
                if not self._offsets.add(batch, is_obsolete=outcomes.is_obsolete(batch)):
                    return True
                bytes_read += batch.size
                if bytes_read >= _BYTES_PER_YIELD:
                    bytes_read = 0
                    await asyncio.sleep(0)
        # An earlier round may have removed the last batches before this offset.
        self._offsets.end_offset = max(self._offsets.end_offset, dirty[-1].next_offset)
        return True

    def _add_aborted(self, outcomes: TransactionOutcomes, segment: LogSegment) -> None:
        outcomes.add_aborted(self._log.segments.aborted_transactions(segment.base_offset, segment.next_offset))

    def _groups(self) -> Iterator[list[LogSegment]]:
        """Yields groups of adjacent segments that fit into one segment, so that few small segments remain."""
        group: list[LogSegment] = []
        size = 0
        for segment in self._segments:
            if segment.base_offset >= self._offsets.end_offset:
                break
            if group and (
                size + segment.size > self._settings.segment_bytes
                or (segment.size and segment.next_offset - group[0].base_offset > OFFSET_RANGE)
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
        disk, suffix = self._log.disk, LOG_SUFFIX + CLEANED_SUFFIX
        cleaned = LogSegment(
            disk, self._log.directory, group[0].base_offset, self._settings.index_interval_bytes, file_suffix=suffix
        )
        self._outcomes.index = TransactionIndex()
        try:
            cleaned.clear()
            changed = await self._write(group, cleaned)
            if changed or len(group) > 1:
                await cleaned.file.sync()
                cleaned.seal()
                cleaned.next_offset = group[-1].next_offset
                cleaned.replace_transactions(self._outcomes.index)
                return cleaned
        except BaseException:
            disk.remove(cleaned.path(suffix))
            raise
        disk.remove(cleaned.path(suffix))
        return None

    async def _write(self, group: list[LogSegment], cleaned: LogSegment) -> bool:
        changed = False
        parts: list[Buffer] = []
        pending: list[Batch] = []
        bytes_read = 0
        for segment in group:
            self._add_aborted(self._outcomes, segment)
            for position, batch in scan_batches(segment.file, 0, segment.size):
                # Keep the last batch of the round, if necessary without records, because the log may end there.
                is_last = segment is self._segments[-1] and position + batch.size == segment.size
                remaining = clean_batch(
                    batch,
                    self._offsets,
                    now_ms=self._now_ms,
                    delete_retention_ms=self._settings.delete_retention_ms,
                    retain_empty=is_last or is_last_of_producer(batch, self._log.producers),
                    is_obsolete=self._outcomes.is_obsolete(batch),
                )
                changed = changed or remaining is not batch
                if remaining is not None:
                    parts += remaining.parts()
                    pending.append(remaining)
                bytes_read += batch.size
                if bytes_read >= _BYTES_PER_YIELD:
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

    async def _swap(self, group: list[LogSegment], cleaned: LogSegment) -> bool:
        """Replaces the group by the cleaned segment, in steps that recovery can complete after a crash.

        Returns False if the group was deleted, or if a truncation may have reopened one of its segments. Running reads
        continue with the old files.
        """
        log_, disk, directory = self._log, self._log.disk, self._log.directory
        swap = cleaned.path(LOG_SUFFIX + SWAP_SUFFIX)
        async with log_.maintenance():
            if log_.truncations != self._truncations or not log_.segments.has_group(group):
                disk.remove(cleaned.path(LOG_SUFFIX + CLEANED_SUFFIX))
                return False
            for segment in group:
                # Until `replace_group`, consumers of committed records read the old segments.
                segment.before_indexes_are_deleted()
            try:
                # This rename commits the swap. After a later crash, recovery completes it.
                disk.rename(cleaned.path(LOG_SUFFIX + CLEANED_SUFFIX), swap)
                await disk.sync_directory(directory)
            except OSError:
                try:
                    disk.remove(swap)
                except OSError as error:
                    log_.health.mark_offline(f"cannot remove {swap}: {error}")
                raise
            try:
                for segment in group:
                    delete_segment_files(disk, directory, segment.base_offset, indexes_only=segment is group[0])
                await disk.sync_directory(directory)
                disk.rename(swap, cleaned.path(LOG_SUFFIX))
                await disk.sync_directory(directory)
            except OSError as error:
                # Some old files may be deleted while the new file is not in place. Only recovery can complete the swap.
                log_.health.mark_offline(f"compacting {log_.name} failed: {error}")
                raise
            log_.segments.replace_group(group, cleaned)
            await cleaned.write_indexes()
            log_.segments.cache_indexes(cleaned)
        return True
