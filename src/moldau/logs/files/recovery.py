"""Opening a log's directory: after a clean shutdown as it was left, after a crash as far as it can be trusted.

What lies below the recovery point was synced, and a segment wholly below it is not looked at. The rest is read
batch by batch and cut off at the first one that is not whole: nobody was promised what a crash tore. Damage
below the recovery point is another matter. There records were acknowledged, and cutting would lose them, so
the log is refused until somebody has looked at it.
"""

import asyncio
from collections.abc import Container, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from moldau.errors import CorruptRecordError, StorageError
from moldau.logs.files.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_offset,
    segment_file_name,
)
from moldau.logs.files.indexes import OFFSET_RANGE
from moldau.logs.files.scan import BatchHeader, scan_batches, scan_headers
from moldau.logs.files.segment import LogSegment, read_small_file
from moldau.logs.leader_epochs import NO_EPOCH, LeaderEpochCache
from moldau.logs.producer_state import ProducerStateManager
from moldau.observe.logging import get_logger
from moldau.platform.disk import Disk

_BATCHES_PER_YIELD = 64
"""How many batches are checked before others get their turn."""

log = get_logger(__name__)


class LoadedLog(NamedTuple):
    segments: list[LogSegment]
    """Never empty; the last is the active one."""
    producers: ProducerStateManager
    epochs: LeaderEpochCache
    start_offset: int
    end_offset: int


async def load_log(
    disk: Disk,
    directory: str,
    *,
    index_interval_bytes: int,
    clean: bool,
    recovery_point: int,
    start_offset: int,
) -> LoadedLog:
    """Raises StorageError when the log is damaged where it must not be, or the disk fails."""
    recovery = _LogLoader(disk, directory, index_interval_bytes, recovery_point, start_offset)
    try:
        return await recovery.run(clean)
    except CorruptRecordError as error:
        raise StorageError(damage_message(directory, str(error))) from error
    except OSError as error:
        raise StorageError(f"cannot open the log in {directory}: {error}") from error


def damage_message(where: str, what: str) -> str:
    return (
        f"the log in {where} is damaged: {what}. No record was dropped. `moldau log verify` shows what is "
        "still whole; restore the file from a copy. Only if another replica is in sync move the directory away: the "
        "log is fetched from there; otherwise elect what is left with `moldau cluster elect-leaders --unclean`"
    )


def headers_between(segments: Iterable[LogSegment], start: int, end: int) -> Iterator[BatchHeader]:
    """The headers of all batches of these segments that begin at or after `start` and before `end`."""
    for segment in segments:
        if segment.base_offset >= end:
            break
        if segment.next_offset > start:
            for header in segment.headers(start):
                if header.base_offset >= end:
                    break
                if header.base_offset >= start:
                    yield header


def list_snapshots(disk: Disk, directory: str) -> list[int]:
    """The offsets of the producer snapshots that are there, ascending."""
    offsets = (parse_offset(name, SNAPSHOT_SUFFIX) for name in disk.list(directory))
    return [offset for offset in offsets if offset is not None]


async def rebuild_producer_state(
    disk: Disk, directory: str, segments: Iterable[LogSegment], producers: ProducerStateManager, end: int
) -> None:
    """Brings producer state to `end`, from the newest snapshot up to there and the batches behind it. Those may be
    many, so it gives way to others."""
    for offset in reversed(list_snapshots(disk, directory)):
        if offset > end:
            continue
        data = read_small_file(disk, _snapshot_path(directory, offset))
        try:
            producers.rebuild(data, ())
            await _replay_headers(producers, headers_between(segments, offset, end))
            return
        except CorruptRecordError as error:
            log.warning("producer snapshot is passed over", log=directory, offset=offset, why=str(error))
    producers.rebuild(None, ())
    await _replay_headers(producers, headers_between(segments, 0, end))


async def _replay_headers(producers: ProducerStateManager, headers: Iterator[BatchHeader]) -> None:
    for count, header in enumerate(headers, start=1):
        producers.update(header)
        if count % _BATCHES_PER_YIELD == 0:
            await asyncio.sleep(0)


