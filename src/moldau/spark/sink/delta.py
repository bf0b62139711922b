"""The data source `moldau_delta`, which appends to a Delta table with the library deltalake, without a JAR.

    frame.writeStream.format("moldau_delta").option("path", …).option("checkpointLocation", …).start()

Executors write Parquet files into the table's directory, and the driver commits all files of a micro-batch at once. The
commit contains an application transaction: the batch number, under the option appId or else under the query's id. A
batch that the table already has is therefore skipped. It is an error if another checkpoint wrote that batch under the
same appId.

A batch write is idempotent only with appId and batchId. The files of a failed batch are removed. Files of killed
processes and tasks remain, but are not part of the table; `DeltaTable.vacuum` removes them.

The driver and all executors must reach the path. Object stores (s3://, az://, gs://, with `storage.*` options) use the
same code but are untested.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from moldau.spark.errors import OptionError, user_facing_errors
from moldau.spark.sink.delta_commits import check_table_schema, commit_files, open_table, remove_uncommitted
from moldau.spark.sink.delta_files import TableFiles, WrittenFile
from moldau.spark.sink.delta_options import FORMAT, DeltaOptions, parse_delta_options
from moldau.spark.sink.delta_schema import as_nullable, check_row_schema


@dataclass(frozen=True)
class DeltaCommitMessage(WriterCommitMessage):
    """The files that a task has written."""

    query_id: str | None
    """The id of the streaming query, which the checkpoint stores across restarts; None in a batch write."""
    files: tuple[WrittenFile, ...]


class DeltaSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> "DeltaWriter":
        with user_facing_errors(FORMAT):
            if overwrite:
                raise OptionError(f"{FORMAT} appends only: use .mode('append'), or delete the table first")
            return DeltaWriter(parse_delta_options(self.options, is_streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DeltaWriter":
        with user_facing_errors(FORMAT):
            if overwrite:
                raise OptionError(
                    f"{FORMAT} appends only: use .outputMode('append'), or upsert the rows in foreachBatch"
                )
            return DeltaWriter(parse_delta_options(self.options, is_streaming=True), schema)


class DeltaWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """The writer of a batch or a stream."""

    def __init__(self, options: DeltaOptions, schema: StructType) -> None:
        self._options = options
        self._schema: dict[str, Any] = as_nullable(json.loads(schema.json()))
        check_row_schema(self._schema, options.partition_by)
        self._arrow_schema = to_arrow_schema(StructType.fromJson(self._schema), timezone="UTC")
        self._partition_by = options.partition_by
        table = open_table(options.location)
        if table is not None:
            check_table_schema(table, self._schema, options.partition_by, options.location)
            self._partition_by = tuple(table.metadata().partition_columns)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "rows are written in a task of Spark's"
        with user_facing_errors(FORMAT):
            files = TableFiles(
                self._options.location, self._arrow_schema, self._partition_by, compression=self._options.compression
            )
            try:
                for batch in iterator:
                    files.write(batch)
                written = files.finish()
            except BaseException:
                files.discard()
                raise
        return DeltaCommitMessage(context.getLocalProperty("sql.streaming.queryId"), tuple(written))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Commits the files of all tasks. `batchId` is None for a batch write."""
        query_id = next((each.query_id for each in _delta_messages(messages) if each.query_id), None)
        app_id = self._options.app_id or query_id
        with user_facing_errors(FORMAT):
            commit_files(
                self._options.location,
                self._schema,
                self._partition_by,
                _files(messages),
                app_id,
                self._options.batch_id if batchId is None else batchId,
                None if app_id == query_id else query_id,
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        remove_uncommitted(self._options.location, _files(messages))


def _delta_messages(messages: Sequence[WriterCommitMessage | None]) -> list[DeltaCommitMessage]:
    """Returns the messages of successful tasks. Spark passes None for a failed task."""
    return [each for each in messages if isinstance(each, DeltaCommitMessage)]


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenFile]:
    return [file for each in _delta_messages(messages) for file in each.files]
