"""Priority queue of deadlines that are mostly postponed before they are due.

The heap is lazy. A postponed deadline keeps its old heap entry until that entry is due. A cleared deadline leaves a
stale entry in the heap.
"""

import heapq

_STALE_ENTRIES_SLACK = 64
"""The heap is rebuilt when it has more than twice as many entries as keys, plus this number."""


class DeadlineQueue:
    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._entries: dict[str, int] = {}
        """The time of each key's valid heap entry. This time is never later than the key's deadline."""
        self._deadlines: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: str, deadline_ms: int | None) -> None:
        """Sets the deadline of a key, or clears it if `deadline_ms` is None."""
        if deadline_ms is None:
            self._deadlines.pop(key, None)
            self._entries.pop(key, None)
            self._compact()
            return
        self._deadlines[key] = deadline_ms
        entry = self._entries.get(key)
        if entry is None or deadline_ms < entry:
            self._push(key, deadline_ms)
            self._compact()

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline; None if the queue is empty."""
        while self._heap:
            entry_ms, key = self._heap[0]
            if self._entries.get(key) != entry_ms:
                heapq.heappop(self._heap)
                continue
            deadline_ms = self._deadlines[key]
            if deadline_ms == entry_ms:
                return entry_ms
            heapq.heappop(self._heap)
            self._push(key, deadline_ms)
        return None

    def pop_due(self, now_ms: int) -> str | None:
        """Removes and returns the key with the earliest deadline, or returns None if no deadline is due."""
        next_ms = self.next_ms
        if next_ms is None or next_ms > now_ms:
            return None
        _, key = heapq.heappop(self._heap)
        del self._entries[key], self._deadlines[key]
        return key

    def _push(self, key: str, deadline_ms: int) -> None:
        self._entries[key] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, key))

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _STALE_ENTRIES_SLACK:
            self._heap = [(entry_ms, key) for key, entry_ms in self._entries.items()]
            heapq.heapify(self._heap)
