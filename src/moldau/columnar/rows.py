"""Input of the encoder: validated columns in a common representation, ordered by partition."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from moldau.columnar.arrays import ByteSpans, Int32s, Int64s, byte_spans, null_spans, validity_mask

TIMESTAMP_MS_LIMIT = 2**62
"""The absolute value of a timestamp must be smaller than this, so that a difference of timestamps fits into 64 bits."""

_RADIX_PARTITIONS = 2**16


@dataclass(frozen=True)
class EncoderRows:
    order: Int64s
    """Row numbers, grouped by partition. The rows of a partition keep their order."""
    partitions: Int32s
    timestamps: Int64s
    keys: ByteSpans
    values: ByteSpans
    header_starts: Int64s
    """The index of a row's first header in `names` and `contents`."""
    header_counts: Int64s
    names: ByteSpans
    contents: ByteSpans


def encoder_rows(partitions: Int32s, *, key: Any, value: Any, headers: Any, timestamp_ms: Int64s) -> EncoderRows:
    count = len(partitions)
    partitions = np.ascontiguousarray(partitions, np.int32)
    timestamps = np.ascontiguousarray(timestamp_ms, np.int64)
    for column, name in ((key, "key"), (value, "value"), (headers, "headers"), (timestamps, "timestamp_ms")):
        if column is not None and len(column) != count:
            raise ValueError(f"{count} partitions but {len(column)} values of {name}")
    if count:
        if partitions.min() < 0:
            raise ValueError(f"{partitions.min()} is not a partition")
        if timestamps.min() <= -TIMESTAMP_MS_LIMIT or timestamps.max() >= TIMESTAMP_MS_LIMIT:
            raise ValueError(f"no record can have a timestamp of {timestamps.min()} or {timestamps.max()} ms")
    header_starts, header_counts, names, contents = _headers(headers, count)
    return EncoderRows(
        order=_order(partitions),
        partitions=partitions,
        timestamps=timestamps,
        keys=null_spans(count) if key is None else byte_spans(key, "key"),
        values=null_spans(count) if value is None else byte_spans(value, "value"),
        header_starts=header_starts,
        header_counts=header_counts,
        names=names,
        contents=contents,
    )


def _order(partitions: Int32s) -> Int64s:
    if not len(partitions) or bool(np.all(partitions[1:] >= partitions[:-1])):
        return np.arange(len(partitions), dtype=np.int64)
    if partitions.max() < _RADIX_PARTITIONS:
        # Use 16-bit integers, because numpy sorts them in linear time.
        return np.argsort(partitions.astype(np.uint16), kind="stable")
    return np.argsort(partitions, kind="stable")


def _headers(headers: Any, count: int) -> tuple[Int64s, Int64s, ByteSpans, ByteSpans]:
    if headers is None or not count or headers.null_count == count:
        return np.zeros(count, np.int64), np.zeros(count, np.int64), null_spans(0), null_spans(0)
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    kind = headers.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not pa.types.is_struct(kind.value_type) or not {"key", "value"} <= {*kind.value_type.names}:
        raise TypeError(f"headers must be a list of structs with a key and a value, not {kind}")
    bounds = headers.offsets.to_numpy().astype(np.int64)
    counts = np.diff(bounds)
    if headers.null_count:
        counts[~validity_mask(headers)] = 0
    structs = headers.values
    names = byte_spans(structs.field("key"), "the key of headers")
    contents = byte_spans(structs.field("value"), "the value of headers")
    if structs.null_count:
        names.lengths[~validity_mask(structs)] = -1
    nameless_before = np.concatenate([[0], np.cumsum(names.lengths < 0)])
    nameless_rows = np.flatnonzero(nameless_before[bounds[:-1] + counts] - nameless_before[bounds[:-1]])
    if len(nameless_rows):
        raise ValueError(f"a header of row {nameless_rows[0]} has no key")
    return bounds[:-1], counts, names, contents
