"""Graceful stop of commands on Ctrl-C and SIGTERM."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_signal() -> Iterator["asyncio.Future[int]"]:
    """Yields a future that the first signal completes. The result of the future is the signal number.

    A second signal cancels the current task, and a third signal has the default effect. At the end, the handlers are
    those from before: a shell ignores SIGINT in programs that it starts in the background.
    """
    loop = asyncio.get_running_loop()
    previous = [signal.getsignal(number) for number in SIGNALS]
    task = asyncio.current_task()
    stop_requested: asyncio.Future[int] = loop.create_future()

    def on_signal(number: int) -> None:
        if not stop_requested.done():
            stop_requested.set_result(number)
            return
        remove_handlers()
        if task is not None:
            task.cancel()

    def remove_handlers() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop_requested
    finally:
        remove_handlers()
        for number, handler in zip(SIGNALS, previous, strict=True):
            signal.signal(number, handler)
