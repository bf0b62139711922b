"""One shard of the transaction coordinator: its driver, and the completion of decided transactions."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from moldau.concurrency.notifier import Notifier
from moldau.coordinator.result import CompletedRequest, CoordinatorResult, Now, RequestId
from moldau.coordinator.shard_driver import ShardDriver
from moldau.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, MoldauError, NotCoordinatorError
from moldau.observe.logging import get_logger
from moldau.partitions.partition import Partition
from moldau.platform.clock import Clock
from moldau.transactions import formats
from moldau.transactions.marker_sender import MarkerSender, PendingMarkers
from moldau.transactions.records import StateRecord
from moldau.transactions.requests import PRODUCER_ID_NEEDED, TransactionMarkers
from moldau.transactions.shard import TransactionCoordinatorShard, TransactionResult
from moldau.transactions.timeout_log import TimeoutLog

log = get_logger(__name__)

COMMIT_TIMEOUT_MS = 5_000
"""How long a change may take to be committed before the coordinator returns a retriable error."""
RETRY_BACKOFF_S = 0.1
"""Backoff before the completion of a transaction is written again after an error."""

_TRANSIENT_ERRORS = (CoordinatorNotAvailableError, NotCoordinatorError, CoordinatorLoadInProgressError)

Operation = Callable[[TransactionCoordinatorShard, Now], CoordinatorResult[StateRecord, Any]]
OperationWithProducerId = Callable[[TransactionCoordinatorShard, Now, int | None], CoordinatorResult[StateRecord, Any]]


class TransactionShard:
    def __init__(
        self,
        partition: Partition,
        clock: Clock,
        marker_sender: MarkerSender,
        generate_producer_id: Callable[[], Awaitable[int]],
        timeout_log: TimeoutLog,
    ) -> None:
        self.driver: ShardDriver[TransactionCoordinatorShard, StateRecord] = ShardDriver(
            partition,
            formats,
            clock,
            contents="transactions",
            commit_timeout_ms=COMMIT_TIMEOUT_MS,
            on_unloaded=self._on_unloaded,
            on_high_watermark=self._on_high_watermark,
            on_tick=self._on_tick,
        )
        self.pending_markers: dict[str, PendingMarkers] = {}
        """The transactions whose markers are being written."""
        self.completions = Notifier()
        """Notified when a transaction is completed. Operations that are submitted afterwards see it completed."""
        self._marker_sender = marker_sender
        self._generate_producer_id = generate_producer_id
        self._timeout_log = timeout_log
        self._tasks: dict[asyncio.Task[None], None] = {}
        """Tasks in the order of their start."""

    async def submit(self, operation: Operation, *, too_large_error: type[MoldauError] = MoldauError) -> Any:
        """Runs an operation and returns its response when it is committed. Raises the error of a rejected request.

        `too_large_error` is the error of a request whose records do not fit into one batch.
        """

        def run(shard: TransactionCoordinatorShard, now: Now, request_id: RequestId) -> TransactionResult:
            result = operation(shard, now)
            completed = [CompletedRequest(request_id, result.response)]
            return CoordinatorResult(result.records, completed, result.min_committed_offset)

        return await self.driver.submit(run, too_large_error=too_large_error)

    async def submit_with_producer_id(
        self, operation: OperationWithProducerId, *, too_large_error: type[MoldauError] = MoldauError
    ) -> Any:
        """Runs an operation as `submit` does, with a new producer id only if the operation needs one."""
        response = await self.submit(lambda shard, now: operation(shard, now, None), too_large_error=too_large_error)
        if response is not PRODUCER_ID_NEEDED:
            return response
        producer_id = await self._generate_producer_id()
        return await self.submit(lambda shard, now: operation(shard, now, producer_id), too_large_error=too_large_error)

    # Completion of transactions

    def _on_high_watermark(self, high_watermark: int) -> None:
        shard = self.driver.shard
        if shard is None:
            return
        for markers in shard.take_markers(high_watermark):
            pending = self._marker_sender.add(markers, self.driver.leader_epoch)
            if not self.driver.is_active:
                # Writing a marker on this node has unloaded the shard.
                pending.is_written.cancel()
                return
            self.pending_markers[markers.transactional_id] = pending
            pending.is_written.add_done_callback(partial(self._on_markers_written, pending))

    def _on_markers_written(self, pending: PendingMarkers, is_written: "asyncio.Future[bool]") -> None:
        markers = pending.markers
        if self.pending_markers.get(markers.transactional_id) is pending:
            del self.pending_markers[markers.transactional_id]
        if not is_written.cancelled() and is_written.result():
            self._write_completion(markers)

    def _write_completion(self, markers: TransactionMarkers) -> None:
        def complete(shard: TransactionCoordinatorShard, now: Now, request_id: RequestId) -> TransactionResult:
            self.completions.notify_all()
            result = shard.complete_transaction(now, markers)
            completed = [CompletedRequest(request_id, result.response)]
            return CoordinatorResult(result.records, completed, result.min_committed_offset)

        if not self.driver.is_active:
            return
        try:
            written = self.driver.submit(complete)
        except MoldauError as error:
            self._write_completion_later(markers, error)
        else:
            written.add_done_callback(partial(self._on_completion_written, markers))

    def _on_completion_written(self, markers: TransactionMarkers, written: "asyncio.Future[Any]") -> None:
        try:
            written.result()
        except MoldauError as error:
            self._write_completion_later(markers, error)
        except Exception:
            self._log_unexpected_error()

    def _write_completion_later(self, markers: TransactionMarkers, error: MoldauError) -> None:
        """Tries again, because otherwise the transaction would stay open until another node is the coordinator."""
        _log_retry(error)
        asyncio.get_running_loop().call_later(RETRY_BACKOFF_S, self._write_completion, markers)

    def _log_unexpected_error(self) -> None:
        self.driver.unexpected_errors += 1
        log.exception("completing a transaction failed unexpectedly", partition=str(self.driver.partition.name))

    def _on_tick(self) -> None:
        shard = self.driver.shard
        if shard is None:
            return
        for transaction in shard.take_long_transactions():
            self._timeout_log.write(transaction)
        for transactional_id in shard.take_timed_out_and_exhausted():
            task = asyncio.get_running_loop().create_task(self._abort_timed_out(transactional_id))
            self._tasks[task] = None
            task.add_done_callback(self._on_task_done)

    async def _abort_timed_out(self, transactional_id: str) -> None:
        """Aborts a transaction that needs a new producer id for it."""
        while self.driver.is_active:
            try:
                producer_id = await self._generate_producer_id()
                await self.submit(lambda shard, now: shard.abort_timed_out(now, transactional_id, producer_id))  # noqa: B023
            except MoldauError as error:
                _log_retry(error)
                await asyncio.sleep(RETRY_BACKOFF_S)
            else:
                return

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        if task.cancelled():
            return
        try:
            task.result()
        except Exception:
            self._log_unexpected_error()

    def _on_unloaded(self) -> None:
        """Stops all work on transactions. The next coordinator continues with them."""
        for task in list(self._tasks):
            task.cancel()
        for pending in self.pending_markers.values():
            pending.is_written.cancel()
        self.pending_markers.clear()
        self.completions.notify_all()


def _log_retry(error: MoldauError) -> None:
    log_retry = log.debug if isinstance(error, _TRANSIENT_ERRORS) else log.error
    log_retry("changing a transaction failed, retrying", reason=str(error))
