"""Compiled encoder of records and partitioner of keys. Reads are unchecked, because Arrow has validated the columns."""

from typing import Any

from moldau.columnar.kernel_compiler import (
    BYTES_IN,
    BYTES_OUT,
    INT32_IN,
    INT32_OUT,
    INT64,
    INT64_IN,
    INT64_OUT,
    copy_bytes,
    kernel,
    kernel_helper,
)

ROWS, BYTES, BASE_TIMESTAMP, MAX_TIMESTAMP = range(4)
RESULT_FIELDS = 4
"""The number of integers in the `results` of `encode_section`."""

_NO_TIMESTAMP = -1
_BITS_57 = (1 << 57) - 1
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


@kernel_helper
def varint_size(value: int) -> int:
    # A zig-zag encoded number is unsigned and may use all 64 bits, so clear the sign bits that >> copies in.
    remaining = (((value << 1) ^ (value >> 63)) >> 7) & _BITS_57
    size = 1
    while remaining:
        remaining >>= 7
        size += 1
    return size


@kernel_helper
def encoded_size(length: int) -> int:
    """Returns the size of an encoded value: its length as a varint, and its bytes. -1 is the length of null."""
    return varint_size(length) + max(length, 0)


@kernel_helper
def write_varint(out: Any, position: int, value: int) -> int:
    """Writes a number as a varint. Returns the position after the varint."""
    zigzag = (value << 1) ^ (value >> 63)
    remaining = (zigzag >> 7) & _BITS_57
    while remaining:
        out[position] = (zigzag & 0x7F) | 0x80
        position += 1
        zigzag = remaining
        remaining >>= 7
    out[position] = zigzag
    return position + 1


@kernel_helper
def write_bytes(out: Any, position: int, data: int, start: int, length: int) -> int:
    position = write_varint(out, position, length)
    if length <= 0:
        return position
    copy_bytes(out, position, data + start, length)
    return position + length


@kernel(
    INT64,
    *(BYTES_OUT, INT64, INT64_IN, INT32_IN, INT64_IN),
    *(INT64, INT64_IN, INT64_IN, INT64, INT64_IN, INT64_IN),
    *(INT64_IN, INT64_IN, INT64, INT64_IN, INT64_IN, INT64, INT64_IN, INT64_IN, INT64_OUT),
)
def encode_section(
    out: Any,
    first: int,
    order: Any,
    partitions: Any,
    timestamps: Any,
    key_data: int,
    key_starts: Any,
    key_lengths: Any,
    value_data: int,
    value_starts: Any,
    value_lengths: Any,
    header_starts: Any,
    header_counts: Any,
    name_data: int,
    name_starts: Any,
    name_lengths: Any,
    content_data: int,
    content_starts: Any,
    content_lengths: Any,
    results: Any,
) -> int:
    """Encodes the rows order[first:] into `out` until `out` is full or the partition changes.

    Returns 0, or the number of bytes that the first row needs if `out` is too small for this row.
    """
    partition = partitions[order[first]]
    base_timestamp = timestamps[order[first]]
    max_timestamp = _NO_TIMESTAMP
    position = 0
    count = 0
    while first + count < len(order):
        row = order[first + count]
        if partitions[row] != partition:
            break
        timestamp_delta = timestamps[row] - base_timestamp
        headers_end = header_starts[row] + header_counts[row]
        body = 1 + varint_size(timestamp_delta) + varint_size(count)
        body += encoded_size(key_lengths[row]) + encoded_size(value_lengths[row]) + varint_size(header_counts[row])
        for header in range(header_starts[row], headers_end):
            body += encoded_size(name_lengths[header]) + encoded_size(content_lengths[header])
        size = encoded_size(body)
        if size > len(out) - position:
            if not count:
                return size
            break
        position = write_varint(out, position, body)
        out[position] = 0
        position = write_varint(out, position + 1, timestamp_delta)
        position = write_varint(out, position, count)
        position = write_bytes(out, position, key_data, key_starts[row], key_lengths[row])
        position = write_bytes(out, position, value_data, value_starts[row], value_lengths[row])
        position = write_varint(out, position, header_counts[row])
        for header in range(header_starts[row], headers_end):
            position = write_bytes(out, position, name_data, name_starts[header], name_lengths[header])
            position = write_bytes(out, position, content_data, content_starts[header], content_lengths[header])
        max_timestamp = max(max_timestamp, timestamps[row])
        count += 1
    results[ROWS] = count
    results[BYTES] = position
    results[BASE_TIMESTAMP] = base_timestamp
    results[MAX_TIMESTAMP] = max_timestamp
    return 0


@kernel(INT64, BYTES_IN, INT64_IN, INT64_IN, INT64, INT64, INT32_OUT)
def key_partitions(data: Any, starts: Any, lengths: Any, count: int, no_key_partition: int, partitions: Any) -> int:
    """Chooses a partition for each key with Kafka's murmur2 hash."""
    for row in range(len(lengths)):
        length = lengths[row]
        if length < 0:
            partitions[row] = no_key_partition
            continue
        value = _SEED ^ (length & _MASK)
        position = starts[row]
        whole_end = position + (length & ~3)
        while position < whole_end:
            word = int(data[position]) | int(data[position + 1]) << 8
            word |= int(data[position + 2]) << 16 | int(data[position + 3]) << 24
            word = word * _MULTIPLIER & _MASK
            word = (word ^ word >> 24) * _MULTIPLIER & _MASK
            value = (value * _MULTIPLIER & _MASK) ^ word
            position += 4
        remaining = length & 3
        if remaining:
            for index in range(remaining):
                value ^= int(data[position + index]) << (8 * index)
            value = value * _MULTIPLIER & _MASK
        value = (value ^ value >> 13) * _MULTIPLIER & _MASK
        value ^= value >> 15
        partitions[row] = (value & 0x7FFFFFFF) % count
    return 0
