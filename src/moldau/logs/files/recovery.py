"""Loading a log from its directory, with recovery after a crash.

All records below the recovery point were flushed, so recovery does not read segments that are completely below it. It
reads the other segments batch by batch and truncates the log at the first torn batch, which was not acknowledged.
Truncation below the recovery point would lose acknowledged records. A log that is damaged there stays offline until an
operator has repaired it.
"""

import asyncio
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
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
    TRANSACTION_INDEX_SUFFIX,
    parse_offset,
    segment_file_name,
)
from moldau.logs.files.indexes import OFFSET_RANGE
from moldau.logs.files.scan import read_batch, scan_batches, scan_headers
from moldau.logs.files.segment import LogSegment
from moldau.logs.leader_epochs import NO_EPOCH, LeaderEpochCache
from moldau.logs.producer_state import ProducerStateManager
from moldau.logs.transaction_index import TransactionIndex
from moldau.observe.logging import get_logger
from moldau.platform.disk import Disk, read_small_file
from moldau.records.batch import CONTROL_MASK, Batch
from moldau.records.batch_header import BatchHeader

_BATCHES_PER_YIELD = 64
"""How many batches are read before recovery yields to the event loop."""

log = get_logger(__name__)


class LoadedLog(NamedTuple):
    segments: list[LogSegment]
    """At least one segment. The last segment is the active segment."""
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
    cleaned_offset: int,
    high_watermark: int,
) -> LoadedLog:
    """Loads a log, with recovery unless `clean`. Raises StorageError if the log is damaged or the disk fails."""
    loader = _LogLoader(
        disk, directory, index_interval_bytes, recovery_point, start_offset, cleaned_offset, high_watermark
    )
    try:
        return await loader.load(clean)
    except CorruptRecordError as error:
        raise StorageError(damage_message(directory, str(error))) from error
    except OSError as error:
        raise StorageError(f"cannot open the log in {directory}: {error}") from error


def damage_message(where: str, what: str) -> str:
    return (
        f"the log in {where} is damaged: {what}. No record was deleted. `moldau log verify` shows what is whole; "
        "restore the file from a copy. Only if another replica is in sync, move the directory away: the log is then "
        "fetched from that replica. Otherwise run `moldau cluster elect-leaders --unclean` to continue with the rest"
    )


def headers_between(segments: Iterable[LogSegment], start: int, end: int) -> Iterator[BatchHeader]:
    """Yields the headers of all batches of these segments with a base offset from `start` on and before `end`."""
    for _, header in _headers_and_segments(segments, start, end):
        yield header


def _headers_and_segments(
    segments: Iterable[LogSegment], start: int, end: int
) -> Iterator[tuple[LogSegment, BatchHeader]]:
    for segment in segments:
        if segment.base_offset >= end:
            break
        if segment.next_offset > start:
            for header in segment.headers(start):
                if header.base_offset >= end:
                    break
                if header.base_offset >= start:
                    yield segment, header


def _producer_batches(segments: Iterable[LogSegment], start: int, end: int) -> Iterator[BatchHeader | Batch]:
    """As `headers_between`, with the whole batch if it is a marker, because producer state needs its record."""
    for segment, header in _headers_and_segments(segments, start, end):
        yield read_batch(segment.file, header) if header.attributes & CONTROL_MASK else header


def list_snapshots(disk: Disk, directory: str) -> list[int]:
    """Returns the offsets of the producer snapshots in the directory, ascending."""
    offsets = (parse_offset(name, SNAPSHOT_SUFFIX) for name in disk.list(directory))
    return [offset for offset in offsets if offset is not None]


async def rebuild_producer_state(
    disk: Disk,
    directory: str,
    segments: Iterable[LogSegment],
    producers: ProducerStateManager,
    end: int,
    high_watermark: int,
) -> None:
    """Rebuilds the producer state at `end` from the latest snapshot at or before `end` and the batches after this
    snapshot. Transactions that ended below the high watermark are not remembered, because there may be millions."""
    for offset in reversed(list_snapshots(disk, directory)):
        if offset > end:
            continue
        data = read_small_file(disk, _snapshot_path(directory, offset))
        try:
            producers.rebuild(data, ())
            await _replay(producers, _producer_batches(segments, offset, end), high_watermark)
            return
        except CorruptRecordError as error:
            log.warning("ignoring a producer snapshot", log=directory, offset=offset, reason=str(error))
    producers.rebuild(None, ())
    await _replay(producers, _producer_batches(segments, 0, end), high_watermark)


