"""A progress bar on standard error, for operations that take longer than two seconds."""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from moldau.cli.console import err_console

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

DELAY_S = 2.0
"""Delay before a bar appears, so that short operations print nothing."""


class ProgressBar:
    """Shows how much of an operation is done, and a status such as `3 of 12 topics`."""

    def __init__(self, progress: Progress, task: TaskID, *, is_shown: bool) -> None:
        self._progress = progress
        self._task = task
        self.is_shown = is_shown
        """Whether the bar appears if the operation takes long."""

    def update(self, completed: float, total: float, status: str) -> None:
        """Sets what is done. Any thread may call this method."""
        if self.is_shown:
            # A bar with total 0 would pulse.
            self._progress.update(self._task, completed=completed if total else 1, total=total or 1, status=status)

    def update_bytes(self, completed: int, total: int) -> None:
        if self.is_shown:
            self.update(completed, total, f"{decimal(completed)} of {decimal(total)}")


@contextmanager
def progress_bar(what: str, *, enabled: bool = True) -> Iterator[ProgressBar]:
    """Shows a bar after DELAY_S until the block ends; it pulses until the first update.

    Shows nothing if standard error is not a terminal, or unless `enabled`. Notices are printed above the bar.
    """
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        console=err_console,
        transient=True,
        # Results that go to a file or a pipe must not be printed above the bar.
        redirect_stdout=sys.stdout.isatty(),
    )
    is_shown = enabled and err_console.is_terminal
    bar = ProgressBar(progress, progress.add_task(what, total=None, status=""), is_shown=is_shown)
    if not is_shown:
        yield bar
        return
    stop_timer = _start_timer(progress.start)
    try:
        yield bar
    finally:
        stop_timer()
        if progress.live.is_started:
            progress.stop()


def _start_timer(callback: Callable[[], None]) -> Callable[[], None]:
    """Calls back after DELAY_S, in the event loop if one is running. Returns the function that stops the timer."""
    try:
        return asyncio.get_running_loop().call_later(DELAY_S, callback).cancel
    except RuntimeError:
        timer = threading.Timer(DELAY_S, callback)
        timer.daemon = True
        timer.start()

    def stop() -> None:
        timer.cancel()
        timer.join()

    return stop


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
