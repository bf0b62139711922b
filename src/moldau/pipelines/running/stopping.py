"""Ctrl-C, SIGTERM and the end of a terminal as a wish, for code that waits in threads: what has begun is finished
first.

While Spark is still starting there is nothing to finish, and signals do what they always do: they raise.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Wish:
    """That a run shall end. The first signal makes it, the second raises KeyboardInterrupt in the main thread."""

    def __init__(self) -> None:
        self._made = threading.Event()
        self._is_listening = False
        self._is_patient = False
        self.number: int | None = None
        """Of the signal; None where none came."""

    @property
    def is_made(self) -> bool:
        return self._made.is_set()

    def make(self) -> None:
        self._made.set()

    def wait(self, timeout_s: float) -> bool:
        return self._made.wait(timeout_s)

    def be_patient(self) -> None:
        """From now on a signal is a wish. Called when Spark is up, whose own handler for Ctrl-C is replaced by it."""
        self._is_patient = True
        if self._is_listening:
            self.listen()

    def listen(self) -> None:
        """To signals, in the main thread."""
        self._is_listening = True
        for number in SIGNALS:
            # Ignored where the run shall outlive its terminal: nohup.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if not self._is_patient and number != signal.SIGINT:
            raise SystemExit(128 + number)
        if not self._is_patient or self.number is not None:
            raise KeyboardInterrupt
        self.number = number
        self._made.set()


@contextmanager
def listening() -> Iterator[Wish]:
    """In the main thread."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    wish = Wish()
    wish.listen()
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
