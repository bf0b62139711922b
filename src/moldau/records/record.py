"""Decoding and encoding of the records in a batch. A broker decodes records only for compaction and a few checks.

A record has a length, attributes (unused), timestamp delta, offset delta, key, value and headers. Every number except
the attributes is a zig-zag varint. A length of -1 means null.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from moldau.errors import CorruptRecordError, RecordTooLargeError, UnsupportedCompressionError
from moldau.records.batch import Batch
from moldau.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from moldau.records.varint import read_varint, write_varint

RECORD_BYTES_MIN = 7
"""The minimum size of a record: one byte for each field."""

TIMESTAMP_MAX = 2**63 - 65
TIMESTAMP_MIN = -(2**63) + 64
"""A base timestamp between TIMESTAMP_MIN and TIMESTAMP_MAX plus a one-byte delta always fits into 64 bits."""

UNDECODABLE_ERRORS = (CorruptRecordError, RecordTooLargeError, UnsupportedCompressionError)
"""The errors that `section` and `spans` raise for a batch whose records cannot be decoded."""

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record. `build_batch` ignores its offset unless keep_offsets is set."""

    offset: int = -1
    timestamp: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()
    """Header names that are not UTF-8 have surrogate escapes."""


Span = tuple[int, int, int, int, bytes | None, int, int]
"""A record in the decompressed records of a batch: start, end, timestamp delta, offset delta, key, start of the value,
and length of the value (-1 for a tombstone). A plain tuple, because a named tuple makes the scan 20 % slower."""


def section(batch: Batch, limit: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Returns the decompressed records of the batch."""
    if not batch.count and not batch.section:
        return b""
    return decompress(batch.compression, batch.section, limit)


def spans(batch: Batch, data: bytes) -> Iterator[Span]:
    """Yields the spans of the records in `data`, which `section` has decompressed. Raises CorruptRecordError."""
    count, size = batch.count, len(data)
    if count < 0 or count * RECORD_BYTES_MIN > size:
        raise CorruptRecordError(f"{batch!r} claims {count} records in {size} bytes")
    base_timestamp = batch.base_timestamp
    if not TIMESTAMP_MIN <= base_timestamp <= TIMESTAMP_MAX:
        raise CorruptRecordError(f"{batch!r} has the timestamp {base_timestamp}")
    last_offset_delta = batch.last_offset_delta
    previous_delta = -1
    position = 0
    try:
        for _ in range(count):
            start = position
            number = data[position]
            if number < 0x80:
                position += 1
                length = (number >> 1) ^ -(number & 1)
            else:
                length, position = read_varint(data, position)
            end = position + length
            if length < RECORD_BYTES_MIN - 1 or end > size:
                raise CorruptRecordError(f"a record of {batch!r} has a length of {length} bytes at {start} of {size}")

            position += 1
            number = data[position]
            if number < 0x80:
                position += 1
                timestamp_delta = (number >> 1) ^ -(number & 1)
            else:
                timestamp_delta, position = read_varint(data, position)
                if not TIMESTAMP_MIN <= base_timestamp + timestamp_delta <= TIMESTAMP_MAX:
                    raise CorruptRecordError(
                        f"a record of {batch!r} has the timestamp {base_timestamp + timestamp_delta}"
                    )

            number = data[position]
            if number < 0x80:
                position += 1
                offset_delta = (number >> 1) ^ -(number & 1)
            else:
                offset_delta, position = read_varint(data, position)
            if not previous_delta < offset_delta <= last_offset_delta:
                raise CorruptRecordError(
                    f"a record of {batch!r} has offset delta {offset_delta} after {previous_delta}"
                )
            previous_delta = offset_delta

            number = data[position]
            if number < 0x80:
                position += 1
                length = (number >> 1) ^ -(number & 1)
            else:
                length, position = read_varint(data, position)
            if length < 0:
                key = None
            else:
                key = data[position : position + length]
                position += length

            number = data[position]
            if number < 0x80:
                position += 1
                length = (number >> 1) ^ -(number & 1)
            else:
                length, position = read_varint(data, position)
            if position + (length if length > 0 else 0) >= end:
                raise CorruptRecordError(f"the key or value of a record of {batch!r} is longer than the record")
            yield start, end, timestamp_delta, offset_delta, key, position, length if length >= 0 else -1
            position = end
    except IndexError:
        raise CorruptRecordError(f"the records of {batch!r} end inside a record") from None
    if position != size:
        raise CorruptRecordError(f"{size - position} bytes are left after the {count} records of {batch!r}")


def iterate_records(batch: Batch, limit: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """Yields the records of a batch. Raises CorruptRecordError, or RecordTooLargeError for over `limit` bytes."""
    data = section(batch, limit)
    base_offset, base_timestamp = batch.base_offset, batch.base_timestamp
    append_time = batch.max_timestamp if batch.is_log_append_time else None
    for _, end, timestamp_delta, offset_delta, key, position, length in spans(batch, data):
        value = None
        if length >= 0:
            value = data[position : position + length]
            position += length
        headers: Sequence[Header] = ()
        if data[position] or position + 1 != end:
            headers = read_headers(data, position, end)
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        yield Record(base_offset + offset_delta, timestamp, key, value, headers)


def encode_record(
    *, timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
) -> bytes:
    parts = [b"\x00", write_varint(timestamp_delta), write_varint(offset_delta)]
    parts += (b"\x01",) if key is None else (write_varint(len(key)), key)
    parts += (b"\x01",) if value is None else (write_varint(len(value)), value)
    parts.append(write_varint(len(headers)))
    for name, content in headers:
        name_bytes = name.encode("utf-8", "surrogateescape")
        parts += (write_varint(len(name_bytes)), name_bytes)
        parts += (b"\x01",) if content is None else (write_varint(len(content)), content)
    body = b"".join(parts)
    return write_varint(len(body)) + body


def read_headers(data: bytes, position: int, end: int) -> tuple[Header, ...]:
    """Returns the headers of a record, which are between `position` and `end`. Raises CorruptRecordError."""
    try:
        count, position = read_varint(data, position)
        if not 0 <= 2 * count <= end - position:
            raise CorruptRecordError(f"a record has a count of {count} headers in {end - position} bytes")
        headers = []
        for _ in range(count):
            name, position = _read_bytes(data, position, end)
            content, position = _read_bytes(data, position, end)
            if name is None:
                raise CorruptRecordError("a header of a record has no name")
            headers.append((name.decode("utf-8", "surrogateescape"), content))
    except IndexError:
        raise CorruptRecordError("the records end inside the headers of a record") from None
    if position != end:
        raise CorruptRecordError(f"{end - position} bytes are left after the headers of a record")
    return tuple(headers)


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    after = position + length
    if after > end:
        raise CorruptRecordError("a header of a record is longer than the record")
    return data[position:after], after
