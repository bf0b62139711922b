"""A limit on the bytes of requests that are being worked on, over many connections."""

from collections import deque
from collections.abc import Callable


class Budget:
    """Counts bytes in flight. Whoever finds it spent is called back, in turn, when there is room again."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def is_spent(self) -> bool:
        return self._bytes >= self._bytes_max

    def take(self, size: int) -> None:
        self._bytes += size

    def wait(self, resume: Callable[[], None]) -> None:
        self._waiting.append(resume)

    def give_back(self, size: int) -> None:
        self._bytes -= size
        while self._waiting and not self.is_spent:
            self._waiting.popleft()()
