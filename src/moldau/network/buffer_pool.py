"""Reusable buffers for large frames, because mapping and zeroing new memory can cost more than receiving."""

POOLED_BUFFER_BYTES_MIN = 128 * 1024
POOLED_BUFFER_BYTES_MAX = 4 * 1024 * 1024
POOL_BYTES_MAX = 32 * 1024 * 1024


class BufferPool:
    """Released buffers, grouped by size. Sizes are powers of two.

    A buffer is only reused if no memoryview of it exists. This is checked in `take` and not in `release`: a request may
    run in the callback that receives it, and release its buffer while the event loop still has a view of it.
    """

    def __init__(self) -> None:
        self._released: dict[int, list[bytearray]] = {}
        self._released_bytes = 0

    def take(self, size: int) -> bytearray | None:
        """Returns a free buffer of at least `size` bytes, or None."""
        released = self._released.get(_size_class(size), ())
        while released:
            buffer = released.pop()
            self._released_bytes -= len(buffer)
            if not _has_views(buffer):
                return buffer
        return None

    def allocate(self, size: int) -> bytearray:
        """Returns a new buffer of at least `size` bytes. Rounds sizes that the pool accepts up to a power of two."""
        return bytearray(_size_class(size) if POOLED_BUFFER_BYTES_MIN <= size <= POOLED_BUFFER_BYTES_MAX else size)

    def release(self, buffer: bytearray) -> None:
        size = len(buffer)
        if not POOLED_BUFFER_BYTES_MIN <= size <= POOLED_BUFFER_BYTES_MAX or size != _size_class(size):
            return
        if self._released_bytes + size > POOL_BYTES_MAX:
            # The pool is full. Drop the buffers of other sizes, because the latest frames have this size.
            self._released = {size: self._released.get(size, [])}
            self._released_bytes = size * len(self._released[size])
        if self._released_bytes + size <= POOL_BYTES_MAX:
            self._released.setdefault(size, []).append(buffer)
            self._released_bytes += size


def _has_views(buffer: bytearray) -> bool:
    """Returns whether a memoryview of the buffer exists. A buffer with a memoryview cannot be resized."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False


def _size_class(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()
