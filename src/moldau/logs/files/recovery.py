"""Opening a log's directory: after a clean shutdown as it was left, after a crash as far as it can be trusted.

What lies below the recovery point was synced, and a segment wholly below it is not looked at. The rest is read
batch by batch and cut off at the first one that is not whole: nobody was promised what a crash tore. Damage
below the recovery point is another matter. There records were acknowledged, and cutting would lose them, so
the log is refused until somebody has looked at it.
"""

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from moldau.errors import CorruptRecordError, StorageError
from moldau.logs.epochs import NO_EPOCH, EpochHistory
from moldau.logs.files.indexes import OFFSET_RANGE
from moldau.logs.files.names import (
    CLEANED,
    DELETED,
    EPOCHS,
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TEMPORARY,
    TIME_INDEX,
    offset_name,
    offset_of,
)
from moldau.logs.files.scan import BatchHeader, scan_batches, scan_headers
from moldau.logs.files.segment import Segment, read_file
from moldau.logs.producers import ProducerStates
from moldau.observe.logging import get_logger
from moldau.platform.disk import Disk

_BATCHES_PER_STEP = 64
"""How many batches are checked before others get their turn."""

log = get_logger(__name__)


class Recovered(NamedTuple):
    segments: list[Segment]
    """Never empty; the last is the active one."""
    producers: ProducerStates
    epochs: EpochHistory
    start_offset: int
    end_offset: int


async def recover(
    disk: Disk,
    directory: str,
    *,
    index_interval_bytes: int,
    clean: bool,
    recovery_point: int,
    start_offset: int,
) -> Recovered:
    """Raises StorageError when the log is damaged where it must not be, or the disk fails."""
    recovery = _Recovery(disk, directory, index_interval_bytes, recovery_point, start_offset)
    try:
        return await recovery.run(clean)
    except CorruptRecordError as error:
        raise StorageError(damage(directory, str(error))) from error
    except OSError as error:
        raise StorageError(f"cannot open the log in {directory}: {error}") from error


def damage(where: str, what: str) -> str:
    return (
        f"the log in {where} is damaged: {what}. No record was dropped. `moldau log verify` shows what is "
        "still whole; restore the file from a copy. Only if another replica is in sync move the directory away: the "
        "log is fetched from there; otherwise elect what is left with `moldau cluster elect-leaders --unclean`"
    )


def headers_between(segments: list[Segment], start: int, end: int) -> Iterator[BatchHeader]:
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


def snapshots(disk: Disk, directory: str) -> list[int]:
    """The offsets of the producer snapshots that are there, ascending."""
    offsets = (offset_of(name, SNAPSHOT) for name in disk.list(directory))
    return [offset for offset in offsets if offset is not None]


async def rebuild_producers(
    disk: Disk, directory: str, segments: list[Segment], producers: ProducerStates, end: int
) -> None:
    """Brings producer state to `end`, from the newest snapshot up to there and the batches behind it. Those may be
    many, so it gives way to others."""
    for offset in reversed(snapshots(disk, directory)):
        if offset > end:
            continue
        data = read_file(disk, f"{directory}/{offset_name(offset, SNAPSHOT)}")
        try:
            producers.rebuild(data, ())
            await _take_up(producers, headers_between(segments, offset, end))
            return
        except CorruptRecordError as error:
            log.warning("producer snapshot is passed over", log=directory, offset=offset, why=str(error))
    producers.rebuild(None, ())
    await _take_up(producers, headers_between(segments, 0, end))


async def _take_up(producers: ProducerStates, headers: Iterator[BatchHeader]) -> None:
    for count, header in enumerate(headers, start=1):
        producers.update(header)
        if count % _BATCHES_PER_STEP == 0:
            await asyncio.sleep(0)


