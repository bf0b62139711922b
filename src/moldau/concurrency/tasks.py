"""Helpers for tasks and futures: cancellation, waits with a deadline, and unawaited exceptions."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def cancel_and_wait(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancels the tasks and waits until they have ended. Ignores None and the tasks' exceptions."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def wait_until(event: asyncio.Event, deadline: float | None) -> bool:
    """Waits until the event is set and returns True. Returns False at the loop time `deadline` (None: never)."""
    try:
        async with asyncio.timeout_at(deadline):
            return await event.wait()
    except TimeoutError:
        return False


def retrieve_exception(future: "asyncio.Future[Any]") -> None:
    """Prevents asyncio from logging the exception of a future that no caller awaits."""
    if not future.cancelled():
        future.exception()


async def run_uncancelled(work: Coroutine[Any, Any, None]) -> None:
    """Awaits the work until it ends, even if the caller is cancelled, for work that must not stop halfway.

    A cancelled caller gets CancelledError even if the work has failed, because it must stop.
    """
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break
    if cancelled is not None:
        retrieve_exception(task)
        raise cancelled
    task.result()
