"""The empty batches of a segment. Compaction keeps the last batch of a live producer even without records."""

from array import array
from bisect import bisect_left, bisect_right

from moldau.logs.files.scan import scan_headers
from moldau.platform.disk import File
from moldau.records.batch import HEADER_SIZE


class EmptyBatches:
    """The positions of the empty batches of one segment. Each part of the file is scanned at most once."""

    __slots__ = ("_scanned_ends", "_scanned_starts", "known_from", "positions")

    def __init__(self, known_from: int) -> None:
        self.known_from = known_from
        """All empty batches from this position on are in `positions`."""
        self.positions = array("q")
        """The known empty batches, ascending."""
        self._scanned_starts: list[int] = []
        self._scanned_ends: list[int] = []
        """The scanned ranges below `known_from`, ascending. Adjacent ranges are merged."""

    def first_run(self, file: File, start: int, end: int) -> int:
        """Returns the position of the first two empty batches in a row from `start` to `end`, which are boundaries of
        batches; `end` if there are none."""
        if start < self.known_from:
            self._scan(file, start, min(end, self.known_from))
        positions = self.positions
        for number in range(bisect_left(positions, start), bisect_left(positions, end) - 1):
            if positions[number + 1] - positions[number] == HEADER_SIZE:
                return positions[number]
        return end

    def _scan(self, file: File, start: int, end: int) -> None:
        """Scans what is not scanned yet of this range."""
        starts, ends = self._scanned_starts, self._scanned_ends
        first, after = bisect_left(ends, start), bisect_right(starts, end)
        position, merged_start, merged_end = start, start, end
        for scanned_start, scanned_end in zip(starts[first:after], ends[first:after], strict=True):
            self._find(file, position, scanned_start)
            position = scanned_end
            merged_start, merged_end = min(merged_start, scanned_start), max(merged_end, scanned_end)
        self._find(file, position, end)
        starts[first:after] = [merged_start]
        ends[first:after] = [merged_end]

    def _find(self, file: File, start: int, end: int) -> None:
        if start < end:
            found = [header.position for header in scan_headers(file, start, end) if header.size == HEADER_SIZE]
            place = bisect_left(self.positions, start)
            self.positions[place:place] = array("q", found)
