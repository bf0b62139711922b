"""Stop requests by SIGINT, SIGTERM or SIGHUP, which let current batches finish."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """A request to stop the run.

    Before `defer_signals` is called, no batch is running, and a signal ends the process. After the call, the first
    signal sets the request, and the second raises KeyboardInterrupt in the main thread.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._has_handlers = False
        self._is_deferring = False
        self.signal_number: int | None = None
        """The number of the received signal; None if no signal was received."""

    @property
    def is_requested(self) -> bool:
        return self._event.is_set()

    def request(self) -> None:
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        return self._event.wait(timeout_s)

    def defer_signals(self) -> None:
        """Makes signals set the request. Call this after Spark's start, because Spark installs a SIGINT handler."""
        self._is_deferring = True
        if self._has_handlers:
            self.install_handlers()

    def install_handlers(self) -> None:
        """Installs the signal handlers. Must be called in the main thread."""
        self._has_handlers = True
        for number in SIGNALS:
            # Keep SIGHUP ignored under nohup.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._is_deferring and number != signal.SIGINT:
            raise SystemExit(128 + number)
        if not self._is_deferring or self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number
        self._event.set()


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Yields a stop request that signals set. Must be called in the main thread."""
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    stop_request = StopRequest()
    stop_request.install_handlers()
    try:
        yield stop_request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