class _LogLoader:
    def __init__(
        self, disk: Disk, directory: str, index_interval_bytes: int, recovery_point: int, start_offset: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._recovery_point = recovery_point
        self._start_offset = start_offset

    async def run(self, clean: bool) -> LoadedLog:
        await self._remove_leftover_files()
        segments = await self._open_segments()
        untrusted = len(segments) - 1 if clean else self._first_unflushed(segments)
        trusted_end = segments[untrusted].base_offset
        producers = ProducerStateManager()
        if clean:
            active = segments[-1]
            active.load_state()
            delete_snapshots_after(self._disk, self._directory, active.next_offset)
            end_offset = active.next_offset
            epochs = self._load_leader_epochs(segments, end_offset)
            await rebuild_producer_state(self._disk, self._directory, segments, producers, end_offset)
        else:
            epochs = self._load_leader_epochs(segments, trusted_end)
            await rebuild_producer_state(
                self._disk, self._directory, segments[:untrusted], producers, trusted_end
            )
            await self._recover_segments(segments, untrusted, producers, epochs)
            end_offset = segments[-1].next_offset
        if end_offset < self._start_offset:
            raise CorruptRecordError(f"it ends at offset {end_offset}, before its start {self._start_offset}")
        if end_offset < self._recovery_point:
            raise CorruptRecordError(
                f"it ends at offset {end_offset}, and everything up to {self._recovery_point} was on disk"
            )
        epochs.truncate_from_start(self._start_offset)
        return LoadedLog(segments, producers, epochs, self._start_offset, end_offset)

    # What crashes leave behind

    async def _remove_leftover_files(self) -> None:
        """Finishes swaps of compacted segments and removes what nothing belongs to any more."""
        disk, directory = self._disk, self._directory
        for name in disk.list(directory):
            if name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX, TEMPORARY_SUFFIX)):
                disk.remove(f"{directory}/{name}")
        for name in disk.list(directory):
            base = parse_offset(name, LOG_SUFFIX + SWAP_SUFFIX)
            if base is not None:
                await complete_swap(disk, directory, base)
        names = disk.list(directory)
        bases = {parse_offset(name, LOG_SUFFIX) for name in names}
        for name in names:
            for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                offset = parse_offset(name, suffix)
                if name.endswith(SWAP_SUFFIX) or (offset is not None and offset not in bases):
                    disk.remove(f"{directory}/{name}")

    async def _open_segments(self) -> list[LogSegment]:
        names = self._disk.list(self._directory)
        bases = [offset for name in names if (offset := parse_offset(name, LOG_SUFFIX)) is not None]
        # Segments wholly below the start are left for the next round of retention: what producers wrote last
        # may be in there and nowhere else, and the start itself comes from a file without a checksum.
        if bases:
            self._start_offset = max(self._start_offset, bases[0])
        else:
            bases = [self._start_offset]
            await self._create(bases[0])
        segments = [
            LogSegment(self._disk, self._directory, base, self._index_interval_bytes) for base in bases
        ]
        for segment, following in pairwise(segments):
            segment.next_offset = following.base_offset
        return segments

    async def _create(self, base: int) -> None:
        file = self._disk.open(f"{self._directory}/{segment_file_name(base, LOG_SUFFIX)}")
        await file.sync()
        await self._disk.sync_directory(self._directory)

    # What a crash may have torn

    def _first_unflushed(self, segments: list[LogSegment]) -> int:
        """The first that does not end before the recovery point.

        One that ends right there may have been closed since the recovery point was written, so that the
        files beside it are missing.
        """
        for number in range(len(segments) - 1):
            if segments[number + 1].base_offset >= self._recovery_point:
                return number
        return len(segments) - 1

    async def _recover_segments(
        self,
        segments: list[LogSegment],
        first: int,
        producers: ProducerStateManager,
        epochs: LeaderEpochCache,
    ) -> None:
        """Reads the segments from number `first` on and drops everything from the first damage on."""
        number = first
        torn = False
        states: list[tuple[int, bytes]] = []
        while number < len(segments) and not torn:
            segment = segments[number]
            states.append((segment.base_offset, producers.snapshot()))
            gap = segment.base_offset - segments[number - 1].next_offset if number > first else 0
            # A segment that does not follow on the one before it: batches that were never synced are missing
            # in between. (Only a gap that no segment can span is there on purpose.)
            if gap < 0 or 0 < gap <= OFFSET_RANGE:
                break
            torn = await self._recover_segment(segment, producers, epochs)
            if segment.next_offset <= self._recovery_point:
                self._load_snapshot(producers, segment.next_offset)
            number += 1
        kept_end = segments[number - 1].next_offset
        if number < len(segments):
            if kept_end < self._recovery_point:
                raise CorruptRecordError(f"records from offset {kept_end} on are missing")
            for segment in reversed(segments[number:]):
                log.warning("segment after a torn one is removed", segment=segment.path(LOG_SUFFIX))
                delete_segment_files(self._disk, self._directory, segment.base_offset)
            del segments[number:]
        delete_snapshots_after(self._disk, self._directory, kept_end)
        for segment in segments[first:]:
            # Even whole batches may be in the page cache only, left there by a killed process. So may names.
            await segment.file.sync()
        await self._disk.sync_directory(self._directory)
        for segment, (base, state) in zip(segments[first:], states, strict=False):
            if segment is not segments[-1]:
                segment.seal()
                await segment.write_indexes()
            if segment is not segments[first]:
                # The segments before it may be deleted or compacted from now on.
                await self._disk.replace(
                    f"{self._directory}/{segment_file_name(base, SNAPSHOT_SUFFIX)}", state
                )
        if len(segments) - first > 1:
            await self._disk.replace(
                f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}", epochs.to_text().encode()
            )

    def _load_snapshot(self, producers: ProducerStateManager, offset: int) -> None:
        """Where there is one, it knows more than was read: compaction may have taken a producer's last batch before
        `offset` because of newer ones, and a power cut those."""
        data = read_small_file(self._disk, _snapshot_path(self._directory, offset))
        if data is not None:
            try:
                producers.restore(data)
            except CorruptRecordError as error:
                log.warning(
                    "producer snapshot is passed over", log=self._directory, offset=offset, why=str(error)
                )

    async def _recover_segment(
        self, segment: LogSegment, producers: ProducerStateManager, epochs: LeaderEpochCache
    ) -> bool:
        """True where the segment had to be cut."""
        segment.file.drop_cache()
        size = segment.file.size
        segment.start_empty()
        position, expected, latest = 0, segment.base_offset, NO_EPOCH
        before_gap = expected
        checked = 0
        try:
            for position, batch in scan_batches(segment.file, 0, size):
                if batch.base_offset < expected or batch.last_offset_delta < 0:
                    # Offsets are outside the checksum: if the batch before left a gap, that may be the wrong one.
                    expected = min(expected, before_gap)
                    raise CorruptRecordError(
                        f"the batch at position {position} has offset {batch.base_offset} after {expected - 1}"
                    )
                if batch.leader_epoch < latest:
                    # Outside the checksum, and a wrong one would pass for the history of this log.
                    raise CorruptRecordError(
                        f"the batch at position {position} has epoch {batch.leader_epoch} after {latest}"
                    )
                # First of all: it refuses an offset that cannot be, and what was expected is then still what was.
                segment.register_batch(batch, position)
                before_gap = expected if batch.base_offset > expected else batch.next_offset
                expected, latest = batch.next_offset, batch.leader_epoch
                producers.update(batch)
                if batch.leader_epoch != epochs.latest:
                    epochs.assign(batch.leader_epoch, batch.base_offset)
                checked += 1
                if checked % _BATCHES_PER_YIELD == 0:
                    await asyncio.sleep(0)
        except CorruptRecordError as error:
            if expected < self._recovery_point:
                raise CorruptRecordError(
                    f"{error} in {segment.path(LOG_SUFFIX)}, and everything up to offset "
                    f"{self._recovery_point} was on disk"
                ) from error
            log.warning(
                "torn end is cut off",
                segment=segment.path(LOG_SUFFIX),
                at_offset=expected,
                bytes=size - segment.size,
                why=str(error),
            )
            segment.file.truncate(segment.size)
            return True
        return False

    # What lies beside the segments

    def _load_leader_epochs(self, segments: list[LogSegment], end: int) -> LeaderEpochCache:
        data = read_small_file(self._disk, f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}")
        try:
            if data is None:
                raise CorruptRecordError("it is missing")
            epochs = LeaderEpochCache.from_text(data.decode("utf-8"))
        except (CorruptRecordError, UnicodeDecodeError) as error:
            epochs = LeaderEpochCache()
            if any(segment.size for segment in segments if segment.base_offset < end):
                log.info("leader epochs are read from the log", log=self._directory, why=str(error))
            for header in headers_between(segments, segments[0].base_offset, end):
                if header.leader_epoch != epochs.latest:
                    epochs.assign(header.leader_epoch, header.base_offset)
        # An epoch that begins at the very end has no records here, but a log that retention has emptied
        # must still know which epoch it has come to.
        epochs.truncate_from_end(end + 1)
        return epochs


