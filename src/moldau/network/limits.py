"""Limits that many connections share: bytes of requests in flight, bytes of partial frames, number of connections."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from moldau.settings.broker import BrokerSettings


class MemoryPool:
    """Counts the bytes of requests in flight. Reservations always succeed; a full pool stops connections reading."""

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
        """Calls back once there is room again, in the order of these calls."""
        self._waiters.append(callback)

    def release(self, size: int) -> None:
        self._bytes -= size
        while self._waiters and not self.is_exhausted:
            self._waiters.popleft()()


class FrameReceiver(Protocol):
    def resume_reading(self) -> None:
        """Called when a paused frame may be received further."""


class PartialFrameLimiter:
    """Limits the bytes of large frames that are partly received.

    Only received bytes count, so that a client that announces much and sends little blocks no other. At the limit the
    oldest frame may still be received, so that one can always be completed; a client that stalls in the middle of it is
    disconnected by its socket server.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._received: dict[FrameReceiver, int] = {}
        """By connection, in the order the frames started."""

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
    """Limits the number of connections, in all and per client address."""

    def __init__(self, settings: Callable[[], BrokerSettings]) -> None:
        self._settings = settings
        self._per_address: dict[str, int] = {}
        self.connection_count = 0

    def acquire(self, address: str) -> bool:
        settings = self._settings()
        count = self._per_address.get(address, 0)
        if self.connection_count >= settings.max_connections or count >= settings.max_connections_per_ip:
            return False
        self.connection_count += 1
        self._per_address[address] = count + 1
        return True

    def release(self, address: str) -> None:
        self.connection_count -= 1
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
