"""Reusable buffers for large frames.

Buffers are reused because mapping and zeroing new memory can cost more than receiving the frame.
"""

POOLED_BUFFER_BYTES_MIN = 128 * 1024
POOLED_BUFFER_BYTES_MAX = 4 * 1024 * 1024
POOL_BYTES_MAX = 32 * 1024 * 1024


class BufferPool:
    """Free buffers, grouped by size. Sizes are powers of two. A buffer is only reused if no memoryview of it exists."""

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._free_bytes = 0

    def take(self, size: int) -> bytearray | None:
        """Returns a free buffer of at least `size` bytes, or None."""
        free = self._free.get(_size_class(size))
        if not free:
            return None
        buffer = free.pop()
        self._free_bytes -= len(buffer)
        return buffer

    def allocate(self, size: int) -> bytearray:
        """Returns a new buffer of at least `size` bytes. If possible, `release` can later put it into the pool."""
        return bytearray(_size_class(size) if POOLED_BUFFER_BYTES_MIN <= size <= POOLED_BUFFER_BYTES_MAX else size)

    def release(self, buffer: bytearray) -> None:
        size = len(buffer)
        fits = POOLED_BUFFER_BYTES_MIN <= size <= POOLED_BUFFER_BYTES_MAX and size == _size_class(size)
        if fits and self._free_bytes + size <= POOL_BYTES_MAX and not _has_views(buffer):
            self._free.setdefault(size, []).append(buffer)
            self._free_bytes += size


def _has_views(buffer: bytearray) -> bool:
    """Returns whether a memoryview of the buffer exists. A buffer with a memoryview cannot be resized."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False


def _size_class(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()
