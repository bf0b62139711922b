"""Compiled decoder of encoded records.

Positions are memory addresses. The bytes come from the network, so every read is checked against the end of the record.
A kernel (a compiled function) only detects corruption. Python code builds the error message.
"""

from typing import Any

from moldau.columnar.columns import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from moldau.columnar.kernel_compiler import (
    BYTES_OUT,
    INT32_OUT,
    INT64,
    INT64_IN,
    INT64_OUT,
    byte_at,
    copy_bytes,
    kernel,
    kernel_helper,
)
from moldau.records.record import RECORD_BYTES_MIN, TIMESTAMP_MAX, TIMESTAMP_MIN

KEY, VALUE, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, HEADERS = 1, 2, 4, 8, 16, 32
"""Flags for the columns to decode."""

BASE_OFFSET, BASE_TIMESTAMP, LAST_OFFSET_DELTA, COUNT, APPEND_TIME, IS_APPEND_TIME, START, END = range(8)
BATCH_FIELDS = 8
"""The number of fields that describe a batch to a kernel. START and END are the memory addresses of its records."""

ROWS, KEY_NULLS, VALUE_NULLS, TIMESTAMP_NULLS, HEADER_COUNT, BAD_BATCH = range(6)
TOTAL_FIELDS = 6
"""The number of integers in the `totals` of a kernel. BAD_BATCH is the index of the batch where the kernel stopped."""

NULL_TIMESTAMP = -(2**63)
"""The marker for a timestamp that does not fit into the timestamp column. The column is null for such a record."""

_LONG_MAX = 2**63 - 1
_LONG_MIN = -(2**63)


@kernel_helper
def read_varint(position: int, end: int) -> tuple[int, int]:
    """Returns the varint at `position`, clamped to 64 bits, and the position after the varint.

    The returned position is -1 if the varint is too long or does not end before `end`.
    """
    value = 0
    shift = 0
    for _ in range(9):
        if position >= end:
            return 0, -1
        byte = byte_at(position)
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    if position >= end:
        return 0, -1
    byte = byte_at(position)
    if byte >= 0x80:
        return 0, -1
    negative = value & 1
    if byte > 1:
        return (_LONG_MIN if negative else _LONG_MAX), position + 1
    value = (value >> 1) | (byte << 62)
    return value ^ -negative, position + 1


@kernel_helper
def count_headers(position: int, end: int) -> int:
    """Returns the number of headers between `position` and `end`, or -1 if the headers are malformed."""
    count, position = read_varint(position, end)
    if position < 0 or count < 0 or count > (end - position) // 2:
        return -1
    for _ in range(count):
        length, position = read_varint(position, end)
        if position < 0 or length < 0 or length > end - position:
            return -1
        position += length
        length, position = read_varint(position, end)
        if position < 0 or length > end - position:
            return -1
        if length > 0:
            position += length
    return count if position == end else -1


