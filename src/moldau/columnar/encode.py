"""Encoder of Arrow columns. A section is the encoded records of one batch. The producer adds the batch header.

The Python encoder is the reference for the compiled encoder, and the fallback without numba.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from moldau.columnar.arrays import ByteSpans
from moldau.columnar.native import is_native
from moldau.columnar.rows import EncoderRows, encoder_rows
from moldau.errors import RecordTooLargeError
from moldau.platform.disk import Buffer
from moldau.records.batch import NO_TIMESTAMP
from moldau.records.batch_builder import Section
from moldau.records.compression import NONE, compress
from moldau.records.record import encode_record

SECTION_BYTES_MAX = 2**31 - 1
"""The maximum size of a section in bytes, because Kafka stores the size of a batch in 32 bits."""

EncodedRows = tuple[int, Buffer, int, int, int]
"""One uncompressed section: partition, records, record count, base timestamp, max timestamp."""


def to_sections(
    partitions: npt.NDArray[np.int32],
    *,
    key: Any,
    value: Any,
    headers: Any,
    timestamp_ms: npt.NDArray[np.int64],
    batch_bytes_max: int,
    compression: int,
) -> Iterator[tuple[int, Section]]:
    """Yields sections with their partition. The sections of a partition are consecutive and keep the order of its rows.

    A section has at most `batch_bytes_max` bytes before compression, or is a single larger record. `key` and `value`
    are Arrow columns of bytes or text. `headers` is an Arrow column of lists of structs with key and value. None stands
    for a column of nulls.

    Raises ValueError for columns of different lengths, a negative partition, a header without key, or an invalid
    timestamp. Raises TypeError for a column of another type. Raises RecordTooLargeError for a record that does not fit
    into any batch.
    """
    if batch_bytes_max < 1:
        raise ValueError(f"batch_bytes_max must be at least 1, not {batch_bytes_max}")
    rows = encoder_rows(partitions, key=key, value=value, headers=headers, timestamp_ms=timestamp_ms)
    return _sections(rows, min(batch_bytes_max, SECTION_BYTES_MAX), compression)


def _sections(rows: EncoderRows, batch_bytes_max: int, compression: int) -> Iterator[tuple[int, Section]]:
    encode = _encode_native if is_native() else _encode_python
    for partition, data, count, base_timestamp, max_timestamp in encode(rows, batch_bytes_max):
        if len(data) > SECTION_BYTES_MAX:
            raise RecordTooLargeError(f"a record for partition {partition} takes {len(data)} bytes")
        records = bytes(data) if compression == NONE else compress(compression, data)
        yield partition, Section(records, count, base_timestamp, max_timestamp, compression)


def _encode_native(rows: EncoderRows, bytes_max: int) -> Iterator[EncodedRows]:
    """Does the same as `_encode_python`. The bytes of a section are valid until the next section is requested."""
    from moldau.columnar import encode_kernels as kernels

    columns = (
        *(rows.order, rows.partitions, rows.timestamps),
        *(rows.keys.data.ctypes.data, rows.keys.starts, rows.keys.lengths),
        *(rows.values.data.ctypes.data, rows.values.starts, rows.values.lengths),
        *(rows.header_starts, rows.header_counts),
        *(rows.names.data.ctypes.data, rows.names.starts, rows.names.lengths),
        *(rows.contents.data.ctypes.data, rows.contents.starts, rows.contents.lengths),
    )
    out = np.empty(bytes_max, np.uint8)
    results = np.empty(kernels.RESULT_FIELDS, np.int64)
    first = 0
    while first < len(rows.order):
        section = out
        while needed := kernels.encode_section(section, first, *columns, results):
            section = np.empty(needed, np.uint8)
        count, size, base_timestamp, max_timestamp = results.tolist()
        partition = int(rows.partitions[rows.order[first]])
        yield partition, section[:size].data, count, base_timestamp, max_timestamp
        first += count


def _encode_python(rows: EncoderRows, bytes_max: int) -> Iterator[EncodedRows]:
    """Yields sections in the order `rows.order`. A section has at most `bytes_max` bytes, or one record."""
    keys, values = _values(rows.keys), _values(rows.values)
    names = [(name or b"").decode("utf-8", "surrogateescape") for name in _values(rows.names)]
    headers = list(zip(names, _values(rows.contents), strict=True))
    partitions, timestamps = rows.partitions.tolist(), rows.timestamps.tolist()
    starts, counts = rows.header_starts.tolist(), rows.header_counts.tolist()

    records: list[bytes] = []
    size = 0
    partition = base_timestamp = max_timestamp = NO_TIMESTAMP
    for row in rows.order.tolist():
        while True:
            if not records:
                partition, base_timestamp, max_timestamp = partitions[row], timestamps[row], NO_TIMESTAMP
            record = encode_record(
                timestamp_delta=timestamps[row] - base_timestamp,
                offset_delta=len(records),
                key=keys[row],
                value=values[row],
                headers=headers[starts[row] : starts[row] + counts[row]],
            )
            if not records or (partitions[row] == partition and size + len(record) <= bytes_max):
                break
            yield partition, b"".join(records), len(records), base_timestamp, max_timestamp
            records, size = [], 0
        records.append(record)
        size += len(record)
        max_timestamp = max(max_timestamp, timestamps[row])
    if records:
        yield partition, b"".join(records), len(records), base_timestamp, max_timestamp


def _values(spans: ByteSpans) -> list[bytes | None]:
    data = spans.data.tobytes()
    return [
        None if length < 0 else data[start : start + length]
        for start, length in zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)
    ]
