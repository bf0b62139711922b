"""A log in segment files, the part every request goes through: appends, syncs and reads."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import crc32c

from moldau.errors import CorruptRecordError, StorageError
from moldau.logs.files.checkpoints import Checkpoints
from moldau.logs.files.indexes import OFFSET_RANGE
from moldau.logs.files.names import EPOCHS, SNAPSHOT, offset_name
from moldau.logs.files.recovery import Recovered, damage
from moldau.logs.files.scan import read_batch
from moldau.logs.files.segment import Segment
from moldau.logs.store import NOTHING, PASSING, FileSlice, Log, LogName, Slices, TimeAndOffset
from moldau.logs.times import first_record_since, newest_record
from moldau.observe.logging import get_logger
from moldau.platform.disk import Buffer, Disk
from moldau.records.batch import LOG_OVERHEAD, Batch
from moldau.settings.topic import TopicSettings

_INDEX_ENTRY_SIZE = 12
"""Of the larger of the two indexes."""

_WARM_MAX = 2
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
        recovered: Recovered,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.start_offset = recovered.start_offset
        self.end_offset = self.durable_offset = recovered.end_offset
        self.producers = recovered.producers
        self.epochs = recovered.epochs
        self._disk = disk
        self._directory = directory
        self._checkpoints = checkpoints
        self._segments = recovered.segments
        """Ascending and never empty; the last one is the active segment."""
        self._bases = [segment.base_offset for segment in self._segments]
        self._active = self._segments[-1]
        self._unsettled: list[Segment] = []
        """Closed segments that are not known to be synced, or whose indexes are not in their files yet."""
        self._warm: list[Segment] = []
        self._names_changed = self._names_synced = 0
        """How often a segment file was created, and how many of these are safe in the directory."""
        self._names_cut = 0
        """As of which of these changes the segments are gone that the last truncation has dropped."""
        self._cuts = 0
        """How often the log was truncated, or begun to be: from there on there is no way back."""
        self._lacks_epochs = False
        """Whether the file of epochs may be that of a truncation which did not come to pass. Recovery finds those that
        it lacks in the records, as long as the recovery point is where the truncation has put it."""
        self._failure: str | None = None
        self._upkeep = asyncio.Lock()
        """Held by whatever adds, removes or exchanges files other than the active segment; see `_keeping`."""
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
    def saved_high_watermark(self) -> int:
        return self._checkpoints.high_watermarks.get(self.name)

    @saved_high_watermark.setter
    def saved_high_watermark(self, offset: int) -> None:
        self._checkpoints.high_watermarks.set(self.name, offset)

    # Failing

    def _check(self) -> None:
        if self._failure is not None:
            raise StorageError(self._failure)

    def _fail(self, doing: str, error: OSError) -> StorageError:
        """The log is offline from now on, unless the failure may pass."""
        message = f"{doing} {self.name} failed: {error}"
        if error.errno not in PASSING:
            self._go_offline(message)
        return StorageError(message)

    def _go_offline(self, message: str) -> None:
        if self._failure is None:
            self._failure = message
            log.error("log is offline", log=str(self.name), why=message)

    @asynccontextmanager
    async def _keeping(self) -> AsyncIterator[None]:
        """One upkeep at a time, and none once the log is closed or deleted: its name may be another log's then."""
        async with self._upkeep:
            self._check()
            yield

    # Appending

    async def append(self, batches: Sequence[Batch]) -> None:
        if self._failure is not None:
            raise StorageError(self._failure)
        if not batches:
            return
        if self._names_synced < self._names_cut:
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
        if self._must_roll(segment, size, last):
            segment = self._roll(batches[0].base_offset, last.last_offset)
        position = segment.size
        try:
            segment.file.append(parts)
        except OSError as error:
            raise self._append_failed(segment, error) from error
        for batch in batches:
            segment.note(batch, position)
            position += batch.size
            if batch.producer_id >= 0:
                self.producers.update(batch)
            if batch.leader_epoch != self.epochs.latest:
                self.epochs.assign(batch.leader_epoch, batch.base_offset)
        self.end_offset = segment.next_offset

    def _append_failed(self, segment: Segment, error: OSError) -> StorageError:
        try:
            segment.file.truncate(segment.size)
        except OSError as second:
            # Bytes of no batch at the end: nothing may come behind them.
            self._go_offline(f"the torn end of {self.name} cannot be cut off: {second}")
        return self._fail("appending to", error)

    def _must_roll(self, segment: Segment, size: int, last: Batch) -> bool:
        if last.last_offset - segment.base_offset > OFFSET_RANGE:
            return True
        if not segment.size:
            return False
        return (
            segment.size + size > self.settings.segment_bytes
            or (segment.first_timestamp >= 0 and last.max_timestamp - segment.first_timestamp > self._roll_ms)
            or len(segment.index) >= self._index_entries_max
        )

    def _roll(self, next_base: int, last_offset: int) -> Segment:
        """Closes the active segment; the new one begins at the log's end, so that segments leave no gaps."""
        base = self.end_offset
        if last_offset - base > OFFSET_RANGE:
            base = next_base
        closed = self._active
        if base == closed.base_offset:
            return closed
        try:
            segment = Segment(self._disk, self._directory, base, self.settings.index_interval_bytes)
            segment.clear()
        except OSError as error:
            raise self._fail("beginning a segment of", error) from error
        self._names_changed += 1
        closed.seal()
        closed.next_offset = base
        closed.snapshot = self.producers.snapshot()
        self._unsettled.append(closed)
        self._segments.append(segment)
        self._bases.append(base)
        self._active = segment
        return segment

    # Making durable

    async def make_durable(self) -> None:
        self._check()
        if self.durable_offset < self.end_offset or self._names_synced < self._names_changed:
            await self._sync()

    async def _make_settled(self) -> None:
        """For those who are about to delete or compact closed segments."""
        await self.make_durable()
        if self.needs_settling:
            await self.settle()

    async def _sync(self) -> None:
        """Syncs whatever may hold batches that are not safe yet, oldest first, then moves durable_offset."""
        end, cuts, names = self.end_offset, self._cuts, self._names_changed
        active = self._active
        try:
            for segment in self._unsettled[:]:
                await segment.file.sync()
            await active.file.sync()
        except OSError as error:
            # What was written may be gone from the page cache, and a second sync would not say so.
            self._go_offline(f"syncing {self.name} failed: {error}")
        self._check()
        if self._names_synced < names:
            try:
                await self._disk.sync_directory(self._directory)
            except OSError as error:
                raise self._fail("syncing the directory of", error) from error
            self._check()
            self._names_synced = max(self._names_synced, names)
        if self._cuts != cuts:
            await self._sync()
        elif end > self.durable_offset:
            self.durable_offset = end

    @property
    def needs_settling(self) -> bool:
        return bool(self._unsettled)

    async def settle(self) -> None:
        """Writes what belongs beside closed segments that are synced; then recovery may skip them."""
        async with self._keeping():
            synced = [each for each in self._unsettled if each.next_offset <= self.durable_offset]
            try:
                for segment in synced:
                    await self._write_beside(segment)
                    self._unsettled.remove(segment)
                    self._keep_warm(segment)
                await self._save_recovery_point()
            except OSError as error:
                failure = self._fail("writing an index of", error)
                self._check()
                # The records are safe, and indexes can be made again: no reason to refuse anything.
                log.warning("index is not written", log=str(self.name), why=str(failure))

    async def _write_beside(self, segment: Segment) -> None:
        await segment.write_indexes()
        if segment.snapshot is not None:
            await self._disk.replace(self._path(segment.next_offset, SNAPSHOT), segment.snapshot)
            segment.snapshot = None
        await self._save_epochs()

    async def _save_epochs(self, text: str | None = None) -> None:
        text = self.epochs.to_text() if text is None else text
        await self._disk.replace(f"{self._directory}/{EPOCHS}", text.encode())

    async def _save_recovery_point(self, *, only_if_due: bool = False) -> None:
        """Durable, and with all indexes, snapshots and epochs of closed segments written."""
        if self._lacks_epochs:
            await self._save_epochs()
            self._lacks_epochs = False
        point = self.durable_offset
        if self._unsettled:
            point = min(point, self._unsettled[0].base_offset)
        self._checkpoints.recovery_points.set(self.name, point)
        if not only_if_due or self._checkpoints.recovery_points.is_due:
            await self._checkpoints.recovery_points.flush()

    def _path(self, offset: int, suffix: str) -> str:
        return f"{self._directory}/{offset_name(offset, suffix)}"

    # Reading

    async def read(self, offset: int, bytes_max: int, below: int, *, whole_first: bool = True) -> Slices:
        if offset >= below:
            return NOTHING
        try:
            return self._read(offset, bytes_max, below, whole_first)
        except CorruptRecordError as error:
            raise StorageError(damage(self._directory, str(error))) from error
        except OSError as error:
            raise self._fail("reading from", error) from error

    def _read(self, offset: int, bytes_max: int, below: int, whole_first: bool) -> Slices:
        segments = self._segments
        for number in range(max(0, bisect_right(self._bases, offset) - 1), len(segments)):
            segment = segments[number]
            start = segment.position_of(offset)
            end = segment.size if below >= segment.next_offset else segment.position_of(below)
            if start < end:
                size = end - start
                if size > bytes_max:
                    size = self._cut_to_limit(segment, start, bytes_max, whole_first)
                if segment is not self._active:
                    self._keep_warm(segment)
                return Slices((FileSlice(segment.file, start, size),), size) if size else NOTHING
            if end < segment.size:
                break
        return NOTHING

    def _cut_to_limit(self, segment: Segment, start: int, bytes_max: int, whole_first: bool) -> int:
        """How many bytes to give of those from `start` on, of which there are more than bytes_max."""
        boundary = segment.boundary_before(start + bytes_max)
        if boundary > start:
            return boundary - start
        length = segment.file.read(start + 8, 4)
        first_size = int.from_bytes(length, "big", signed=True) + LOG_OVERHEAD
        if first_size <= bytes_max:
            return bytes_max
        return first_size if whole_first else 0

    def _keep_warm(self, segment: Segment) -> None:
        """Lets the indexes of closed segments that were not read lately go from memory."""
        warm = self._warm
        if segment in warm or not segment.indexes_are_loaded:
            return
        warm.append(segment)
        if len(warm) > _WARM_MAX:
            cold = warm.pop(0)
            if cold is not self._active and cold not in self._unsettled:
                cold.drop_indexes()

    # Times

    async def offset_for_time(self, timestamp_ms: int, below: int) -> TimeAndOffset | None:
        try:
            for segment in self._visible(below):
                segment.learn_times()
                if segment.max_timestamp < timestamp_ms:
                    continue
                since = segment.base_offset + segment.times.offset_before(timestamp_ms)
                if segment is not self._active:
                    self._keep_warm(segment)
                for header in segment.headers(max(since, self.start_offset)):
                    if header.last_offset >= below:
                        return None
                    if header.max_timestamp >= timestamp_ms:
                        batch = read_batch(segment.file, header)
                        found = first_record_since(batch, timestamp_ms, self.start_offset)
                        if found is not None:
                            return found
                await asyncio.sleep(0)
        except CorruptRecordError as error:
            raise StorageError(damage(self._directory, str(error))) from error
        except OSError as error:
            raise self._fail("reading from", error) from error
        return None

    async def max_timestamp(self, below: int) -> TimeAndOffset | None:
        newest: TimeAndOffset | None = None
        try:
            for segment in self._visible(below):
                segment.learn_times()
                if newest is not None and segment.max_timestamp <= newest.timestamp_ms:
                    continue
                if segment.base_offset >= self.start_offset and segment.next_offset <= below:
                    # All of it counts, so the batch that its indexes name is the one.
                    newest = self._newest(segment, segment.max_timestamp_offset, below, newest)
                if newest is None or newest.timestamp_ms < segment.max_timestamp:
                    # Unless compaction has emptied that batch.
                    newest = self._newest(segment, self.start_offset, below, newest)
                await asyncio.sleep(0)
        except CorruptRecordError as error:
            raise StorageError(damage(self._directory, str(error))) from error
        except OSError as error:
            raise self._fail("reading from", error) from error
        return newest

    def _newest(
        self, segment: Segment, since: int, below: int, newest: TimeAndOffset | None
    ) -> TimeAndOffset | None:
        """`newest`, or the first record of the segment, from `since` on, that is newer than all others."""
        for header in segment.headers(since):
            if header.last_offset >= below:
                break
            if newest is None or header.max_timestamp > newest.timestamp_ms:
                found = newest_record(read_batch(segment.file, header), self.start_offset)
                if found is not None and (newest is None or found.timestamp_ms > newest.timestamp_ms):
                    newest = found
            if newest is not None and newest.timestamp_ms == segment.max_timestamp:
                break
        return newest

    def _visible(self, below: int) -> list[Segment]:
        """The segments that have offsets from the log's start on and before `below`."""
        first = max(0, bisect_right(self._bases, self.start_offset) - 1)
        return [segment for segment in self._segments[first:] if segment.base_offset < below]
