"""`df.write.format("moldau")`: rows become records of topics.

Delivery is at least once: a task that Spark tries again writes its rows again. Each attempt by itself writes its rows
once and in their order, through an idempotent producer, and a task is done when the brokers have acknowledged all.

Spark makes writers in short processes of the driver, so this file leaves it to the tasks to import what writes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from moldau.observe.logging import get_logger
from moldau.spark.errors import OptionError, told_plainly
from moldau.spark.sink.columns import columns_of
from moldau.spark.sink.options import parse_topic_options
from moldau.spark.sink.task import Task, of_this_task

if TYPE_CHECKING:
    import pyarrow as pa

_log = get_logger("spark.sink")


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has written, all of it acknowledged."""

    task: Task
    counts: dict[tuple[str, int], int]
    """Records by topic and partition."""


class TopicRows:
    """What batch and streaming writes share."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_topic_options(options)
        self._columns = columns_of(
            schema,
            has_topic=self._options.topic is not None,
            includes_headers=self._options.includes_headers,
        )

    def write(self, batches: "Iterator[pa.RecordBatch]") -> Written:
        from moldau.spark.sink.topic_rows import write_rows

        task = of_this_task(TaskContext.get())
        # Once in a query: writers are made several times for each batch, in processes that do not know of each other.
        if self._columns.ignored and task.is_first:
            _log.warning(f"a record has no columns {', '.join(self._columns.ignored)}: they are not written")
        with told_plainly(self._options.bootstrap):
            counts = write_rows(batches, self._options, self._columns)
        return Written(task, counts)


class TopicWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool = False) -> None:
        if overwrite:
            raise OptionError("records are appended to a topic and never overwritten: use .mode('append')")
        self._rows = TopicRows(options, schema)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        return self._rows.write(iterator)
