"""A limit on the bytes of large frames that are half received, over many connections.

Only bytes that have arrived count: whoever announces much and sends little holds up nobody. When the limit is
reached the frame that was begun first may still come in, so that there is always one that can be finished; a
client that stalls in the middle of it is sent home by its listener.
"""

from typing import Protocol


class Receiver(Protocol):
    def may_read_on(self) -> None:
        """Called when a frame that was held back may be received further."""


class LargeFrames:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._received: dict[Receiver, int] = {}
        """In the order the frames were begun."""

    def received(self, receiver: Receiver, count: int) -> None:
        self._bytes += count
        self._received[receiver] = self._received.get(receiver, 0) + count

    def is_held_back(self, receiver: Receiver) -> bool:
        return self._bytes >= self._bytes_max and next(iter(self._received), receiver) is not receiver

    def ended(self, receiver: Receiver) -> None:
        """The frame is complete, or its connection gone."""
        self._bytes -= self._received.pop(receiver, 0)
        if self._bytes < self._bytes_max:
            for waiting in list(self._received):
                waiting.may_read_on()
        elif self._received:
            next(iter(self._received)).may_read_on()
