"""Eager start: a coroutine runs at once up to its first suspension, and becomes a task only if it suspends.

Most requests never suspend, and a task for each would cost more than the request itself. Python 3.12 has eager
tasks; this module is the part of them that 3.11 lacks. Until its first suspension a coroutine started here has no
current task, so it must not use `asyncio.timeout` before that.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class _Remainder:
    """The rest of a coroutine that has run up to its first suspension; a task awaits it."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        # The coroutine yielded this future marked as awaited; yielding it to the task keeps the mark valid.
        awaited = self._awaited
        while True:
            try:
                yield awaited
            except BaseException as error:
                # The coroutine may handle the error and await another future, which may fail as well.
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
    """Runs the coroutine up to its first suspension and calls `done(result, error)` when it ends.

    Returns the task that runs the rest, or None if the coroutine has ended; then `done` was called already.
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
            # A task cancelled before its first step never entered the coroutine: close it so that it cleans up.
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
