"""The data source `format("moldau")`, which reads and writes topics in batches and streams.

Spark creates and pickles the data source in several short-lived processes per query, so this module imports little.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from moldau.spark.errors import OptionError, SparkSourceError, user_facing_errors

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

    from moldau.spark.sink.writers import TopicWriter


class MoldauDataSource(DataSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type]
        from moldau.spark.source.options import check_read_options

        with self._user_facing_errors():
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

    def writer(self, schema: StructType, overwrite: bool) -> "TopicWriter":
        return self._topic_writer(schema, overwrite, ".mode('append')", is_stream=False)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TopicWriter":
        return self._topic_writer(schema, overwrite, ".outputMode('append') or 'update'", is_stream=True)

    def _topic_writer(self, schema: StructType, overwrite: bool, supported: str, *, is_stream: bool) -> "TopicWriter":
        from moldau.spark.sink.writers import TopicWriter

        with self._user_facing_errors():
            if overwrite:
                raise OptionError(f"records are appended to a topic and never overwritten: use {supported}")
            return TopicWriter(self.options, schema, is_stream=is_stream)

    def _user_facing_errors(self) -> AbstractContextManager[None]:
        return user_facing_errors(self.options.get("kafka.bootstrap.servers", "?"))
