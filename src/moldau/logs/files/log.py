"""A log in segment files."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from moldau.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from moldau.logs.files.checkpoints import Checkpoints
from moldau.logs.files.cleaner import Cleaner
from moldau.logs.files.file_names import CLEANED_SUFFIX, LEADER_EPOCH_CHECKPOINT, LOG_SUFFIX, SWAP_SUFFIX
from moldau.logs.files.indexes import OFFSET_RANGE
from moldau.logs.files.log_reset import LogReset, has_reset_marker, reset_log, write_reset_marker
from moldau.logs.files.recovery import (
    LoadedLog,
    damage_message,
    delete_old_snapshots,
    delete_segment_files,
    delete_snapshots_after,
    rebuild_producer_state,
    write_snapshot,
)
from moldau.logs.files.scan import read_batch
from moldau.logs.files.segment import LogSegment
from moldau.logs.files.segments import LogSegments, RollPolicy
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.producer_state import ProducerStateManager
from moldau.logs.store import EMPTY_SLICES, TRANSIENT_ERRNOS, Log, LogName, RecordSlices, TimestampAndOffset
from moldau.logs.timestamp_lookup import first_record_at_or_after, max_timestamp_record
from moldau.observe.logging import get_logger
from moldau.platform.disk import Buffer, Disk
from moldau.records.batch import Batch
from moldau.settings.topic import TopicSettings

log = get_logger(__name__)


async def run_uncancelled(work: Coroutine[Any, Any, None]) -> None:
    """Awaits the work until it ends, even if the caller is cancelled, because a truncation must not stop halfway."""
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


class LogHealth:
    """The health of a log. Every disk error that is not transient takes the log offline."""

    def __init__(self, name: LogName, directory: str) -> None:
        self._name = name
        self._directory = directory
        self.failure: str | None = None
        """Why the log is offline or closed; None if it is online."""

    def check(self) -> None:
        if self.failure is not None:
            raise StorageError(self.failure)

    def mark_offline(self, message: str) -> None:
        if self.failure is None:
            self.failure = message
            log.error("log is offline", log=str(self._name), reason=message)

    def on_disk_error(self, operation: str, error: OSError) -> StorageError:
        """Takes the log offline unless the error is transient. Returns the error to raise."""
        message = f"{operation} {self._name} failed: {error}"
        if error.errno not in TRANSIENT_ERRNOS:
            self.mark_offline(message)
        return StorageError(message)

    def damage_error(self, error: CorruptRecordError) -> StorageError:
        return StorageError(damage_message(self._directory, str(error)))

    def on_read_error(self, error: CorruptRecordError | OSError) -> StorageError:
        """Returns the error to raise after a failed read. Takes the log offline after a permanent disk error."""
        if isinstance(error, OSError):
            return self.on_disk_error("reading from", error)
        return self.damage_error(error)


class FileLog(Log):
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
        self.name = name
        self.topic_id = topic_id
        self.start_offset = loaded.start_offset
        self.end_offset = self.durable_offset = loaded.end_offset
        self.producers = loaded.producers
        self.epochs = loaded.epochs
        self.is_closed = False
        self.is_cleanly_closed = False
        """Whether the log was closed in a way that the next open needs no recovery."""
        self._disk = disk
        self._directory = directory
        self._checkpoints = checkpoints
        self._producer_expiration_ms = producer_expiration_ms
        self._segments = LogSegments(loaded.segments)
        self._health = LogHealth(name, directory)
        self._directory_changes = self._directory_changes_synced = 0
        """How many changes were made to the directory, and how many of these changes are durable."""
        self._truncation_change = 0
        """The value of `_directory_changes` after the last truncation."""
        self._truncations = 0
        """How many truncations have reached the point after which they cannot be undone."""
        self._is_epoch_checkpoint_stale = False
        """Whether a failed truncation may have written the leader epoch checkpoint, without the truncated epochs.
        Recovery restores these epochs from the records, as long as the recovery point is not advanced beyond the
        truncation offset."""
        self._maintenance_lock = asyncio.Lock()
        """Held while files other than the active segment are added, removed or replaced; see `_maintenance`."""
        self.configure(settings)
        self._saved_state = self._state_key() if is_cleanly_closed else None
        """The `_state_key` when indexes, snapshots and checkpoints were last written for the whole log, or None."""

    def configure(self, settings: TopicSettings) -> None:
        self.settings = settings
        self._segments.active.index_interval_bytes = settings.index_interval_bytes
        self._roll_policy = RollPolicy(self.name, settings)

    @property
    def size(self) -> int:
        return self._segments.size

    @property
    def failure(self) -> str | None:
        return self._health.failure

    @property
    def checkpointed_high_watermark(self) -> int:
        return self._checkpoints.high_watermarks.get(self.name)

    @checkpointed_high_watermark.setter
    def checkpointed_high_watermark(self, offset: int) -> None:
        self._checkpoints.high_watermarks.set(self.name, offset)

    @asynccontextmanager
    async def _maintenance(self) -> AsyncIterator[None]:
        """Allows one maintenance operation at a time.

        Raises StorageError if the log is offline or closed. After a close another log may use the same directory.
        """
        async with self._maintenance_lock:
            self._health.check()
            yield

    # Appending

    async def append(self, batches: Sequence[Batch]) -> None:
        if self._health.failure is not None:
            raise StorageError(self._health.failure)
        if not batches:
            return
        if self._directory_changes_synced < self._truncation_change:
            # Sync the directory first. Otherwise a power failure could bring truncated segments back, after the
            # batches that are appended now.
            await self._sync()
        last = batches[-1]
        parts: Sequence[Buffer]
        if len(batches) == 1:
            parts = last.parts()
            size = last.size
        else:
            parts = [part for batch in batches for part in batch.parts()]
            size = sum(batch.size for batch in batches)
        segment = self._segments.active
        if self._roll_policy.should_roll(segment, size, last):
            segment = self._roll(batches[0].base_offset, last.last_offset)
        position = segment.size
        try:
            segment.file.append(parts)
        except OSError as error:
            raise self._on_append_error(segment, error) from error
        for batch in batches:
            segment.register_batch(batch, position)
            position += batch.size
            if batch.producer_id >= 0:
                self.producers.update(batch)
            if batch.leader_epoch != self.epochs.latest:
                self.epochs.assign(batch.leader_epoch, batch.base_offset)
        self.end_offset = segment.next_offset

    def _on_append_error(self, segment: LogSegment, error: OSError) -> StorageError:
        try:
            segment.file.truncate(segment.size)
        except OSError as second:
            # Take the log offline, because nothing may be appended after a torn batch.
            self._health.mark_offline(f"cannot truncate the torn end of {self.name}: {second}")
        return self._health.on_disk_error("appending to", error)

    def _roll(self, next_base: int, last_offset: int) -> LogSegment:
        """Closes the active segment and returns a new one.

        The new segment starts at the end of the log, so that there is no gap between the segments.
        """
        base_offset = self.end_offset
        if last_offset - base_offset > OFFSET_RANGE:
            base_offset = next_base
        closed = self._segments.active
        if base_offset == closed.base_offset:
            return closed
        try:
            segment = LogSegment(self._disk, self._directory, base_offset, self.settings.index_interval_bytes)
            segment.clear()
        except OSError as error:
            raise self._health.on_disk_error("rolling a segment of", error) from error
        self._directory_changes += 1
        closed.seal()
        closed.next_offset = base_offset
        closed.producer_snapshot = self.producers.snapshot()
        self._segments.add(segment)
        return segment

    # Flushing

    async def flush(self) -> None:
        self._health.check()
        if self.durable_offset < self.end_offset or self._directory_changes_synced < self._directory_changes:
            await self._sync()

    async def _sync(self) -> None:
        """Syncs all segments with unflushed batches, oldest first, then advances durable_offset."""
        end, truncations, changes = self.end_offset, self._truncations, self._directory_changes
        active = self._segments.active
        try:
            for segment in self._segments.unfinalized[:]:
                await segment.file.sync()
            await active.file.sync()
        except OSError as error:
            # Take the log offline. The page cache may have dropped the data, and the next fsync would not report the
            # loss.
            self._health.mark_offline(f"syncing {self.name} failed: {error}")
        self._health.check()
        if self._directory_changes_synced < changes:
            try:
                await self._disk.sync_directory(self._directory)
            except OSError as error:
                raise self._health.on_disk_error("syncing the directory of", error) from error
            self._health.check()
            self._directory_changes_synced = max(self._directory_changes_synced, changes)
        if self._truncations != truncations:
            await self._sync()
        elif end > self.durable_offset:
            self.durable_offset = end

    @property
    def has_unfinalized_segments(self) -> bool:
        return bool(self._segments.unfinalized)

    async def finalize_segments(self) -> None:
        async with self._maintenance():
            unfinalized = self._segments.unfinalized
            flushed = [each for each in unfinalized if each.next_offset <= self.durable_offset]
            try:
                for segment in flushed:
                    await self._finalize(segment)
                    self._segments.unfinalized.remove(segment)
                    self._segments.cache_indexes(segment)
                await self._checkpoint_recovery_point()
            except OSError as error:
                failure = self._health.on_disk_error("writing an index of", error)
                self._health.check()
                # Do not raise the error, because the records are durable and the indexes can be rebuilt.
                log.warning("index was not written", log=str(self.name), reason=str(failure))

    async def _flush_and_finalize(self) -> None:
        await self.flush()
        if self.has_unfinalized_segments:
            await self.finalize_segments()

    async def _finalize(self, segment: LogSegment) -> None:
        await segment.write_indexes()
        if segment.producer_snapshot is not None:
            await write_snapshot(self._disk, self._directory, segment.next_offset, segment.producer_snapshot)
            segment.producer_snapshot = None
        await self._checkpoint_leader_epochs()

    async def _checkpoint_leader_epochs(self, text: str | None = None) -> None:
        text = self.epochs.to_text() if text is None else text
        await self._disk.replace(f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}", text.encode())

    async def _checkpoint_recovery_point(self, *, if_due: bool = False) -> None:
        """Checkpoints the offset below which all records are durable and all closed segments are finalized.

        With `if_due` the checkpoint file is written only if the last write is long ago.
        """
        if self._is_epoch_checkpoint_stale:
            await self._checkpoint_leader_epochs()
            self._is_epoch_checkpoint_stale = False
        recovery_point = self.durable_offset
        if self._segments.unfinalized:
            recovery_point = min(recovery_point, self._segments.unfinalized[0].base_offset)
        checkpoint = self._checkpoints.recovery_points
        checkpoint.set(self.name, recovery_point)
        if not if_due or checkpoint.is_due:
            await checkpoint.flush()

    # Reading

    async def read(self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True) -> RecordSlices:
        if offset >= below:
            return EMPTY_SLICES
        try:
            return self._segments.read(offset, bytes_max, below, min_one_batch)
        except (CorruptRecordError, OSError) as error:
            raise self._health.on_read_error(error) from error

    async def offset_for_timestamp(self, timestamp_ms: int, below: int) -> TimestampAndOffset | None:
        try:
            for segment in self._segments.in_range(self.start_offset, below):
                segment.load_timestamps()
                if segment.max_timestamp < timestamp_ms:
                    continue
                since = segment.base_offset + segment.time_index.lookup(timestamp_ms)
                if segment is not self._segments.active:
                    self._segments.cache_indexes(segment)
                for header in segment.headers(max(since, self.start_offset)):
                    if header.last_offset >= below:
                        return None
                    if header.max_timestamp >= timestamp_ms:
                        batch = read_batch(segment.file, header)
                        found = first_record_at_or_after(batch, timestamp_ms, self.start_offset)
                        if found is not None:
                            return found
                await asyncio.sleep(0)
        except (CorruptRecordError, OSError) as error:
            raise self._health.on_read_error(error) from error
        return None

    async def max_timestamp(self, below: int) -> TimestampAndOffset | None:
        latest: TimestampAndOffset | None = None
        try:
            for segment in self._segments.in_range(self.start_offset, below):
                segment.load_timestamps()
                if latest is not None and segment.max_timestamp <= latest.timestamp_ms:
                    continue
                if segment.base_offset >= self.start_offset and segment.next_offset <= below:
                    # All records of the segment are in the range, so the time index identifies the batch.
                    since = segment.max_timestamp_offset
                    latest = _max_timestamp_in(segment, since, self.start_offset, below, latest)
                if latest is None or latest.timestamp_ms < segment.max_timestamp:
                    # Scan the whole segment, because compaction may have removed the records of that batch.
                    latest = _max_timestamp_in(segment, self.start_offset, self.start_offset, below, latest)
                await asyncio.sleep(0)
        except (CorruptRecordError, OSError) as error:
            raise self._health.on_read_error(error) from error
        return latest

    # Truncation

    async def truncate_to(self, offset: int) -> None:
        self._health.check()
        if offset < self.end_offset:
            await run_uncancelled(self._truncate(offset, is_full=False))

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        self._health.check()
        await run_uncancelled(self._truncate(offset, is_full=True))

    async def _truncate(self, offset: int, *, is_full: bool) -> None:
        async with self._truncation():
            if is_full:
                await self._reset(LogReset(offset))
            elif offset < self.start_offset:
                await self._reset(await self._reset_keeping_producers(offset, offset))
            else:
                await self._truncate_segments(offset)

    @asynccontextmanager
    async def _truncation(self) -> AsyncIterator[None]:
        async with self._maintenance():
            truncations = self._truncations
            try:
                yield
            except (CorruptRecordError, OSError) as error:
                if self._truncations != truncations:
                    # Take the log offline, because the files are only partly truncated. Only recovery can repair
                    # them.
                    self._health.mark_offline(f"truncating {self.name} failed: {error}")
                    raise StorageError(str(self.failure)) from error
                if isinstance(error, OSError):
                    raise self._health.on_disk_error("truncating", error) from error
                raise self._health.damage_error(error) from error

    async def _truncate_segments(self, offset: int) -> None:
        segments = self._segments
        keep = segments.count_up_to(offset)
        segment = segments[keep - 1]
        position = segment.position_of(offset)
        # The new end offset is the end of the last batch that is kept. A higher end offset, in a gap between batches,
        # would be lost in a restart.
        end = segment.next_offset_before(position)
        if end < self.start_offset:
            # The batch with the start offset is truncated, so no readable record remains. Reset the log.
            await self._reset(await self._reset_keeping_producers(self.start_offset, end))
            return
        # Lower the checkpoints first. Otherwise recovery after a crash would treat the truncated records as lost.
        await self._checkpoints.truncate(self.name, end)
        # Truncate the epochs before the records. If a crash left an epoch without its records, this log would look
        # newer than it is. Records without their epoch are harmless, because recovery rebuilds epochs from records.
        self._is_epoch_checkpoint_stale = True
        await self._checkpoint_leader_epochs(self.epochs.text_below(end))
        self._is_epoch_checkpoint_stale = False
        self._truncations += 1
        self.epochs.truncate_from_end(end)
        removed = segments.truncate(keep)
        segment.truncate_to_position(position)
        await self._finish_truncation(segment, removed, end)

    async def _finish_truncation(self, active: LogSegment, removed: list[LogSegment], end: int) -> None:
        disk, directory = self._disk, self._directory
        active.producer_snapshot = None
        active.next_offset = end
        active.index_interval_bytes = self.settings.index_interval_bytes
        self.end_offset = end
        self.durable_offset = min(self.durable_offset, end)
        for segment in reversed(removed):
            delete_segment_files(disk, directory, segment.base_offset)
        delete_segment_files(disk, directory, active.base_offset, indexes_only=True)
        delete_snapshots_after(disk, directory, end)
        await rebuild_producer_state(disk, directory, self._segments, self.producers, end)
        self._directory_changes += 1
        self._truncation_change = self._directory_changes
        try:
            await self._sync()
        except StorageError as error:
            self._health.check()
            # The truncation itself has succeeded. `append` syncs the directory before it writes.
            log.warning("directory was not synced yet", log=str(self.name), reason=str(error))

    async def _reset_keeping_producers(self, offset: int, end: int) -> LogReset:
        """Returns a reset to `offset` that keeps the producer state of the batches below `end`.

        The reset deletes these batches. The producer state is kept, because producers may resend their last batches.
        """
        producers = ProducerStateManager()
        await rebuild_producer_state(self._disk, self._directory, self._segments, producers, end)
        snapshot = producers.snapshot() if len(producers) else None
        return LogReset(offset, snapshot, self.epochs.text_below(offset))

    async def _reset(self, reset: LogReset) -> None:
        """Deletes all records and starts the log at another offset. Running reads continue with the old files."""
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
        self._segments.reset(segment)
        self.start_offset = self.end_offset = self.durable_offset = offset
        self._is_epoch_checkpoint_stale = False
        self.epochs.clear()
        for epoch, start in LeaderEpochCache.from_text(reset.epochs):
            self.epochs.assign(epoch, start)
        self.producers.rebuild(reset.producers, ())

    # The start offset and retention

    async def advance_start_offset(self, offset: int) -> None:
        self._health.check()
        if offset > self.end_offset:
            raise OffsetOutOfRangeError(f"{self.name} ends at {self.end_offset}, before {offset}")
        if offset <= self.start_offset:
            return
        if offset > self.durable_offset:
            # Flush first, because after a crash the log must not end before its start offset.
            await self.flush()
        if offset == self.end_offset and self._segments.active.size:
            self._roll(offset, offset)
        start_offsets = self._checkpoints.start_offsets
        async with self._maintenance():
            try:
                start_offsets.set(self.name, offset)
                await start_offsets.flush()
            except OSError as error:
                start_offsets.set(self.name, self.start_offset)
                raise self._health.on_disk_error("advancing the start offset of", error) from error
        await self._apply_start_offset(offset)

    async def _apply_start_offset(self, offset: int) -> None:
        """Sets the start offset and deletes the segments below it."""
        segments = self._segments
        self.start_offset = offset
        self.epochs.truncate_from_start(offset)
        if segments.unfinalized:
            await self._flush_and_finalize()
        async with self._maintenance():
            try:
                while len(segments) > 1 and segments[1].base_offset <= offset:
                    if segments[0] in segments.unfinalized:
                        # Keep this segment, because its producer snapshot is not written yet. The last batches of its
                        # producers are stored nowhere else.
                        break
                    segment = segments.remove_first()
                    delete_segment_files(self._disk, self._directory, segment.base_offset)
                    delete_old_snapshots(self._disk, self._directory, segments.base_offsets)
                    # Sync after each segment. Otherwise a crash could bring back an older segment while a newer
                    # segment stays deleted.
                    await self._disk.sync_directory(self._directory)
            except OSError as error:
                raise self._health.on_disk_error("deleting from", error) from error

    async def apply_retention(self, now_ms: int, below: int) -> None:
        self._health.check()
        self.producers.expire(now_ms, self._producer_expiration_ms)
        segments = self._segments
        try:
            if segments.active.size and self._roll_policy.is_expired(segments.active, now_ms):
                self._try_to_roll()
            if "delete" in self.settings.cleanup_policy:
                start = await segments.retention_start_offset(self.settings, self.start_offset, now_ms, below)
                if start > self.start_offset:
                    if start == self.end_offset and segments.active.size and not self._try_to_roll():
                        start = max(self.start_offset, segments.active.base_offset)
                    await self._apply_start_offset(start)
            if len(segments) > 1 and segments[1].base_offset <= self.start_offset:
                # A crash or a full disk prevented the deletion of these segments.
                await self._apply_start_offset(self.start_offset)
            # Flush here, because nothing else flushes the log with write.caching.
            await self._flush_and_finalize()
            async with self._maintenance():
                for segment in segments.closed:
                    if segment.has_unwritten_indexes and segment not in segments.unfinalized:
                        await segment.write_indexes()
                await self._checkpoint_recovery_point(if_due=True)
        except CorruptRecordError as error:
            raise self._health.damage_error(error) from error
        except (OSError, StorageError) as error:
            if isinstance(error, OSError):
                self._health.on_disk_error("writing a checkpoint of", error)
            self._health.check()
            log.warning("retention is postponed", log=str(self.name), reason=str(error))

    def _try_to_roll(self) -> bool:
        """Rolls the active segment. Returns False if the disk is full; retention may free space."""
        try:
            self._roll(self.end_offset, self.end_offset)
        except StorageError as error:
            self._health.check()
            log.warning("segment was not rolled yet", log=str(self.name), reason=str(error))
            return False
        return True

    # Compaction

    async def compact(self, now_ms: int, below: int) -> bool:
        self._health.check()
        if "compact" not in self.settings.cleanup_policy:
            return False
        cleaned_offsets, truncations = self._checkpoints.cleaned_offsets, self._truncations
        closed = [each for each in self._segments.closed if each not in self._segments.unfinalized]
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
            # Checkpoint the recovery point before compaction creates gaps. Recovery expects no gaps in the segments
            # that it reads.
            async with self._maintenance():
                await self._checkpoint_recovery_point()
            for group in cleaner.groups():
                cleaned = await cleaner.clean(group)
                if cleaned is not None and not await self._swap(group, cleaned, truncations):
                    return False
            async with self._maintenance():
                if self._truncations != truncations:
                    return False
                cleaned_offsets.set(self.name, cleaner.end_offset)
                await cleaned_offsets.flush()
        except CorruptRecordError as error:
            if self._truncations != truncations:
                # A truncation during the compaction caused the error, so the log is not damaged.
                return False
            raise self._health.damage_error(error) from error
        except OSError as error:
            failure = self._health.on_disk_error("compacting", error)
            self._health.check()
            log.warning("compaction is postponed", log=str(self.name), reason=str(failure))
            return False
        return True

    async def _swap(self, group: list[LogSegment], cleaned: LogSegment, truncations: int) -> bool:
        """Replaces the group by the cleaned segment, in steps that recovery can complete after a crash.

        Returns False if the group was deleted, or if a truncation may have reopened one of its segments. Running reads
        continue with the old files.
        """
        disk, directory = self._disk, self._directory
        async with self._maintenance():
            if self._truncations != truncations or not self._segments.has_group(group):
                disk.remove(cleaned.path(LOG_SUFFIX + CLEANED_SUFFIX))
                return False
            await _rename_to_swap(disk, directory, cleaned, self._health)
            try:
                for segment in group:
                    delete_segment_files(disk, directory, segment.base_offset, indexes_only=segment is group[0])
                await disk.sync_directory(directory)
                disk.rename(cleaned.path(LOG_SUFFIX + SWAP_SUFFIX), cleaned.path(LOG_SUFFIX))
                await disk.sync_directory(directory)
            except OSError as error:
                # Take the log offline, because some old files are deleted and the new file is not in place. Recovery
                # completes the swap.
                self._health.mark_offline(f"compacting {self.name} failed: {error}")
                raise
            self._segments.replace_group(group, cleaned)
            await cleaned.write_indexes()
            self._segments.cache_indexes(cleaned)
        return True

    # Closing

    async def close(self) -> None:
        if self.is_closed:
            return
        async with self._maintenance_lock:
            if self.failure is None:
                if self._saved_state != self._state_key():
                    await self._save()
                self.is_cleanly_closed = True
            self._mark_closed("is closed")

    async def abandon(self) -> None:
        """Closes a log that is being deleted. When this method returns, nothing accesses its directory any more."""
        async with self._maintenance_lock:
            self._mark_closed("is deleted")

    def _mark_closed(self, reason: str) -> None:
        """Makes all later calls fail. Each file is closed when its last reader has finished."""
        self.is_closed = True
        if self._health.failure is None:
            self._health.failure = f"{self.name} {reason}"
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
        """Writes all indexes, snapshots and checkpoints, so that the next open needs no recovery."""
        await self._sync()
        segments = self._segments
        try:
            for segment in segments.unfinalized:
                await self._finalize(segment)
            segments.unfinalized = []
            segments.active.seal()
            await segments.active.write_indexes()
            await write_snapshot(self._disk, self._directory, self.end_offset, self.producers.snapshot())
            delete_old_snapshots(self._disk, self._directory, segments.base_offsets)
            await self._checkpoint_leader_epochs()
            await self._checkpoint_recovery_point()
        except OSError as error:
            self._health.mark_offline(f"closing {self.name} failed: {error}")
            raise StorageError(str(self.failure)) from error


def _max_timestamp_in(
    segment: LogSegment, since: int, start_offset: int, below: int, latest: TimestampAndOffset | None
) -> TimestampAndOffset | None:
    """Returns the first record from `since` on with the largest timestamp; `latest` if no record has a larger
    timestamp."""
    for header in segment.headers(since):
        if header.last_offset >= below:
            break
        if latest is None or header.max_timestamp > latest.timestamp_ms:
            found = max_timestamp_record(read_batch(segment.file, header), start_offset)
            if found is not None and (latest is None or found.timestamp_ms > latest.timestamp_ms):
                latest = found
        if latest is not None and latest.timestamp_ms == segment.max_timestamp:
            break
    return latest


async def _rename_to_swap(disk: Disk, directory: str, cleaned: LogSegment, health: LogHealth) -> None:
    """Commits a swap by renaming the cleaned file to .swap. Recovery completes a committed swap.

    After an error the swap is not committed, so the .swap file is removed.
    """
    swap = cleaned.path(LOG_SUFFIX + SWAP_SUFFIX)
    try:
        disk.rename(cleaned.path(LOG_SUFFIX + CLEANED_SUFFIX), swap)
        await disk.sync_directory(directory)
    except OSError:
        try:
            disk.remove(swap)
        except OSError as error:
            health.mark_offline(f"cannot remove {swap}: {error}")
        raise
