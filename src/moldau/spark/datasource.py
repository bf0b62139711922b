"""The data source `format("moldau")`, which reads and writes topics in batches and streams.

Spark creates and pickles the data source in several short-lived processes per query, so this module imports little.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from moldau.spark.errors import SparkSourceError, user_facing_errors

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
        from moldau.spark.source.options import check_read_options, is_read_query

        with self._user_facing_errors():
            if is_read_query(self.options):
                check_read_options(self.options)

    @classmethod
    def name(cls) -> str:
        return "moldau"

    def schema(self) -> StructType:
        from moldau.spark.source import columns
        from moldau.spark.source.options import includes_headers

        with self._user_facing_errors():
            return columns.schema(include_headers=includes_headers(self.options))

    def reader(self, schema: StructType) -> "DataSourceReader":
        from moldau.spark.source.options import parse_source_options
        from moldau.spark.source.readers import TopicBatchReader

        with self._user_facing_errors():
            return TopicBatchReader(parse_source_options(self.options, is_stream=False), schema)

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":
        from moldau.spark.source.options import parse_source_options
        from moldau.spark.source.readers import FailingStreamReader, TopicStreamReader

        try:
            return TopicStreamReader(parse_source_options(self.options, is_stream=True), schema)
        except SparkSourceError as error:
            return FailingStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceArrowWriter":
        from moldau.spark.sink.writers import TopicWriter

        with self._user_facing_errors():
            return TopicWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamArrowWriter":
        from moldau.spark.sink.writers import TopicStreamWriter

        with self._user_facing_errors():
            return TopicStreamWriter(self.options, schema, overwrite)

    def _user_facing_errors(self) -> Any:
        return user_facing_errors(self.options.get("kafka.bootstrap.servers", "?"))
