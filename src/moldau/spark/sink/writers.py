"""The writer of topics: `df.write.format("moldau")` and `df.writeStream.format("moldau")`.

With delivery=exactly-once (`exactly_once.py`) the rows of a batch become visible together, and once, although Spark
retries tasks and replays micro-batches. With at-least-once, these write their rows again. Each attempt writes its rows
once and in order through an idempotent producer, and ends when all records are acknowledged.

Spark creates writers in short-lived driver processes, so the code that writes is imported only where it is used.
"""

import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from moldau.observe.logging import get_logger
from moldau.spark.errors import user_facing_errors
from moldau.spark.sink.columns import sink_columns
from moldau.spark.sink.options import parse_topic_options

if TYPE_CHECKING:
    import pyarrow as pa

_log = get_logger("spark.sink")


class TopicWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """The writer of a batch or a stream. For a stream, Spark creates it several times per micro-batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, is_stream: bool) -> None:
        self._options = parse_topic_options(options, is_stream=is_stream)
        self._write_id = uuid.uuid4().hex
        """Identifies a batch write. Spark uses one writer for it, in the driver and in all tasks."""
        self._columns = sink_columns(
            schema, has_topic=self._options.topic is not None, includes_headers=self._options.includes_headers
        )

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "rows are written in a task of Spark's"
        # Warn only in the first task, because writers are created several times per batch, in different processes.
        if self._columns.ignored and _is_first_task(context):
            _log.warning(f"a record has no columns {', '.join(self._columns.ignored)}: they are not written")
        with user_facing_errors(self._options.bootstrap):
            if self._options.is_exactly_once:
                from moldau.spark.sink.exactly_once import task_of
                from moldau.spark.sink.exactly_once_task import write_in_transaction

                task = task_of(context, self._options, self._write_id)
                return write_in_transaction(iterator, self._options, self._columns, task)
            from moldau.spark.sink.task_writer import write_rows

            write_rows(iterator, self._options, self._columns)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Makes the rows of all tasks visible. Without transactions they are visible as soon as acknowledged."""
        if self._options.is_exactly_once:
            from moldau.spark.sink.exactly_once import commit_batch

            with user_facing_errors(self._options.bootstrap):
                commit_batch(messages, self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Aborts the transactions of all tasks. A failed batch is written again when the query restarts."""
        if self._options.is_exactly_once:
            from moldau.spark.sink.exactly_once import abort_batch

            with user_facing_errors(self._options.bootstrap):
                abort_batch(messages, self._options)


def _is_first_task(context: TaskContext) -> bool:
    """Returns whether this is the first task of a batch write, or of a streaming query's first micro-batch."""
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return context.partitionId() == 0 and context.attemptNumber() == 0 and batch_id in (None, "0")
