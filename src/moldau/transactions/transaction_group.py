"""The state of one transaction group and its transitions. Pure.

A transaction group commits the transactions of several producers, its members, by one decision per batch. Batches have
increasing numbers. A Spark query is a group: its tasks are the members, and a micro-batch is a batch.

Every start of the query is a run. A run ends when a later one begins or when it aborts a batch, and requests of an
ended run are refused. So tasks of a dead driver cannot disturb the batch that its successor writes.
"""

from dataclasses import dataclass, replace

from moldau.errors import InvalidTransactionStateError, ProducerFencedError

NO_BATCH_ID = -1
NO_RUN_ID = ""
ENDED_RUNS_MAX = 16
"""The number of ended runs that are remembered. Tasks of earlier ones have ended long ago; otherwise they begin a run,
and the current one fails without a wrong decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionGroupMetadata:
    last_batch_id: int = NO_BATCH_ID
    """The last committed batch."""
    run_id: str = NO_RUN_ID
    """The current run; NO_RUN_ID if the last one has ended."""
    ended_run_ids: tuple[str, ...] = ()
    is_complete: bool = False
    """Whether no batch will follow, so that the group may expire."""
    last_update_ms: int = -1

    @property
    def may_expire(self) -> bool:
        """Whether the last committed batch is not needed any more. That of a query must outlive every stop."""
        return self.is_complete or self.last_batch_id == NO_BATCH_ID

    def is_committed(self, group_id: str, batch_id: int) -> bool:
        """Returns whether the batch is committed. Raises InvalidTransactionStateError if a later batch is: the writer
        has gone back in time, so that skipping its batch would lose records."""
        if batch_id < self.last_batch_id:
            raise InvalidTransactionStateError(
                f"batch {batch_id} of {group_id!r} is older than the last committed batch {self.last_batch_id}"
            )
        return batch_id == self.last_batch_id

    def with_run(self, group_id: str, run_id: str, now_ms: int) -> "TransactionGroupMetadata":
        """Returns the state in which a run is the current one. Raises ProducerFencedError if it has ended."""
        if run_id == self.run_id:
            return self
        if run_id in self.ended_run_ids:
            raise ProducerFencedError(f"the run {run_id} of {group_id!r} has ended, or a later run has begun")
        return replace(self.with_ended_run(now_ms), run_id=run_id)

    def with_ended_run(self, now_ms: int) -> "TransactionGroupMetadata":
        ended = self.ended_run_ids if self.run_id == NO_RUN_ID else (*self.ended_run_ids, self.run_id)
        return replace(self, run_id=NO_RUN_ID, ended_run_ids=ended[-ENDED_RUNS_MAX:], last_update_ms=now_ms)

    def with_committed(self, batch_id: int, now_ms: int, *, is_complete: bool) -> "TransactionGroupMetadata":
        assert batch_id > self.last_batch_id
        return replace(self, last_batch_id=batch_id, is_complete=is_complete, last_update_ms=now_ms)
