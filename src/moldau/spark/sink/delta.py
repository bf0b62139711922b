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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from moldau.spark.errors import OptionError, user_facing_errors
from moldau.spark.sink.delta_commits import check_table_schema, commit_files, open_table, remove_uncommitted
from moldau.spark.sink.delta_files import TableFiles, WrittenFile
from moldau.spark.sink.delta_options import FORMAT, DeltaOptions, parse_delta_options
from moldau.spark.sink.delta_schema import as_nullable, check_row_schema
from moldau.spark.sink.writers import current_task


@dataclass(frozen=True)
class DeltaCommitMessage(WriterCommitMessage):
    """The files that a task has written."""

    query_id: str | None
    files: tuple[WrittenFile, ...]


class DeltaSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with user_facing_errors(FORMAT):
            if overwrite:
                raise OptionError(f"{FORMAT} appends only: use .mode('append'), or delete the table first")
            return DeltaWriter(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DeltaStreamWriter":
        with user_facing_errors(FORMAT):
            if overwrite:
                raise OptionError(
                    f"{FORMAT} appends only: use .outputMode('append'), or upsert the rows in foreachBatch"
                )
            return DeltaStreamWriter(self.options, schema)


class _DeltaTableWriter:
    """The code that batch and streaming writes share."""

    def __init__(self, options: DeltaOptions, schema: StructType) -> None:
        self.options = options
        self.schema: dict[str, Any] = as_nullable(json.loads(schema.json()))
        check_row_schema(self.schema, options.partition_by)
        self.arrow_schema = to_arrow_schema(StructType.fromJson(self.schema), timezone="UTC")
        self.partition_by = options.partition_by
        table = open_table(options.location)
        if table is not None:
            check_table_schema(table, self.schema, options.partition_by, options.location)
            self.partition_by = tuple(table.metadata().partition_columns)

    def write(self, batches: Iterator[pa.RecordBatch]) -> DeltaCommitMessage:
        with user_facing_errors(FORMAT):
            files = TableFiles(
                self.options.location, self.arrow_schema, self.partition_by, compression=self.options.compression
            )
            try:
                for batch in batches:
                    files.write(batch)
                written = files.finish()
            except BaseException:
                files.discard()
                raise
        return DeltaCommitMessage(current_task(TaskContext.get()).query_id, tuple(written))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        written = _delta_messages(messages)
        query_id = next((each.query_id for each in written if each.query_id), None)
        app_id = self.options.app_id or query_id
        files = [file for each in written for file in each.files]
        with user_facing_errors(FORMAT):
            commit_files(
                self.options.location,
                self.schema,
                self.partition_by,
                files,
                app_id,
                batch_id,
                None if app_id == query_id else query_id,
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        files = [file for each in _delta_messages(messages) for file in each.files]
        remove_uncommitted(self.options.location, files)


class DeltaWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._table_writer = _DeltaTableWriter(parse_delta_options(options, is_streaming=False), schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._table_writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._table_writer.commit(messages, self._table_writer.options.batch_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._table_writer.abort(messages)


class DeltaStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._table_writer = _DeltaTableWriter(parse_delta_options(options, is_streaming=True), schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._table_writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._table_writer.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._table_writer.abort(messages)


def _delta_messages(messages: Sequence[WriterCommitMessage | None]) -> list[DeltaCommitMessage]:
    """Returns the messages of successful tasks. Spark passes None for a failed task."""
    return [each for each in messages if isinstance(each, DeltaCommitMessage)]
