"""The newest batches of each log in memory: all that are not committed yet, and committed ones while there is room."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from moldau.records.batch import Batch

BATCH_OVERHEAD = 400
"""The memory of a batch in addition to its bytes: its objects and its places in lists."""
_STALE_MAX = 1_000
"""How many more entries than twice the batches the list of owners may have before it is rebuilt."""
_REMOVED_MAX = 1_000
"""How many removed batches may be at the start of the lists before they are deleted, which moves all others."""


class RecentBatch(NamedTuple):
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    data: bytes


class RecentBytes:
    """The memory of the recent batches of all logs of a node. The first batch that was appended is evicted first."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size = 0
        self.uncommitted = 0
        """The part of the size that is not committed yet, and cannot be evicted."""
        self._owners: deque[RecentBatches] = deque()
        """The owner of each batch, in the order of the appends. A log may have fewer batches than entries."""
        self._batches = 0

    def add(self, owner: "RecentBatches", size: int) -> None:
        self.size += size
        self.uncommitted += size
        self._batches += 1
        self._owners.append(owner)
        if len(self._owners) > 2 * self._batches + _STALE_MAX:
            self._forget_stale_owners()

    def subtract(self, count: int, size: int) -> None:
        """Applies that a log has removed batches."""
        self.size -= size
        self._batches -= count

    def _forget_stale_owners(self) -> None:
        """Keeps one entry for each batch, the newest ones of each log."""
        remaining = {owner: len(owner) for owner in self._owners}
        kept: deque[RecentBatches] = deque()
        for owner in reversed(self._owners):
            if remaining[owner]:
                remaining[owner] -= 1
                kept.appendleft(owner)
        self._owners = kept

    def evict(self) -> None:
        """Evicts committed batches while there are too many."""
        owners = self._owners
        while owners and (self.size > self.bytes_max or not len(owners[0])):
            if len(owners[0]) and not owners[0].evict_first():
                return
            owners.popleft()


class RecentBatches:
    """The recent batches of one log, in ascending order."""

    def __init__(self, start: int, memory: RecentBytes) -> None:
        self.start = start
        """All batches of the log that end at or after this offset are here."""
        self.committed_offset = start
        """All batches that end before this offset are in the database."""
        self._memory = memory
        self._batches: list[RecentBatch] = []
        self._last_offsets: list[int] = []
        self._first = 0

    def __len__(self) -> int:
        return len(self._batches) - self._first

    def append(self, batch: Batch) -> None:
        """Adds a copy of the batch, because its buffer will be reused."""
        added = RecentBatch(
            batch.base_offset, batch.last_offset, batch.max_timestamp, batch.leader_epoch, batch.to_bytes()
        )
        self._batches.append(added)
        self._last_offsets.append(added.last_offset)
        self._memory.add(self, _memory_of(added))

    def overlapping(self, offset: int, below: int) -> Sequence[RecentBatch]:
        """Returns the batches that end at or after `offset` and before `below`."""
        first = bisect_left(self._last_offsets, offset, lo=self._first)
        return self._batches[first : bisect_left(self._last_offsets, below, lo=first)]

    def from_offset(self, offset: int, bytes_max: int) -> list[RecentBatch]:
        """Returns the batches that end at or after `offset`: the first one, and more up to bytes_max bytes."""
        first = last = bisect_left(self._last_offsets, offset, lo=self._first)
        size = 0
        while last < len(self._batches) and (size == 0 or size + len(self._batches[last].data) <= bytes_max):
            size += len(self._batches[last].data)
            last += 1
        return self._batches[first:last]

    def end_below(self, offset: int) -> int | None:
        """Returns the end of the last batch that ends at or before `offset`; None if that batch is not here."""
        found = bisect_left(self._last_offsets, offset, lo=self._first)
        return self._last_offsets[found - 1] + 1 if found > self._first else None

    def set_committed(self, offset: int) -> None:
        """Applies that all batches that end before the offset are in the database."""
        self._memory.uncommitted -= sum(map(_memory_of, self.overlapping(self.committed_offset, offset)))
        self.committed_offset = offset

    def evict_first(self) -> bool:
        """Evicts the first batch if it is committed."""
        if self._first == len(self._batches) or self._last_offsets[self._first] >= self.committed_offset:
            return False
        batch = self._batches[self._first]
        self._memory.subtract(1, _memory_of(batch))
        self.start = batch.last_offset + 1
        self._first += 1
        if self._first >= _REMOVED_MAX or self._first == len(self._batches):
            del self._batches[: self._first], self._last_offsets[: self._first]
            self._first = 0
        return True

    def evict_committed(self) -> None:
        """Evicts all committed batches, whose rows have changed."""
        while self.evict_first():
            pass
        self.start = max(self.start, self.committed_offset)

    def evict_before(self, offset: int) -> None:
        """Evicts the committed batches that end before the offset."""
        while self._first < len(self._batches) and self._last_offsets[self._first] < offset and self.evict_first():
            pass

    def truncate(self, offset: int, end: int) -> None:
        """Removes the batches that end at or after `offset`. The log ends at `end` afterwards."""
        keep = bisect_left(self._last_offsets, offset, lo=self._first)
        removed = self._batches[keep:]
        self._memory.subtract(len(removed), sum(map(_memory_of, removed)))
        self._memory.uncommitted -= sum(
            _memory_of(batch) for batch in removed if batch.last_offset >= self.committed_offset
        )
        del self._batches[keep:], self._last_offsets[keep:]
        self.start = min(self.start, end)
        self.committed_offset = min(self.committed_offset, end)

    def reset(self, start: int) -> None:
        """Removes all batches."""
        self.truncate(-1, start)
        self.start = self.committed_offset = start


def _memory_of(batch: RecentBatch) -> int:
    return len(batch.data) + BATCH_OVERHEAD
