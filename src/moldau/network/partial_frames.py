"""A limit on the bytes of large frames that are half received, over many connections.

Only bytes that have arrived count: whoever announces much and sends little holds up nobody. When the limit is
reached the frame that was begun first may still come in, so that there is always one that can be finished; a
client that stalls in the middle of it is sent home by its listener.
"""

from typing import Protocol


class FrameReceiver(Protocol):
    def resume_reading(self) -> None:
        """Called when a frame that was held back may be received further."""


class PartialFrameLimiter:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._received: dict[FrameReceiver, int] = {}
        """In the order the frames were begun."""

    def bytes_received(self, receiver: FrameReceiver, count: int) -> None:
        self._bytes += count
        self._received[receiver] = self._received.get(receiver, 0) + count

    def must_pause(self, receiver: FrameReceiver) -> bool:
        return self._bytes >= self._bytes_max and next(iter(self._received), receiver) is not receiver

    def frame_ended(self, receiver: FrameReceiver) -> None:
        """The frame is complete, or its connection gone."""
        self._bytes -= self._received.pop(receiver, 0)
        if self._bytes < self._bytes_max:
            for waiting in list(self._received):
                waiting.resume_reading()
        elif self._received:
            next(iter(self._received)).resume_reading()
