"""Group commit for one log: one flush at a time, shared by all waiters, retried after a transient error."""

import asyncio
from collections.abc import Callable

from moldau.concurrency.eager import start_eagerly
from moldau.errors import MoldauError, StorageError
from moldau.logs.store import Log
from moldau.observe.logging import get_logger
from moldau.partitions.delayed_operations import OffsetWaiters

log = get_logger(__name__)

FLUSH_RETRY_S_MIN, FLUSH_RETRY_S_MAX = 0.1, 5.0
"""The first and the longest delay before a retry after a transient error. Each consecutive error doubles the delay."""


class LogFlusher:
    def __init__(
        self, log_: Log, *, on_flushed: Callable[[], None], on_error: Callable[[StorageError, bool], None]
    ) -> None:
        """Calls `on_flushed` when the flushed offset has advanced, and `on_error` with an error and whether it is
        permanent."""
        self._log = log_
        self._on_flushed = on_flushed
        self._on_error = on_error
        self._waiters = OffsetWaiters()
        self._flush_task: asyncio.Task[None] | None = None
        self._finalizer: asyncio.Task[None] | None = None
        self._has_more_to_finalize = False
        """Whether segments were closed or flushed while the finalizer was running."""
        self.is_running = False
        self._is_stopped = False
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retry_delay_s = FLUSH_RETRY_S_MIN

    def flushed_offset(self) -> int:
        """Returns the offset below which records are treated as flushed. With write.caching this is the log end."""
        return self._log.end_offset if self._log.settings.write_caching else self._log.durable_offset

    def start(self) -> None:
        """Starts a flush unless one is running. Records appended during a running flush are flushed by the next one.

        With write.caching only closed segments are flushed, in the background.
        """
        log_ = self._log
        if log_.settings.write_caching:
            self._start_finalizer()
            return
        if self.is_running or log_.durable_offset >= log_.end_offset:
            return
        self._cancel_retry()
        self.is_running = True
        self._flush_task = start_eagerly(self._flush(), self._on_flush_done)

    async def wait_until_flushed(self, offset: int) -> None:
        """Waits until all records below `offset` are flushed. Raises StorageError if the flush fails."""
        self.start()
        if self.flushed_offset() < offset:
            if self._log.failure is not None:
                raise StorageError(self._log.failure)
            await self._waiters.add(offset)

    def complete_waiters(self) -> None:
        """Completes the waiters whose offsets are flushed, either by a flush or because write.caching was enabled."""
        self._waiters.complete_up_to(self.flushed_offset())

    def fail_waiters(self, error: MoldauError) -> None:
        self._waiters.fail_all(error)

    async def stop(self) -> None:
        """Waits for the running flush. No flush starts afterwards."""
        self._is_stopped = True
        self._cancel_retry()
        running = [task for task in (self._flush_task, self._finalizer) if task is not None]
        await asyncio.gather(*running, return_exceptions=True)

    async def _flush(self) -> None:
        while self._log.durable_offset < self._log.end_offset:
            await self._log.flush()
            self._retry_delay_s = FLUSH_RETRY_S_MIN
            self._on_flushed()
            self.complete_waiters()
            self._start_finalizer()

    def _on_flush_done(self, _: None, error: BaseException | None) -> None:
        self.is_running = False
        self._flush_task = None
        if error is None:
            self.start()
        elif isinstance(error, Exception):
            # Treat an unexpected error as permanent. Otherwise requests would wait for a flush that never happens.
            known = error if isinstance(error, StorageError) else StorageError(f"flushing failed: {error!r}")
            is_transient = known is error and self._log.failure is None
            self._on_error(known, not is_transient)
            if is_transient:
                self._retry_later(known)

    def _retry_later(self, error: StorageError) -> None:
        """Schedules a flush, because followers and consumers wait for these records even without further appends."""
        if self._is_stopped or self.is_running:
            return
        delay_s, self._retry_delay_s = self._retry_delay_s, min(2 * self._retry_delay_s, FLUSH_RETRY_S_MAX)
        log.warning("flush failed, retrying", partition=str(self._log.name), reason=str(error), retry_s=delay_s)
        self._retry_timer = asyncio.get_running_loop().call_later(delay_s, self.start)

    def _cancel_retry(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def _start_finalizer(self) -> None:
        """Finalizes closed segments in a separate task, so that no produce request waits for index writes."""
        if not self._log.has_unfinalized_segments or self._is_stopped:
            return
        self._has_more_to_finalize = True
        if self._finalizer is None:
            self._finalizer = asyncio.get_running_loop().create_task(self._finalize_segments())

    async def _finalize_segments(self) -> None:
        try:
            while self._has_more_to_finalize and self._log.has_unfinalized_segments:
                self._has_more_to_finalize = False
                if self._log.settings.write_caching:
                    await self._log.flush()
                await self._log.finalize_segments()
        except StorageError as error:
            log.warning("closed segments were not finalized", partition=str(self._log.name), reason=str(error))
            if self._log.failure is not None:
                self._on_error(error, True)
        finally:
            self._finalizer = None
