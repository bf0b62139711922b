"""Group commit: many callers want the same slow work, and those who come while it runs share the next run."""

import asyncio
from collections.abc import Callable

Outcome = OSError | None
Done = Callable[[Outcome], None]


class GroupCommit:
    """A base class, so that a file is held by the work of its own sync and by nothing that outlives it."""

    def __init__(self) -> None:
        self._changed = True
        """Something has changed that no run covers yet. A run covers what was there when it was begun."""
        self._now: list[asyncio.Future[None]] | None = None
        self._next: list[asyncio.Future[None]] = []

    def _start(self, done: Done) -> None:
        """Starts the work and returns at once; the work calls `done` on the loop when it has ended."""
        raise NotImplementedError

    @property
    def is_idle(self) -> bool:
        return self._now is None

    async def _join(self) -> None:
        """Returns when a run has covered every change made before this call; raises its OSError."""
        # A future each, because cancelling one caller must not cancel the others.
        waiter = asyncio.get_running_loop().create_future()
        if self._changed:
            self._next.append(waiter)
            if self._now is None:
                self._begin()
        elif self._now is not None:
            self._now.append(waiter)
        else:
            return
        await waiter

    def _begin(self) -> None:
        self._now, self._next = self._next, []
        self._changed = False
        self._start(self._end)

    def _end(self, outcome: Outcome) -> None:
        assert self._now is not None
        ended, self._now = self._now, None
        if outcome is not None:
            # A run that failed covers nothing.
            self._changed = True
        if self._next:
            self._begin()
        for waiter in ended:
            if waiter.done():
                continue
            if outcome is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(again(outcome))


def again(error: OSError) -> OSError:
    """A fresh copy: one exception object raised in many tasks would mix up their tracebacks."""
    return OSError(error.errno, error.strerror or str(error), error.filename)
