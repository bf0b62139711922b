"""The delayed operations of a partition, which Kafka keeps in purgatories. Each request has its own timer."""

import asyncio
import heapq
from collections.abc import Callable

from moldau.concurrency.notifier import resolve


class OffsetWaiters:
    """Futures that complete when an offset is reached, the lowest offset first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, offset: int) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._heap, (offset, self._count, future))
        return future

    def complete_up_to(self, offset: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= offset:
            resolve(heapq.heappop(heap)[2])

    def fail_all(self, error: Exception) -> None:
        waiting, self._heap = self._heap, []
        for _, _, future in sorted(waiting, key=lambda each: each[:2]):
            if not future.done():
                future.set_exception(error)


class CallbackList:
    """Callbacks for one kind of event, called in the order in which they were added."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._count = 0
        self._is_closed = False

    def add(self, callback: Callable[[], None]) -> int:
        """Returns the key for `remove`."""
        self._count += 1
        self._callbacks[self._count] = callback
        if self._is_closed:
            callback()
        return self._count

    def remove(self, key: int) -> None:
        self._callbacks.pop(key, None)

    def close(self) -> None:
        """Calls all callbacks. Callbacks that are added later are called immediately."""
        self._is_closed = True
        self.notify()

    def notify(self) -> None:
        if self._callbacks:
            for callback in list(self._callbacks.values()):
                callback()


class DelayedOperations:
    """The delayed operations and listeners of one partition."""

    def __init__(self) -> None:
        self.high_watermark_listeners = CallbackList()
        """Called when consumers may read more records, and on errors and role changes."""
        self.append_listeners = CallbackList()
        """Called when followers may read more records or the start offset has advanced, and on errors and role
        changes."""
        self.lease_listeners = CallbackList()
        self.commits = OffsetWaiters()
        """Appends that wait for the high watermark."""
        self.acks_all = OffsetWaiters()
        """As `commits`. These also fail when the ISR shrinks below min.insync.replicas."""
        self.deletions = OffsetWaiters()
        """DeleteRecords requests that wait for the low watermark."""

    def complete_commits(self, high_watermark: int) -> None:
        self.commits.complete_up_to(high_watermark)
        self.acks_all.complete_up_to(high_watermark)
        self.high_watermark_listeners.notify()

    def fail_all(self, error: Exception) -> None:
        for waiters in (self.commits, self.acks_all, self.deletions):
            waiters.fail_all(error)

    def notify_all(self) -> None:
        self.high_watermark_listeners.notify()
        self.append_listeners.notify()
