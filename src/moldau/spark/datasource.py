"""`format("moldau")`: what Spark finds by that name, for reading and writing, in batches and streams.

Spark makes and pickles it in several short processes for each query, so this file imports next to nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from moldau.spark.errors import SparkSourceError, told_plainly

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )


class MoldauDataSource(DataSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type]
        from moldau.spark.source.options import check_read, is_read

        with self._told_plainly():
            if is_read(self.options):
                check_read(self.options)

    @classmethod
    def name(cls) -> str:
        return "moldau"

    def schema(self) -> StructType:
        from moldau.spark.source import columns
        from moldau.spark.source.options import includes_headers

        with self._told_plainly():
            return columns.schema(include_headers=includes_headers(self.options))

    def reader(self, schema: StructType) -> "DataSourceReader":
        from moldau.spark.source.batch import TopicReader
        from moldau.spark.source.options import parse_source

        with self._told_plainly():
            return TopicReader(parse_source(self.options, is_stream=False), schema)

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":
        from moldau.spark.source.options import parse_source
        from moldau.spark.source.stream import RefusedStreamReader, TopicStreamReader

        try:
            return TopicStreamReader(parse_source(self.options, is_stream=True), schema)
        except SparkSourceError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceArrowWriter":
        from moldau.spark.sink.writer import TopicWriter

        with self._told_plainly():
            return TopicWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamArrowWriter":
        from moldau.spark.sink.stream_writer import TopicStreamWriter

        with self._told_plainly():
            return TopicStreamWriter(self.options, schema, overwrite)

    def _told_plainly(self) -> Any:
        return told_plainly(self.options.get("kafka.bootstrap.servers", "?"))
