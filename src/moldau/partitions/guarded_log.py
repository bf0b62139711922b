"""A partition's log with its lock, its flusher and its disk errors."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from moldau.errors import MoldauError, StorageError
from moldau.logs.store import Log, copy_error
from moldau.observe.logging import get_logger
from moldau.partitions.delayed_operations import DelayedOperations
from moldau.partitions.log_flusher import LogFlusher
from moldau.records.batch import Batch

log = get_logger(__name__)

T = TypeVar("T")


class GuardedLog:
    """A log that takes its partition offline and fails all delayed operations when the disk fails."""

    on_error_changed: Callable[[], None] | None = None
    """Called when `failure` or `transient_error` has changed."""

    def __init__(self, log_: Log, delayed: DelayedOperations, *, on_flushed: Callable[[], None]) -> None:
        self.log = log_
        self.lock = asyncio.Lock()
        """Held by appends, truncations and changes of the start offset."""
        self.flusher = LogFlusher(log_, on_flushed=on_flushed, on_error=self._on_flush_error)
        self.failure: StorageError | None = None
        """Why the partition is offline until a restart; None if it is online."""
        self.transient_error: StorageError | None = None
        """The error of the last append if later appends may succeed (for example, the disk was full); otherwise None.
        Reads are not affected."""
        self.is_closed = False
        self._delayed = delayed

    def check_online(self) -> None:
        if self.failure is not None:
            raise copy_error(self.failure)

    async def append(self, batches: Sequence[Batch]) -> None:
        try:
            await self.log.append(batches)
        except StorageError as error:
            if self.log.failure is not None:
                self.mark_offline(error)
            elif self.transient_error is None:
                # Report no further error until the partition is writable again, even if the error texts differ.
                log.warning("partition is not writable for now", partition=str(self.log.name), reason=str(error))
                self._set_transient_error(copy_error(error))
            raise
        if self.transient_error is not None:
            self.clear_transient_error()

    async def guard(self, work: Awaitable[T]) -> T:
        """Awaits work on the log. Takes the partition offline if the log has failed permanently."""
        try:
            return await work
        except StorageError as error:
            if self.log.failure is not None:
                self.mark_offline(error)
            raise

    def clear_transient_error(self) -> None:
        if self.transient_error is not None:
            log.info("partition is writable again", partition=str(self.log.name))
            self._set_transient_error(None)

    def _set_transient_error(self, error: StorageError | None) -> None:
        self.transient_error = error
        if self.on_error_changed is not None:
            self.on_error_changed()

    def mark_offline(self, error: StorageError) -> None:
        """Takes the partition offline and fails all delayed operations. All later requests fail with the same error."""
        if self.failure is None and not self.is_closed:
            log.error("partition is offline", partition=str(self.log.name), reason=str(error))
            self.failure = copy_error(error)
            self.fail_waiters(error)
            if self.on_error_changed is not None:
                self.on_error_changed()

    def fail_waiters(self, error: MoldauError) -> None:
        self._delayed.fail_all(error)
        self.flusher.fail_waiters(error)
        self._delayed.notify_all()

    def _on_flush_error(self, error: StorageError, is_permanent: bool) -> None:
        if is_permanent:
            self.mark_offline(error)
            # Fail the waiters even if `mark_offline` did nothing, because no later flush will complete them.
            self.flusher.fail_waiters(error)
        else:
            # Fail the requests that wait now, because the retry of the flush may fail too.
            self.fail_waiters(error)