async def _replay(
    producers: ProducerStateManager,
    batches: Iterator[BatchHeader | Batch],
    high_watermark: int,
    transactions: TransactionIndex | None = None,
) -> None:
    """Updates the producer state. Adds the aborted transactions to `transactions`."""
    for count, batch in enumerate(batches, start=1):
        aborted = producers.update(batch)
        if aborted is not None and transactions is not None:
            transactions.append(aborted)
        if count % _BATCHES_PER_YIELD == 0:
            producers.unstable.forget_committed(high_watermark)
            await asyncio.sleep(0)
    producers.unstable.forget_committed(high_watermark)


@dataclass
class _LogLoader:
    _disk: Disk
    _directory: str
    _index_interval_bytes: int
    _recovery_point: int
    _start_offset: int
    _cleaned_offset: int
    """Compaction may have left gaps below this offset."""
    _high_watermark: int

    async def load(self, clean: bool) -> LoadedLog:
        await self._remove_leftover_files()
        segments = await self._open_segments()
        unflushed = len(segments) - 1 if clean else self._first_unflushed(segments)
        flushed_end = segments[unflushed].base_offset
        producers = ProducerStateManager()
        if clean:
            active = segments[-1]
            active.load_state()
            delete_snapshots_after(self._disk, self._directory, active.next_offset)
            end_offset = active.next_offset
            epochs = self._load_leader_epochs(segments, end_offset)
            await self._check_transaction_indexes(segments, segments)
            await self._rebuild_producer_state(segments, producers, end_offset)
        else:
            epochs = self._load_leader_epochs(segments, flushed_end)
            await self._check_transaction_indexes(segments, segments[:unflushed])
            await self._rebuild_producer_state(segments[:unflushed], producers, flushed_end)
            await self._recover_segments(segments, unflushed, producers, epochs)
            end_offset = segments[-1].next_offset
        if end_offset < self._start_offset:
            raise CorruptRecordError(f"it ends at offset {end_offset}, before its start offset {self._start_offset}")
        if end_offset < self._recovery_point:
            raise CorruptRecordError(
                f"it ends at offset {end_offset}, before its recovery point {self._recovery_point}"
            )
        epochs.truncate_from_start(self._start_offset)
        return LoadedLog(segments, producers, epochs, self._start_offset, end_offset)

    async def _rebuild_producer_state(
        self, segments: list[LogSegment], producers: ProducerStateManager, end: int
    ) -> None:
        await rebuild_producer_state(self._disk, self._directory, segments, producers, end, self._high_watermark)

    # Files

    async def _remove_leftover_files(self) -> None:
        """Completes swaps of compacted segments and removes temporary files and indexes without a segment."""
        disk, directory = self._disk, self._directory
        for name in disk.list(directory):
            if name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX, TEMPORARY_SUFFIX)):
                disk.remove(f"{directory}/{name}")
        for name in disk.list(directory):
            base = parse_offset(name, LOG_SUFFIX + SWAP_SUFFIX)
            if base is not None:
                await complete_swap(disk, directory, base)
        names = disk.list(directory)
        base_offsets = {parse_offset(name, LOG_SUFFIX) for name in names}
        for name in names:
            for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
                offset = parse_offset(name, suffix)
                if name.endswith(SWAP_SUFFIX) or (offset is not None and offset not in base_offsets):
                    disk.remove(f"{directory}/{name}")

    async def _open_segments(self) -> list[LogSegment]:
        names = self._disk.list(self._directory)
        base_offsets = [offset for name in names if (offset := parse_offset(name, LOG_SUFFIX)) is not None]
        # Keep the segments below the start offset until retention deletes them. They may have the only copy of a
        # producer's last batch, and the start offset comes from a file without a checksum.
        if base_offsets:
            self._start_offset = max(self._start_offset, base_offsets[0])
        else:
            base_offsets = [self._start_offset]
            await self._disk.open(f"{self._directory}/{segment_file_name(self._start_offset, LOG_SUFFIX)}").sync()
            await self._disk.sync_directory(self._directory)
        segments = [LogSegment(self._disk, self._directory, base, self._index_interval_bytes) for base in base_offsets]
        for segment, following in pairwise(segments):
            segment.next_offset = following.base_offset
        found = set(names)
        for segment in segments:
            segment.has_transaction_file = segment_file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX) in found
        return segments

    async def _check_transaction_indexes(self, segments: list[LogSegment], flushed: list[LogSegment]) -> None:
        """Rebuilds the transaction indexes of flushed segments that are damaged or may be missing.

        A segment without aborted transactions has no transaction index. But if the other indexes are missing too, a
        crash has interrupted the swap of a compacted segment.
        """
        names = set(self._disk.list(self._directory))
        for segment in flushed:
            reason = "a crash has interrupted a compaction"
            try:
                if not segment.size or segment_file_name(segment.base_offset, OFFSET_INDEX_SUFFIX) in names:
                    has_entries = bool(segment.transaction_index)
                    if segment is not segments[-1]:
                        segment.drop_indexes()
                    if has_entries:
                        await asyncio.sleep(0)
                    continue
            except CorruptRecordError as error:
                reason = str(error)
            log.info("rebuilding a transaction index", segment=segment.path(LOG_SUFFIX), reason=reason)
            producers, index = ProducerStateManager(), TransactionIndex()
            start, end = segment.base_offset, segment.next_offset
            await self._rebuild_producer_state(segments, producers, start)
            await _replay(producers, _producer_batches([segment], start, end), self._high_watermark, index)
            segment.replace_transactions(index)
            segment.has_unwritten_indexes = True

    # Recovery

    def _first_unflushed(self, segments: list[LogSegment]) -> int:
        """Returns the number of the first segment that does not end before the recovery point.

        A segment that ends exactly there may have been rolled after the checkpoint, so its indexes may be missing.
        """
        for number in range(len(segments) - 1):
            if segments[number + 1].base_offset >= self._recovery_point:
                return number
        return len(segments) - 1

    async def _recover_segments(
        self, segments: list[LogSegment], first: int, producers: ProducerStateManager, epochs: LeaderEpochCache
    ) -> None:
        """Reads the segments from number `first` on. Deletes all batches from the first damaged batch on."""
        number = first
        torn = False
        states: list[tuple[int, bytes]] = []
        while number < len(segments) and not torn:
            segment = segments[number]
            gap = segment.base_offset - segments[number - 1].next_offset if number > first else 0
            # Stop at a gap between segments if the crash may have lost unflushed batches there. Intended are gaps that
            # compaction left and gaps larger than OFFSET_RANGE; see `FileLog.roll`.
            if gap < 0 or (0 < gap <= OFFSET_RANGE and not self._was_flushed(segment.base_offset, producers)):
                break
            if gap:
                segments[number - 1].next_offset = segment.base_offset
            states.append((segment.base_offset, producers.snapshot()))
            torn = await self._recover_segment(segment, producers, epochs)
            producers.unstable.forget_committed(self._high_watermark)
            if segment.next_offset <= self._recovery_point:
                self._load_snapshot(producers, segment.next_offset)
            number += 1
        kept_end = segments[number - 1].next_offset
        if number < len(segments):
            if kept_end < self._recovery_point:
                raise CorruptRecordError(f"records from offset {kept_end} on are missing")
            for segment in reversed(segments[number:]):
                log.warning("deleting a segment after a torn one", segment=segment.path(LOG_SUFFIX))
                delete_segment_files(self._disk, self._directory, segment.base_offset)
            del segments[number:]
        delete_snapshots_after(self._disk, self._directory, kept_end)
        for segment in segments[first:]:
            # Sync the files, because a killed process may have left batches and file names only in the page cache.
            await segment.file.sync()
        await self._disk.sync_directory(self._directory)
        for segment, (base, state) in zip(segments[first:], states, strict=False):
            if segment is not segments[-1]:
                segment.seal()
                await segment.write_indexes()
            if segment is not segments[first]:
                # Write the producer snapshot at the start of this segment, because the segments before it may soon be
                # deleted or compacted.
                await write_snapshot(self._disk, self._directory, base, state)
        if len(segments) - first > 1:
            await self._disk.replace(f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}", epochs.to_text().encode())

    def _was_flushed(self, offset: int, producers: ProducerStateManager) -> bool:
        """Returns whether all batches before the segment at `offset` were flushed, so that compaction has removed those
        that are missing. Loads the producer snapshot at `offset` if it is needed as the evidence.

        The checkpoints may be lost, for example if only the directory of this log was restored. The producer snapshot
        is in this directory, and it is written after the flush.
        """
        if offset <= self._cleaned_offset:
            return True
        if not self._load_snapshot(producers, offset):
            return False
        log.warning("offsets are missing before a segment", log=self._directory, offset=offset)
        return True

    def _load_snapshot(self, producers: ProducerStateManager, offset: int) -> bool:
        """Loads the producer snapshot at `offset`. Returns False if there is none.

        The snapshot may contain batches that the segments lack. Compaction may have removed a producer's batch because
        the producer had a later batch, which the crash may have lost.
        """
        data = read_small_file(self._disk, _snapshot_path(self._directory, offset))
        if data is None:
            return False
        try:
            producers.restore(data)
        except CorruptRecordError as error:
            log.warning("ignoring a producer snapshot", log=self._directory, offset=offset, reason=str(error))
            return False
        return True

    async def _recover_segment(
        self, segment: LogSegment, producers: ProducerStateManager, epochs: LeaderEpochCache
    ) -> bool:
        """Checks all batches of the segment. Returns whether the segment was truncated."""
        segment.file.drop_cache()
        size = segment.file.size
        segment.start_empty()
        position, expected, latest = 0, segment.base_offset, NO_EPOCH
        before_gap = expected
        checked = 0
        try:
            for position, batch in scan_batches(segment.file, 0, size):
                if batch.base_offset < expected or batch.last_offset_delta < 0:
                    # No checksum covers offsets. If there is a gap before the previous batch, that batch may have the
                    # wrong offset. Then only the records before the gap are known to be correct.
                    expected = min(expected, before_gap)
                    raise CorruptRecordError(
                        f"the batch at position {position} has offset {batch.base_offset} after {expected - 1}"
                    )
                if batch.leader_epoch < latest:
                    # Reject an epoch below that of the previous batch. No checksum covers epochs, and a wrong epoch
                    # would get into the leader epoch cache.
                    raise CorruptRecordError(
                        f"the batch at position {position} has epoch {batch.leader_epoch} after {latest}"
                    )
                # Register the batch before `expected` changes. If `register_batch` rejects the offset, `expected` must
                # still be the end of the previous batch.
                segment.register_batch(batch, position)
                before_gap = expected if batch.base_offset > expected else batch.next_offset
                expected, latest = batch.next_offset, batch.leader_epoch
                aborted = producers.update(batch)
                if aborted is not None:
                    segment.add_aborted_transaction(aborted)
                if batch.leader_epoch != epochs.latest:
                    epochs.assign(batch.leader_epoch, batch.base_offset)
                checked += 1
                if checked % _BATCHES_PER_YIELD == 0:
                    producers.unstable.forget_committed(self._high_watermark)
                    await asyncio.sleep(0)
        except CorruptRecordError as error:
            if expected < self._recovery_point:
                raise CorruptRecordError(
                    f"{error} in {segment.path(LOG_SUFFIX)}, before the recovery point {self._recovery_point}"
                ) from error
            log.warning(
                "truncating the torn end of a segment",
                segment=segment.path(LOG_SUFFIX),
                at_offset=expected,
                bytes=size - segment.size,
                reason=str(error),
            )
            # Delete the snapshots first. After another crash, they would be evidence that nothing is missing here.
            delete_snapshots_after(self._disk, self._directory, expected)
            await self._disk.sync_directory(self._directory)
            segment.file.truncate(segment.size)
            return True
        return False

    def _load_leader_epochs(self, segments: list[LogSegment], end: int) -> LeaderEpochCache:
        data = read_small_file(self._disk, f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}")
        try:
            if data is None:
                raise CorruptRecordError("it is missing")
            epochs = LeaderEpochCache.from_text(data.decode("utf-8"))
        except (CorruptRecordError, UnicodeDecodeError) as error:
            epochs = LeaderEpochCache()
            if any(segment.size for segment in segments if segment.base_offset < end):
                log.info("rebuilding the leader epochs from the log", log=self._directory, reason=str(error))
            for header in headers_between(segments, segments[0].base_offset, end):
                if header.leader_epoch != epochs.latest:
                    epochs.assign(header.leader_epoch, header.base_offset)
        # Keep an epoch that starts at `end`, although it has no records. A log that retention has emptied must keep
        # its latest epoch.
        epochs.truncate_from_end(end + 1)
        return epochs


async def complete_swap(disk: Disk, directory: str, base: int) -> None:
    """Replaces the old segments in the offset range of a compacted segment with the compacted segment.

    The compacted segment keeps the suffix .swap until the old segments are durably deleted, so that recovery can repeat
    this function after a crash.
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
    indexes = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
    for suffix in indexes if indexes_only else (*indexes, LOG_SUFFIX):
        disk.remove(f"{directory}/{segment_file_name(base, suffix)}")


async def write_snapshot(disk: Disk, directory: str, offset: int, snapshot: bytes) -> None:
    await disk.replace(_snapshot_path(directory, offset), snapshot)


def delete_snapshots_after(disk: Disk, directory: str, end: int) -> None:
    for offset in list_snapshots(disk, directory):
        if offset > end:
            disk.remove(_snapshot_path(directory, offset))


def delete_old_snapshots(disk: Disk, directory: str, base_offsets: Container[int]) -> None:
    """Deletes all producer snapshots except the latest snapshot and the snapshots at the start of a segment."""
    for offset in list_snapshots(disk, directory)[:-1]:
        if offset not in base_offsets:
            disk.remove(_snapshot_path(directory, offset))


def _snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{segment_file_name(offset, SNAPSHOT_SUFFIX)}"
