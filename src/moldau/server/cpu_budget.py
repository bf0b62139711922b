"""A limit on CPU-heavy work per iteration of the event loop, such as recompressing records."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

BUDGET_PER_ITERATION_S = 0.02
"""Once this much time was spent in an iteration, no more work is started in that iteration."""

T = TypeVar("T")


class CpuBudget:
    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()
        self._spent_s: float | None = None
        """The time spent on work in the current iteration; None if no work has run in this iteration."""

    async def run(self, work: Callable[[], T]) -> T:
        """Runs `work` now if this iteration has budget left, else in a later iteration. The order of calls is kept."""
        if not self._queue and not self._is_exhausted:
            return self._run_timed(work)
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run_queued() -> None:
            if result.cancelled():
                return
            try:
                result.set_result(self._run_timed(work))
            except Exception as error:
                result.set_exception(error)

        self._queue.append(run_queued)
        return await result

    @property
    def _is_exhausted(self) -> bool:
        return self._spent_s is not None and self._spent_s >= BUDGET_PER_ITERATION_S

    def _run_timed(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        if self._spent_s is None:
            self._spent_s = 0.0
            loop.call_soon(self._start_iteration)
        started_s = loop.time()
        try:
            return work()
        finally:
            self._spent_s += loop.time() - started_s

    def _start_iteration(self) -> None:
        self._spent_s = None
        while self._queue and not self._is_exhausted:
            self._queue.popleft()()
