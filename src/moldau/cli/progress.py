"""A progress bar on standard error, for operations that take longer than two seconds."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from moldau.cli.console import err_console

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

DELAY_S = 2.0
"""Delay before a bar appears, so that short operations print nothing."""


class ProgressBar:
    """Shows how much of an operation is done, and a status such as `3 of 12 topics`."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def update(self, completed: float, total: float, status: str) -> None:
        # A bar with total 0 would pulse.
        self._progress.update(self._task, completed=completed if total else 1, total=total or 1, status=status)


@contextmanager
def progress_bar(what: str) -> Iterator[ProgressBar]:
    """Shows a bar after DELAY_S until the block ends. Shows nothing if standard error is not a terminal.

    Must be used while an event loop is running. Notices are printed above the bar.
    """
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        console=err_console,
        transient=True,
    )
    bar = ProgressBar(progress, progress.add_task(what, total=None, status=""))
    if not err_console.is_terminal:
        yield bar
        return
    timer = asyncio.get_running_loop().call_later(DELAY_S, progress.start)
    try:
        yield bar
    finally:
        timer.cancel()
        if progress.live.is_started:
            progress.stop()


async def run_in_batches(
    what: str, noun: str, keys: Sequence[K], run: Callable[[Sequence[K]], Awaitable[dict[K, V]]], *, batch_size: int
) -> dict[K, V]:
    """Runs an operation for one batch of keys after the other, with a progress bar. Returns all results."""
    keys = list(dict.fromkeys(keys))
    results: dict[K, V] = {}
    with progress_bar(what) as bar:
        for start in range(0, len(keys), batch_size):
            bar.update(start, len(keys), f"{start} of {len(keys)} {noun}s")
            results |= await run(keys[start : start + batch_size])
    return results
