"""The two indexes of a segment, in memory and in Kafka's file formats. Offsets are relative to the base offset."""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right

from moldau.errors import CorruptRecordError

OFFSET_RANGE = 2**31 - 1
"""The largest relative offset. An index stores relative offsets as signed 32-bit integers."""
OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = 12

_TIME_ENTRY = struct.Struct(">qi")


class OffsetIndex:
    """The last offsets and the positions of some batches; both are ascending."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, offset: int, position: int) -> None:
        self.offsets.append(offset)
        self.positions.append(position)

    def lookup(self, offset: int) -> int:
        """Returns the number of the last entry whose batch ends at or before `offset`; -1 if there is none."""
        return bisect_right(self.offsets, offset) - 1

    def batch_start_before(self, position: int) -> int:
        """Returns the position of the last indexed batch that starts at or before `position`; 0 if there is none."""
        following = bisect_right(self.positions, position)
        return self.positions[following - 1] if following else 0

    def truncate(self, position: int) -> None:
        """Removes the entries at or after `position`, the new end of the segment."""
        keep = bisect_left(self.positions, position)
        del self.offsets[keep:], self.positions[keep:]

    def to_bytes(self) -> bytes:
        entries = array("i", bytes(OFFSET_ENTRY_SIZE * len(self.offsets)))
        entries[0::2] = self.offsets
        entries[1::2] = self.positions
        if sys.byteorder == "little":
            entries.byteswap()
        return entries.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, segment_size: int) -> "OffsetIndex":
        """Parses the index of a segment of this size. Raises CorruptRecordError."""
        if len(data) % OFFSET_ENTRY_SIZE:
            raise CorruptRecordError(f"an offset index of {len(data)} bytes has a partial entry")
        entries = array("i", data)
        if sys.byteorder == "little":
            entries.byteswap()
        index = cls()
        index.offsets, index.positions = entries[0::2], entries[1::2]
        if not (_is_ascending(index.offsets) and _is_ascending(index.positions)):
            raise CorruptRecordError("the entries of an offset index are not ascending")
        if len(index) and (index.offsets[0] < 0 or not 0 <= index.positions[-1] < segment_size):
            raise CorruptRecordError("an offset index points outside of its segment")
        return index


class TimeIndex:
    """The largest timestamps so far, each with the last offset of its batch; both are ascending."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.timestamps)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Adds an entry if `timestamp` is larger than the timestamp of the last entry."""
        if timestamp > (self.timestamps[-1] if self.timestamps else -1):
            self.timestamps.append(timestamp)
            self.offsets.append(offset)

    def lookup(self, timestamp: int) -> int:
        """Returns the largest indexed offset up to which all records are older than `timestamp`; 0 if there is none."""
        following = bisect_left(self.timestamps, timestamp)
        return self.offsets[following - 1] if following else 0

    def truncate(self, offset: int) -> None:
        """Removes the entries at or after `offset`, the new end of the segment."""
        keep = bisect_left(self.offsets, offset)
        del self.offsets[keep:], self.timestamps[keep:]

    def to_bytes(self) -> bytes:
        return b"".join(map(_TIME_ENTRY.pack, self.timestamps, self.offsets))

    @classmethod
    def from_bytes(cls, data: bytes) -> "TimeIndex":
        if len(data) % TIME_ENTRY_SIZE:
            raise CorruptRecordError(f"a time index of {len(data)} bytes has a partial entry")
        index = cls()
        if data:
            timestamps, offsets = zip(*_TIME_ENTRY.iter_unpack(data), strict=True)
            index.timestamps.extend(timestamps)
            index.offsets.extend(offsets)
        if not (_is_ascending(index.timestamps) and _is_ascending(index.offsets)):
            raise CorruptRecordError("the entries of a time index are not ascending")
        if len(index) and index.offsets[0] < 0:
            raise CorruptRecordError("a time index points outside of its segment")
        return index


def _is_ascending(numbers: "array[int]") -> bool:
    return all(map(int.__lt__, numbers, numbers[1:]))
