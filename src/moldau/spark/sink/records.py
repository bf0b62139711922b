"""Arrow columns of the records to write: topic, partition, timestamp and size of each row, with validation. No I/O."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from moldau.columnar.partitioner import key_partitions
from moldau.spark.errors import SparkSourceError
from moldau.spark.sink.columns import SinkColumns
from moldau.spark.sink.options import topic_name_problem

RECORD_OVERHEAD = 21
"""The estimated overhead of a record in bytes. The only record of a batch has up to 19, other records up to 36."""
_HEADER_OVERHEAD = 10
_UNASSIGNED = -1


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The rows of one topic."""

    key: Any
    """The keys as an Arrow column; None if all keys are null. `headers` and `partition` may also be None."""
    value: Any
    headers: Any
    partition: Any
    timestamp_ms: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    """The approximate size of each record before compression, in bytes."""


def merge_batches(batches: Iterable[pa.RecordBatch], bytes_min: int) -> Iterator[pa.Table]:
    """Merges Arrow batches to tables of at least `bytes_min` bytes, because small tables make small record batches."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            waiting_bytes += batch.nbytes
        if waiting_bytes >= bytes_min:
            yield pa.Table.from_batches(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def split_by_topic(table: pa.Table, columns: SinkColumns, topic: str | None) -> Iterator[tuple[str, pa.Table]]:
    """Yields the name and the rows of each topic. The rows of a topic keep their order."""
    if topic is not None:
        yield topic, table
        return
    assert columns.topic is not None, "rows without a topic are refused before"
    names = _column(table, columns.topic).dictionary_encode()
    if names.null_count:
        raise SparkSourceError(
            f"{names.null_count} of {table.num_rows} rows have no topic (the column `topic` is null): fill it, "
            'filter them out, or set .option("topic", …) for all'
        )
    indices = names.indices.to_numpy()
    topics = names.dictionary.to_pylist()
    for index, name in enumerate(topics):
        if problem := topic_name_problem(name):
            raise SparkSourceError(f"the column `topic`: {problem}")
        yield name, table if len(topics) == 1 else table.take(pa.array(np.flatnonzero(indices == index)))


def record_columns(table: pa.Table, columns: SinkColumns, now_ms: int) -> RecordColumns:
    """Returns the columns of the records. Rows without a timestamp get `now_ms`."""
    key, value, headers, partition, timestamp = (
        None if index is None else _column(table, index)
        for index in (columns.key, columns.value, columns.headers, columns.partition, columns.timestamp)
    )
    count = table.num_rows
    if key is not None and key.null_count == count:
        key = None
    if partition is not None and partition.null_count == count:
        partition = None
    sizes = np.full(count, RECORD_OVERHEAD, np.int64) + _lengths(key, count) + _lengths(value, count)
    if headers is not None:
        sizes += _headers_lengths(headers)
    return RecordColumns(key, value, headers, partition, _timestamps(timestamp, count, now_ms), sizes)


def _column(table: pa.Table, index: int) -> pa.Array:
    """Returns the column as one array. Several chunks are copied into one."""
    chunked = table.column(index)
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()


def _lengths(column: Any, count: int) -> npt.NDArray[np.int64]:
    if column is None:
        return np.zeros(count, np.int64)
    found: npt.NDArray[np.int64] = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _headers_lengths(headers: Any) -> npt.NDArray[np.int64]:
    each = headers.flatten()
    if each.null_count or each.field("key").null_count:
        raise SparkSourceError(
            "a header has no key (null in the column `headers`): filter such headers out, as "
            "filter(headers, h -> h.key IS NOT NULL)"
        )
    lengths = _HEADER_OVERHEAD + _lengths(each.field("key"), len(each)) + _lengths(each.field("value"), len(each))
    counts = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    ends = np.cumsum(counts)
    found: npt.NDArray[np.int64] = sums[ends] - sums[ends - counts]
    return found


def _timestamps(column: Any, count: int, now_ms: int) -> npt.NDArray[np.int64]:
    if column is None:
        return np.full(count, now_ms, np.int64)
    micros = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).fill_null(now_ms * 1000)
    times: npt.NDArray[np.int64] = micros.to_numpy(zero_copy_only=False) // 1000
    if times.min() < 0:
        raise SparkSourceError(
            f"a row has a time before 1970 in the column `timestamp` ({pc.min(column).as_py()}), which no record can "
            "have: filter it out, or drop the column to have the time of writing"
        )
    return times


def check_sizes(rows: RecordColumns, topic: str, request_bytes_max: int) -> None:
    largest = int(rows.sizes.argmax())
    if rows.sizes[largest] > request_bytes_max:
        key = None if rows.key is None else rows.key[largest].as_py()
        text = "" if key is None else repr(key if isinstance(key, str) else key.decode("utf-8", "backslashreplace"))
        if len(text) > 60:
            text = text[:57] + "…'"
        raise SparkSourceError(
            f"a row{text and f' with the key {text}'} becomes a record of {rows.sizes[largest]} bytes for {topic!r}, "
            f"but kafka.max.request.size is {request_bytes_max}: raise it and the topic's max.message.bytes, or "
            "shorten the value"
        )


class RowPartitioner:
    """Chooses partitions by the column `partition`, else by key. Other rows fill one batch per partition in turn."""

    def __init__(self, turn: int) -> None:
        self._next_partition = turn

    def partitions(
        self, rows: RecordColumns, topic: str, count: int, available: Sequence[int], batch_bytes: int
    ) -> npt.NDArray[np.int32]:
        """Returns the partition of each row. `available` contains the partitions that have a leader."""
        if rows.key is None:
            partitions = np.full(len(rows.sizes), _UNASSIGNED, np.int32)
        else:
            partitions = key_partitions(rows.key, count, _UNASSIGNED)
        if rows.partition is not None:
            requested = rows.partition.fill_null(_UNASSIGNED).to_numpy(zero_copy_only=False)
            is_requested = rows.partition.is_valid().to_numpy(zero_copy_only=False)
            wrong = is_requested & ((requested < 0) | (requested >= count))
            if wrong.any():
                raise SparkSourceError(
                    f"the column `partition` is {requested[wrong][0]}, but {topic!r} has the partitions 0 to "
                    f"{count - 1}: correct it, set it to null to partition by key, or add partitions to the topic"
                )
            partitions = np.where(is_requested, requested, partitions).astype(np.int32)
        unassigned = partitions == _UNASSIGNED
        if unassigned.any():
            sizes = rows.sizes[unassigned]
            turns = (np.cumsum(sizes) - sizes) // batch_bytes
            choices = np.array(available or range(count), np.int32)
            partitions[unassigned] = choices[(self._next_partition + turns) % len(choices)]
            self._next_partition += int(turns[-1]) + 1
        return partitions
