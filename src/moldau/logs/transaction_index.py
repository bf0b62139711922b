"""The aborted transactions of a log, in memory and in the format of Kafka's `.txnindex` files. Pure."""

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import repeat
from operator import lt
from typing import NamedTuple

from moldau.errors import CorruptRecordError

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ABORTED_ENTRY_SIZE = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """A transaction with records in this log that was aborted."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the marker."""
    last_stable_offset: int
    """The first offset of another transaction that was open at the marker, otherwise the offset after the marker.

    All transactions that start below this offset have ended before or with this one. So a search for the aborted
    transactions of records below this offset ends here."""


class TransactionIndex:
    """Aborted transactions in the order of their markers."""

    __slots__ = ("_first_offsets", "_last_offsets", "_last_stable_offsets", "_producer_ids")

    def __init__(self) -> None:
        self._producer_ids = array("q")
        self._first_offsets = array("q")
        self._last_offsets = array("q")
        self._last_stable_offsets = array("q")

    def __len__(self) -> int:
        return len(self._producer_ids)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(
            AbortedTransaction, self._producer_ids, self._first_offsets, self._last_offsets, self._last_stable_offsets
        )

    def append(self, aborted: AbortedTransaction) -> None:
        self._producer_ids.append(aborted.producer_id)
        self._first_offsets.append(aborted.first_offset)
        self._last_offsets.append(aborted.last_offset)
        self._last_stable_offsets.append(aborted.last_stable_offset)

    def find(self, start: int, end: int, found: list[AbortedTransaction]) -> bool:
        """Adds the transactions with records from offset `start` on and before `end` to `found`.

        Returns whether these are all such transactions. Otherwise later segments may contain more of them.
        """
        first = bisect_left(self._last_offsets, start)
        # The last stable offset never goes back, so these are ascending too.
        last = bisect_left(self._last_stable_offsets, end, lo=first)
        found += (
            AbortedTransaction(
                self._producer_ids[number], first_offset, self._last_offsets[number], self._last_stable_offsets[number]
            )
            for number, first_offset in enumerate(self._first_offsets[first : last + 1], first)
            if first_offset < end
        )
        return last < len(self)

    def truncate_from_end(self, end: int) -> None:
        """Removes the transactions whose markers are at or after `end`."""
        keep = bisect_left(self._last_offsets, end)
        for column in (self._producer_ids, self._first_offsets, self._last_offsets, self._last_stable_offsets):
            del column[keep:]

    def truncate_from_start(self, start: int) -> None:
        """Removes the transactions whose markers are before `start`."""
        drop = bisect_left(self._last_offsets, start)
        for column in (self._producer_ids, self._first_offsets, self._last_offsets, self._last_stable_offsets):
            del column[:drop]

    def to_bytes(self) -> bytes:
        return b"".join(
            map(
                _ENTRY.pack,
                repeat(_VERSION),
                self._producer_ids,
                self._first_offsets,
                self._last_offsets,
                self._last_stable_offsets,
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int, next_offset: int | None = None) -> "TransactionIndex":
        """Parses the index of a segment with these offsets. Raises CorruptRecordError."""
        if len(data) % ABORTED_ENTRY_SIZE:
            raise CorruptRecordError(f"a transaction index of {len(data)} bytes has a partial entry")
        index = cls()
        if not data:
            return index
        if any(data[::ABORTED_ENTRY_SIZE]) or any(data[1::ABORTED_ENTRY_SIZE]):
            raise CorruptRecordError(f"a transaction index has entries of another version than {_VERSION}")
        # An index may have many entries, so there is no loop over them. Delete the two bytes of each version.
        fields = bytearray(data)
        del fields[::ABORTED_ENTRY_SIZE]
        del fields[:: ABORTED_ENTRY_SIZE - 1]
        numbers = array("q", fields)
        if sys.byteorder == "little":
            numbers.byteswap()
        producer_ids, first_offsets, last_offsets, last_stable_offsets = (numbers[column::4] for column in range(4))
        is_in_segment = base_offset <= last_offsets[0] and (next_offset is None or last_offsets[-1] < next_offset)
        if not (is_in_segment and all(map(lt, last_offsets, last_offsets[1:]))):
            raise CorruptRecordError("a transaction index has markers of another segment, or in another order")
        if min(producer_ids) < 0 or min(first_offsets) < 0 or not all(map(lt, first_offsets, last_offsets)):
            raise CorruptRecordError("a transaction index has an invalid entry")
        index._producer_ids, index._first_offsets = producer_ids, first_offsets
        index._last_offsets, index._last_stable_offsets = last_offsets, last_stable_offsets
        return index