async def complete_swap(disk: Disk, directory: str, base: int) -> None:
    """Puts a compacted segment in the place of those it was made from, all within its range of offsets.

    Until the old ones are durably gone the new one keeps its swap name, so that whatever a crash leaves,
    the next start comes here again.
    """
    swap = f"{directory}/{segment_file_name(base, LOG_SUFFIX + SWAP_SUFFIX)}"
    file = disk.open(swap)
    last_offset = base
    for header in scan_headers(file, 0, file.size):
        last_offset = header.last_offset
    for name in disk.list(directory):
        offset = parse_offset(name, LOG_SUFFIX)
        if offset is not None and base <= offset <= last_offset:
            delete_segment_files(disk, directory, offset, indexes_only=offset == base)
    await disk.sync_directory(directory)
    disk.rename(swap, f"{directory}/{segment_file_name(base, LOG_SUFFIX)}")
    await disk.sync_directory(directory)


def delete_segment_files(disk: Disk, directory: str, base: int, *, indexes_only: bool = False) -> None:
    for suffix in (
        (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        if indexes_only
        else (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX)
    ):
        disk.remove(f"{directory}/{segment_file_name(base, suffix)}")


async def write_snapshot(disk: Disk, directory: str, offset: int, snapshot: bytes) -> None:
    await disk.replace(_snapshot_path(directory, offset), snapshot)


def delete_snapshots_after(disk: Disk, directory: str, end: int) -> None:
    for offset in list_snapshots(disk, directory):
        if offset > end:
            disk.remove(_snapshot_path(directory, offset))


def delete_old_snapshots(disk: Disk, directory: str, base_offsets: Container[int]) -> None:
    """Keeps the snapshot at the start of each segment, and the latest."""
    for offset in list_snapshots(disk, directory)[:-1]:
        if offset not in base_offsets:
            disk.remove(_snapshot_path(directory, offset))


def _snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{segment_file_name(offset, SNAPSHOT_SUFFIX)}"
