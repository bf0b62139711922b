"""`df.writeStream.format("moldau")`: the rows of each micro-batch become records of topics.

Delivery is at least once: a batch that is replayed, because its query ended between the writing and the note of it in
the checkpoint, is written again as a whole. Which query, batch and task rows come from is in the message of each task,
and `commit` is told once per batch when all are written: what an atomic commit of the batch needs to know.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from moldau.spark.errors import OptionError
from moldau.spark.sink.batch_writer import TopicRowWriter

if TYPE_CHECKING:
    import pyarrow as pa


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Made anew several times for each batch, so making it has no effect on anything."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool = False) -> None:
        if overwrite:
            raise OptionError(
                "records are appended to a topic and never overwritten: use .outputMode('append') or 'update'"
            )
        self._rows = TopicRowWriter(options, schema)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        return self._rows.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The records are visible since they were acknowledged: nothing is left to do."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What some of the tasks have written stays: the batch is written again when the query is restarted."""
