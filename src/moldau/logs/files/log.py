"""A log in files, whole: beside appends and reads, how it is truncated, kept small, compacted and closed."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from moldau.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from moldau.logs.epochs import EpochHistory
from moldau.logs.files.anew import Beginning, announce, carry_out, is_announced
from moldau.logs.files.checkpoints import Checkpoints
from moldau.logs.files.cleaner import Cleaner
from moldau.logs.files.names import CLEANED, LOG, SNAPSHOT, SWAP
from moldau.logs.files.recovery import Recovered, damage, rebuild_producers, remove_segment, snapshots
from moldau.logs.files.segment import Segment
from moldau.logs.files.segmented import SegmentedLog
from moldau.logs.producers import ProducerStates
from moldau.logs.store import LogName
from moldau.observe.logging import get_logger
from moldau.platform.disk import Disk
from moldau.settings.topic import TopicSettings

log = get_logger(__name__)


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
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


class FilesLog(SegmentedLog):
    def __init__(
        self,
        disk: Disk,
        directory: str,
        name: LogName,
        topic_id: UUID,
        settings: TopicSettings,
        checkpoints: Checkpoints,
        recovered: Recovered,
        *,
        producer_expiration_ms: int,
        is_saved: bool,
    ) -> None:
        super().__init__(disk, directory, name, topic_id, settings, checkpoints, recovered)
        self._producer_expiration_ms = producer_expiration_ms
        self._saved = self._shape() if is_saved else None
        """What the log looked like when all files beside its segments were last written."""
        self.is_closed = False
        self.is_saved = False
        """Closed so that the next opening finds everything without reading batches."""

    # Truncating

    async def truncate_to(self, offset: int) -> None:
        self._check()
        if offset < self.end_offset:
            await to_the_end(self._truncate_to(offset))

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        self._check()
        await to_the_end(self._truncate_fully(offset))

    async def _truncate_to(self, offset: int) -> None:
        async with self._truncating():
            if offset < self.start_offset:
                await self._begin_anew(await self._without_records(offset, offset))
            else:
                await self._cut_at(offset)

    async def _truncate_fully(self, offset: int) -> None:
        async with self._truncating():
            await self._begin_anew(Beginning(offset))

    @asynccontextmanager
    async def _truncating(self) -> AsyncIterator[None]:
        async with self._keeping():
            cuts = self._cuts
            try:
                yield
            except (CorruptRecordError, OSError) as error:
                if self._cuts != cuts:
                    # Half truncated: only a restart can tell what is there.
                    self._go_offline(f"truncating {self.name} failed: {error}")
                    raise StorageError(str(self._failure)) from error
                if isinstance(error, OSError):
                    raise self._fail("truncating", error) from error
                raise StorageError(damage(self._directory, str(error))) from error

    async def _cut_at(self, offset: int) -> None:
        keep = bisect_right(self._bases, offset)
        segment = self._segments[keep - 1]
        position = segment.position_of(offset)
        # The log ends behind its last batch, which may be before what was asked for: a batch goes as a
        # whole, and after a restart nothing would tell of an end inside a gap.
        end = segment.end_before(position)
        if end < self.start_offset:
            # The batch that the log begins in goes, and with it all that could be read.
            await self._begin_anew(await self._without_records(self.start_offset, end))
            return
        # Before anything goes, or a crash in between would look like acknowledged records lost.
        await self._checkpoints.lower(self.name, end)
        # Before any record goes: an epoch must not outlive its records, or this log would pass for a newer one.
        # One that a crash leaves with its records is found in them again.
        self._lacks_epochs = True
        await self._save_epochs(self._epochs_below(end))
        self._lacks_epochs = False
        self._cuts += 1
        self.epochs.truncate_from_end(end)
        dropped = self._segments[keep:]
        del self._segments[keep:], self._bases[keep:]
        segment.cut(position)
        await self._truncated(segment, dropped, end)

    async def _without_records(self, offset: int, end: int) -> Beginning:
        """A log that begins at `offset` and has no records. Of producers it knows what they wrote below `end`, which
        may be the only trace of it: they might send it again."""
        producers = ProducerStates()
        await rebuild_producers(self._disk, self._directory, self._segments, producers, end)
        snapshot = producers.snapshot() if len(producers) else None
        return Beginning(offset, snapshot, self._epochs_below(offset))

    def _epochs_below(self, offset: int) -> str:
        epochs = EpochHistory.from_text(self.epochs.to_text())
        epochs.truncate_from_end(offset)
        return epochs.to_text()

    async def _begin_anew(self, beginning: Beginning) -> None:
        """Reads go on in the old files until the new ones are in place."""
        try:
            await announce(self._disk, self._directory, beginning)
        finally:
            if is_announced(self._disk, self._directory):
                self._cuts += 1
        await carry_out(self._disk, self._directory, self.name, self._checkpoints, beginning)
        offset = beginning.offset
        segment = Segment(self._disk, self._directory, offset, self.settings.index_interval_bytes)
        segment.clear()
        self._cuts += 1
        self._segments[:] = [segment]
        self._bases[:] = [offset]
        self._active = segment
        self._unsettled = []
        self._warm = []
        self.start_offset = self.end_offset = self.durable_offset = offset
        self._lacks_epochs = False
        self.epochs.clear()
        for epoch, start in EpochHistory.from_text(beginning.epochs):
            self.epochs.assign(epoch, start)
        self.producers.rebuild(beginning.producers, ())

    async def _truncated(self, active: Segment, dropped: list[Segment], end: int) -> None:
        self._active = active
        active.snapshot = None
        active.next_offset = end
        active.index_interval_bytes = self.settings.index_interval_bytes
        self._unsettled = [segment for segment in self._unsettled if segment in self._segments[:-1]]
        self._warm = []
        self.end_offset = end
        self.durable_offset = min(self.durable_offset, end)
        for segment in reversed(dropped):
            remove_segment(self._disk, self._directory, segment.base_offset)
        remove_segment(self._disk, self._directory, active.base_offset, only_indexes=True)
        for offset in snapshots(self._disk, self._directory):
            if offset > end:
                self._disk.remove(self._path(offset, SNAPSHOT))
        await rebuild_producers(self._disk, self._directory, self._segments, self.producers, end)
        self._names_changed += 1
        self._names_cut = self._names_changed
        try:
            await self._sync()
        except StorageError as error:
            self._check()
            # The log is cut all the same. It is synced before anything is appended to it.
            log.warning("directory is not synced yet", log=str(self.name), why=str(error))

    # Moving the start

    async def advance_start(self, offset: int) -> None:
        self._check()
        if offset > self.end_offset:
            raise OffsetOutOfRangeError(f"{self.name} ends at {self.end_offset}, before {offset}")
        if offset <= self.start_offset:
            return
        if offset > self.durable_offset:
            # A crash must not leave a log that ends before it begins.
            await self.make_durable()
        if offset == self.end_offset and self._active.size:
            self._roll(offset, offset)
        starts = self._checkpoints.start_offsets
        async with self._keeping():
            try:
                starts.set(self.name, offset)
                await starts.flush()
            except OSError as error:
                starts.set(self.name, self.start_offset)
                raise self._fail("moving the start of", error) from error
        await self._begin_at(offset)

    async def _begin_at(self, offset: int) -> None:
        self.start_offset = offset
        self.epochs.truncate_from_start(offset)
        if self._unsettled:
            await self._make_settled()
        async with self._keeping():
            try:
                while len(self._bases) > 1 and self._bases[1] <= offset:
                    if self._segments[0] in self._unsettled:
                        # Producers' last batches may be in there and nowhere else yet.
                        break
                    await self._drop_oldest()
            except OSError as error:
                raise self._fail("deleting from", error) from error

    async def _drop_oldest(self) -> None:
        """Syncs each time: a crash must not bring an older segment back than one it left deleted."""
        segment = self._segments.pop(0)
        self._bases.pop(0)
        if segment in self._warm:
            self._warm.remove(segment)
        remove_segment(self._disk, self._directory, segment.base_offset)
        self._drop_snapshots()
        await self._disk.sync_directory(self._directory)

    def _drop_snapshots(self) -> None:
        """Keeps those that a segment begins at, and the newest."""
        for offset in snapshots(self._disk, self._directory)[:-1]:
            if offset not in self._bases:
                self._disk.remove(self._path(offset, SNAPSHOT))

    # Retention

    async def apply_retention(self, now_ms: int, below: int) -> None:
        self._check()
        self.producers.expire(now_ms, self._producer_expiration_ms)
        try:
            first_ms = self._active.first_timestamp
            if self._active.size and first_ms >= 0 and now_ms - first_ms > self._roll_ms:
                self._try_to_roll()
            if "delete" in self.settings.cleanup_policy:
                start = await self._expired_up_to(now_ms, below)
                if start > self.start_offset:
                    if start == self.end_offset and self._active.size and not self._try_to_roll():
                        start = max(self.start_offset, self._active.base_offset)
                    await self._begin_at(start)
            if len(self._bases) > 1 and self._bases[1] <= self.start_offset:
                # Segments below the start that a crash or a full disk kept from being deleted.
                await self._begin_at(self.start_offset)
            # Where nobody waits for syncs (write.caching), this is when they happen.
            await self._make_settled()
            async with self._keeping():
                for segment in self._segments[:-1]:
                    if segment.indexes_are_new and segment not in self._unsettled:
                        await segment.write_indexes()
                await self._save_recovery_point(only_if_due=True)
        except CorruptRecordError as error:
            raise StorageError(damage(self._directory, str(error))) from error
        except (OSError, StorageError) as error:
            if isinstance(error, OSError):
                self._fail("writing a checkpoint of", error)
            self._check()
            log.warning("retention is put off", log=str(self.name), why=str(error))

    def _try_to_roll(self) -> bool:
        """False where there is no room for another segment: what retention deletes may make some."""
        try:
            self._roll(self.end_offset, self.end_offset)
        except StorageError as error:
            self._check()
            log.warning("segment is not closed yet", log=str(self.name), why=str(error))
            return False
        return True

    async def _expired_up_to(self, now_ms: int, below: int) -> int:
        """The end of the last segment, counted from the oldest, that retention takes."""
        settings = self.settings
        start, size = self.start_offset, self.size
        for segment in self._segments[:]:
            if not segment.size or segment.next_offset > below:
                break
            segment.learn_times()
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
        self._check()
        if "compact" not in self.settings.cleanup_policy:
            return False
        cleaned_offsets, cuts = self._checkpoints.cleaned_offsets, self._cuts
        closed = [segment for segment in self._segments[:-1] if segment not in self._unsettled]
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
            async with self._keeping():
                await self._save_recovery_point()
            for group in cleaner.groups():
                cleaned = await cleaner.clean(group)
                if cleaned is not None and not await self._swap(group, cleaned, cuts):
                    return False
            async with self._keeping():
                if self._cuts != cuts:
                    return False
                cleaned_offsets.set(self.name, cleaner.end_offset)
                await cleaned_offsets.flush()
        except CorruptRecordError as error:
            if self._cuts != cuts:
                # What was being read is no longer there.
                return False
            raise StorageError(damage(self._directory, str(error))) from error
        except OSError as error:
            failure = self._fail("compacting", error)
            self._check()
            log.warning("compaction is put off", log=str(self.name), why=str(failure))
            return False
        return True

    async def _swap(self, group: list[Segment], cleaned: Segment, cuts: int) -> bool:
        """Puts the cleaned segment in the place of its group, in steps of which recovery can finish each.

        False if the group is no longer what it was: deleted meanwhile, or the log was truncated, which may have
        opened a segment of it again for appends. Reads under way keep the old files.
        """
        disk, directory = self._disk, self._directory
        async with self._keeping():
            first = bisect_right(self._bases, group[0].base_offset) - 1
            if self._cuts != cuts or self._segments[first : first + len(group)] != group:
                disk.remove(cleaned.path(LOG + CLEANED))
                return False
            await self._announce_swap(cleaned)
            try:
                for segment in group:
                    remove_segment(disk, directory, segment.base_offset, only_indexes=segment is group[0])
                await disk.sync_directory(directory)
                disk.rename(cleaned.path(LOG + SWAP), cleaned.path(LOG))
                await disk.sync_directory(directory)
            except OSError as error:
                # Half of the old files are gone and the new one is not in place: recovery finishes it.
                self._go_offline(f"compacting {self.name} failed: {error}")
                raise
            self._segments[first : first + len(group)] = [cleaned]
            self._bases[first : first + len(group)] = [cleaned.base_offset]
            self._warm = [segment for segment in self._warm if segment not in group]
            await cleaned.write_indexes()
            self._keep_warm(cleaned)
        return True

    async def _announce_swap(self, cleaned: Segment) -> None:
        """From here on recovery finishes the swap; before, nothing may be left that it would take for one."""
        swap = cleaned.path(LOG + SWAP)
        try:
            self._disk.rename(cleaned.path(LOG + CLEANED), swap)
            await self._disk.sync_directory(self._directory)
        except OSError:
            try:
                self._disk.remove(swap)
            except OSError as error:
                self._go_offline(f"{swap} cannot be removed: {error}")
            raise

    # Closing

    async def close(self) -> None:
        if self.is_closed:
            return
        async with self._upkeep:
            if self._failure is None:
                if self._saved != self._shape():
                    await self._save()
                self.is_saved = True
            self._abandon("is closed")

    async def abandon(self) -> None:
        """For a log that is deleted: returns when nothing of it touches its directory any more."""
        async with self._upkeep:
            self._abandon("is deleted")

    def _abandon(self, why: str) -> None:
        """Refuses everything from now on. Files close when the last reader lets go of them."""
        self.is_closed = True
        if self._failure is None:
            self._failure = f"{self.name} {why}"
        for segment in self._segments:
            segment.file.close()

    def _shape(self) -> tuple[int, ...]:
        return (
            self.end_offset,
            self._cuts,
            self._names_changed,
            len(self.epochs),
            self.epochs.latest,
            self._lacks_epochs,
        )

    async def _save(self) -> None:
        """Leaves everything on disk that opening needs, so that no batch has to be read again."""
        await self._sync()
        try:
            for segment in self._unsettled:
                await self._write_beside(segment)
            self._unsettled = []
            self._active.seal()
            await self._active.write_indexes()
            await self._disk.replace(self._path(self.end_offset, SNAPSHOT), self.producers.snapshot())
            self._drop_snapshots()
            await self._save_epochs()
            await self._save_recovery_point()
        except OSError as error:
            self._go_offline(f"closing {self.name} failed: {error}")
            raise StorageError(str(self._failure)) from error
