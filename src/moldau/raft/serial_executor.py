"""One thing after the other: jobs run in the order they came, each to its end, even if whoever asked has gone."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from moldau.errors import NotControllerError

T = TypeVar("T")
Job = Callable[[], Awaitable[T]]


class SerialExecutor:
    def __init__(self, after_each: Callable[[], None]) -> None:
        self._after_each_job = after_each
        self._jobs: deque[tuple[Job[Any], asyncio.Future[Any]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.is_closed = False

    def submit(self, job: Job[T]) -> "asyncio.Future[T]":
        """The job's outcome; nobody has to wait for it."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.is_closed:
            done.set_exception(NotControllerError("this node is stopping"))
        else:
            self._jobs.append((job, done))
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())
        done.add_done_callback(_look_at)
        return done

    async def close(self) -> None:
        """Takes no more; those that wait are refused. Returns when the one that runs is at its end."""
        self.is_closed = True
        while self._jobs:
            _, done = self._jobs.popleft()
            if not done.done():
                done.set_exception(NotControllerError("this node is stopping"))
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while self._jobs:
                job, done = self._jobs.popleft()
                try:
                    outcome = await job()
                except Exception as error:
                    if not done.done():
                        done.set_exception(error)
                else:
                    if not done.done():
                        done.set_result(outcome)
                self._after_each_job()
        finally:
            self._task = None


def _look_at(done: "asyncio.Future[Any]") -> None:
    """Where nobody waited, whoever ran the job has told of its failure."""
    if not done.cancelled():
        done.exception()


class Notifier:
    """Wakes everybody who waits."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def wait(self, ms: int) -> None:
        """Returns when it rings, or after that time."""
        loop = asyncio.get_running_loop()
        rung: asyncio.Future[None] = loop.create_future()
        self._waiting.append(rung)
        timer = loop.call_later(max(0, ms) / 1000, _wake, rung)
        try:
            await rung
        finally:
            timer.cancel()
            if rung in self._waiting:
                self._waiting.remove(rung)


def _wake(rung: "asyncio.Future[None]") -> None:
    if not rung.done():
        rung.set_result(None)
