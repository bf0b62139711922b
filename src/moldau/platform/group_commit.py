"""Group commit of a slow operation, such as an fsync: calls that arrive while it runs share the next run."""

import asyncio
from collections.abc import Callable

Outcome = OSError | None
Done = Callable[[Outcome], None]


class GroupCommit:
    """The base class of objects with a group commit.

    A separate object and its file would reference each other, and the file would not be closed as soon as it is unused.
    """

    def __init__(self) -> None:
        self._is_dirty = True
        """Whether something has changed since the last run of the operation started."""
        self._running_waiters: list[asyncio.Future[None]] | None = None
        self._next_waiters: list[asyncio.Future[None]] = []

    def _start_sync(self, done: Done) -> None:
        """Starts the operation, which calls `done` on the event loop when it has ended."""
        raise NotImplementedError

    @property
    def is_idle(self) -> bool:
        return self._running_waiters is None

    async def _wait_for_run(self) -> None:
        """Waits for a run that starts after every change made before this call. Raises the OSError of that run."""
        # Each caller has its own future, because cancelling one caller must not cancel the others.
        waiter = asyncio.get_running_loop().create_future()
        if self._is_dirty:
            self._next_waiters.append(waiter)
            if self._running_waiters is None:
                self._start_run()
        elif self._running_waiters is not None:
            self._running_waiters.append(waiter)
        else:
            return
        await waiter

    def _start_run(self) -> None:
        self._running_waiters, self._next_waiters = self._next_waiters, []
        self._is_dirty = False
        self._start_sync(self._finish_run)

    def _finish_run(self, outcome: Outcome) -> None:
        assert self._running_waiters is not None
        ended, self._running_waiters = self._running_waiters, None
        if outcome is not None:
            # After a failed run, the changes still have to be synced.
            self._is_dirty = True
        if self._next_waiters:
            self._start_run()
        for waiter in ended:
            complete(waiter, outcome)


def complete(waiter: "asyncio.Future[None]", outcome: Outcome) -> None:
    if waiter.done():
        return
    if outcome is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(copy_os_error(outcome))


def copy_os_error(error: OSError) -> OSError:
    """Returns a copy, because one exception that is raised in several tasks would mix up their tracebacks."""
    return OSError(error.errno, error.strerror or str(error), error.filename)
