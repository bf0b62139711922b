"""A segment of a log: a file of batches, its indexes, and its timestamps.

The indexes of the active segment are in memory. Those of a closed segment are loaded from files on demand. Offset index
and time index can be rebuilt from the segment. The transaction index also needs the transactions that were open at the
start of the segment, so `recovery.py` checks and rebuilds it when the log is opened.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from moldau.errors import CorruptRecordError
from moldau.logs.compaction import has_record_from
from moldau.logs.files.empty_batches import EmptyBatches
from moldau.logs.files.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from moldau.logs.files.indexes import OFFSET_RANGE, OffsetIndex, TimeIndex
from moldau.logs.files.scan import read_batch, scan_headers
from moldau.logs.transaction_index import AbortedTransaction, TransactionIndex
from moldau.observe.logging import get_logger
from moldau.platform.disk import Disk, File, read_small_file
from moldau.records.batch import HEADER_SIZE, NO_TIMESTAMP, Batch
from moldau.records.batch_header import BatchHeader

_RECENT_MAX = 4096
"""How many batch positions at the end of the active segment are kept in memory, to make reads faster."""

log = get_logger(__name__)


class LogSegment:
    __slots__ = (
        "_bytes_since_index",
        "_directory",
        "_disk",
        "_has_timestamps",
        "_offset_index",
        "_recent_offsets",
        "_recent_positions",
        "_time_index",
        "_transaction_index",
        "base_offset",
        "empty_batches",
        "file",
        "first_timestamp",
        "has_transaction_file",
        "has_unwritten_indexes",
        "has_unwritten_transactions",
        "index_interval_bytes",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "producer_snapshot",
        "size",
    )

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, index_interval_bytes: int, *, file_suffix: str = LOG_SUFFIX
    ) -> None:
        self._disk = disk
        self._directory = directory
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.file: File = disk.open(self.path(file_suffix))
        self.size = self.file.size
        self.has_unwritten_indexes = False
        """Whether the indexes were rebuilt and are not written to their files yet."""
        self.has_transaction_file = False
        """Whether the segment may have a file with its transaction index. Most segments have no aborted transactions
        and no file."""
        self.has_unwritten_transactions = False
        """Whether the transaction index in memory differs from the file."""
        self._transaction_index: TransactionIndex | None = None
        self.producer_snapshot: bytes | None = None
        """The producer snapshot at the end of a closed segment, until it is written to its file; otherwise None."""
        self._reset_state()

    def _reset_state(self) -> None:
        self.next_offset = self.base_offset
        self.first_timestamp = NO_TIMESTAMP
        """The timestamp of the first batch. segment.ms is measured from this time."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        """The last offset of the first batch with max_timestamp."""
        self.empty_batches = EmptyBatches(self.size)
        self._has_timestamps = False
        self._bytes_since_index = 0
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._recent_offsets = array("q")
        self._recent_positions = array("q")

    def path(self, suffix: str) -> str:
        return f"{self._directory}/{segment_file_name(self.base_offset, suffix)}"

    # Changes

    def clear(self) -> None:
        """Deletes all batches."""
        if self.size:
            self.file.truncate(0)
        self.start_empty()

    def start_empty(self) -> None:
        """Resets the segment to contain no batches. The caller then registers the batches in the file again."""
        self.size = 0
        self.replace_transactions(TransactionIndex())
        self._start_empty()

    def _start_empty(self) -> None:
        self._reset_state()
        self.empty_batches = EmptyBatches(0)
        self._has_timestamps = True
        self._offset_index, self._time_index = OffsetIndex(), TimeIndex()

    def register_batch(self, batch: Batch | BatchHeader, position: int) -> None:
        """Adds the next batch in the file, which starts at `position`, to the indexes."""
        last_offset = batch.base_offset + batch.last_offset_delta
        timestamp = batch.max_timestamp
        if not 0 <= last_offset - self.base_offset <= OFFSET_RANGE:
            # The offset may be damaged, because the checksum does not cover it.
            raise CorruptRecordError(f"a batch with offset {last_offset} is in {self.path(LOG_SUFFIX)}")
        if position == 0:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset
        size = batch.size
        if size == HEADER_SIZE:
            self.empty_batches.positions.append(position)
        if self._bytes_since_index > self.index_interval_bytes:
            self.offset_index.append(last_offset - self.base_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self._bytes_since_index = 0
        self._bytes_since_index += size
        self.size = position + size
        self.next_offset = last_offset + 1
        recent = self._recent_offsets
        recent.append(last_offset)
        self._recent_positions.append(position)
        if len(recent) > _RECENT_MAX:
            del recent[: _RECENT_MAX // 2], self._recent_positions[: _RECENT_MAX // 2]

    def seal(self) -> None:
        """Closes the segment. Adds a last time index entry with the largest timestamp."""
        self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self._recent_offsets, self._recent_positions = array("q"), array("q")

    def truncate_to_position(self, position: int) -> None:
        """Deletes the batches from `position` on. Afterwards batches can be appended to the segment again."""
        offset_index, time_index, transaction_index = self.offset_index, self.time_index, self.transaction_index
        dropped = next(scan_headers(self.file, position, self.size), None)
        self.file.truncate(position)
        self.size = position
        offset_index.truncate(position)
        if dropped is not None:
            time_index.truncate(dropped.base_offset - self.base_offset)
            transaction_index.truncate_from_end(dropped.base_offset)
        self._load_from_indexes(offset_index, time_index)

    # Indexes

    @property
    def offset_index(self) -> OffsetIndex:
        offset_index = self._offset_index
        if offset_index is None:
            try:
                offset_index = self._offset_index = OffsetIndex.from_bytes(
                    self._read_index(OFFSET_INDEX_SUFFIX), self.size
                )
            except CorruptRecordError as error:
                offset_index, _ = self.rebuild_indexes(str(error))
        return offset_index

    @property
    def time_index(self) -> TimeIndex:
        time_index = self._time_index
        if time_index is None:
            try:
                time_index = self._time_index = TimeIndex.from_bytes(self._read_index(TIME_INDEX_SUFFIX))
            except CorruptRecordError as error:
                _, time_index = self.rebuild_indexes(str(error))
        return time_index

    def _read_index(self, suffix: str) -> bytes:
        data = read_small_file(self._disk, self.path(suffix))
        if data is None:
            raise CorruptRecordError(f"the {suffix} file is missing")
        return data

    def rebuild_indexes(self, reason: str) -> tuple[OffsetIndex, TimeIndex]:
        """Rebuilds the indexes and the state of the segment from the headers of all batches."""
        if self.size:
            log.info("rebuilding the indexes", segment=self.path(LOG_SUFFIX), reason=reason)
        next_offset = self.next_offset
        self._start_empty()
        for header in scan_headers(self.file, 0, self.size):
            self.register_batch(header, header.position)
        self.seal()
        self.next_offset = max(next_offset, self.next_offset)
        self.has_unwritten_indexes = True
        assert self._offset_index is not None
        assert self._time_index is not None
        return self._offset_index, self._time_index

    def load_state(self) -> None:
        """Loads the end offset and the timestamps from the indexes and the few batches after the last entries."""
        try:
            if self.offset_index:
                self._check_offset_entry(self.offset_index, len(self.offset_index) - 1)
            if self.time_index:
                self._check_last_time_entry(self.time_index)
            self._load_from_indexes(self.offset_index, self.time_index)
        except CorruptRecordError as error:
            self.rebuild_indexes(str(error))

    def _load_from_indexes(self, offset_index: OffsetIndex, time_index: TimeIndex) -> None:
        self._start_empty()
        self._offset_index, self._time_index = offset_index, time_index
        if not self.size:
            return
        if time_index:
            self.max_timestamp = time_index.timestamps[-1]
            self.max_timestamp_offset = self.base_offset + time_index.offsets[-1]
        first_timestamp = next(scan_headers(self.file, 0, self.size)).max_timestamp
        covered = offset_index.positions[-1] if offset_index else 0
        self.empty_batches = EmptyBatches(covered)
        for header in scan_headers(self.file, covered, self.size):
            if offset_index and header.position == covered:
                # This batch already has an index entry.
                self._bytes_since_index = 0
            self.register_batch(header, header.position)
        self.first_timestamp = first_timestamp

    def load_timestamps(self) -> None:
        """Loads the timestamps of a closed segment. They are not read when a log is opened."""
        if not self._has_timestamps:
            next_offset = self.next_offset
            self.load_state()
            self.seal()
            self.next_offset = max(next_offset, self.next_offset)
            self.drop_indexes()

    def drop_indexes(self) -> None:
        """Frees the memory of the indexes if they are written to their files."""
        if not self.has_unwritten_indexes:
            self._offset_index = self._time_index = None
        if not self.has_unwritten_transactions:
            self._transaction_index = None

    @property
    def has_loaded_indexes(self) -> bool:
        return self._offset_index is not None or self._time_index is not None or bool(self._transaction_index)

    async def write_indexes(self) -> None:
        if self.has_unwritten_transactions:
            # Write this index first. If the others exist after a crash, it is not missing; see `recovery.py`.
            await self._write_transaction_index(self.transaction_index)
        offset_index, time_index = self.offset_index.to_bytes(), self.time_index.to_bytes()
        await self._disk.replace(self.path(OFFSET_INDEX_SUFFIX), offset_index)
        await self._disk.replace(self.path(TIME_INDEX_SUFFIX), time_index)
        self.has_unwritten_indexes = False

    # Aborted transactions

    @property
    def transaction_index(self) -> TransactionIndex:
        """The aborted transactions whose markers are in this segment. Raises CorruptRecordError."""
        index = self._transaction_index
        if index is None:
            data = (
                read_small_file(self._disk, self.path(TRANSACTION_INDEX_SUFFIX)) if self.has_transaction_file else b""
            )
            if data is None:
                raise CorruptRecordError(f"{self.path(TRANSACTION_INDEX_SUFFIX)} is missing")
            index = self._transaction_index = TransactionIndex.from_bytes(data, self.base_offset, self.next_offset)
        return index

    def add_aborted_transaction(self, aborted: AbortedTransaction) -> None:
        """Adds a transaction whose marker was appended to this segment."""
        self.transaction_index.append(aborted)
        self.has_unwritten_transactions = True

    def replace_transactions(self, index: TransactionIndex) -> None:
        self._transaction_index = index
        self.has_unwritten_transactions = self.has_transaction_file or bool(index)

    def before_indexes_are_deleted(self) -> None:
        """Loads the transaction index and keeps it in memory, because it cannot be rebuilt from this segment alone."""
        self.has_unwritten_transactions = bool(self.transaction_index)
        self.has_transaction_file = False

    @property
    def has_aborted_transactions(self) -> bool:
        index = self._transaction_index
        return self.has_transaction_file if index is None else bool(index)

    async def _write_transaction_index(self, index: TransactionIndex) -> None:
        path = self.path(TRANSACTION_INDEX_SUFFIX)
        if index:
            await self._disk.replace(path, index.to_bytes())
        elif self.has_transaction_file:
            self._disk.remove(path)
            await self._disk.sync_directory(self._directory)
        self.has_transaction_file = bool(index)
        self.has_unwritten_transactions = False

    # Lookups

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """Yields the headers of all batches that end at or after `offset`."""
        for header in scan_headers(self.file, self._scan_start(offset), self.size):
            if header.last_offset >= offset:
                yield header

    def position_of(self, offset: int) -> int:
        """Returns the position of the first batch that ends at or after `offset`; the segment size if there is none."""
        if not self.size:
            return 0
        recent = self._recent_offsets
        if recent and (offset > recent[0] or not self._recent_positions[0]):
            found = bisect_left(recent, offset)
            return self._recent_positions[found] if found < len(recent) else self.size
        for header in self.headers(offset):
            return header.position
        return self.size

    def position_of_record(self, offset: int) -> int:
        """Returns the position of the first batch with a record at or after `offset`, or else the segment size.

        Compaction may have removed all records of a batch, or those at its end.
        """
        if not self.size:
            return 0
        recent, positions = self._recent_offsets, self._recent_positions
        if recent and (offset > recent[0] or not positions[0]):
            found, count = bisect_left(recent, offset), len(recent)
            if found == count:
                return self.size
            starts_batch = offset <= (recent[found - 1] + 1 if found else self.base_offset)
            end = positions[found + 1] if found + 1 < count else self.size
            if starts_batch and end - positions[found] > HEADER_SIZE:
                return positions[found]
        for header in self.headers(offset):
            if header.size > HEADER_SIZE and (
                offset <= header.base_offset
                or header.count > header.last_offset_delta
                or has_record_from(read_batch(self.file, header), offset)
            ):
                return header.position
        return self.size

    def last_batch(self, offset: int, end: int) -> BatchHeader | None:
        """Returns the header of the last batch before position `end`, unless the batch ends before `offset`."""
        last: BatchHeader | None = None
        if end > 0:
            for header in scan_headers(self.file, self.batch_start_before(end - 1), end):
                last = header
        return last if last is not None and last.last_offset >= offset else None

    def next_offset_before(self, position: int) -> int:
        """Returns the end offset of the last batch before `position`, the start of a batch or the segment's end."""
        last = self.last_batch(self.base_offset, position)
        return self.base_offset if last is None else last.last_offset + 1

    @property
    def last_batch_end(self) -> int:
        """The end offset of the last batch. `next_offset` is higher if compaction has removed later batches."""
        return self.next_offset_before(self.size)

    def batch_start_before(self, position: int) -> int:
        """Returns the last known batch start at or before `position`. Does not read the segment file."""
        recent = self._recent_positions
        if recent and recent[0] <= position:
            return recent[bisect_left(recent, position + 1) - 1]
        return self.offset_index.batch_start_before(position)

    def _scan_start(self, offset: int) -> int:
        """Returns a position from which a scan of headers finds the batch with `offset`."""
        offset_index = self.offset_index
        entry = offset_index.lookup(offset - self.base_offset)
        if entry < 0:
            return 0
        try:
            self._check_offset_entry(offset_index, entry)
        except CorruptRecordError as error:
            offset_index, _ = self.rebuild_indexes(str(error))
            entry = offset_index.lookup(offset - self.base_offset)
        return offset_index.positions[entry] if entry >= 0 else 0

    def _check_offset_entry(self, offset_index: OffsetIndex, entry: int) -> None:
        """Raises CorruptRecordError if the entry does not point to its batch."""
        position = offset_index.positions[entry]
        header = BatchHeader(self.file.read(position, HEADER_SIZE).ljust(HEADER_SIZE, b"\0"), 0, position)
        if header.last_offset != self.base_offset + offset_index.offsets[entry]:
            raise CorruptRecordError(f"the offset index points to another batch at position {position}")

    def _check_last_time_entry(self, time_index: TimeIndex) -> None:
        """Raises CorruptRecordError if the last entry does not match its batch. Retention depends on this entry."""
        offset = self.base_offset + time_index.offsets[-1]
        header = next(self.headers(offset), None)
        if header is None or (header.last_offset, header.max_timestamp) != (offset, time_index.timestamps[-1]):
            raise CorruptRecordError("the time index points to another batch")
