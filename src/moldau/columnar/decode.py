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

ARROW_BATCH_BYTES = 64 * 1024 * 1024
"""The default size of the Arrow batches that `to_arrow_batches` yields, in bytes."""

_CONSTANT_COLUMNS = ("topic", "partition")
_ROW_BYTES = 40
"""The estimated size of a record's numbers and offsets in the Arrow columns, in bytes."""
_LONG_MAX = 2**63 - 1


def to_arrow(
    topic: str, partition: int, batches: Sequence[Batch], *, start: int, end: int, columns: Sequence[str]
) -> pa.RecordBatch:
    """Decodes the records with start <= offset < end into the requested columns.

    Raises CorruptRecordError, which names the corrupt batch. Raises ValueError if the records do not fit into one Arrow
    batch. In that case, use `to_arrow_batches`.
    """
    schema = arrow_schema(columns)
    with error_context(f"{topic}-{partition}"):
        sections = [_section(batch) for batch in batches]
        return _decode(topic, partition, batches, sections, start, end, schema)


def to_arrow_batches(
    topic: str,
    partition: int,
    batches: Iterable[Batch],
    *,
    start: int,
    end: int,
    columns: Sequence[str],
    arrow_batch_bytes: int = ARROW_BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Decodes the records like `to_arrow`, and yields non-empty Arrow batches of about `arrow_batch_bytes`.

    An Arrow batch is larger if a single record batch is larger. Only the record batches of one Arrow batch are
    decompressed at a time, which limits the memory use.
    """
    schema = arrow_schema(columns)
    row_bytes = _ROW_BYTES + (len(topic.encode()) if "topic" in columns else 0)
    part: list[Batch] = []
    sections: list[Buffer] = []
    size = 0
    for batch in batches:
        if batch.next_offset <= start or batch.base_offset >= end:
            continue
        with error_context(f"{topic}-{partition}"):
            section = _section(batch)
        more = len(section) + batch.count * row_bytes
        if part and size + more > arrow_batch_bytes:
            yield from _decode_group(topic, partition, part, sections, start, end, schema, row_bytes)
            part, sections, size = [], [], 0
        part.append(batch)
        sections.append(section)
        size += more
    if part:
        yield from _decode_group(topic, partition, part, sections, start, end, schema, row_bytes)


def _decode_group(
    topic: str,
    partition: int,
    batches: Sequence[Batch],
    sections: Sequence[Buffer],
    start: int,
    end: int,
    schema: pa.Schema,
    row_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Decodes a group of record batches into one Arrow batch. Yields several Arrow batches if a single record batch has
    too many records for one topic column."""
    ranges = [(start, end)]
    rows_max = ARROW_BYTES_MAX // row_bytes
    if len(batches) == 1 and batches[0].count > rows_max:
        low, high = max(start, batches[0].base_offset), min(end, batches[0].next_offset)
        ranges = [(first, min(first + rows_max, high)) for first in range(low, high, rows_max)]
    for low, high in ranges:
        with error_context(f"{topic}-{partition}"):
            records = _decode(topic, partition, batches, sections, low, high, schema)
        if records.num_rows:
            yield records


def _section(batch: Batch) -> Buffer:
    """Returns the decompressed records of a batch, without a copy if the batch is not compressed."""
    if batch.compression == NONE:
        return batch.section
    with error_context(batch):
        return decompressed(batch)


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
            f"{ARROW_BYTES_MAX} an Arrow column holds: decode fewer of them at once"
        )
    for batch in batches:
        if not -_LONG_MAX <= batch.last_offset <= _LONG_MAX:
            raise CorruptRecordError(f"{batch!r} has offsets of more than 64 bits")
    decode = decode_python.decode
    if is_native():
        from moldau.columnar import decode_native

        decode = decode_native.decode
    columns = [name for name in schema.names if name not in _CONSTANT_COLUMNS]
    rows, arrays = decode(batches, sections, start=start, end=end, columns=columns)
    if "topic" in schema.names:
        arrays["topic"] = _repeat(topic, rows)
    if "partition" in schema.names:
        arrays["partition"] = pa.array(np.full(rows, partition, np.int32))
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _repeat(text: str, rows: int) -> pa.Array:
    if len(text.encode()) * rows > ARROW_BYTES_MAX:
        raise ValueError(
            f"{rows} times the topic's name {text!r} is more than the {ARROW_BYTES_MAX} bytes an Arrow column holds: "
            "decode fewer batches at once"
        )
    return pa.repeat(pa.scalar(text, pa.string()), rows)
