"""Making a log durable: one sync at a time, shared by all who wait, tried again where a failure may pass."""

import asyncio
from collections.abc import Callable

from moldau.eager import start_now
from moldau.errors import MoldauError, StorageError
from moldau.logs.store import Log
from moldau.observe.logging import get_logger
from moldau.partitions.waiting import OffsetWaiters

log = get_logger(__name__)

SYNC_AGAIN_S_MIN, SYNC_AGAIN_S_MAX = 0.1, 5.0
"""How long a sync that failed for the moment is put off: twice as long after each failure, up to the second."""


class Syncing:
    def __init__(
        self, log_: Log, *, on_safe: Callable[[], None], on_failure: Callable[[StorageError, bool], None]
    ) -> None:
        """`on_safe` is told when more of the log is safe; `on_failure` of an error, and whether it is for good."""
        self._log = log_
        self._on_safe = on_safe
        self._on_failure = on_failure
        self._waiting = OffsetWaiters()
        self._sync: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._is_running = False
        self._is_stopped = False
        self._again: asyncio.TimerHandle | None = None
        self._again_s = SYNC_AGAIN_S_MIN

    def safe_offset(self) -> int:
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
        self._stop_waiting()
        self._is_running = True
        self._sync = start_now(self._until_durable(), self._ended)

    async def until_safe(self, offset: int) -> None:
        """Returns when the log is safe below `offset`; raises when that can no longer be promised."""
        self.start()
        if self.safe_offset() < offset:
            if self._log.failure is not None:
                raise StorageError(self._log.failure)
            await self._waiting.add(offset)

    def moved(self) -> None:
        """More may be safe: by a sync, or because the topic no longer asks for one."""
        self._waiting.reached(self.safe_offset())

    def refuse(self, error: MoldauError) -> None:
        self._waiting.fail(error)

    async def stop(self) -> None:
        """Lets what is under way come to its end; begins nothing more."""
        self._is_stopped = True
        self._stop_waiting()
        running = [task for task in (self._sync, self._settling) if task is not None]
        await asyncio.gather(*running, return_exceptions=True)

    async def _until_durable(self) -> None:
        while self._log.durable_offset < self._log.end_offset:
            await self._log.make_durable()
            self._again_s = SYNC_AGAIN_S_MIN
            self._on_safe()
            self.moved()
            self._start_settling()

    def _ended(self, _: None, error: BaseException | None) -> None:
        self._is_running = False
        self._sync = None
        if error is None:
            self.start()
        elif isinstance(error, Exception):
            # Whatever went wrong, nobody may wait for a sync that will not come.
            known = error if isinstance(error, StorageError) else StorageError(f"syncing failed: {error!r}")
            is_transient = known is error and self._log.failure is None
            self._on_failure(known, not is_transient)
            if is_transient:
                self._later(known)

    def _later(self, error: StorageError) -> None:
        """What is appended is not left as it is until somebody appends again: others may wait for it."""
        if self._is_stopped or self._is_running:
            return
        delay_s, self._again_s = self._again_s, min(2 * self._again_s, SYNC_AGAIN_S_MAX)
        log.warning(
            "records are not synced yet", partition=str(self._log.name), why=str(error), again_s=delay_s
        )
        self._again = asyncio.get_running_loop().call_later(delay_s, self.start)

    def _stop_waiting(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _start_settling(self) -> None:
        """Beside the syncs, so that nobody who waits for records waits for indexes."""
        if self._settling is None and self._log.needs_settling and not self._is_stopped:
            self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        try:
            await self._log.settle()
        except StorageError as error:
            log.warning("closed segments are not settled", partition=str(self._log.name), why=str(error))
            if self._log.failure is not None:
                self._on_failure(error, True)
        finally:
            self._settling = None
