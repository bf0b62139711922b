"""The aborted transactions of a log, in memory and in the format of Kafka's `.txnindex` files. Pure."""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator
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
        for number in range(bisect_left(self._last_offsets, start), len(self)):
            if self._first_offsets[number] < end:
                found.append(
                    AbortedTransaction(
                        self._producer_ids[number],
                        self._first_offsets[number],
                        self._last_offsets[number],
                        self._last_stable_offsets[number],
                    )
                )
            if self._last_stable_offsets[number] >= end:
                return True
        return False

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
        return b"".join(_ENTRY.pack(_VERSION, *aborted) for aborted in self)

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int, next_offset: int | None = None) -> "TransactionIndex":
        """Parses the index of a segment with these offsets. Raises CorruptRecordError."""
        if len(data) % ABORTED_ENTRY_SIZE:
            raise CorruptRecordError(f"a transaction index of {len(data)} bytes has a partial entry")
        index = cls()
        previous = base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(data):
            aborted = AbortedTransaction(*fields)
            if version != _VERSION:
                raise CorruptRecordError(f"entries of version {version} in a transaction index are not known")
            is_in_segment = next_offset is None or aborted.last_offset < next_offset
            if not (previous < aborted.last_offset and is_in_segment):
                raise CorruptRecordError(f"a transaction index has a marker at offset {aborted.last_offset}")
            if not 0 <= aborted.first_offset < aborted.last_offset or aborted.producer_id < 0:
                raise CorruptRecordError(f"a transaction index has an invalid entry: {aborted}")
            previous = aborted.last_offset
            index.append(aborted)
        return index
