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

    from moldau.spark.source.offset_tracker import StreamOffsetTracker


class TopicBatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = requested_columns(schema)

    def partitions(self) -> Sequence[InputPartition]:
        from moldau.spark.loop_thread import event_loop_thread
        from moldau.spark.source.range_planner import plan_batch

        options = self._options
        with user_facing_errors(options.bootstrap):
            ranges = event_loop_thread().run(plan_batch(options))
        parts = split_ranges(
            ranges, partitions_min=options.partitions_min, records_max=options.records_per_partition_max
        )
        return [InputPartition(each) for each in parts]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        # If there are no ranges, Spark passes a placeholder partition.
        if isinstance(partition.value, OffsetRange):
            from moldau.spark.source.range_reader import read_range

            with user_facing_errors(self._options.bootstrap):
                yield from read_range(partition.value, self._options, self._columns, self._schema)


T = TypeVar("T")


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = requested_columns(schema)
        self._tracker: StreamOffsetTracker | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns the pickled state without the tracker, because tasks only call `read` and do not need the tracker."""
        return {**self.__dict__, "_tracker": None}

    # On the driver

    def initialOffset(self) -> dict[str, Any]:
        return self._run(self._offset_tracker().initial_position()).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self._options.limits
        if limits.offsets_max is not None:
            # Spark's Python API cannot combine a minimum and a maximum in one limit. Return the maximum here;
            # `latestOffset` also applies the minimum from the options.
            return ReadMaxRows(limits.offsets_max)
        return ReadAllAvailable() if limits.offsets_min is None else ReadMinRows(limits.offsets_min)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the next micro-batch.

        Commits `start` to the consumer group, because all records before `start` are in the sink.
        """
        return self._run(
            self._offset_tracker().next_position(StreamPosition.from_json(start), self._limits(limit))
        ).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        latest = self._offset_tracker().latest
        return StreamPosition(latest).to_json() if latest else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._run(self._offset_tracker().fix_end())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        ranges = self._run(
            self._offset_tracker().ranges(StreamPosition.from_json(start), StreamPosition.from_json(end))
        )
        parts = split_ranges(
            ranges, partitions_min=self._options.partitions_min, records_max=self._options.records_per_partition_max
        )
        return [InputPartition(each) for each in parts]

    def commit(self, end: Mapping[str, Any]) -> None:
        self._run(self._offset_tracker().commit_to_group(StreamPosition.from_json(end)))

    def stop(self) -> None:
        if self._tracker is not None:
            self._run(self._tracker.stop())

    # In tasks

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        from moldau.spark.source.range_reader import read_range

        with user_facing_errors(self._options.bootstrap):
            yield from read_range(partition.value, self._options, self._columns, self._schema)

    def _offset_tracker(self) -> "StreamOffsetTracker":
        if self._tracker is None:
            from moldau.spark.source.offset_tracker import StreamOffsetTracker

            self._tracker = StreamOffsetTracker(self._options)
        return self._tracker

    def _limits(self, limit: ReadLimit) -> TriggerLimits | None:
        """Returns the limits of the options, or None for a trigger that takes all available records."""
        match limit:
            case ReadAllAvailable():
                return None
            case ReadMaxRows() | ReadMinRows():
                return self._options.limits
            case _:
                raise SparkSourceError(f"a read of topics cannot be limited by {type(limit).__name__}")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        from moldau.spark.loop_thread import event_loop_thread

        with user_facing_errors(self._options.bootstrap):
            return event_loop_thread().run(work)


class FailingStreamReader(DataSourceStreamReader):
    """A stream reader that raises an error at Spark's first call.

    `streamReader` returns this reader instead of raising, because Spark drops an error that is raised before a reader
    exists.
    """

    def __init__(self, error: SparkSourceError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        with user_facing_errors(""):
            raise self._error

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self.initialOffset()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        with user_facing_errors(""):
            raise self._error

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        with user_facing_errors(""):
            raise self._error
