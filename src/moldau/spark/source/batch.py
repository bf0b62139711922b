"""A batch read of topics: planned on the driver, range by range, and read by tasks."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from moldau.spark.errors import told_plainly
from moldau.spark.source.columns import columns_of
from moldau.spark.source.options import SourceOptions
from moldau.spark.source.ranges import OffsetRange, split

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class TopicReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = columns_of(schema)

    def partitions(self) -> Sequence[InputPartition]:
        from moldau.spark.portal import portal
        from moldau.spark.source.planning import plan_batch

        options = self._options
        with told_plainly(options.bootstrap):
            ranges = portal().run(plan_batch(options))
        parts = split(
            ranges, partitions_min=options.partitions_min, records_max=options.records_per_partition_max
        )
        return [InputPartition(each) for each in parts]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        # Without ranges Spark makes up a partition of its own.
        if isinstance(partition.value, OffsetRange):
            from moldau.spark.source.fetching import read_range

            with told_plainly(self._options.bootstrap):
                yield from read_range(partition.value, self._options, self._columns, self._schema)