@kernel(
    INT64,
    *(INT64_IN, INT64, INT64, INT64, INT64_OUT, INT64_OUT, INT32_OUT),
    *(INT32_OUT, BYTES_OUT, BYTES_OUT, INT32_OUT, BYTES_OUT, BYTES_OUT),
    *(INT64_OUT, INT64_OUT),
)
def decode_batches(
    batches: Any,
    column_flags: int,
    first: int,
    last: int,
    offsets: Any,
    timestamps: Any,
    timestamp_types: Any,
    key_ends: Any,
    key_data: Any,
    key_valid: Any,
    value_ends: Any,
    value_data: Any,
    value_valid: Any,
    header_spans: Any,
    totals: Any,
) -> int:
    """Decodes the records with first <= offset < last. Returns 0, or 1 for a corrupt batch.

    Each requested output array must have room for the record count in the batch headers. `key_data` and `value_data`
    must have room for the bytes of all records. `key_ends` and `value_ends` must start with 0. All bits of `key_valid`
    and `value_valid` must be 0.
    """
    row = 0
    keys_end = values_end = 0
    key_nulls = value_nulls = timestamp_nulls = header_count = 0
    for batch in range(len(batches) // BATCH_FIELDS):
        fields = batch * BATCH_FIELDS
        totals[BAD_BATCH] = batch
        base_offset = batches[fields + BASE_OFFSET]
        base_timestamp = batches[fields + BASE_TIMESTAMP]
        last_offset_delta = batches[fields + LAST_OFFSET_DELTA]
        position = batches[fields + START]
        section_end = batches[fields + END]
        if not TIMESTAMP_MIN <= base_timestamp <= TIMESTAMP_MAX:
            return 1
        previous_delta = -1
        for _ in range(batches[fields + COUNT]):
            length, position = read_varint(position, section_end)
            if position < 0 or length < RECORD_BYTES_MIN - 1 or length > section_end - position:
                return 1
            end = position + length

            delta_at = position + 1
            timestamp_delta, position = read_varint(delta_at, end)
            if position < 0:
                return 1
            if position > delta_at + 1:
                if timestamp_delta in (_LONG_MIN, _LONG_MAX):
                    return 1
                if timestamp_delta >= 0:
                    if base_timestamp > TIMESTAMP_MAX - timestamp_delta:
                        return 1
                elif base_timestamp < TIMESTAMP_MIN - timestamp_delta:
                    return 1

            offset_delta, position = read_varint(position, end)
            if position < 0 or offset_delta <= previous_delta or offset_delta > last_offset_delta:
                return 1
            previous_delta = offset_delta

            key_length, position = read_varint(position, end)
            if position < 0 or key_length > end - position:
                return 1
            key_at = position
            if key_length > 0:
                position += key_length
            value_length, position = read_varint(position, end)
            if position < 0 or position >= end or value_length >= end - position:
                return 1
            value_at = position
            if value_length > 0:
                position += value_length

            offset = base_offset + offset_delta
            if offset < first or offset >= last:
                position = end
                continue

            if column_flags & OFFSET:
                offsets[row] = offset
            if column_flags & TIMESTAMP:
                timestamp = base_timestamp + timestamp_delta
                if batches[fields + IS_APPEND_TIME]:
                    timestamp = batches[fields + APPEND_TIME]
                if TIMESTAMP_MS_MIN <= timestamp <= TIMESTAMP_MS_MAX:
                    timestamps[row] = timestamp * 1000
                else:
                    timestamps[row] = NULL_TIMESTAMP
                    timestamp_nulls += 1
            if column_flags & TIMESTAMP_TYPE:
                timestamp_types[row] = batches[fields + IS_APPEND_TIME]
            if column_flags & KEY:
                if key_length >= 0:
                    copy_bytes(key_data, keys_end, key_at, key_length)
                    keys_end += key_length
                    key_valid[row >> 3] |= 1 << (row & 7)
                else:
                    key_nulls += 1
                key_ends[row + 1] = keys_end
            if column_flags & VALUE:
                if value_length >= 0:
                    copy_bytes(value_data, values_end, value_at, value_length)
                    values_end += value_length
                    value_valid[row >> 3] |= 1 << (row & 7)
                else:
                    value_nulls += 1
                value_ends[row + 1] = values_end
            if column_flags & HEADERS:
                found = count_headers(position, end)
                if found < 0:
                    return 1
                header_count += found
                header_spans[2 * row] = position
                header_spans[2 * row + 1] = end
            row += 1
            position = end
        if position != section_end:
            return 1
    totals[ROWS] = row
    totals[KEY_NULLS] = key_nulls
    totals[VALUE_NULLS] = value_nulls
    totals[TIMESTAMP_NULLS] = timestamp_nulls
    totals[HEADER_COUNT] = header_count
    return 0


@kernel(INT64, INT64_IN, INT64, INT32_OUT, INT32_OUT, BYTES_OUT, INT32_OUT, BYTES_OUT, BYTES_OUT, INT64_OUT)
def decode_headers(
    spans: Any,
    rows: int,
    list_ends: Any,
    name_ends: Any,
    name_data: Any,
    content_ends: Any,
    content_data: Any,
    content_valid: Any,
    totals: Any,
) -> int:
    """Decodes the headers at `spans`, which `decode_batches` has validated. Returns 1 if the bytes changed, else 0."""
    header = 0
    names_end = contents_end = nulls = 0
    for row in range(rows):
        end = spans[2 * row + 1]
        count, position = read_varint(spans[2 * row], end)
        if count > len(content_ends) - 1 - header:
            return 1
        for _ in range(count):
            length, position = read_varint(position, end)
            if position < 0 or length < 0 or length > end - position or length > len(name_data) - names_end:
                return 1
            copy_bytes(name_data, names_end, position, length)
            names_end += length
            position += length
            length, position = read_varint(position, end)
            if position < 0 or length > end - position or length > len(content_data) - contents_end:
                return 1
            if length >= 0:
                copy_bytes(content_data, contents_end, position, length)
                contents_end += length
                position += length
                content_valid[header >> 3] |= 1 << (header & 7)
            else:
                nulls += 1
            header += 1
            name_ends[header] = names_end
            content_ends[header] = contents_end
        list_ends[row + 1] = header
    totals[VALUE_NULLS] = nulls
    return 0 if header == len(content_ends) - 1 else 1
