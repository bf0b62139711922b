"""Decoder in pure Python. It is the reference for the compiled decoder, and the fallback without numba."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from moldau.columnar.columns import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN, TYPES
from moldau.errors import CorruptRecordError, RecordTooLargeError, UnsupportedCompressionError
from moldau.platform.disk import Buffer
from moldau.records.batch import Batch
from moldau.records.record import Span, read_headers, spans

_LONG_MAX = 2**63 - 1


def decode(
    batches: Sequence[Batch], sections: Sequence[Buffer], *, start: int, end: int, columns: Sequence[str]
) -> tuple[int, dict[str, pa.Array]]:
    """Returns the number of records with start <= offset < end, and the requested columns.

    `sections` are the decompressed records of the batches. `columns` must not contain topic or partition.
    """
    found: dict[str, list[Any]] = {name: [] for name in columns}
    rows = 0
    for batch, section in zip(batches, sections, strict=True):
        with error_context(batch):
            rows += _collect(batch, bytes(section), start, end, found)
    return rows, {name: pa.array(found[name], TYPES[name]) for name in columns}


@contextmanager
def error_context(what: object) -> Iterator[None]:
    """Puts `what` before the message of an error about records, unless the message already contains `what`."""
    try:
        yield
    except (CorruptRecordError, RecordTooLargeError, UnsupportedCompressionError) as error:
        if str(what) in str(error):
            raise
        raise type(error)(f"{what}: {error}") from error


def _collect(batch: Batch, data: bytes, start: int, end: int, found: dict[str, list[Any]]) -> int:
    base_offset, base_timestamp = batch.base_offset, batch.base_timestamp
    selected: list[Span] = []
    for span in spans(batch, data):
        if not -_LONG_MAX <= span[2] < _LONG_MAX:
            raise CorruptRecordError(f"a record of {batch!r} has the timestamp delta {span[2]}")
        if start <= base_offset + span[3] < end:
            selected.append(span)
    for name, values in found.items():
        if name == "key":
            values += [key for _, _, _, _, key, _, _ in selected]
        elif name == "value":
            values += [None if size < 0 else data[at : at + size] for _, _, _, _, _, at, size in selected]
        elif name == "offset":
            values += [base_offset + offset_delta for _, _, _, offset_delta, _, _, _ in selected]
        elif name == "timestampType":
            values += [int(batch.is_log_append_time)] * len(selected)
        elif name == "headers":
            values += [_headers(data, at + max(size, 0), record_end) for _, record_end, _, _, _, at, size in selected]
        elif batch.is_log_append_time:
            values += [_micros(batch.max_timestamp)] * len(selected)
        else:
            values += [_micros(base_timestamp + timestamp_delta) for _, _, timestamp_delta, _, _, _, _ in selected]
    return len(selected)


def _micros(timestamp_ms: int) -> int | None:
    return timestamp_ms * 1000 if TIMESTAMP_MS_MIN <= timestamp_ms <= TIMESTAMP_MS_MAX else None


def _headers(data: bytes, position: int, end: int) -> list[tuple[str, bytes | None]] | None:
    """Returns the headers of a record, or None if it has none, as in Spark's connector. Replaces invalid UTF-8."""
    if not data[position] and position + 1 == end:
        return None
    return [
        (name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), content)
        for name, content in read_headers(data, position, end)
    ] or None
