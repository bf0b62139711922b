"""One segment of a log: a file of batches, its two indexes, and what is known of its times.

The active segment's indexes live in memory. Those of a closed segment are in files beside it; they are read
when needed and can be made anew from the segment at any time.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from moldau.errors import CorruptRecordError
from moldau.logs.files.indexes import OFFSET_RANGE, OffsetIndex, TimeIndex
from moldau.logs.files.names import INDEX, LOG, TIME_INDEX, offset_name
from moldau.logs.files.scan import BatchHeader, scan_headers
from moldau.observe.logging import get_logger
from moldau.platform.disk import Disk, File
from moldau.records.batch import HEADER_SIZE, NO_TIMESTAMP, Batch

_RECENT_MAX = 4096
"""Batches of the active segment whose places are remembered, so that reads at the tail find them at once."""

log = get_logger(__name__)


def read_file(disk: Disk, path: str, bytes_max: int | None = None) -> bytes | None:
    """A small file's whole content, or its first `bytes_max`; None where there is none."""
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return file.read(0, file.size if bytes_max is None else min(file.size, bytes_max))
    finally:
        file.close()


class Segment:
    __slots__ = (
        "_bytes_since_index",
        "_directory",
        "_disk",
        "_index",
        "_recent_offsets",
        "_recent_positions",
        "_times",
        "_times_are_known",
        "base_offset",
        "file",
        "first_timestamp",
        "index_interval_bytes",
        "indexes_are_new",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "size",
        "snapshot",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        index_interval_bytes: int,
        *,
        file_suffix: str = LOG,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.file: File = disk.open(self.path(file_suffix))
        self.size = self.file.size
        self.indexes_are_new = False
        """Made from the segment and not in their files yet."""
        self.snapshot: bytes | None = None
        """The producers' state at the segment's end, from its closing until it is in its file."""
        self._forget()

    def _forget(self) -> None:
        self.next_offset = self.base_offset
        """One past the last offset in it."""
        self.first_timestamp = NO_TIMESTAMP
        """Of the first batch; what segment.ms counts from."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        """The last offset of the first batch that has max_timestamp."""
        self._times_are_known = False
        self._bytes_since_index = 0
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._recent_offsets = array("q")
        self._recent_positions = array("q")

    def path(self, suffix: str) -> str:
        return f"{self._directory}/{offset_name(self.base_offset, suffix)}"

    # Growing

    def clear(self) -> None:
        """Begins empty, whatever was in the file."""
        if self.size:
            self.file.truncate(0)
        self.clear_knowledge()

    def clear_knowledge(self) -> None:
        """Begins empty; what is in the file is yet to be noted."""
        self.size = 0
        self._begin()

    def _begin(self) -> None:
        self._forget()
        self._times_are_known = True
        self._index, self._times = OffsetIndex(), TimeIndex()

    def note(self, batch: Batch | BatchHeader, position: int) -> None:
        """Takes account of a batch that is in the file at `position`, behind all others."""
        last_offset = batch.base_offset + batch.last_offset_delta
        timestamp = batch.max_timestamp
        if not 0 <= last_offset - self.base_offset <= OFFSET_RANGE:
            # Offsets are not covered by a batch's checksum.
            raise CorruptRecordError(f"a batch with offset {last_offset} is in {self.path(LOG)}")
        if position == 0:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset
        size = batch.size
        if self._bytes_since_index > self.index_interval_bytes:
            self.index.append(last_offset - self.base_offset, position)
            self.times.append_newer(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
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
        """No more batches come. The last time entry then tells the segment's largest timestamp."""
        self.times.append_newer(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self._recent_offsets, self._recent_positions = array("q"), array("q")

    def cut(self, position: int) -> None:
        """Drops the batches from `position` on; the segment may grow again."""
        index, times = self.index, self.times
        dropped = next(scan_headers(self.file, position, self.size), None)
        self.file.truncate(position)
        self.size = position
        index.truncate(position)
        if dropped is not None:
            times.truncate(dropped.base_offset - self.base_offset)
        self._learn(index, times)

    # The indexes

    @property
    def index(self) -> OffsetIndex:
        index = self._index
        if index is None:
            try:
                data = read_file(self._disk, self.path(INDEX))
                if data is None:
                    raise CorruptRecordError("the offset index is missing")
                index = self._index = OffsetIndex.from_bytes(data, self.size)
            except CorruptRecordError as error:
                index, _ = self.make_indexes(str(error))
        return index

    @property
    def times(self) -> TimeIndex:
        times = self._times
        if times is None:
            try:
                data = read_file(self._disk, self.path(TIME_INDEX))
                if data is None:
                    raise CorruptRecordError("the time index is missing")
                times = self._times = TimeIndex.from_bytes(data)
            except CorruptRecordError as error:
                _, times = self.make_indexes(str(error))
        return times

    def make_indexes(self, why: str) -> tuple[OffsetIndex, TimeIndex]:
        """Reads the headers of the whole segment and learns everything from them."""
        if self.size:
            log.info("index is made anew", segment=self.path(LOG), why=why)
        next_offset = self.next_offset
        self._begin()
        for header in scan_headers(self.file, 0, self.size):
            self.note(header, header.position)
        self.seal()
        self.next_offset = max(next_offset, self.next_offset)
        self.indexes_are_new = True
        assert self._index is not None
        assert self._times is not None
        return self._index, self._times

    def learn(self) -> None:
        """Finds the segment's end and times from its index files and the few batches they do not cover."""
        try:
            if self.index:
                self._check_entry(self.index, len(self.index) - 1)
            if self.times:
                self._check_newest(self.times)
            self._learn(self.index, self.times)
        except CorruptRecordError as error:
            self.make_indexes(str(error))

    def _learn(self, index: OffsetIndex, times: TimeIndex) -> None:
        self._begin()
        self._index, self._times = index, times
        if not self.size:
            return
        if times:
            self.max_timestamp = times.timestamps[-1]
            self.max_timestamp_offset = self.base_offset + times.offsets[-1]
        first_timestamp = next(scan_headers(self.file, 0, self.size)).max_timestamp
        covered = index.positions[-1] if index else 0
        for header in scan_headers(self.file, covered, self.size):
            if index and header.position == covered:
                # It has its entry already.
                self._bytes_since_index = 0
            self.note(header, header.position)
        self.first_timestamp = first_timestamp

    def learn_times(self) -> None:
        """Makes the timestamps of a closed segment known, which opening a log leaves unread."""
        if not self._times_are_known:
            next_offset = self.next_offset
            self.learn()
            self.seal()
            self.next_offset = max(next_offset, self.next_offset)
            self.drop_indexes()

    def drop_indexes(self) -> None:
        """Frees the memory of indexes that are in their files."""
        if not self.indexes_are_new:
            self._index = self._times = None

    @property
    def indexes_are_loaded(self) -> bool:
        return self._index is not None or self._times is not None

    async def write_indexes(self) -> None:
        index, times = self.index.to_bytes(), self.times.to_bytes()
        await self._disk.replace(self.path(INDEX), index)
        await self._disk.replace(self.path(TIME_INDEX), times)
        self.indexes_are_new = False

    # Finding

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches that end at or after `offset`."""
        for header in scan_headers(self.file, self._position_before(offset), self.size):
            if header.last_offset >= offset:
                yield header

    def position_of(self, offset: int) -> int:
        """Where the first batch begins that ends at or after `offset`; the segment's size if there is none."""
        recent = self._recent_offsets
        if recent and (offset > recent[0] or not self._recent_positions[0]):
            found = bisect_left(recent, offset)
            return self._recent_positions[found] if found < len(recent) else self.size
        for header in self.headers(offset):
            return header.position
        return self.size

    def end_before(self, position: int) -> int:
        """One past the last offset before `position`, where a batch begins or the segment ends."""
        end = self.base_offset
        for header in scan_headers(self.file, self.index.boundary_before(max(0, position - 1)), position):
            end = header.last_offset + 1
        return end

    def boundary_before(self, position: int) -> int:
        """The last start of a batch at or before `position` that is known without looking into the file."""
        recent = self._recent_positions
        if recent and recent[0] <= position:
            return recent[bisect_left(recent, position + 1) - 1]
        return self.index.boundary_before(position)

    def _position_before(self, offset: int) -> int:
        """A place from which a walk over the headers meets the batch with `offset`."""
        index = self.index
        entry = index.entry_for(offset - self.base_offset)
        if entry < 0:
            return 0
        try:
            self._check_entry(index, entry)
        except CorruptRecordError as error:
            index, _ = self.make_indexes(str(error))
            entry = index.entry_for(offset - self.base_offset)
        return index.positions[entry] if entry >= 0 else 0

    def _check_entry(self, index: OffsetIndex, entry: int) -> None:
        """An entry that does not lead to its batch gives the whole index away as damaged."""
        position = index.positions[entry]
        header = BatchHeader(self.file.read(position, HEADER_SIZE).ljust(HEADER_SIZE, b"\0"), 0, position)
        if header.last_offset != self.base_offset + index.offsets[entry]:
            raise CorruptRecordError(f"the offset index leads to another batch at position {position}")

    def _check_newest(self, times: TimeIndex) -> None:
        """Retention goes by the last time entry, so a damaged one must not be believed."""
        offset = self.base_offset + times.offsets[-1]
        header = next(self.headers(offset), None)
        if header is None or (header.last_offset, header.max_timestamp) != (offset, times.timestamps[-1]):
            raise CorruptRecordError("the time index leads to another batch")
