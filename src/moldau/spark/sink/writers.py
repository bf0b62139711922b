"""The writer of topics: `df.write.format("moldau")` and `df.writeStream.format("moldau")`.

Delivery is at least once. A task that Spark retries, or a micro-batch that is replayed, writes its rows again. Each
attempt writes its rows once and in order through an idempotent producer. The attempt ends when all records are
acknowledged.

Spark creates writers in short-lived driver processes, so the code that writes is imported only in tasks.
"""

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

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_topic_options(options)
        self._columns = sink_columns(
            schema, has_topic=self._options.topic is not None, includes_headers=self._options.includes_headers
        )

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        from moldau.spark.sink.task_writer import write_rows

        # Warn only in the first task, because writers are created several times per batch, in different processes.
        if self._columns.ignored and _is_first_task(TaskContext.get()):
            _log.warning(f"a record has no columns {', '.join(self._columns.ignored)}: they are not written")
        with user_facing_errors(self._options.bootstrap):
            write_rows(iterator, self._options, self._columns)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Does nothing, because records are visible as soon as they are acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Does nothing, because a failed batch is written again when the query restarts."""


def _is_first_task(context: TaskContext | None) -> bool:
    """Returns whether this is the first task of a batch write, or of a streaming query's first micro-batch."""
    assert context is not None, "rows are written in a task of Spark's"
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return context.partitionId() == 0 and context.attemptNumber() == 0 and batch_id in (None, "0")
