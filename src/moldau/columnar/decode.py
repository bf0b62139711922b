"""Decoder of a partition's record batches into Arrow columns."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from moldau.columnar import decode_python
from moldau.columnar.columns import arrow_schema
from moldau.columnar.decode_python import error_context
from moldau.columnar.native import is_native
from moldau.errors import CorruptRecordError
from moldau.platform.disk import Buffer
from moldau.records.batch import Batch
from moldau.records.compression import NONE
from moldau.records.record import section as decompressed

ARROW_BYTES_MAX = 2**31 - 1
"""The capacity of an Arrow column with 32-bit offsets, in bytes."""

_ROW_BYTES = 40
"""The estimated size of a row in the Arrow columns, in bytes, not counting key, value, headers and topic."""
_LONG_MAX = 2**63 - 1


def to_arrow_batches(
    topic: str,
    partition: int,
    batches: Iterable[Batch],
    *,
    start: int,
    end: int,
    columns: Sequence[str],
    arrow_batch_bytes: int = 64 * 1024 * 1024,
) -> Iterator[pa.RecordBatch]:
    """Decodes the records with start <= offset < end. Yields non-empty Arrow batches of about `arrow_batch_bytes`.

    An Arrow batch is larger if a single record batch is larger. Only the record batches of one Arrow batch are
    decompressed at a time, which limits the memory use. Raises CorruptRecordError, which names the corrupt batch.
    """
    schema = arrow_schema(columns)
    row_bytes = _ROW_BYTES + (len(topic.encode()) if "topic" in columns else 0)
    needed = (batch for batch in batches if batch.next_offset > start and batch.base_offset < end)
    with error_context(f"{topic}-{partition}"):
        for group, sections in _groups(needed, row_bytes, arrow_batch_bytes):
            for low, high in _offset_ranges(group, start, end, ARROW_BYTES_MAX // row_bytes):
                records = _decode(topic, partition, group, sections, low, high, schema)
                if records.num_rows:
                    yield records


def _groups(
    batches: Iterable[Batch], row_bytes: int, group_bytes_max: int
) -> Iterator[tuple[list[Batch], list[Buffer]]]:
    """Yields groups of record batches, with their decompressed records. A group becomes one or more Arrow batches."""
    group: list[Batch] = []
    sections: list[Buffer] = []
    size = 0
    for batch in batches:
        with error_context(batch):
            section = batch.section if batch.compression == NONE else decompressed(batch)
        more = len(section) + batch.count * row_bytes
        if group and size + more > group_bytes_max:
            yield group, sections
            group, sections, size = [], [], 0
        group.append(batch)
        sections.append(section)
        size += more
    if group:
        yield group, sections


def _offset_ranges(group: Sequence[Batch], start: int, end: int, rows_max: int) -> list[tuple[int, int]]:
    """Returns the offset range of each Arrow batch of a group.

    There is one range, or several if the group is a single record batch with more than `rows_max` records.
    """
    if len(group) > 1 or group[0].count <= rows_max:
        return [(start, end)]
    low, high = max(start, group[0].base_offset), min(end, group[0].next_offset)
    return [(first, min(first + rows_max, high)) for first in range(low, high, rows_max)]


def _decode(
    topic: str,
    partition: int,
    batches: Sequence[Batch],
    sections: Sequence[Buffer],
    start: int,
    end: int,
    schema: pa.Schema,
) -> pa.RecordBatch:
    size = sum(map(len, sections))
    if size > ARROW_BYTES_MAX:
        raise ValueError(
            f"{len(batches)} batches of {topic}-{partition} have {size} bytes decompressed, more than the "
            f"{ARROW_BYTES_MAX} an Arrow column holds"
        )
    for batch in batches:
        if not -_LONG_MAX <= batch.last_offset <= _LONG_MAX:
            raise CorruptRecordError(f"{batch!r} has offsets of more than 64 bits")
    decode = decode_python.decode
    if is_native():
        from moldau.columnar import decode_native

        decode = decode_native.decode
    columns = [name for name in schema.names if name not in ("topic", "partition")]
    rows, arrays = decode(batches, sections, start=start, end=end, columns=columns)
    if "topic" in schema.names:
        arrays["topic"] = pa.repeat(pa.scalar(topic, pa.string()), rows)
    if "partition" in schema.names:
        arrays["partition"] = pa.array(np.full(rows, partition, np.int32))
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
