"""Which task of which batch this is, as Spark tells its Python workers."""

from dataclasses import dataclass

from pyspark import TaskContext

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class SparkTask:
    query_id: str | None
    """The same over restarts of a streaming query: it is kept in the checkpoint. None in a batch write."""
    batch_id: int | None
    partition_id: int
    attempt: int

    @property
    def is_first(self) -> bool:
        """Of a write, or of the first batch of a streaming query."""
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