class _Recovery:
    def __init__(
        self, disk: Disk, directory: str, index_interval_bytes: int, recovery_point: int, start_offset: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._recovery_point = recovery_point
        self._start_offset = start_offset

    async def run(self, clean: bool) -> Recovered:
        await self._tidy()
        segments = await self._open_segments()
        untrusted = len(segments) - 1 if clean else self._first_untrusted(segments)
        trusted_end = segments[untrusted].base_offset
        producers = ProducerStates()
        if clean:
            active = segments[-1]
            active.learn()
            self._drop_snapshots_after(active.next_offset)
            end_offset = active.next_offset
            epochs = self._load_epochs(segments, end_offset)
            await rebuild_producers(self._disk, self._directory, segments, producers, end_offset)
        else:
            epochs = self._load_epochs(segments, trusted_end)
            await rebuild_producers(self._disk, self._directory, segments[:untrusted], producers, trusted_end)
            await self._check_untrusted(segments, untrusted, producers, epochs)
            end_offset = segments[-1].next_offset
        if end_offset < self._start_offset:
            raise CorruptRecordError(f"it ends at offset {end_offset}, before its start {self._start_offset}")
        if end_offset < self._recovery_point:
            raise CorruptRecordError(
                f"it ends at offset {end_offset}, and everything up to {self._recovery_point} was on disk"
            )
        epochs.truncate_from_start(self._start_offset)
        return Recovered(segments, producers, epochs, self._start_offset, end_offset)

    # What crashes leave behind

    async def _tidy(self) -> None:
        """Finishes swaps of compacted segments and removes what nothing belongs to any more."""
        disk, directory = self._disk, self._directory
        for name in disk.list(directory):
            if name.endswith((CLEANED, DELETED, TEMPORARY)):
                disk.remove(f"{directory}/{name}")
        for name in disk.list(directory):
            base = offset_of(name, LOG + SWAP)
            if base is not None:
                await finish_swap(disk, directory, base)
        names = disk.list(directory)
        bases = {offset_of(name, LOG) for name in names}
        for name in names:
            for suffix in (INDEX, TIME_INDEX):
                offset = offset_of(name, suffix)
                if name.endswith(SWAP) or (offset is not None and offset not in bases):
                    disk.remove(f"{directory}/{name}")

    async def _open_segments(self) -> list[Segment]:
        names = self._disk.list(self._directory)
        bases = [offset for name in names if (offset := offset_of(name, LOG)) is not None]
        # Segments wholly below the start are left for the next round of retention: what producers wrote last
        # may be in there and nowhere else, and the start itself comes from a file without a checksum.
        if bases:
            self._start_offset = max(self._start_offset, bases[0])
        else:
            bases = [self._start_offset]
            await self._create(bases[0])
        segments = [Segment(self._disk, self._directory, base, self._index_interval_bytes) for base in bases]
        for segment, following in pairwise(segments):
            segment.next_offset = following.base_offset
        return segments

    async def _create(self, base: int) -> None:
        file = self._disk.open(f"{self._directory}/{offset_name(base, LOG)}")
        await file.sync()
        await self._disk.sync_directory(self._directory)

    # What a crash may have torn

    def _first_untrusted(self, segments: list[Segment]) -> int:
        """The first that does not end before the recovery point.

        One that ends right there may have been closed since the recovery point was written, so that the
        files beside it are missing.
        """
        for number in range(len(segments) - 1):
            if segments[number + 1].base_offset >= self._recovery_point:
                return number
        return len(segments) - 1

    async def _check_untrusted(
        self, segments: list[Segment], first: int, producers: ProducerStates, epochs: EpochHistory
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
            torn = await self._check_segment(segment, producers, epochs)
            if segment.next_offset <= self._recovery_point:
                self._take_snapshot(producers, segment.next_offset)
            number += 1
        kept_end = segments[number - 1].next_offset
        if number < len(segments):
            if kept_end < self._recovery_point:
                raise CorruptRecordError(f"records from offset {kept_end} on are missing")
            for segment in reversed(segments[number:]):
                log.warning("segment after a torn one is removed", segment=segment.path(LOG))
                remove_segment(self._disk, self._directory, segment.base_offset)
            del segments[number:]
        self._drop_snapshots_after(kept_end)
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
                await self._disk.replace(f"{self._directory}/{offset_name(base, SNAPSHOT)}", state)
        if len(segments) - first > 1:
            await self._disk.replace(f"{self._directory}/{EPOCHS}", epochs.to_text().encode())

    def _take_snapshot(self, producers: ProducerStates, offset: int) -> None:
        """Where there is one, it knows more than was read: compaction may have taken a producer's last batch before
        `offset` because of newer ones, and a power cut those."""
        data = read_file(self._disk, f"{self._directory}/{offset_name(offset, SNAPSHOT)}")
        if data is not None:
            try:
                producers.restore(data)
            except CorruptRecordError as error:
                log.warning(
                    "producer snapshot is passed over", log=self._directory, offset=offset, why=str(error)
                )

    async def _check_segment(self, segment: Segment, producers: ProducerStates, epochs: EpochHistory) -> bool:
        """True where the segment had to be cut."""
        segment.file.drop_cache()
        size = segment.file.size
        segment.clear_knowledge()
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
                segment.note(batch, position)
                before_gap = expected if batch.base_offset > expected else batch.next_offset
                expected, latest = batch.next_offset, batch.leader_epoch
                producers.update(batch)
                if batch.leader_epoch != epochs.latest:
                    epochs.assign(batch.leader_epoch, batch.base_offset)
                checked += 1
                if checked % _BATCHES_PER_STEP == 0:
                    await asyncio.sleep(0)
        except CorruptRecordError as error:
            if expected < self._recovery_point:
                raise CorruptRecordError(
                    f"{error} in {segment.path(LOG)}, and everything up to offset {self._recovery_point} was on disk"
                ) from error
            log.warning(
                "torn end is cut off",
                segment=segment.path(LOG),
                at_offset=expected,
                bytes=size - segment.size,
                why=str(error),
            )
            segment.file.truncate(segment.size)
            return True
        return False

    # What lies beside the segments

    def _load_epochs(self, segments: list[Segment], end: int) -> EpochHistory:
        data = read_file(self._disk, f"{self._directory}/{EPOCHS}")
        try:
            if data is None:
                raise CorruptRecordError("it is missing")
            epochs = EpochHistory.from_text(data.decode("utf-8"))
        except (CorruptRecordError, UnicodeDecodeError) as error:
            epochs = EpochHistory()
            if any(segment.size for segment in segments if segment.base_offset < end):
                log.info("leader epochs are read from the log", log=self._directory, why=str(error))
            for header in headers_between(segments, segments[0].base_offset, end):
                if header.leader_epoch != epochs.latest:
                    epochs.assign(header.leader_epoch, header.base_offset)
        # An epoch that begins at the very end has no records here, but a log that retention has emptied
        # must still know which epoch it has come to.
        epochs.truncate_from_end(end + 1)
        return epochs

    def _drop_snapshots_after(self, end: int) -> None:
        for offset in snapshots(self._disk, self._directory):
            if offset > end:
                self._disk.remove(f"{self._directory}/{offset_name(offset, SNAPSHOT)}")


async def finish_swap(disk: Disk, directory: str, base: int) -> None:
    """Puts a compacted segment in the place of those it was made from, all within its range of offsets.

    Until the old ones are durably gone the new one keeps its swap name, so that whatever a crash leaves,
    the next start comes here again.
    """
    swap = f"{directory}/{offset_name(base, LOG + SWAP)}"
    file = disk.open(swap)
    last_offset = base
    for header in scan_headers(file, 0, file.size):
        last_offset = header.last_offset
    for name in disk.list(directory):
        offset = offset_of(name, LOG)
        if offset is not None and base <= offset <= last_offset:
            remove_segment(disk, directory, offset, only_indexes=offset == base)
    await disk.sync_directory(directory)
    disk.rename(swap, f"{directory}/{offset_name(base, LOG)}")
    await disk.sync_directory(directory)


def remove_segment(disk: Disk, directory: str, base: int, *, only_indexes: bool = False) -> None:
    for suffix in (INDEX, TIME_INDEX) if only_indexes else (INDEX, TIME_INDEX, LOG):
        disk.remove(f"{directory}/{offset_name(base, suffix)}")
