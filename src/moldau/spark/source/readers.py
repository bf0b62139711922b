"""Batch and streaming readers of topics.

The driver plans offset ranges, and tasks read them. Each streaming query has one process in which Spark calls the
methods of the stream reader, one at a time. Only `read` is called in tasks.
"""

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from moldau.spark.errors import SparkSourceError, user_facing_errors
from moldau.spark.source.columns import requested_columns
from moldau.spark.source.offset_ranges import OffsetRange, TriggerLimits, split_ranges
from moldau.spark.source.offsets import StreamPosition
from moldau.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from moldau.spark.source.planner import StreamPlanner

T = TypeVar("T")


class TopicBatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = requested_columns(schema)

    def partitions(self) -> Sequence[InputPartition]:
        from moldau.spark.source.planner import plan_batch

        return _input_partitions(_run(plan_batch(self._options), self._options), self._options)

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        # If there are no ranges, Spark passes a placeholder partition.
        if isinstance(partition.value, OffsetRange):
            from moldau.spark.source.range_reader import read_range

            with user_facing_errors(self._options.bootstrap):
                yield from read_range(partition.value, self._options, self._columns, self._schema)


def _run(work: Coroutine[Any, Any, T], options: SourceOptions) -> T:
    from moldau.spark.loop_thread import event_loop_thread

    with user_facing_errors(options.bootstrap):
        return event_loop_thread().run(work)


def _input_partitions(ranges: list[OffsetRange], options: SourceOptions) -> list[InputPartition]:
    parts = split_ranges(ranges, partitions_min=options.partitions_min, records_max=options.records_per_partition_max)
    return [InputPartition(each) for each in parts]


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._batch_reader = TopicBatchReader(options, schema)
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state to pickle. It has no planner, because tasks only call `read`."""
        return {**self.__dict__, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:
        return _run(self._stream_planner().initial_position(), self._options).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self._options.limits
        if limits.offsets_max is not None:
            # Spark's Python API cannot combine a minimum and a maximum in one limit. Return the maximum here;
            # `latestOffset` also applies the minimum from the options.
            return ReadMaxRows(limits.offsets_max)
        return ReadAllAvailable() if limits.offsets_min is None else ReadMinRows(limits.offsets_min)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the next micro-batch.

        Commits `start` to the consumer group, because all records before it are in the sink.
        """
        limits: TriggerLimits | None = self._options.limits
        if isinstance(limit, ReadAllAvailable):
            limits = None
        elif not isinstance(limit, ReadMaxRows | ReadMinRows):
            raise SparkSourceError(f"a read of topics cannot be limited by {type(limit).__name__}")
        position = StreamPosition.from_json(start)
        return _run(self._stream_planner().next_position(position, limits), self._options).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        latest = self._stream_planner().latest
        return StreamPosition(latest).to_json() if latest else None

    def prepareForTriggerAvailableNow(self) -> None:
        _run(self._stream_planner().fix_end(), self._options)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        between = StreamPosition.from_json(start), StreamPosition.from_json(end)
        return _input_partitions(_run(self._stream_planner().ranges(*between), self._options), self._options)

    def commit(self, end: Mapping[str, Any]) -> None:
        _run(self._stream_planner().commit_to_group(StreamPosition.from_json(end)), self._options)

    def stop(self) -> None:
        if self._planner is not None:
            _run(self._planner.stop(), self._options)

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        return self._batch_reader.read(partition)

    def _stream_planner(self) -> "StreamPlanner":
        if self._planner is None:
            from moldau.spark.source.planner import StreamPlanner

            self._planner = StreamPlanner(self._options)
        return self._planner


class FailingStreamReader(DataSourceStreamReader):
    """A stream reader that raises `error` at Spark's first call. Spark would drop an error from `streamReader`."""

    def __init__(self, error: SparkSourceError) -> None:
        self._error = error

    def _fail(self, *_: Any, **__: Any) -> Any:
        with user_facing_errors(""):
            raise self._error

    initialOffset = latestOffset = partitions = read = _fail
