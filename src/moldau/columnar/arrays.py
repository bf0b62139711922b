"""Byte columns of Arrow as numpy arrays: the column's buffer, and the start and length of each value in it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_EMPTY_BYTES: Bytes = np.empty(0, np.uint8)


@dataclass(frozen=True)
class ByteSpans:
    """Byte strings in a buffer. A length of -1 stands for null."""

    data: Bytes
    starts: Int64s
    lengths: Int64s


def null_spans(rows: int) -> ByteSpans:
    return ByteSpans(_EMPTY_BYTES, np.zeros(rows, np.int64), np.full(rows, -1, np.int64))


def to_binary(array: Any, what: str) -> pa.Array:
    """Converts a column of bytes or text to binary or large_binary. Raises TypeError for other types."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return array
    if pa.types.is_large_string(kind):
        return array.cast(pa.large_binary())
    if pa.types.is_dictionary(kind):
        return to_binary(array.cast(kind.value_type), what)
    try:
        if pa.types.is_string_view(kind):
            array = array.cast(pa.string())
        is_bytes = pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind)
        if is_bytes or pa.types.is_null(kind) or pa.types.is_string(array.type):
            return array.cast(pa.binary())
    except pa.ArrowInvalid:
        # Use 64-bit offsets, because the column has too many bytes for the 32-bit offsets of `pa.binary()`.
        return array.cast(pa.large_binary())
    raise TypeError(f"{what} must be binary or string, not {kind}")


def byte_spans(array: Any, what: str) -> ByteSpans:
    """Returns the byte spans of a column of bytes or text. The column may be a slice."""
    array = to_binary(array, what)
    rows = len(array)
    if not rows:
        return null_spans(0)
    _, ends, data = array.buffers()
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    bounds = np.frombuffer(ends, width)[array.offset : array.offset + rows + 1].astype(np.int64)
    lengths = np.diff(bounds)
    if array.null_count:
        lengths[~validity_mask(array)] = -1
    return ByteSpans(np.frombuffer(data, np.uint8) if data else _EMPTY_BYTES, bounds[:-1], lengths)


def validity_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid
