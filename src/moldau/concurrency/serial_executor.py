"""A serial executor: jobs run one at a time, in the order of submission, each to its end."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from moldau.concurrency.tasks import retrieve_exception

T = TypeVar("T")
Job = Callable[[], Awaitable[T]]


class SerialExecutor:
    """Runs jobs in its own task, so that a job continues if its caller is cancelled."""

    def __init__(self, closed_error: Callable[[], Exception], after_each: Callable[[], None]) -> None:
        """`closed_error` creates the error with which a closed executor rejects jobs. `after_each` is called after
        every job."""
        self._closed_error = closed_error
        self._after_each = after_each
        self._jobs: deque[tuple[Job[Any], asyncio.Future[Any]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.is_closed = False

    def submit(self, job: Job[T]) -> "asyncio.Future[T]":
        """Queues the job and returns its future, which the caller may ignore."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.is_closed:
            result.set_exception(self._closed_error())
        else:
            self._jobs.append((job, result))
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())
        # asyncio must not log the exception of an ignored future, because each job reports its own failure.
        result.add_done_callback(retrieve_exception)
        return result

    async def close(self) -> None:
        """Fails the queued jobs and waits until the running job has ended."""
        self.is_closed = True
        while self._jobs:
            _, result = self._jobs.popleft()
            if not result.done():
                result.set_exception(self._closed_error())
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while self._jobs:
                job, result = self._jobs.popleft()
                try:
                    value = await job()
                except Exception as error:
                    if not result.done():
                        result.set_exception(error)
                else:
                    if not result.done():
                        result.set_result(value)
                self._after_each()
        finally:
            self._task = None
