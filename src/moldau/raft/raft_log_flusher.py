"""Flushes of the metadata log and checkpoints of its recovery point."""

import asyncio
from collections.abc import Awaitable, Callable

from moldau.errors import StorageError
from moldau.logs.store import Log, is_transient
from moldau.observe.logging import get_logger

log = get_logger("quorum")

RETRY_MS = 100
"""The delay before a write that failed because of a full disk is retried."""
CHECKPOINT_DELAY_S = 0.2
"""The delay between a flush and the checkpoint of the recovery point."""


class RaftLogFlusher:
    """Runs one flush at a time. A flush makes all records durable that were appended before the flush started."""

    def __init__(
        self,
        log: Log,
        *,
        is_behind: Callable[[], bool],
        on_flushed: Callable[[], Awaitable[None]],
        is_stopping: Callable[[], bool],
        has_failed: Callable[[], bool],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`is_behind` returns whether the log has records that the state machine does not know to be durable."""
        self._log = log
        self._is_behind = is_behind
        self._on_flushed = on_flushed
        self._is_stopping = is_stopping
        self._has_failed = has_failed
        self._on_failure = on_failure
        self._flush_task: asyncio.Task[None] | None = None
        self._checkpointed_offset = log.durable_offset
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._checkpoint_task: asyncio.Task[None] | None = None

    def schedule(self) -> None:
        if self._flush_task is None and not self._has_failed():
            self._flush_task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        while self._flush_task is not None:
            await self._flush_task
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
        if self._checkpoint_task is not None:
            await self._checkpoint_task

    async def _run(self) -> None:
        try:
            while self._is_behind() and not self._has_failed():
                if not await self._flush():
                    break
                await self._on_flushed()
                if self._log.has_unfinalized_segments:
                    await self._log.finalize_segments()
        except Exception as error:
            self._on_failure(error)
        finally:
            self._flush_task = None
            self._schedule_checkpoint()

    async def _flush(self) -> bool:
        """Flushes the log and retries after transient errors. Returns False if the node stops first."""
        logged_error = ""
        while True:
            try:
                await self._log.flush()
                return True
            except StorageError as error:
                if not is_transient(error) or self._log.failure is not None:
                    raise
                if self._is_stopping():
                    return False
                if logged_error != str(error):
                    logged_error = str(error)
                    log.warning("cannot flush the metadata log, retrying", reason=logged_error)
            await asyncio.sleep(RETRY_MS / 1000)

    def _schedule_checkpoint(self) -> None:
        """Schedules a checkpoint of the recovery point, so that a restart detects damage to confirmed records.

        Recovery truncates damage above the recovery point, which a crash can cause. It rejects a log with damage below
        the recovery point, because a voter that lost confirmed records could elect a leader that lacks committed ones.
        """
        if self._checkpoint_timer is not None or self._checkpoint_task is not None or self._is_stopping():
            return
        if self._checkpointed_offset != self._log.durable_offset and not self._has_failed():
            self._checkpoint_timer = asyncio.get_running_loop().call_later(CHECKPOINT_DELAY_S, self._start_checkpoint)

    def _start_checkpoint(self) -> None:
        self._checkpoint_timer = None
        self._checkpoint_task = asyncio.get_running_loop().create_task(self._checkpoint())

    async def _checkpoint(self) -> None:
        try:
            self._checkpointed_offset = self._log.durable_offset
            await self._log.finalize_segments()
        except Exception as error:
            self._on_failure(error)
        finally:
            self._checkpoint_task = None
            self._schedule_checkpoint()
