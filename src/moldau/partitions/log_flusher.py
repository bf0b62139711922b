"""Making a log durable: one sync at a time, shared by all who wait, tried again where a failure may pass."""

import asyncio
from collections.abc import Callable

from moldau.concurrency.eager import start_eagerly
from moldau.errors import MoldauError, StorageError
from moldau.logs.store import Log
from moldau.observe.logging import get_logger
from moldau.partitions.waiters import OffsetWaiters

log = get_logger(__name__)

FLUSH_RETRY_S_MIN, FLUSH_RETRY_S_MAX = 0.1, 5.0
"""How long a sync that failed for the moment is put off: twice as long after each failure, up to the second."""


class LogFlusher:
    def __init__(
        self, log_: Log, *, on_durable: Callable[[], None], on_failure: Callable[[StorageError, bool], None]
    ) -> None:
        """`on_durable` is told when more of the log is safe; `on_failure` of an error, and whether it is for good."""
        self._log = log_
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._waiters = OffsetWaiters()
        self._flush_task: asyncio.Task[None] | None = None
        self._finalizer: asyncio.Task[None] | None = None
        self._is_running = False
        self._is_stopped = False
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retry_delay_s = FLUSH_RETRY_S_MIN

    def durable_offset(self) -> int:
        """Below it records count as safe: they are on disk, or the topic does not ask for that."""
        return self._log.end_offset if self._log.settings.write_caching else self._log.durable_offset

    @property
    def is_running(self) -> bool:
        return self._is_running

    def start(self) -> None:
        """Begins to sync what is appended; whatever is appended while a sync runs shares the next."""
        log_ = self._log
        if self._is_running or log_.durable_offset >= log_.end_offset or log_.settings.write_caching:
            return
        self._cancel_retry()
        self._is_running = True
        self._flush_task = start_eagerly(self._flush_until_durable(), self._on_flush_done)

    async def wait_until_durable(self, offset: int) -> None:
        """Returns when the log is safe below `offset`; raises when that can no longer be promised."""
        self.start()
        if self.durable_offset() < offset:
            if self._log.failure is not None:
                raise StorageError(self._log.failure)
            await self._waiters.add(offset)

    def complete_waiters(self) -> None:
        """More may be safe: by a sync, or because the topic no longer asks for one."""
        self._waiters.complete_up_to(self.durable_offset())

    def fail_waiters(self, error: MoldauError) -> None:
        self._waiters.fail_all(error)

    async def stop(self) -> None:
        """Lets what is under way come to its end; begins nothing more."""
        self._is_stopped = True
        self._cancel_retry()
        running = [task for task in (self._flush_task, self._finalizer) if task is not None]
        await asyncio.gather(*running, return_exceptions=True)

    async def _flush_until_durable(self) -> None:
        while self._log.durable_offset < self._log.end_offset:
            await self._log.flush()
            self._retry_delay_s = FLUSH_RETRY_S_MIN
            self._on_durable()
            self.complete_waiters()
            self._start_finalizer()

    def _on_flush_done(self, _: None, error: BaseException | None) -> None:
        self._is_running = False
        self._flush_task = None
        if error is None:
            self.start()
        elif isinstance(error, Exception):
            # Whatever went wrong, nobody may wait for a sync that will not come.
            known = error if isinstance(error, StorageError) else StorageError(f"syncing failed: {error!r}")
            is_transient = known is error and self._log.failure is None
            self._on_failure(known, not is_transient)
            if is_transient:
                self._retry_later(known)

    def _retry_later(self, error: StorageError) -> None:
        """What is appended is not left as it is until somebody appends again: others may wait for it."""
        if self._is_stopped or self._is_running:
            return
        delay_s, self._retry_delay_s = self._retry_delay_s, min(2 * self._retry_delay_s, FLUSH_RETRY_S_MAX)
        log.warning(
            "records are not synced yet", partition=str(self._log.name), why=str(error), again_s=delay_s
        )
        self._retry_timer = asyncio.get_running_loop().call_later(delay_s, self.start)

    def _cancel_retry(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def _start_finalizer(self) -> None:
        """Beside the syncs, so that nobody who waits for records waits for indexes."""
        if self._finalizer is None and self._log.has_unfinalized_segments and not self._is_stopped:
            self._finalizer = asyncio.get_running_loop().create_task(self._run_finalizer())

    async def _run_finalizer(self) -> None:
        try:
            await self._log.finalize_segments()
        except StorageError as error:
            log.warning("closed segments are not settled", partition=str(self._log.name), why=str(error))
            if self._log.failure is not None:
                self._on_failure(error, True)
        finally:
            self._finalizer = None
