"""A streaming read of topics: how far the next micro-batch goes, and what its tasks read.

Spark calls all but `read` in one process that lives as long as the query, one call after the other.
"""

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from moldau.spark.errors import SparkSourceError, told_plainly
from moldau.spark.source.columns import columns_of
from moldau.spark.source.limits import Limits
from moldau.spark.source.offsets import Position
from moldau.spark.source.options import SourceOptions
from moldau.spark.source.ranges import split

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from moldau.spark.source.following import Following

T = TypeVar("T")


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = columns_of(schema)
        self._follows: Following | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need: they only read."""
        return {**self.__dict__, "_follows": None}

    # On the driver

    def initialOffset(self) -> dict[str, Any]:
        return self._run(self._following().begin()).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self._options.limits
        if limits.offsets_max is not None:
            # Spark has no limit from both sides for Python: latestOffset minds the other one.
            return ReadMaxRows(limits.offsets_max)
        return ReadAllAvailable() if limits.offsets_min is None else ReadMinRows(limits.offsets_min)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """All up to `start` is in the sink by now: that is what the group is shown."""
        return self._run(self._following().advance(Position.of_json(start), self._limits(limit))).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        latest = self._following().latest
        return Position(latest).to_json() if latest else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._run(self._following().freeze())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        ranges = self._run(self._following().ranges(Position.of_json(start), Position.of_json(end)))
        parts = split(
            ranges,
            partitions_min=self._options.partitions_min,
            records_max=self._options.records_per_partition_max,
        )
        return [InputPartition(each) for each in parts]

    def commit(self, end: Mapping[str, Any]) -> None:
        self._run(self._following().publish(Position.of_json(end)))

    def stop(self) -> None:
        if self._follows is not None:
            self._run(self._follows.stop())

    # In tasks

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        from moldau.spark.source.fetching import read_range

        with told_plainly(self._options.bootstrap):
            yield from read_range(partition.value, self._options, self._columns, self._schema)

    def _following(self) -> "Following":
        if self._follows is None:
            from moldau.spark.source.following import Following

            self._follows = Following(self._options)
        return self._follows

    def _limits(self, limit: ReadLimit) -> Limits | None:
        """What Spark asks for, which is what the options say but for a trigger that takes all there is."""
        match limit:
            case ReadAllAvailable():
                return None
            case ReadMaxRows() | ReadMinRows():
                return self._options.limits
            case _:
                raise SparkSourceError(f"a read of topics cannot be limited by {type(limit).__name__}")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        from moldau.spark.portal import portal

        with told_plainly(self._options.bootstrap):
            return portal().run(work)


class RefusedStreamReader(DataSourceStreamReader):
    """Says what is wrong with a query at the first question: what is raised before there is a reader gets lost in
    Spark."""

    def __init__(self, error: SparkSourceError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        with told_plainly(""):
            raise self._error

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self.initialOffset()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        with told_plainly(""):
            raise self._error

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        with told_plainly(""):
            raise self._error
