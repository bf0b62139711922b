"""A limit on the bytes of requests that are being worked on, over many connections."""

from collections import deque
from collections.abc import Callable


class MemoryPool:
    """Counts bytes in flight. Whoever finds it spent is called back, in turn, when there is room again."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiters: deque[Callable[[], None]] = deque()

    @property
    def is_exhausted(self) -> bool:
        return self._bytes >= self._bytes_max

    def reserve(self, size: int) -> None:
        self._bytes += size

    def notify_when_available(self, callback: Callable[[], None]) -> None:
        self._waiters.append(callback)

    def release(self, size: int) -> None:
        self._bytes -= size
        while self._waiters and not self.is_exhausted:
            self._waiters.popleft()()
