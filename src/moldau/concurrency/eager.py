"""Eager start of coroutines: a coroutine runs at once up to its first suspension, and becomes a task only if it
suspends.

Most requests never suspend, and a task for each request would cost more than the request itself. Python 3.12 has eager
tasks, but Python 3.11 does not, so this module provides them. Until its first suspension, a coroutine that was started
here has no current task, so it must not use `asyncio.timeout` until then.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class _Remainder:
    """The rest of a coroutine after its first suspension. A task awaits this object."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        # Yield the future that the coroutine awaits. That await has set the future's flag `_asyncio_future_blocking`,
        # and a task accepts only futures with this flag.
        awaited = self._awaited
        while True:
            try:
                yield awaited
            except BaseException as error:
                # Pass the error to the coroutine, which may handle it and then await another future.
                try:
                    awaited = self._coroutine.throw(error)
                except StopIteration as stop:
                    return stop.value
            else:
                return (yield from self._coroutine.__await__())


async def _finish(remainder: _Remainder) -> Any:
    return await remainder


def start_eagerly(
    coroutine: Coroutine[Any, Any, T], done: Callable[[T | None, BaseException | None], None]
) -> "asyncio.Task[T] | None":
    """Runs the coroutine up to its first suspension and calls `done(result, error)` when the coroutine ends.

    Returns the task that runs the rest of the coroutine. Returns None if the coroutine has already ended and `done` was
    called.
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration as stop:
        done(stop.value, None)
        return None
    except Exception as error:
        done(None, error)
        return None
    task: asyncio.Task[T] = asyncio.get_running_loop().create_task(_finish(_Remainder(coroutine, awaited)))

    def on_done(task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            # A task that is cancelled before its first step never resumes the coroutine. Close the coroutine, so that
            # it cleans up.
            coroutine.close()
            done(None, asyncio.CancelledError())
            return
        error = task.exception()
        if error is None:
            done(task.result(), None)
        else:
            done(None, error)

    task.add_done_callback(on_done)
    return task


def report_error(result: object, error: BaseException | None) -> None:
    """Reports an error of a coroutine that must not fail to the event loop. A callback for `start_eagerly`."""
    if error is not None and not isinstance(error, asyncio.CancelledError):
        context = {"message": "a background operation failed unexpectedly", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


async def gather_eagerly(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs coroutines concurrently and returns their results in order, like `asyncio.gather`.

    Only coroutines that suspend become tasks.
    """
    results: list[Any] = []
    tasks: dict[int, asyncio.Task[T]] = {}
    for index, coroutine in enumerate(coroutines):
        try:
            awaited = coroutine.send(None)
        except StopIteration as stop:
            results.append(stop.value)
        else:
            results.append(None)
            tasks[index] = asyncio.get_running_loop().create_task(_finish(_Remainder(coroutine, awaited)))
    if tasks:
        for index, result in zip(tasks, await asyncio.gather(*tasks.values()), strict=True):
            results[index] = result
    return results
