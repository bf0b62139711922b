"""A log in segment files."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from moldau.concurrency.tasks import run_uncancelled
from moldau.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from moldau.logs.files.checkpoints import Checkpoints
from moldau.logs.files.cleaner import Cleaner
from moldau.logs.files.file_names import LEADER_EPOCH_CHECKPOINT
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
from moldau.logs.files.retention import apply_retention, delete_segments_below
from moldau.logs.files.scan import read_batch, scan_headers
from moldau.logs.files.segment import LogSegment
from moldau.logs.files.segments import LogSegments, RollPolicy
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.producer_state import ProducerStateManager
from moldau.logs.store import (
    BATCHES_SKIPPED_MAX,
    EMPTY_SLICES,
    TRANSIENT_ERRNOS,
    BatchTime,
    Log,
    LogName,
    RecordSlices,
    TimestampAndOffset,
)
from moldau.logs.timestamp_lookup import first_record_at_or_after, max_timestamp_record
from moldau.logs.transaction_index import AbortedTransaction
from moldau.observe.logging import get_logger
from moldau.platform.disk import Buffer, Disk
from moldau.records.batch import TIMESTAMP_TYPE_MASK, Batch, is_data
from moldau.settings.topic import TopicSettings

log = get_logger(__name__)


class LogHealth:
    """Whether a log is online. Every disk error that is not transient takes it offline."""

    def __init__(self, name: LogName, directory: str) -> None:
        self._name = name
        self.directory = directory
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
        return StorageError(damage_message(self.directory, str(error)))

    def on_read_error(self, error: CorruptRecordError | OSError) -> StorageError:
        """Takes the log offline after a permanent disk error. Returns the error to raise."""
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
        self.disk = disk
        self.directory = directory
        self.checkpoints = checkpoints
        self.producer_expiration_ms = producer_expiration_ms
        self.segments = LogSegments(loaded.segments)
        self.health = LogHealth(name, directory)
        self._directory_changes = self._directory_changes_synced = 0
        """How many changes were made to the directory, and how many of these changes are durable."""
        self._truncation_change = 0
        """The value of `_directory_changes` after the last truncation."""
        self.truncations = 0
        """How many truncations have reached the point after which they cannot be undone."""
        self._is_epoch_checkpoint_stale = False
        """Whether a failed truncation may have removed epochs of this log from the leader epoch checkpoint. The
        checkpoint must then be written before the recovery point advances, because recovery restores epochs only from
        records after the recovery point."""
        self._maintenance_lock = asyncio.Lock()
        self.configure(settings)
        self._saved_state = self._state_key() if is_cleanly_closed else None
        """The `_state_key` after a clean open, otherwise None. If it is unchanged, `close` need not write any files."""

    def configure(self, settings: TopicSettings) -> None:
        self.settings = settings
        self.segments.active.index_interval_bytes = settings.index_interval_bytes
        self.roll_policy = RollPolicy(self.name, settings)

    @property
    def size(self) -> int:
        return self.segments.size

    @property
    def failure(self) -> str | None:
        return self.health.failure

    @property
    def checkpointed_high_watermark(self) -> int:
        return self.checkpoints.high_watermarks.get(self.name)

    @checkpointed_high_watermark.setter
    def checkpointed_high_watermark(self, offset: int) -> None:
        self.checkpoints.high_watermarks.set(self.name, offset)

    @asynccontextmanager
    async def maintenance(self) -> AsyncIterator[None]:
        """Held while files other than the active segment are added, removed or replaced.

        Raises StorageError if the log is offline, or if it is closed, because another log may then use the directory.
        """
        async with self._maintenance_lock:
            self.health.check()
            yield

    # Appending

    async def append(self, batches: Sequence[Batch]) -> None:
        if self.health.failure is not None:
            raise StorageError(self.health.failure)
        if not batches:
            return
        if self._directory_changes_synced < self._truncation_change:
            # Sync the deletion of truncated segments before the append, so that no power failure brings them back.
            await self._sync()
        last = batches[-1]
        parts: Sequence[Buffer]
        if len(batches) == 1:
            parts = last.parts()
            size = last.size
        else:
            parts = [part for batch in batches for part in batch.parts()]
            size = sum(batch.size for batch in batches)
        segment = self.segments.active
        if self.roll_policy.should_roll(segment, size, last):
            segment = self.roll(batches[0].base_offset, last.last_offset)
        position = segment.size
        try:
            segment.file.append(parts)
        except OSError as error:
            raise self._on_append_error(segment, error) from error
        for batch in batches:
            segment.register_batch(batch, position)
            position += batch.size
            if batch.producer_id >= 0:
                aborted = self.producers.update(batch)
                if aborted is not None:
                    segment.add_aborted_transaction(aborted)
            if batch.leader_epoch != self.epochs.latest:
                self.epochs.assign(batch.leader_epoch, batch.base_offset)
        self.end_offset = segment.next_offset

    def _on_append_error(self, segment: LogSegment, error: OSError) -> StorageError:
        try:
            segment.file.truncate(segment.size)
        except OSError as second:
            # Take the log offline, because recovery would delete all batches that follow a torn batch.
            self.health.mark_offline(f"cannot truncate the torn end of {self.name}: {second}")
        return self.health.on_disk_error("appending to", error)

    def roll(self, next_base: int, last_offset: int) -> LogSegment:
        """Closes the active segment and returns a new one for batches with offsets from next_base to last_offset.

        The base offset of the new segment is the end of the log. After a gap in the offsets that is so large that the
        segment's 32-bit relative offsets cannot reach last_offset, the base offset is next_base.
        """
        base_offset = self.end_offset
        if last_offset - base_offset > OFFSET_RANGE:
            base_offset = next_base
        closed = self.segments.active
        if base_offset == closed.base_offset:
            return closed
        try:
            segment = LogSegment(self.disk, self.directory, base_offset, self.settings.index_interval_bytes)
            segment.clear()
        except OSError as error:
            raise self.health.on_disk_error("rolling a segment of", error) from error
        self._directory_changes += 1
        closed.seal()
        closed.next_offset = base_offset
        closed.producer_snapshot = self.producers.snapshot()
        self.segments.add(segment)
        return segment

    # Flushing

    async def flush(self) -> None:
        self.health.check()
        if self.durable_offset < self.end_offset or self._directory_changes_synced < self._directory_changes:
            await self._sync()

    async def _sync(self) -> None:
        """Syncs all segments with unflushed batches, oldest first, then advances durable_offset."""
        end, truncations, changes = self.end_offset, self.truncations, self._directory_changes
        active = self.segments.active
        try:
            for segment in self.segments.unfinalized[:]:
                await segment.file.sync()
            await active.file.sync()
        except OSError as error:
            # The page cache may have dropped the data, and the next fsync would not report the loss.
            self.health.mark_offline(f"syncing {self.name} failed: {error}")
        self.health.check()
        if self._directory_changes_synced < changes:
            try:
                await self.disk.sync_directory(self.directory)
            except OSError as error:
                raise self.health.on_disk_error("syncing the directory of", error) from error
            self.health.check()
            self._directory_changes_synced = max(self._directory_changes_synced, changes)
        if self.truncations != truncations:
            await self._sync()
        elif end > self.durable_offset:
            self.durable_offset = end

    @property
    def has_unfinalized_segments(self) -> bool:
        return bool(self.segments.unfinalized)

    async def finalize_segments(self) -> None:
        async with self.maintenance():
            flushed = [each for each in self.segments.unfinalized if each.next_offset <= self.durable_offset]
            try:
                for segment in flushed:
                    await self._finalize(segment)
                    self.segments.unfinalized.remove(segment)
                    self.segments.cache_indexes(segment)
                await self.checkpoint_recovery_point()
            except OSError as error:
                failure = self.health.on_disk_error("writing an index of", error)
                self.health.check()
                # Do not raise the error, because the records are durable and the indexes can be rebuilt.
                log.warning("index was not written", log=str(self.name), reason=str(failure))

    async def flush_and_finalize(self) -> None:
        await self.flush()
        if self.has_unfinalized_segments:
            await self.finalize_segments()

    async def _finalize(self, segment: LogSegment) -> None:
        await segment.write_indexes()
        if segment.producer_snapshot is not None:
            await write_snapshot(self.disk, self.directory, segment.next_offset, segment.producer_snapshot)
            segment.producer_snapshot = None
        await self._checkpoint_leader_epochs()

    async def _checkpoint_leader_epochs(self, text: str | None = None) -> None:
        text = self.epochs.to_text() if text is None else text
        await self.disk.replace(f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}", text.encode())

    async def checkpoint_recovery_point(self, *, if_due: bool = False) -> None:
        """Checkpoints the offset below which all records are durable and all closed segments are finalized.

        With `if_due` the checkpoint file is written only if the last write is long ago.
        """
        if self._is_epoch_checkpoint_stale:
            await self._checkpoint_leader_epochs()
            self._is_epoch_checkpoint_stale = False
        recovery_point = self.durable_offset
        if self.segments.unfinalized:
            recovery_point = min(recovery_point, self.segments.unfinalized[0].base_offset)
        checkpoint = self.checkpoints.recovery_points
        checkpoint.set(self.name, recovery_point)
        if not if_due or checkpoint.is_due:
            await checkpoint.flush()

    # Reading

    async def read(
        self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True, skip_empty: bool = False
    ) -> RecordSlices:
        if offset >= below:
            return EMPTY_SLICES
        try:
            return self.segments.read(offset, bytes_max, below, min_one_batch, skip_empty)
        except (CorruptRecordError, OSError) as error:
            raise self.health.on_read_error(error) from error

    async def read_committed(
        self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True
    ) -> tuple[RecordSlices, Sequence[AbortedTransaction]]:
        if offset >= below:
            return EMPTY_SLICES, ()
        segments = self.segments
        try:
            records = segments.read(offset, bytes_max, below, min_one_batch, True)
            if not records.size or not any(segment.has_aborted_transactions for segment in segments):
                return records, ()
            # Do not suspend between the two, because compaction removes records together with their index entries.
            return records, segments.aborted_transactions(offset, segments.end_offset_of(records, below))
        except (CorruptRecordError, OSError) as error:
            raise self.health.on_read_error(error) from error

    async def offset_for_timestamp(self, timestamp_ms: int, below: int) -> TimestampAndOffset | None:
        try:
            for segment in self.segments.in_range(self.start_offset, below):
                segment.load_timestamps()
                if segment.max_timestamp < timestamp_ms:
                    continue
                since = segment.base_offset + segment.time_index.lookup(timestamp_ms)
                self.segments.cache_indexes(segment)
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
            raise self.health.on_read_error(error) from error
        return None

    async def max_timestamp(self, below: int) -> TimestampAndOffset | None:
        latest: TimestampAndOffset | None = None
        try:
            for segment in self.segments.in_range(self.start_offset, below):
                segment.load_timestamps()
                if latest is not None and segment.max_timestamp <= latest.timestamp_ms:
                    continue
                if segment.base_offset >= self.start_offset and segment.next_offset <= below:
                    # All records of the segment are in the range, so only the batch with max_timestamp has to be read.
                    since = segment.max_timestamp_offset
                    latest = _max_timestamp_in(segment, since, self.start_offset, below, latest)
                if latest is None or latest.timestamp_ms < segment.max_timestamp:
                    # Scan the whole segment. It is only partly in the range, or compaction has removed the records of
                    # the batch with max_timestamp.
                    latest = _max_timestamp_in(segment, self.start_offset, self.start_offset, below, latest)
                self.segments.cache_indexes(segment)
                await asyncio.sleep(0)
        except (CorruptRecordError, OSError) as error:
            raise self.health.on_read_error(error) from error
        return latest

    async def find_batch_time(self, offset: int, below: int) -> BatchTime | None:
        skipped = 0
        try:
            for segment in self.segments.in_range(offset, below):
                position = segment.position_of(offset)
                self.segments.cache_indexes(segment)
                for header in scan_headers(segment.file, position, segment.size):
                    if header.base_offset >= below:
                        return None
                    skipped += 1
                    if skipped > BATCHES_SKIPPED_MAX or is_data(header.attributes, header.count):
                        return BatchTime(
                            max(offset, header.base_offset),
                            header.max_timestamp,
                            bool(header.attributes & TIMESTAMP_TYPE_MASK),
                        )
                await asyncio.sleep(0)
        except (CorruptRecordError, OSError) as error:
            raise self.health.on_read_error(error) from error
        return None

    # Truncation

    async def truncate_to(self, offset: int) -> None:
        self.health.check()
        if offset < self.end_offset:
            await run_uncancelled(self._truncate(offset, is_full=False))

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        self.health.check()
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
        async with self.maintenance():
            truncations = self.truncations
            try:
                yield
            except (CorruptRecordError, OSError) as error:
                if self.truncations != truncations:
                    # The files may be only partly truncated, and only recovery can repair them.
                    self.health.mark_offline(f"truncating {self.name} failed: {error}")
                    raise StorageError(str(self.failure)) from error
                if isinstance(error, OSError):
                    raise self.health.on_disk_error("truncating", error) from error
                raise self.health.damage_error(error) from error

    async def _truncate_segments(self, offset: int) -> None:
        segments = self.segments
        keep = segments.count_up_to(offset)
        segment = segments[keep - 1]
        position = segment.position_of(offset)
        # The log ends after its last remaining batch, even if `offset` is higher (in a gap between batches), because a
        # restart would not restore a higher end offset.
        end = segment.next_offset_before(position)
        while position == 0 and keep > 1 and segments[keep - 2].last_batch_end < end:
            # Compaction has removed the batches before this segment.
            keep -= 1
            segment = segments[keep - 1]
            position, end = segment.size, segment.last_batch_end
        if end < self.start_offset:
            # The truncation removes the batch that contains the start offset, so no readable record remains.
            await self._reset(await self._reset_keeping_producers(self.start_offset, end))
            return
        # Lower the checkpoints before truncating. After a crash, recovery would otherwise treat the records as lost.
        await self.checkpoints.truncate(self.name, end)
        # Delete the snapshots before the records. After a crash, recovery would otherwise take the gap before the next
        # segment for one that compaction left. The write of the epochs syncs the directory.
        delete_snapshots_after(self.disk, self.directory, end)
        # Truncate the epochs before the records. In the other order, a crash could leave an epoch without records,
        # which would make this log look newer than it is. Recovery restores missing epochs from the records.
        self._is_epoch_checkpoint_stale = True
        await self._checkpoint_leader_epochs(self.epochs.text_below(end))
        self._is_epoch_checkpoint_stale = False
        self.truncations += 1
        self.epochs.truncate_from_end(end)
        removed = segments.truncate(keep)
        segment.truncate_to_position(position)
        await self._finish_truncation(segment, removed, end)

    async def _finish_truncation(self, active: LogSegment, removed: list[LogSegment], end: int) -> None:
        disk, directory = self.disk, self.directory
        active.producer_snapshot = None
        active.next_offset = end
        active.index_interval_bytes = self.settings.index_interval_bytes
        self.end_offset = end
        self.durable_offset = min(self.durable_offset, end)
        for segment in reversed(removed):
            delete_segment_files(disk, directory, segment.base_offset)
        active.before_indexes_are_deleted()
        delete_segment_files(disk, directory, active.base_offset, indexes_only=True)
        # Replace the producer state at once, because reads of committed records need the open transactions.
        producers = ProducerStateManager()
        high_watermark = self.checkpointed_high_watermark
        await rebuild_producer_state(disk, directory, self.segments, producers, end, high_watermark)
        self.producers.replace(producers)
        self._directory_changes += 1
        self._truncation_change = self._directory_changes
        try:
            await self._sync()
        except StorageError as error:
            self.health.check()
            # The truncation itself has succeeded. `append` syncs the directory before it writes.
            log.warning("directory was not synced yet", log=str(self.name), reason=str(error))

    async def _reset_keeping_producers(self, offset: int, end: int) -> LogReset:
        """Returns a reset to `offset` that keeps the producer state of the batches below `end`, because producers may
        resend their last batches."""
        producers = ProducerStateManager()
        high_watermark = self.checkpointed_high_watermark
        await rebuild_producer_state(self.disk, self.directory, self.segments, producers, end, high_watermark)
        snapshot = producers.snapshot() if len(producers) else None
        return LogReset(offset, snapshot, self.epochs.text_below(offset))

    async def _reset(self, reset: LogReset) -> None:
        """Deletes all records and starts the log at another offset. Running reads continue with the old files."""
        try:
            await write_reset_marker(self.disk, self.directory, reset)
        finally:
            if has_reset_marker(self.disk, self.directory):
                self.truncations += 1
        await reset_log(self.disk, self.directory, self.name, self.checkpoints, reset)
        offset = reset.offset
        segment = LogSegment(self.disk, self.directory, offset, self.settings.index_interval_bytes)
        segment.clear()
        self.truncations += 1
        self.segments.reset(segment)
        self.start_offset = self.end_offset = self.durable_offset = offset
        self._is_epoch_checkpoint_stale = False
        self.epochs.clear()
        for epoch, start in LeaderEpochCache.from_text(reset.epochs):
            self.epochs.assign(epoch, start)
        self.producers.rebuild(reset.producers, ())

    # The start offset and retention

    async def advance_start_offset(self, offset: int) -> None:
        self.health.check()
        if offset > self.end_offset:
            raise OffsetOutOfRangeError(f"{self.name} ends at {self.end_offset}, before {offset}")
        if offset <= self.start_offset:
            return
        if offset > self.durable_offset:
            # Flush before advancing, because after a crash the log must not end before its start offset.
            await self.flush()
        if offset == self.end_offset and self.segments.active.size:
            self.roll(offset, offset)
        start_offsets = self.checkpoints.start_offsets
        async with self.maintenance():
            try:
                start_offsets.set(self.name, offset)
                await start_offsets.flush()
            except OSError as error:
                start_offsets.set(self.name, self.start_offset)
                raise self.health.on_disk_error("advancing the start offset of", error) from error
        await delete_segments_below(self, offset)

    async def apply_retention(self, now_ms: int, below: int) -> None:
        self.health.check()
        try:
            await apply_retention(self, now_ms, below)
        except CorruptRecordError as error:
            raise self.health.damage_error(error) from error
        except (OSError, StorageError) as error:
            if isinstance(error, OSError):
                self.health.on_disk_error("writing a checkpoint of", error)
            self.health.check()
            log.warning("retention is postponed", log=str(self.name), reason=str(error))

    # Compaction

    async def compact(self, now_ms: int, below: int) -> bool:
        self.health.check()
        if "compact" not in self.settings.cleanup_policy:
            return False
        truncations = self.truncations
        try:
            return await Cleaner(self, now_ms).run(below)
        except CorruptRecordError as error:
            if self.truncations != truncations:
                # A truncation during the compaction caused the error, so the log is not damaged.
                return False
            raise self.health.damage_error(error) from error
        except OSError as error:
            failure = self.health.on_disk_error("compacting", error)
            self.health.check()
            log.warning("compaction is postponed", log=str(self.name), reason=str(failure))
            return False

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
        """Closes a log that is being deleted. Afterwards nothing accesses its directory."""
        async with self._maintenance_lock:
            self._mark_closed("is deleted")

    def _mark_closed(self, reason: str) -> None:
        """Makes all later calls fail. Each file is closed when its last reader has finished."""
        self.is_closed = True
        if self.health.failure is None:
            self.health.failure = f"{self.name} {reason}"
        for segment in self.segments:
            segment.file.close()

    def _state_key(self) -> tuple[int, ...]:
        return (
            self.end_offset,
            self.truncations,
            self._directory_changes,
            len(self.epochs),
            self.epochs.latest,
            self._is_epoch_checkpoint_stale,
        )

    async def _save(self) -> None:
        """Writes all indexes, snapshots and checkpoints, so that the next open needs no recovery."""
        await self._sync()
        segments = self.segments
        try:
            for segment in segments.unfinalized:
                await self._finalize(segment)
            segments.unfinalized = []
            segments.active.seal()
            await segments.active.write_indexes()
            await write_snapshot(self.disk, self.directory, self.end_offset, self.producers.snapshot())
            delete_old_snapshots(self.disk, self.directory, segments.base_offsets)
            await self._checkpoint_leader_epochs()
            await self.checkpoint_recovery_point()
        except OSError as error:
            self.health.mark_offline(f"closing {self.name} failed: {error}")
            raise StorageError(str(self.failure)) from error


def _max_timestamp_in(
    segment: LogSegment, since: int, start_offset: int, below: int, latest: TimestampAndOffset | None
) -> TimestampAndOffset | None:
    """Searches the batches from offset `since` to offset `below` (exclusive). Returns the first record with the largest
    timestamp, or `latest` if no record has a larger timestamp. Ignores records before `start_offset`."""
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
