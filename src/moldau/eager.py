"""Starting a coroutine at once: it runs until it first waits, and becomes a task only if it does wait.

Most requests never wait, and a task for each would cost more than the request. (Python 3.12 has eager
tasks; this is the part of them that 3.11 lacks.) Until it first waits a coroutine started here has no
current task: code that may run so must not use `asyncio.timeout` and its like before its first real wait.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class _Rest:
    """The rest of a coroutine that has been run up to its first wait, for a task to go on with."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], waited_for: Any) -> None:
        self._coroutine = coroutine
        self._waited_for = waited_for

    def __await__(self) -> Generator[Any, Any, Any]:
        # The future was handed out marked as awaited; handing it on to the task keeps that mark valid.
        waited_for = self._waited_for
        while True:
            try:
                yield waited_for
            except BaseException as error:
                # What is waited for next is yielded from here too, and may fail as well.
                try:
                    waited_for = self._coroutine.throw(error)
                except StopIteration as stop:
                    return stop.value
            else:
                return (yield from self._coroutine.__await__())


async def _finish(rest: _Rest) -> Any:
    return await rest


def start_now(
    coroutine: Coroutine[Any, Any, T], done: Callable[[T | None, BaseException | None], None]
) -> "asyncio.Task[T] | None":
    """Runs the coroutine up to its first wait; calls `done(result, error)` when it ends, maybe before
    returning.

    Gives the task that carries the rest, or None where there was nothing to wait for.
    """
    try:
        waited_for = coroutine.send(None)
    except StopIteration as stop:
        done(stop.value, None)
        return None
    except Exception as error:
        done(None, error)
        return None
    task: asyncio.Task[T] = asyncio.get_running_loop().create_task(_finish(_Rest(coroutine, waited_for)))

    def ended(task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            # A task cancelled before its first step has not told the coroutine: let its cleanup run.
            coroutine.close()
            done(None, asyncio.CancelledError())
            return
        error = task.exception()
        if error is None:
            done(task.result(), None)
        else:
            done(None, error)

    task.add_done_callback(ended)
    return task
