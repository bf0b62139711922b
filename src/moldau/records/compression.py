"""The codecs of record batches.

Snappy is written with the framing of Kafka's Java library (xerial), and read with or without it. LZ4 is written as
frames of independent blocks, because Java consumers read no other frames.
"""

import zlib
from collections.abc import Callable

import cramjam

from moldau.errors import CorruptRecordError, RecordTooLargeError, UnsupportedCompressionError
from moldau.platform.disk import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
"""Codec names by codec number."""

CODECS_BY_NAME = {name: number for number, name in enumerate(NAMES)} | {"uncompressed": NONE}
"""Codec numbers by name. The topic setting `compression.type` uses `uncompressed` instead of `none`."""

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""The default limit of the decompressed records of one batch."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_CHUNK_BYTES = 32 * 1024
_GZIP_WINDOW = 31
"""zlib's code for a 32 KB window with gzip header and trailer."""
_GZIP_CHUNK_BYTES = 16 * 1024
_LZ4_FAST = 1
_FIRST_GUESS_BYTES = 64 * 1024
_OUTPUT_IS_FULL = "failed to write whole buffer"
"""cramjam's error when the output buffer is too small; any other error is about the input."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        gzip = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
        return gzip.compress(data) + gzip.flush()
    if codec == SNAPPY:
        return _compress_snappy(data)
    if codec == LZ4:
        frame = cramjam.lz4.Compressor(level=level or _LZ4_FAST, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))
        return bytes(frame.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=level))
    raise UnsupportedCompressionError(f"unknown compression codec {codec}")


def decompress(codec: int, data: Buffer, limit: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Returns the decompressed data. Raises CorruptRecordError, or RecordTooLargeError for more than `limit`."""
    if codec == NONE:
        if len(data) > limit:
            raise _too_large(codec, limit)
        return bytes(data)
    if codec == GZIP:
        return _decompress_gzip(data, limit)
    if codec == SNAPPY:
        return _decompress_snappy(data, limit)
    if codec == LZ4:
        return _decompress_into(codec, cramjam.lz4.decompress_into, data, limit)
    if codec == ZSTD:
        return _decompress_into(codec, cramjam.zstd.decompress_into, data, limit)
    raise UnsupportedCompressionError(f"unknown compression codec {codec}")


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    """Decompresses gzip members. Passes the input in chunks, because zlib copies all input after a member's end."""
    view = memoryview(data)
    parts: list[bytes] = []
    room = limit
    position = 0
    member = zlib.decompressobj(_GZIP_WINDOW)
    while position < len(view):
        if member.eof:
            member = zlib.decompressobj(_GZIP_WINDOW)
        chunk = view[position : position + _GZIP_CHUNK_BYTES]
        try:
            part = member.decompress(chunk, room + 1)
        except zlib.error as error:
            raise CorruptRecordError(f"the records are not a gzip stream: {error}") from None
        if len(part) > room:
            raise _too_large(GZIP, limit)
        parts.append(part)
        room -= len(part)
        position += len(chunk) - len(member.unused_data)
    if not member.eof:
        raise CorruptRecordError("the gzip stream of the records ends early")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_into(codec: int, into: Callable[[Buffer, bytearray], int], data: Buffer, limit: int) -> bytes:
    """Decompresses into a buffer that grows fourfold until all data fits, so that small batches stay cheap."""
    size = min(limit, max(_FIRST_GUESS_BYTES, 4 * len(data)))
    while True:
        output = bytearray(size)
        try:
            length = into(data, output)
        except cramjam.DecompressionError as error:
            if str(error) != _OUTPUT_IS_FULL:
                raise CorruptRecordError(f"the records are not a {NAMES[codec]} stream: {error}") from None
            if size >= limit:
                raise _too_large(codec, limit) from None
            size = min(limit, 4 * size)
        else:
            return bytes(memoryview(output)[:length])


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_CHUNK_BYTES):
        chunk = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_CHUNK_BYTES]))
        parts += (len(chunk).to_bytes(4, "big"), chunk)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    """Checks the limit before decompression, because each chunk contains its decompressed length."""
    view = memoryview(data)
    framed = view[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC
    chunks = _xerial_chunks(view) if framed else [view]
    try:
        lengths = [cramjam.snappy.decompress_raw_len(chunk) for chunk in chunks]
        if sum(lengths) > limit:
            raise _too_large(SNAPPY, limit)
        output = bytearray(sum(lengths))
        position = 0
        for chunk, length in zip(chunks, lengths, strict=True):
            if length:
                cramjam.snappy.decompress_raw_into(chunk, memoryview(output)[position : position + length])
            position += length
    except cramjam.DecompressionError as error:
        raise CorruptRecordError(f"the records are not a snappy stream: {error}") from None
    return bytes(output)


def _xerial_chunks(view: memoryview) -> list[memoryview]:
    chunks = []
    position, end = 0, len(view)
    while position < end:
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            # Several streams may follow each other, each with its own header.
            position += len(_XERIAL_HEADER)
            if position > end:
                raise CorruptRecordError("the header of the snappy stream ends early")
            continue
        start = position + 4
        position = start + int.from_bytes(view[position:start], "big")
        if position == start or position > end:
            raise CorruptRecordError("a chunk of the snappy stream is empty or ends early")
        chunks.append(view[start:position])
    return chunks


def _too_large(codec: int, limit: int) -> RecordTooLargeError:
    return RecordTooLargeError(f"the {NAMES[codec]} records of a batch take more than {limit} bytes decompressed")
