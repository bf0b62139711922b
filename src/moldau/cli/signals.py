"""Ctrl-C and SIGTERM as a wish: a command that runs until then finishes what it has begun."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_signal() -> Iterator["asyncio.Future[int]"]:
    """Gives what the first signal puts its number into. Whoever sends a second does not want to wait: it cancels the
    task. A third does what signals do."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    asked: asyncio.Future[int] = loop.create_future()

    def heard(number: int) -> None:
        if not asked.done():
            asked.set_result(number)
            return
        stop_listening()
        if task is not None:
            task.cancel()

    def stop_listening() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, heard, number)
    try:
        yield asked
    finally:
        stop_listening()
