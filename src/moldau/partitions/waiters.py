"""Requests that wait for a partition: produces for the high watermark to pass them, fetches for news.

Parked with whoever is to be told; nothing here polls, and deadlines are the waiting request's own timers.
"""

import asyncio
import heapq
from collections.abc import Callable

Listener = Callable[[], None]


class OffsetWaiters:
    """Futures that are done when an offset is reached, the lowest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._heap)

    def add(self, offset: int) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._heap, (offset, self._count, future))
        return future

    def complete_up_to(self, offset: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= offset:
            future = heapq.heappop(heap)[2]
            if not future.done():
                future.set_result(None)

    def fail_all(self, error: Exception) -> None:
        waiting, self._heap = self._heap, []
        for _, _, future in sorted(waiting, key=lambda each: each[:2]):
            if not future.done():
                future.set_exception(error)


class CallbackList:
    """Fetches that want to be told of something; told in the order they came."""

    def __init__(self) -> None:
        self._listeners: dict[int, Listener] = {}
        self._count = 0
        self._is_closed = False

    def add(self, listener: Listener) -> int:
        self._count += 1
        self._listeners[self._count] = listener
        if self._is_closed:
            listener()
        return self._count

    def remove(self, ticket: int) -> None:
        self._listeners.pop(ticket, None)

    def close(self) -> None:
        """Tells all, and from now on whoever comes at once: there will be no other news."""
        self._is_closed = True
        self.notify()

    def notify(self) -> None:
        if self._listeners:
            for listener in list(self._listeners.values()):
                listener()
