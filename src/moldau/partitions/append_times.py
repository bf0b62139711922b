"""When a leader appended the records of a partition, in little memory. Pure.

A note is the offset and the time of one append. At most one note a second is kept, and old notes are merged with their
neighbours, so the time of an older record is known less exactly. What is left of the oldest notes is removed.
"""

from array import array
from bisect import bisect_right
from typing import NamedTuple

NOTE_INTERVAL_MS = 1_000
"""The minimum time between two notes, and how exactly the times of recent records are known."""
NOTES_MAX = 128
AGE_DIVISOR = 16
"""Notes are merged if the time that they cover together is at most this fraction of their age."""
_NOTES_KEPT = NOTES_MAX * 3 // 4


class AppendTimeRange(NamedTuple):
    """The earliest and the latest time at which a record may have been appended."""

    earliest_ms: int
    latest_ms: int


class AppendTimes:
    __slots__ = ("_latest", "_offsets", "_times")

    def __init__(self) -> None:
        # A note covers the records from its offset to the offset of the next note.
        self._offsets = array("q")
        self._times = array("q")
        """When the first record of the note was appended, in ms since 1970."""
        self._latest = array("q")
        """When the last record of the note was appended at the latest."""

    def __len__(self) -> int:
        return len(self._offsets)

    def note(self, offset: int, now_ms: int) -> None:
        """Adds the first offset of an append. Called at most once in NOTE_INTERVAL_MS, with ascending offsets."""
        if len(self._offsets) >= NOTES_MAX:
            self._thin(now_ms)
        self._offsets.append(offset)
        self._times.append(now_ms)
        self._latest.append(now_ms + NOTE_INTERVAL_MS)

    def find(self, offset: int, now_ms: int) -> AppendTimeRange:
        """Returns when the record at `offset`, which exists, was appended. `earliest_ms` is 0 if that was before all
        notes."""
        index = bisect_right(self._offsets, offset) - 1
        following = self._times[index + 1] if index + 1 < len(self._times) else now_ms
        if index < 0:
            return AppendTimeRange(0, following)
        earliest = self._times[index]
        # The wall clock may have been set back.
        return AppendTimeRange(earliest, max(earliest, min(self._latest[index], following)))

    def _thin(self, now_ms: int) -> None:
        """Merges notes from the newest to the oldest. Then removes the oldest notes if too many are left."""
        offsets, times, latest = self._offsets, self._times, self._latest
        kept = [len(offsets) - 1]
        for index in range(len(offsets) - 2, -1, -1):
            newer = kept[-1]
            covered_ms = latest[newer] - times[index]
            if 0 <= covered_ms * AGE_DIVISOR <= now_ms - latest[newer]:
                latest[index] = latest[newer]
                kept[-1] = index
            else:
                kept.append(index)
        kept = kept[:_NOTES_KEPT]
        kept.reverse()
        self._offsets = array("q", [offsets[index] for index in kept])
        self._times = array("q", [times[index] for index in kept])
        self._latest = array("q", [latest[index] for index in kept])
