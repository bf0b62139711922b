"""Work that can take long and cannot wait for anything in between, such as compressing records: a turn of the event
loop has room for so much of it, and what is due besides comes between."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

BUDGET_PER_ITERATION_S = 0.02
"""A turn in which this work has taken so long takes on no more of it."""

T = TypeVar("T")


class CpuBudget:
    def __init__(self) -> None:
        self._queue: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._spent_s: float | None = None
        """How long the work of this turn has taken; None where there was none."""

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives: at once where this turn has room for it, and otherwise in the order the calls came."""
        if not self._queue and not self._is_exhausted:
            return self._run_timed(work)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append((work, done))
        return await done

    @property
    def _is_exhausted(self) -> bool:
        return self._spent_s is not None and self._spent_s >= BUDGET_PER_ITERATION_S

    def _run_timed(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        if self._spent_s is None:
            self._spent_s = 0.0
            loop.call_soon(self._start_iteration)
        began_s = loop.time()
        try:
            return work()
        finally:
            self._spent_s += loop.time() - began_s

    def _start_iteration(self) -> None:
        self._spent_s = None
        while self._queue and not self._is_exhausted:
            work, done = self._queue.popleft()
            if done.cancelled():
                continue
            try:
                done.set_result(self._run_timed(work))
            except Exception as error:
                done.set_exception(error)
