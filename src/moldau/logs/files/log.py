"""A log in files, whole: beside appends and reads, how it is truncated, kept small, compacted and closed."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from moldau.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from moldau.logs.files.checkpoints import Checkpoints
from moldau.logs.files.cleaner import Cleaner
from moldau.logs.files.file_names import CLEANED_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, SWAP_SUFFIX
from moldau.logs.files.log_reset import LogReset, has_reset_marker, reset_log, write_reset_marker
from moldau.logs.files.recovery import (
    LoadedLog,
    damage_message,
    delete_segment_files,
    list_snapshots,
    rebuild_producer_state,
)
from moldau.logs.files.segment import LogSegment
from moldau.logs.files.segmented import SegmentedLog
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.producer_state import ProducerStateManager
from moldau.logs.store import LogName
from moldau.observe.logging import get_logger
from moldau.platform.disk import Disk
from moldau.settings.topic import TopicSettings

log = get_logger(__name__)


async def run_uncancelled(work: Coroutine[Any, Any, None]) -> None:
    """Waits for the work, and still does when cancelled: half a truncation would be neither log nor the other."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break
    if cancelled is not None and not task.cancelled() and task.exception() is None:
        raise cancelled
    task.result()


class FileLog(SegmentedLog):
    def __init__(
        self,
        disk: Disk,
        directory: str,
        name: LogName,
        topic_id: UUID,
        settings: TopicSettings,
        checkpoints: Checkpoints,
        loaded: LoadedLog,
        *,
        producer_expiration_ms: int,
        is_cleanly_closed: bool,
    ) -> None:
        super().__init__(disk, directory, name, topic_id, settings, checkpoints, loaded)
        self._producer_expiration_ms = producer_expiration_ms
        self._saved_state = self._state_key() if is_cleanly_closed else None
        """What the log looked like when all files beside its segments were last written."""
        self.is_closed = False
        self.is_cleanly_closed = False
        """Closed so that the next opening finds everything without reading batches."""

    # Truncating

    async def truncate_to(self, offset: int) -> None:
        self._check_online()
        if offset < self.end_offset:
            await run_uncancelled(self._truncate_to(offset))

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        self._check_online()
        await run_uncancelled(self._truncate_fully(offset))

    async def _truncate_to(self, offset: int) -> None:
        async with self._truncation():
            if offset < self.start_offset:
                await self._reset(await self._reset_keeping_producers(offset, offset))
            else:
                await self._truncate_segments(offset)

    async def _truncate_fully(self, offset: int) -> None:
        async with self._truncation():
            await self._reset(LogReset(offset))

    @asynccontextmanager
    async def _truncation(self) -> AsyncIterator[None]:
        async with self._maintenance():
            cuts = self._truncations
            try:
                yield
            except (CorruptRecordError, OSError) as error:
                if self._truncations != cuts:
                    # Half truncated: only a restart can tell what is there.
                    self._mark_offline(f"truncating {self.name} failed: {error}")
                    raise StorageError(str(self._failure)) from error
                if isinstance(error, OSError):
                    raise self._on_disk_error("truncating", error) from error
                raise StorageError(damage_message(self._directory, str(error))) from error

    async def _truncate_segments(self, offset: int) -> None:
        keep = bisect_right(self._base_offsets, offset)
        segment = self._segments[keep - 1]
        position = segment.position_of(offset)
        # The log ends behind its last batch, which may be before what was asked for: a batch goes as a
        # whole, and after a restart nothing would tell of an end inside a gap.
        end = segment.next_offset_before(position)
        if end < self.start_offset:
            # The batch that the log begins in goes, and with it all that could be read.
            await self._reset(await self._reset_keeping_producers(self.start_offset, end))
            return
        # Before anything goes, or a crash in between would look like acknowledged records lost.
        await self._checkpoints.truncate(self.name, end)
        # Before any record goes: an epoch must not outlive its records, or this log would pass for a newer one.
        # One that a crash leaves with its records is found in them again.
        self._is_epoch_checkpoint_stale = True
        await self._checkpoint_leader_epochs(self._leader_epochs_below(end))
        self._is_epoch_checkpoint_stale = False
        self._truncations += 1
        self.epochs.truncate_from_end(end)
        dropped = self._segments[keep:]
        del self._segments[keep:], self._base_offsets[keep:]
        segment.truncate_to_position(position)
        await self._finish_truncation(segment, dropped, end)

    async def _reset_keeping_producers(self, offset: int, end: int) -> LogReset:
        """A log that begins at `offset` and has no records. Of producers it knows what they wrote below `end`, which
        may be the only trace of it: they might send it again."""
        producers = ProducerStateManager()
        await rebuild_producer_state(self._disk, self._directory, self._segments, producers, end)
        snapshot = producers.snapshot() if len(producers) else None
        return LogReset(offset, snapshot, self._leader_epochs_below(offset))

    def _leader_epochs_below(self, offset: int) -> str:
        epochs = LeaderEpochCache.from_text(self.epochs.to_text())
        epochs.truncate_from_end(offset)
        return epochs.to_text()

    async def _reset(self, reset: LogReset) -> None:
        """Reads go on in the old files until the new ones are in place."""
        try:
            await write_reset_marker(self._disk, self._directory, reset)
        finally:
            if has_reset_marker(self._disk, self._directory):
                self._truncations += 1
        await reset_log(self._disk, self._directory, self.name, self._checkpoints, reset)
        offset = reset.offset
        segment = LogSegment(self._disk, self._directory, offset, self.settings.index_interval_bytes)
        segment.clear()
        self._truncations += 1
        self._segments[:] = [segment]
        self._base_offsets[:] = [offset]
        self._active = segment
        self._unfinalized = []
        self._segments_with_indexes = []
        self.start_offset = self.end_offset = self.durable_offset = offset
        self._is_epoch_checkpoint_stale = False
        self.epochs.clear()
        for epoch, start in LeaderEpochCache.from_text(reset.epochs):
            self.epochs.assign(epoch, start)
        self.producers.rebuild(reset.producers, ())

    async def _finish_truncation(self, active: LogSegment, dropped: list[LogSegment], end: int) -> None:
        self._active = active
        active.producer_snapshot = None
        active.next_offset = end
        active.index_interval_bytes = self.settings.index_interval_bytes
        self._unfinalized = [segment for segment in self._unfinalized if segment in self._segments[:-1]]
        self._segments_with_indexes = []
        self.end_offset = end
        self.durable_offset = min(self.durable_offset, end)
        for segment in reversed(dropped):
            delete_segment_files(self._disk, self._directory, segment.base_offset)
        delete_segment_files(self._disk, self._directory, active.base_offset, indexes_only=True)
        for offset in list_snapshots(self._disk, self._directory):
            if offset > end:
                self._disk.remove(self._path(offset, SNAPSHOT_SUFFIX))
        await rebuild_producer_state(self._disk, self._directory, self._segments, self.producers, end)
        self._directory_changes += 1
        self._truncation_change = self._directory_changes
        try:
            await self._sync()
        except StorageError as error:
            self._check_online()
            # The log is cut all the same. It is synced before anything is appended to it.
            log.warning("directory is not synced yet", log=str(self.name), why=str(error))

    # Moving the start

    async def advance_start_offset(self, offset: int) -> None:
        self._check_online()
        if offset > self.end_offset:
            raise OffsetOutOfRangeError(f"{self.name} ends at {self.end_offset}, before {offset}")
        if offset <= self.start_offset:
            return
        if offset > self.durable_offset:
            # A crash must not leave a log that ends before it begins.
            await self.flush()
        if offset == self.end_offset and self._active.size:
            self._roll(offset, offset)
        starts = self._checkpoints.start_offsets
        async with self._maintenance():
            try:
                starts.set(self.name, offset)
                await starts.flush()
            except OSError as error:
                starts.set(self.name, self.start_offset)
                raise self._on_disk_error("moving the start of", error) from error
        await self._apply_start_offset(offset)

    async def _apply_start_offset(self, offset: int) -> None:
        self.start_offset = offset
        self.epochs.truncate_from_start(offset)
        if self._unfinalized:
            await self._flush_and_finalize()
        async with self._maintenance():
            try:
                while len(self._base_offsets) > 1 and self._base_offsets[1] <= offset:
                    if self._segments[0] in self._unfinalized:
                        # Producers' last batches may be in there and nowhere else yet.
                        break
                    await self._delete_oldest_segment()
            except OSError as error:
                raise self._on_disk_error("deleting from", error) from error

    async def _delete_oldest_segment(self) -> None:
        """Syncs each time: a crash must not bring an older segment back than one it left deleted."""
        segment = self._segments.pop(0)
        self._base_offsets.pop(0)
        if segment in self._segments_with_indexes:
            self._segments_with_indexes.remove(segment)
        delete_segment_files(self._disk, self._directory, segment.base_offset)
        self._delete_old_snapshots()
        await self._disk.sync_directory(self._directory)

    def _delete_old_snapshots(self) -> None:
        """Keeps those that a segment begins at, and the newest."""
        for offset in list_snapshots(self._disk, self._directory)[:-1]:
            if offset not in self._base_offsets:
                self._disk.remove(self._path(offset, SNAPSHOT_SUFFIX))

    # Retention

    async def apply_retention(self, now_ms: int, below: int) -> None:
        self._check_online()
        self.producers.expire(now_ms, self._producer_expiration_ms)
        try:
            first_ms = self._active.first_timestamp
            if self._active.size and first_ms >= 0 and now_ms - first_ms > self._roll_ms:
                self._try_to_roll()
            if "delete" in self.settings.cleanup_policy:
                start = await self._retention_start_offset(now_ms, below)
                if start > self.start_offset:
                    if start == self.end_offset and self._active.size and not self._try_to_roll():
                        start = max(self.start_offset, self._active.base_offset)
                    await self._apply_start_offset(start)
            if len(self._base_offsets) > 1 and self._base_offsets[1] <= self.start_offset:
                # Segments below the start that a crash or a full disk kept from being deleted.
                await self._apply_start_offset(self.start_offset)
            # Where nobody waits for syncs (write.caching), this is when they happen.
            await self._flush_and_finalize()
            async with self._maintenance():
                for segment in self._segments[:-1]:
                    if segment.has_unwritten_indexes and segment not in self._unfinalized:
                        await segment.write_indexes()
                await self._checkpoint_recovery_point(if_due=True)
        except CorruptRecordError as error:
            raise StorageError(damage_message(self._directory, str(error))) from error
        except (OSError, StorageError) as error:
            if isinstance(error, OSError):
                self._on_disk_error("writing a checkpoint of", error)
            self._check_online()
            log.warning("retention is put off", log=str(self.name), why=str(error))

    def _try_to_roll(self) -> bool:
        """False where there is no room for another segment: what retention deletes may make some."""
        try:
            self._roll(self.end_offset, self.end_offset)
        except StorageError as error:
            self._check_online()
            log.warning("segment is not closed yet", log=str(self.name), why=str(error))
            return False
        return True

    async def _retention_start_offset(self, now_ms: int, below: int) -> int:
        """The end of the last segment, counted from the oldest, that retention takes."""
        settings = self.settings
        start, size = self.start_offset, self.size
        for segment in self._segments[:]:
            if not segment.size or segment.next_offset > below:
                break
            segment.load_timestamps()
            # A segment without any timestamp is never too old, for there is nothing to tell its age by.
            age_ms = now_ms - segment.max_timestamp if segment.max_timestamp >= 0 else -1
            too_old = 0 <= settings.retention_ms < age_ms
            too_much = 0 <= settings.retention_bytes <= size - segment.size
            if not (too_old or too_much):
                break
            start = segment.next_offset
            size -= segment.size
            await asyncio.sleep(0)
        return start

    # Compaction

    async def compact(self, now_ms: int, below: int) -> bool:
        self._check_online()
        if "compact" not in self.settings.cleanup_policy:
            return False
        cleaned_offsets, cuts = self._checkpoints.cleaned_offsets, self._truncations
        closed = [segment for segment in self._segments[:-1] if segment not in self._unfinalized]
        cleaner = Cleaner(
            self._disk,
            self._directory,
            self.settings,
            self.producers,
            now_ms=now_ms,
            cleaned_offset=max(cleaned_offsets.get(self.name), self.start_offset),
        )
        try:
            if not await cleaner.plan(closed, min(below, self.durable_offset)):
                return False
            # Recovery expects of what it has to read that nothing is missing in it.
            async with self._maintenance():
                await self._checkpoint_recovery_point()
            for group in cleaner.groups():
                cleaned = await cleaner.clean(group)
                if cleaned is not None and not await self._swap(group, cleaned, cuts):
                    return False
            async with self._maintenance():
                if self._truncations != cuts:
                    return False
                cleaned_offsets.set(self.name, cleaner.end_offset)
                await cleaned_offsets.flush()
        except CorruptRecordError as error:
            if self._truncations != cuts:
                # What was being read is no longer there.
                return False
            raise StorageError(damage_message(self._directory, str(error))) from error
        except OSError as error:
            failure = self._on_disk_error("compacting", error)
            self._check_online()
            log.warning("compaction is put off", log=str(self.name), why=str(failure))
            return False
        return True

    async def _swap(self, group: list[LogSegment], cleaned: LogSegment, cuts: int) -> bool:
        """Puts the cleaned segment in the place of its group, in steps of which recovery can finish each.

        False if the group is no longer what it was: deleted meanwhile, or the log was truncated, which may have
        opened a segment of it again for appends. Reads under way keep the old files.
        """
        disk, directory = self._disk, self._directory
        async with self._maintenance():
            first = bisect_right(self._base_offsets, group[0].base_offset) - 1
            if self._truncations != cuts or self._segments[first : first + len(group)] != group:
                disk.remove(cleaned.path(LOG_SUFFIX + CLEANED_SUFFIX))
                return False
            await self._rename_to_swap(cleaned)
            try:
                for segment in group:
                    delete_segment_files(
                        disk, directory, segment.base_offset, indexes_only=segment is group[0]
                    )
                await disk.sync_directory(directory)
                disk.rename(cleaned.path(LOG_SUFFIX + SWAP_SUFFIX), cleaned.path(LOG_SUFFIX))
                await disk.sync_directory(directory)
            except OSError as error:
                # Half of the old files are gone and the new one is not in place: recovery finishes it.
                self._mark_offline(f"compacting {self.name} failed: {error}")
                raise
            self._segments[first : first + len(group)] = [cleaned]
            self._base_offsets[first : first + len(group)] = [cleaned.base_offset]
            self._segments_with_indexes = [
                segment for segment in self._segments_with_indexes if segment not in group
            ]
            await cleaned.write_indexes()
            self._retain_indexes(cleaned)
        return True

    async def _rename_to_swap(self, cleaned: LogSegment) -> None:
        """From here on recovery finishes the swap; before, nothing may be left that it would take for one."""
        swap = cleaned.path(LOG_SUFFIX + SWAP_SUFFIX)
        try:
            self._disk.rename(cleaned.path(LOG_SUFFIX + CLEANED_SUFFIX), swap)
            await self._disk.sync_directory(self._directory)
        except OSError:
            try:
                self._disk.remove(swap)
            except OSError as error:
                self._mark_offline(f"{swap} cannot be removed: {error}")
            raise

    # Closing

    async def close(self) -> None:
        if self.is_closed:
            return
        async with self._maintenance_lock:
            if self._failure is None:
                if self._saved_state != self._state_key():
                    await self._save()
                self.is_cleanly_closed = True
            self._mark_closed("is closed")

    async def abandon(self) -> None:
        """For a log that is deleted: returns when nothing of it touches its directory any more."""
        async with self._maintenance_lock:
            self._mark_closed("is deleted")

    def _mark_closed(self, why: str) -> None:
        """Refuses everything from now on. Files close when the last reader lets go of them."""
        self.is_closed = True
        if self._failure is None:
            self._failure = f"{self.name} {why}"
        for segment in self._segments:
            segment.file.close()

    def _state_key(self) -> tuple[int, ...]:
        return (
            self.end_offset,
            self._truncations,
            self._directory_changes,
            len(self.epochs),
            self.epochs.latest,
            self._is_epoch_checkpoint_stale,
        )

    async def _save(self) -> None:
        """Leaves everything on disk that opening needs, so that no batch has to be read again."""
        await self._sync()
        try:
            for segment in self._unfinalized:
                await self._write_segment_metadata(segment)
            self._unfinalized = []
            self._active.seal()
            await self._active.write_indexes()
            await self._disk.replace(self._path(self.end_offset, SNAPSHOT_SUFFIX), self.producers.snapshot())
            self._delete_old_snapshots()
            await self._checkpoint_leader_epochs()
            await self._checkpoint_recovery_point()
        except OSError as error:
            self._mark_offline(f"closing {self.name} failed: {error}")
            raise StorageError(str(self._failure)) from error
