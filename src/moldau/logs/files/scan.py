"""Scans of a segment file: headers only, or whole batches with a check of their checksums."""

from collections.abc import Iterator

from moldau.errors import CorruptRecordError
from moldau.platform.disk import File
from moldau.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC_POSITION, Batch
from moldau.records.batch_header import MAGIC, BatchHeader

_CHUNK_SIZE = 4096
"""How many bytes a scan of headers reads at once: enough for many small batches."""
_BLOCK_SIZE = 1024 * 1024
"""How many bytes a scan of whole batches reads at once."""


def scan_headers(file: File, position: int, end: int) -> Iterator[BatchHeader]:
    """Yields the headers of the batches from `position`, the start of a batch, to `end`. Raises CorruptRecordError."""
    last_offset = -1
    while position < end:
        chunk = file.read(position, min(_CHUNK_SIZE, end - position))
        chunk_position = position
        start = 0
        while len(chunk) - start >= HEADER_SIZE:
            header = BatchHeader(chunk, start, position)
            if position + header.size > end:
                raise CorruptRecordError(f"the batch at position {position} ends after position {end}")
            if header.base_offset <= last_offset:
                raise CorruptRecordError(f"the offset of the batch at position {position} is not ascending")
            last_offset = header.last_offset
            yield header
            position += header.size
            start = position - chunk_position
        if start == 0:
            raise CorruptRecordError(f"there is no whole batch at position {position}")


def read_batch(file: File, header: BatchHeader) -> Batch:
    return Batch(file.read(header.position, header.size))


def scan_batches(file: File, position: int, end: int) -> Iterator[tuple[int, Batch]]:
    """Yields positions and batches. Raises CorruptRecordError at a torn batch or a wrong checksum."""
    while position < end:
        block = memoryview(file.read(position, min(_BLOCK_SIZE, end - position)))
        start = 0
        while len(block) - start >= HEADER_SIZE:
            size = int.from_bytes(block[start + 8 : start + 12], "big", signed=True) + LOG_OVERHEAD
            if not HEADER_SIZE <= size <= end - position or block[start + MAGIC_POSITION] != MAGIC:
                raise CorruptRecordError(f"there is no whole batch at position {position}")
            if start + size > len(block):
                if start:
                    break
                block = memoryview(file.read(position, size))
            batch = Batch(block[start : start + size])
            if not batch.has_valid_checksum():
                raise CorruptRecordError(f"the checksum of the batch at position {position} is wrong")
            yield position, batch
            start += size
            position += size
        if start == 0:
            raise CorruptRecordError(f"there is no whole batch at position {position}")
