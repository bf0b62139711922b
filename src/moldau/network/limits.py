"""Limits that all connections share: bytes of requests in flight, bytes of partial frames, number of connections."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from moldau.settings.broker import BrokerSettings


class MemoryPool:
    """Counts the bytes of requests in flight. Connections stop reading while the pool is exhausted."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiters: deque[Callable[[], None]] = deque()

    @property
    def is_exhausted(self) -> bool:
        return self._bytes >= self._bytes_max

    @property
    def used_bytes(self) -> int:
        return self._bytes

    @property
    def available_bytes(self) -> int:
        return max(0, self._bytes_max - self._bytes)

    @property
    def waiting_count(self) -> int:
        """The number of connections that do not read until the pool is no longer exhausted."""
        return len(self._waiters)

    def reserve(self, size: int) -> None:
        self._bytes += size

    def notify_when_available(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when the pool is no longer exhausted, after all callbacks that were added earlier."""
        self._waiters.append(callback)

    def release(self, size: int) -> None:
        self._bytes -= size
        while self._waiters and not self.is_exhausted:
            self._waiters.popleft()()


class FrameReceiver(Protocol):
    def resume_reading(self) -> None:
        """Continues to receive the paused frame, if the limits allow it."""


class PartialFrameLimiter:
    """Limits the bytes of large frames that are partly received.

    Only received bytes count, so a client that announces a large frame and sends little does not block other clients.
    At the limit, only the oldest frame is received further, so that this frame can complete. A client that stalls in
    the middle of a frame is disconnected by the socket server.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._received: dict[FrameReceiver, int] = {}
        """The received bytes of each partial frame, by connection, in the order in which the frames started."""

    @property
    def used_bytes(self) -> int:
        return self._bytes

    def bytes_received(self, receiver: FrameReceiver, count: int) -> None:
        self._bytes += count
        self._received[receiver] = self._received.get(receiver, 0) + count

    def must_pause(self, receiver: FrameReceiver) -> bool:
        return self._bytes >= self._bytes_max and next(iter(self._received), receiver) is not receiver

    def frame_ended(self, receiver: FrameReceiver) -> None:
        """Removes a frame that is complete or whose connection has closed."""
        self._bytes -= self._received.pop(receiver, 0)
        if self._bytes < self._bytes_max:
            for paused in list(self._received):
                paused.resume_reading()
        elif self._received:
            next(iter(self._received)).resume_reading()


class ConnectionQuotas:
    """Limits the total number of connections and the number per client address."""

    def __init__(self, settings: Callable[[], BrokerSettings]) -> None:
        self._settings = settings
        self._per_address: Counter[str] = Counter()
        self.connection_count = 0

    def acquire(self, address: str) -> bool:
        settings = self._settings()
        is_address_full = self._per_address[address] >= settings.max_connections_per_ip
        if self.connection_count >= settings.max_connections or is_address_full:
            return False
        self.connection_count += 1
        self._per_address[address] += 1
        return True

    def release(self, address: str) -> None:
        self.connection_count -= 1
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
