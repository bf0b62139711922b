"""Decoder that lets the compiled kernels fill buffers, and returns the buffers as Arrow arrays."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moldau.columnar import decode_kernels as kernels
from moldau.columnar import decode_python
from moldau.columnar.arrays import Bytes, Int32s, Int64s
from moldau.columnar.columns import HEADER_TYPE, TYPES
from moldau.errors import CorruptRecordError
from moldau.platform.disk import Buffer
from moldau.records.batch import Batch
from moldau.records.record import RECORD_BYTES_MIN

_WANTED = {
    "key": kernels.KEY,
    "value": kernels.VALUE,
    "offset": kernels.OFFSET,
    "timestamp": kernels.TIMESTAMP,
    "timestampType": kernels.TIMESTAMP_TYPE,
    "headers": kernels.HEADERS,
}


class _BinaryColumn:
    """The buffers of a binary column under construction."""

    def __init__(self, rows: int, size: int) -> None:
        self.ends: Int32s = np.empty(rows + 1, np.int32)
        self.ends[0] = 0
        self.data: Bytes = np.empty(size, np.uint8)
        self.valid: Bytes = np.zeros((rows + 7) // 8, np.uint8)

    def array(self, rows: int, nulls: int) -> pa.Array:
        data = self.data[: self.ends[rows]]
        if 2 * len(data) < len(self.data):
            # Copy the used part, because the column would otherwise keep a much larger buffer in memory.
            data = data.copy()
        valid = pa.py_buffer(self.valid[: (rows + 7) // 8]) if nulls else None
        buffers = [valid, pa.py_buffer(self.ends[: rows + 1]), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), rows, buffers, nulls)


_LONG_MAX = 2**63 - 1
_EMPTY_BINARY = _BinaryColumn(0, 0)
_EMPTY_INT32S: Int32s = np.empty(0, np.int32)
_EMPTY_INT64S: Int64s = np.empty(0, np.int64)


def decode(
    batches: Sequence[Batch], sections: Sequence[Buffer], *, start: int, end: int, columns: Sequence[str]
) -> tuple[int, dict[str, pa.Array]]:
    """Does the same as `decode_python.decode`."""
    described = _batch_fields(batches, sections)
    size = sum(map(len, sections))
    capacity = int(described[kernels.COUNT :: kernels.BATCH_FIELDS].sum())
    column_flags = sum(_WANTED[name] for name in set(columns))

    offsets = np.empty(capacity, np.int64) if "offset" in columns else _EMPTY_INT64S
    timestamps = np.empty(capacity, np.int64) if "timestamp" in columns else _EMPTY_INT64S
    timestamp_types = np.empty(capacity, np.int32) if "timestampType" in columns else _EMPTY_INT32S
    keys = _BinaryColumn(capacity, size) if "key" in columns else _EMPTY_BINARY
    values = _BinaryColumn(capacity, size) if "value" in columns else _EMPTY_BINARY
    header_spans = np.empty(2 * capacity, np.int64) if "headers" in columns else _EMPTY_INT64S
    totals = np.empty(kernels.TOTAL_FIELDS, np.int64)
    corrupt = kernels.decode_batches(
        described,
        column_flags,
        max(start, -_LONG_MAX),
        min(end, _LONG_MAX),
        offsets,
        timestamps,
        timestamp_types,
        keys.ends,
        keys.data,
        keys.valid,
        values.ends,
        values.data,
        values.valid,
        header_spans,
        totals,
    )
    if corrupt:
        # Decode the corrupt batch again with the Python decoder, whose error describes the corruption.
        batch, section = batches[totals[kernels.BAD_BATCH]], sections[totals[kernels.BAD_BATCH]]
        decode_python.decode([batch], [section], start=batch.base_offset, end=batch.next_offset, columns=["headers"])
        raise CorruptRecordError(f"the records of {batch!r} contradict themselves")

    rows = int(totals[kernels.ROWS])
    arrays: dict[str, pa.Array] = {}
    for name in columns:
        match name:
            case "key":
                arrays[name] = keys.array(rows, int(totals[kernels.KEY_NULLS]))
            case "value":
                arrays[name] = values.array(rows, int(totals[kernels.VALUE_NULLS]))
            case "offset":
                arrays[name] = pa.array(offsets[:rows])
            case "timestampType":
                arrays[name] = pa.array(timestamp_types[:rows])
            case "timestamp":
                is_null = timestamps[:rows] == kernels.NULL_TIMESTAMP if totals[kernels.TIMESTAMP_NULLS] else None
                arrays[name] = pa.array(timestamps[:rows], mask=is_null).view(TYPES[name])
            case "headers":
                arrays[name] = _headers(header_spans, rows, int(totals[kernels.HEADER_COUNT]), TYPES[name])
    return rows, arrays


def _batch_fields(batches: Sequence[Batch], sections: Sequence[Buffer]) -> Int64s:
    fields: list[int] = []
    for batch, section in zip(batches, sections, strict=True):
        count = batch.count
        if count < 0 or count * RECORD_BYTES_MIN > len(section):
            raise CorruptRecordError(f"{batch!r} claims {count} records in {len(section)} bytes")
        # If there are no records, the kernel reads nothing. Use address 0, because an empty buffer may have no address.
        start = pa.py_buffer(section).address if count else 0
        fields += (
            batch.base_offset,
            batch.base_timestamp,
            batch.last_offset_delta,
            count,
            batch.max_timestamp,
            batch.is_log_append_time,
            start,
            start + len(section),
        )
    return np.array(fields, np.int64)


def _headers(spans: Int64s, rows: int, count: int, kind: pa.DataType) -> pa.Array:
    if not count:
        return pa.nulls(rows, kind)
    list_ends = np.empty(rows + 1, np.int32)
    list_ends[0] = 0
    size = int((spans[1 : 2 * rows : 2] - spans[: 2 * rows : 2]).sum())
    names, contents = _BinaryColumn(count, size), _BinaryColumn(count, size)
    totals = np.empty(kernels.TOTAL_FIELDS, np.int64)
    if kernels.decode_headers(
        spans, rows, list_ends, names.ends, names.data, contents.ends, contents.data, contents.valid, totals
    ):
        raise CorruptRecordError("the records changed while they were decoded")
    nulls = int(totals[kernels.VALUE_NULLS])
    structs = pa.StructArray.from_arrays(
        [_decode_names(names.array(count, 0)), contents.array(count, nulls)], fields=list(HEADER_TYPE)
    )
    has_any = np.diff(list_ends) > 0
    valid = pa.py_buffer(np.packbits(has_any, bitorder="little"))
    return pa.Array.from_buffers(
        kind, rows, [valid, pa.py_buffer(list_ends)], rows - int(has_any.sum()), children=[structs]
    )


def _decode_names(names: pa.Array) -> pa.Array:
    """Converts header names to strings, with replacement characters for invalid UTF-8."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        different = names.dictionary_encode()
        decoded = [name.decode("utf-8", "replace") for name in different.dictionary.to_pylist()]
        return pc.take(pa.array(decoded, pa.string()), different.indices)
