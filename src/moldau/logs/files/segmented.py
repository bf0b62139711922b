"""A log in segment files, the part every request goes through: appends, syncs and reads."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import crc32c

from moldau.errors import CorruptRecordError, StorageError
from moldau.logs.files.checkpoints import Checkpoints
from moldau.logs.files.file_names import LEADER_EPOCH_CHECKPOINT, SNAPSHOT_SUFFIX, segment_file_name
from moldau.logs.files.indexes import OFFSET_RANGE
from moldau.logs.files.recovery import LoadedLog, damage_message
from moldau.logs.files.scan import read_batch
from moldau.logs.files.segment import LogSegment
from moldau.logs.store import (
    EMPTY_SLICES,
    TRANSIENT_ERRNOS,
    FileSlice,
    Log,
    LogName,
    RecordSlices,
    TimestampAndOffset,
)
from moldau.logs.timestamp_lookup import first_record_at_or_after, max_timestamp_record
from moldau.observe.logging import get_logger
from moldau.platform.disk import Buffer, Disk
from moldau.records.batch import LOG_OVERHEAD, Batch
from moldau.settings.topic import TopicSettings

_INDEX_ENTRY_SIZE = 12
"""Of the larger of the two indexes."""

_SEGMENTS_WITH_INDEXES_MAX = 2
"""Closed segments whose indexes stay in memory after a read."""

log = get_logger(__name__)


class SegmentedLog(Log):
    def __init__(
        self,
        disk: Disk,
        directory: str,
        name: LogName,
        topic_id: UUID,
        settings: TopicSettings,
        checkpoints: Checkpoints,
        loaded: LoadedLog,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.start_offset = loaded.start_offset
        self.end_offset = self.durable_offset = loaded.end_offset
        self.producers = loaded.producers
        self.epochs = loaded.epochs
        self._disk = disk
        self._directory = directory
        self._checkpoints = checkpoints
        self._segments = loaded.segments
        """Ascending and never empty; the last one is the active segment."""
        self._base_offsets = [segment.base_offset for segment in self._segments]
        self._active = self._segments[-1]
        self._unfinalized: list[LogSegment] = []
        """Closed segments that are not known to be synced, or whose indexes are not in their files yet."""
        self._segments_with_indexes: list[LogSegment] = []
        self._directory_changes = self._directory_changes_synced = 0
        """How often a segment file was created, and how many of these are safe in the directory."""
        self._truncation_change = 0
        """As of which of these changes the segments are gone that the last truncation has dropped."""
        self._truncations = 0
        """How often the log was truncated, or begun to be: from there on there is no way back."""
        self._is_epoch_checkpoint_stale = False
        """Whether the file of epochs may be that of a truncation which did not come to pass. Recovery finds those that
        it lacks in the records, as long as the recovery point is where the truncation has put it."""
        self._failure: str | None = None
        self._maintenance_lock = asyncio.Lock()
        """Held by whatever adds, removes or exchanges files other than the active segment; see `_maintenance`."""
        self.configure(settings)

    def configure(self, settings: TopicSettings) -> None:
        self.settings = settings
        self._active.index_interval_bytes = settings.index_interval_bytes
        self._index_entries_max = max(1, settings.segment_index_bytes // _INDEX_ENTRY_SIZE)
        roll_ms = settings.segment_ms
        if "compact" in settings.cleanup_policy:
            roll_ms = min(roll_ms, settings.max_compaction_lag_ms)
        jitter_ms = min(settings.segment_jitter_ms, roll_ms)
        if jitter_ms:
            # Different for each log, and the same each time a run is repeated.
            roll_ms -= crc32c.crc32c(str(self.name).encode()) % jitter_ms
        self._roll_ms = roll_ms

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def failure(self) -> str | None:
        """Why the log is offline; None while it is not."""
        return self._failure

    @property
    def checkpointed_high_watermark(self) -> int:
        return self._checkpoints.high_watermarks.get(self.name)

    @checkpointed_high_watermark.setter
    def checkpointed_high_watermark(self, offset: int) -> None:
        self._checkpoints.high_watermarks.set(self.name, offset)

    # Failing

    def _check_online(self) -> None:
        if self._failure is not None:
            raise StorageError(self._failure)

    def _on_disk_error(self, doing: str, error: OSError) -> StorageError:
        """The log is offline from now on, unless the failure may pass."""
        message = f"{doing} {self.name} failed: {error}"
        if error.errno not in TRANSIENT_ERRNOS:
            self._mark_offline(message)
        return StorageError(message)

    def _mark_offline(self, message: str) -> None:
        if self._failure is None:
            self._failure = message
            log.error("log is offline", log=str(self.name), why=message)

    @asynccontextmanager
    async def _maintenance(self) -> AsyncIterator[None]:
        """One upkeep at a time, and none once the log is closed or deleted: its name may be another log's then."""
        async with self._maintenance_lock:
            self._check_online()
            yield

    # Appending

    async def append(self, batches: Sequence[Batch]) -> None:
        if self._failure is not None:
            raise StorageError(self._failure)
        if not batches:
            return
        if self._directory_changes_synced < self._truncation_change:
            # A power cut could bring segments back that were dropped, behind what is appended now.
            await self._sync()
        last = batches[-1]
        parts: Sequence[Buffer]
        if len(batches) == 1:
            parts = last.parts()
            size = last.size
        else:
            parts = [part for batch in batches for part in batch.parts()]
            size = sum(batch.size for batch in batches)
        segment = self._active
        if self._should_roll(segment, size, last):
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
            # Bytes of no batch at the end: nothing may come behind them.
            self._mark_offline(f"the torn end of {self.name} cannot be cut off: {second}")
        return self._on_disk_error("appending to", error)

    def _should_roll(self, segment: LogSegment, size: int, last: Batch) -> bool:
        if last.last_offset - segment.base_offset > OFFSET_RANGE:
            return True
        if not segment.size:
            return False
        return (
            segment.size + size > self.settings.segment_bytes
            or (segment.first_timestamp >= 0 and last.max_timestamp - segment.first_timestamp > self._roll_ms)
            or len(segment.offset_index) >= self._index_entries_max
        )

    def _roll(self, next_base: int, last_offset: int) -> LogSegment:
        """Closes the active segment; the new one begins at the log's end, so that segments leave no gaps."""
        base = self.end_offset
        if last_offset - base > OFFSET_RANGE:
            base = next_base
        closed = self._active
        if base == closed.base_offset:
            return closed
        try:
            segment = LogSegment(self._disk, self._directory, base, self.settings.index_interval_bytes)
            segment.clear()
        except OSError as error:
            raise self._on_disk_error("beginning a segment of", error) from error
        self._directory_changes += 1
        closed.seal()
        closed.next_offset = base
        closed.producer_snapshot = self.producers.snapshot()
        self._unfinalized.append(closed)
        self._segments.append(segment)
        self._base_offsets.append(base)
        self._active = segment
        return segment

    # Making durable

    async def flush(self) -> None:
        self._check_online()
        if self.durable_offset < self.end_offset or self._directory_changes_synced < self._directory_changes:
            await self._sync()

    async def _flush_and_finalize(self) -> None:
        """For those who are about to delete or compact closed segments."""
        await self.flush()
        if self.has_unfinalized_segments:
            await self.finalize_segments()

    async def _sync(self) -> None:
        """Syncs whatever may hold batches that are not safe yet, oldest first, then moves durable_offset."""
        end, cuts, names = self.end_offset, self._truncations, self._directory_changes
        active = self._active
        try:
            for segment in self._unfinalized[:]:
                await segment.file.sync()
            await active.file.sync()
        except OSError as error:
            # What was written may be gone from the page cache, and a second sync would not say so.
            self._mark_offline(f"syncing {self.name} failed: {error}")
        self._check_online()
        if self._directory_changes_synced < names:
            try:
                await self._disk.sync_directory(self._directory)
            except OSError as error:
                raise self._on_disk_error("syncing the directory of", error) from error
            self._check_online()
            self._directory_changes_synced = max(self._directory_changes_synced, names)
        if self._truncations != cuts:
            await self._sync()
        elif end > self.durable_offset:
            self.durable_offset = end

    @property
    def has_unfinalized_segments(self) -> bool:
        return bool(self._unfinalized)

    async def finalize_segments(self) -> None:
        """Writes what belongs beside closed segments that are synced; then recovery may skip them."""
        async with self._maintenance():
            synced = [each for each in self._unfinalized if each.next_offset <= self.durable_offset]
            try:
                for segment in synced:
                    await self._write_segment_metadata(segment)
                    self._unfinalized.remove(segment)
                    self._retain_indexes(segment)
                await self._checkpoint_recovery_point()
            except OSError as error:
                failure = self._on_disk_error("writing an index of", error)
                self._check_online()
                # The records are safe, and indexes can be made again: no reason to refuse anything.
                log.warning("index is not written", log=str(self.name), why=str(failure))

    async def _write_segment_metadata(self, segment: LogSegment) -> None:
        await segment.write_indexes()
        if segment.producer_snapshot is not None:
            await self._disk.replace(
                self._path(segment.next_offset, SNAPSHOT_SUFFIX), segment.producer_snapshot
            )
            segment.producer_snapshot = None
        await self._checkpoint_leader_epochs()

    async def _checkpoint_leader_epochs(self, text: str | None = None) -> None:
        text = self.epochs.to_text() if text is None else text
        await self._disk.replace(f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}", text.encode())

    async def _checkpoint_recovery_point(self, *, if_due: bool = False) -> None:
        """Durable, and with all indexes, snapshots and epochs of closed segments written."""
        if self._is_epoch_checkpoint_stale:
            await self._checkpoint_leader_epochs()
            self._is_epoch_checkpoint_stale = False
        point = self.durable_offset
        if self._unfinalized:
            point = min(point, self._unfinalized[0].base_offset)
        self._checkpoints.recovery_points.set(self.name, point)
        if not if_due or self._checkpoints.recovery_points.is_due:
            await self._checkpoints.recovery_points.flush()

    def _path(self, offset: int, suffix: str) -> str:
        return f"{self._directory}/{segment_file_name(offset, suffix)}"

    # Reading

    async def read(
        self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True
    ) -> RecordSlices:
        if offset >= below:
            return EMPTY_SLICES
        try:
            return self._read(offset, bytes_max, below, min_one_batch)
        except CorruptRecordError as error:
            raise StorageError(damage_message(self._directory, str(error))) from error
        except OSError as error:
            raise self._on_disk_error("reading from", error) from error

    def _read(self, offset: int, bytes_max: int, below: int, min_one_batch: bool) -> RecordSlices:
        segments = self._segments
        for number in range(max(0, bisect_right(self._base_offsets, offset) - 1), len(segments)):
            segment = segments[number]
            start = segment.position_of(offset)
            end = segment.size if below >= segment.next_offset else segment.position_of(below)
            if start < end:
                size = end - start
                if size > bytes_max:
                    size = self._size_within_limit(segment, start, bytes_max, min_one_batch)
                if segment is not self._active:
                    self._retain_indexes(segment)
                return RecordSlices((FileSlice(segment.file, start, size),), size) if size else EMPTY_SLICES
            if end < segment.size:
                break
        return EMPTY_SLICES

    def _size_within_limit(self, segment: LogSegment, start: int, bytes_max: int, min_one_batch: bool) -> int:
        """How many bytes to give of those from `start` on, of which there are more than bytes_max."""
        boundary = segment.batch_start_before(start + bytes_max)
        if boundary > start:
            return boundary - start
        length = segment.file.read(start + 8, 4)
        first_size = int.from_bytes(length, "big", signed=True) + LOG_OVERHEAD
        if first_size <= bytes_max:
            return bytes_max
        return first_size if min_one_batch else 0

    def _retain_indexes(self, segment: LogSegment) -> None:
        """Lets the indexes of closed segments that were not read lately go from memory."""
        warm = self._segments_with_indexes
        if segment in warm or not segment.has_loaded_indexes:
            return
        warm.append(segment)
        if len(warm) > _SEGMENTS_WITH_INDEXES_MAX:
            cold = warm.pop(0)
            if cold is not self._active and cold not in self._unfinalized:
                cold.drop_indexes()

    # Times

    async def offset_for_timestamp(self, timestamp_ms: int, below: int) -> TimestampAndOffset | None:
        try:
            for segment in self._segments_in_range(below):
                segment.load_timestamps()
                if segment.max_timestamp < timestamp_ms:
                    continue
                since = segment.base_offset + segment.time_index.lookup(timestamp_ms)
                if segment is not self._active:
                    self._retain_indexes(segment)
                for header in segment.headers(max(since, self.start_offset)):
                    if header.last_offset >= below:
                        return None
                    if header.max_timestamp >= timestamp_ms:
                        batch = read_batch(segment.file, header)
                        found = first_record_at_or_after(batch, timestamp_ms, self.start_offset)
                        if found is not None:
                            return found
                await asyncio.sleep(0)
        except CorruptRecordError as error:
            raise StorageError(damage_message(self._directory, str(error))) from error
        except OSError as error:
            raise self._on_disk_error("reading from", error) from error
        return None

    async def max_timestamp(self, below: int) -> TimestampAndOffset | None:
        newest: TimestampAndOffset | None = None
        try:
            for segment in self._segments_in_range(below):
                segment.load_timestamps()
                if newest is not None and segment.max_timestamp <= newest.timestamp_ms:
                    continue
                if segment.base_offset >= self.start_offset and segment.next_offset <= below:
                    # All of it counts, so the batch that its indexes name is the one.
                    newest = self._max_timestamp_record(segment, segment.max_timestamp_offset, below, newest)
                if newest is None or newest.timestamp_ms < segment.max_timestamp:
                    # Unless compaction has emptied that batch.
                    newest = self._max_timestamp_record(segment, self.start_offset, below, newest)
                await asyncio.sleep(0)
        except CorruptRecordError as error:
            raise StorageError(damage_message(self._directory, str(error))) from error
        except OSError as error:
            raise self._on_disk_error("reading from", error) from error
        return newest

    def _max_timestamp_record(
        self, segment: LogSegment, since: int, below: int, newest: TimestampAndOffset | None
    ) -> TimestampAndOffset | None:
        """`newest`, or the first record of the segment, from `since` on, that is newer than all others."""
        for header in segment.headers(since):
            if header.last_offset >= below:
                break
            if newest is None or header.max_timestamp > newest.timestamp_ms:
                found = max_timestamp_record(read_batch(segment.file, header), self.start_offset)
                if found is not None and (newest is None or found.timestamp_ms > newest.timestamp_ms):
                    newest = found
            if newest is not None and newest.timestamp_ms == segment.max_timestamp:
                break
        return newest

    def _segments_in_range(self, below: int) -> list[LogSegment]:
        """The segments that have offsets from the log's start on and before `below`."""
        first = max(0, bisect_right(self._base_offsets, self.start_offset) - 1)
        return [segment for segment in self._segments[first:] if segment.base_offset < below]
