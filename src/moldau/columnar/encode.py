"""Encoder of Arrow columns into sections: the encoded records of one batch. The producer adds the batch header."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from moldau.columnar import encode_python
from moldau.columnar.native import is_native
from moldau.columnar.rows import EncoderRows, encoder_rows
from moldau.errors import RecordTooLargeError
from moldau.records.batch_builder import Section
from moldau.records.compression import NONE, compress

SECTION_BYTES_MAX = 2**31 - 1
"""The maximum size of a section in bytes, because Kafka stores the size of a batch in 32 bits."""


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
    """Yields partitions and sections. A section has at most `batch_bytes_max` bytes before compression, or one record.

    The sections of a partition are consecutive and keep the order of the partition's rows. `key` and `value` are Arrow
    columns of bytes or text. `headers` is an Arrow column of lists of structs with key and value. None stands for a
    column of nulls.

    Raises ValueError for columns of different lengths, a negative partition, a header without key, or an invalid
    timestamp. Raises TypeError for a column of another type. Raises RecordTooLargeError for a record that does not fit
    into any batch.
    """
    if batch_bytes_max < 1:
        raise ValueError(f"batch_bytes_max must be at least 1, not {batch_bytes_max}")
    rows = encoder_rows(partitions, key=key, value=value, headers=headers, timestamp_ms=timestamp_ms)
    return _sections(rows, min(batch_bytes_max, SECTION_BYTES_MAX), compression)


def _sections(rows: EncoderRows, batch_bytes_max: int, compression: int) -> Iterator[tuple[int, Section]]:
    encode = encode_python.encode
    if is_native():
        from moldau.columnar import encode_native

        encode = encode_native.encode
    for partition, data, count, base_timestamp, max_timestamp in encode(rows, batch_bytes_max):
        if len(data) > SECTION_BYTES_MAX:
            raise RecordTooLargeError(f"a record for partition {partition} takes {len(data)} bytes")
        records = bytes(data) if compression == NONE else compress(compression, data)
        yield partition, Section(records, count, base_timestamp, max_timestamp, compression)
