"""Batch and streaming writers of topics: `df.write.format("moldau")` and `df.writeStream.format("moldau")`.

Delivery is at least once. A task that Spark retries, or a micro-batch that is replayed, writes its rows again. Each
attempt writes its rows once and in order through an idempotent producer. The attempt ends when all records are
acknowledged.

Spark creates writers in short-lived driver processes, so the code that writes is imported only in tasks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from moldau.observe.logging import get_logger
from moldau.spark.errors import OptionError, user_facing_errors
from moldau.spark.sink.columns import sink_columns
from moldau.spark.sink.options import parse_topic_options

if TYPE_CHECKING:
    import pyarrow as pa

_log = get_logger("spark.sink")


_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class SparkTask:
    query_id: str | None
    """The id of the streaming query, which the checkpoint stores across restarts; None in a batch write."""
    batch_id: int | None
    partition_id: int
    attempt: int

    @property
    def is_first(self) -> bool:
        """Whether this is the first task of a write, or of a streaming query's first micro-batch."""
        return self.partition_id == 0 and self.attempt == 0 and self.batch_id in (None, 0)


def current_task(context: TaskContext | None) -> SparkTask:
    assert context is not None, "rows are written in a task of Spark's"
    batch_id = context.getLocalProperty(_BATCH_ID)
    return SparkTask(
        context.getLocalProperty(_QUERY_ID),
        None if batch_id is None else int(batch_id),
        context.partitionId(),
        context.attemptNumber(),
    )


@dataclass(frozen=True)
class TopicCommitMessage(WriterCommitMessage):
    """The acknowledged records of a task."""

    task: SparkTask
    counts: dict[tuple[str, int], int]
    """The number of records by topic and partition."""


class TopicRowWriter:
    """The code that batch and streaming writes share."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_topic_options(options)
        self._columns = sink_columns(
            schema, has_topic=self._options.topic is not None, includes_headers=self._options.includes_headers
        )

    def write(self, batches: "Iterator[pa.RecordBatch]") -> TopicCommitMessage:
        from moldau.spark.sink.task_writer import write_rows

        task = current_task(TaskContext.get())
        # Warn only in the first task, because writers are created several times per batch, in different processes.
        if self._columns.ignored and task.is_first:
            _log.warning(f"a record has no columns {', '.join(self._columns.ignored)}: they are not written")
        with user_facing_errors(self._options.bootstrap):
            counts = write_rows(batches, self._options, self._columns)
        return TopicCommitMessage(task, counts)


class TopicWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool = False) -> None:
        if overwrite:
            raise OptionError("records are appended to a topic and never overwritten: use .mode('append')")
        self._rows = TopicRowWriter(options, schema)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        return self._rows.write(iterator)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query. Spark creates it several times per micro-batch, so the constructor has no side
    effects."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool = False) -> None:
        if overwrite:
            raise OptionError(
                "records are appended to a topic and never overwritten: use .outputMode('append') or 'update'"
            )
        self._rows = TopicRowWriter(options, schema)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        return self._rows.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing, because records are visible as soon as they are acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing, because the batch is written again when the query restarts."""
