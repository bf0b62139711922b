"""A batch read of topics: planned on the driver, range by range, and read by tasks."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from moldau.spark.errors import user_facing_errors
from moldau.spark.source.columns import requested_columns
from moldau.spark.source.offset_ranges import OffsetRange, split_ranges
from moldau.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch


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
        # Without ranges Spark makes up a partition of its own.
        if isinstance(partition.value, OffsetRange):
            from moldau.spark.source.range_reader import read_range

            with user_facing_errors(self._options.bootstrap):
                yield from read_range(partition.value, self._options, self._columns, self._schema)
