"""Splits a byte stream into frames with few copies.

All connections of a listener receive into one shared buffer, from which complete frames are copied. If a frame is
incomplete, the rest of the frame is received directly into the memory of the frame. A frame owns its memory, so the
records in the frame stay valid while the request is pending.
"""

import struct
from collections.abc import Iterator

from moldau.network.buffer_pool import BufferPool

_SIZE = struct.Struct(">i")
SHARED_BUFFER_SIZE = 256 * 1024
LARGE_FRAME_BYTES_MIN = 128 * 1024
"""Frames of at least this size are large. `PartialFrameLimiter` limits the total bytes of incomplete large frames."""
_INITIAL_BYTES = 64 * 1024
_GROWTH_FACTOR = 4
"""The memory of a frame grows with the received bytes, so that announcing a large frame does not allocate much memory.
Usually the first read returns so many bytes that the memory never has to grow."""


class FrameTooLargeError(Exception):
    """A frame that is too large or has a negative size. The client probably does not speak Kafka."""


class FrameReader:
    """The framing state of one connection. `bytes_received` yields the frames that were written into `buffer`."""

    __slots__ = ("_buffers", "_filled", "_frame", "_frame_size", "_leftover", "_limit", "_shared", "is_frame_large")

    def __init__(self, shared: memoryview, buffers: BufferPool, frame_bytes_max: int) -> None:
        self._shared = shared
        self._buffers = buffers
        self._limit = frame_bytes_max
        self._leftover = b""
        """The first bytes of a frame size that is not complete yet, at most three."""
        self._frame: bytearray | None = None
        self._frame_size = 0
        self._filled = 0
        self.is_frame_large = False

    @property
    def is_between_frames(self) -> bool:
        return self._frame is None and not self._leftover

    def buffer(self) -> memoryview:
        if self._frame is not None:
            # Grow the frame here and not in bytes_received, because the event loop has a view of it during that call.
            if self._filled == len(self._frame):
                self._grow(self._frame)
            return memoryview(self._frame)[self._filled : self._frame_size]
        kept = len(self._leftover)
        self._shared[:kept] = self._leftover
        return self._shared[kept:]

    def bytes_received(self, count: int) -> Iterator[memoryview]:
        """Yields the frames, without their sizes, that `count` more bytes complete. Raises FrameTooLargeError."""
        if self._frame is not None:
            self._filled += count
            if self._filled == self._frame_size:
                frame, self._frame = self._frame, None
                self.is_frame_large = False
                yield memoryview(frame)[: self._frame_size]
            return
        view = self._shared[: len(self._leftover) + count]
        self._leftover = b""
        position, end = 0, len(view)
        while end - position >= 4:
            size = _SIZE.unpack_from(view, position)[0]
            if not 0 <= size <= self._limit:
                raise FrameTooLargeError(
                    f"the request has {size} bytes, more than socket.request.max.bytes={self._limit}"
                )
            position += 4
            if end - position < size:
                self._start_frame(size, view[position:end])
                return
            yield memoryview(bytes(view[position : position + size]))
            position += size
        self._leftover = bytes(view[position:end])

    def _start_frame(self, size: int, start: memoryview) -> None:
        frame = self._buffers.take(size)
        if frame is None:
            frame = self._buffers.allocate(min(size, max(_INITIAL_BYTES, len(start) * _GROWTH_FACTOR)))
        frame[: len(start)] = start
        self._frame, self._frame_size, self._filled = frame, size, len(start)
        self.is_frame_large = size >= LARGE_FRAME_BYTES_MIN

    def _grow(self, frame: bytearray) -> None:
        grown = self._buffers.allocate(min(self._frame_size, len(frame) * _GROWTH_FACTOR))
        grown[: self._filled] = frame
        self._frame = grown
