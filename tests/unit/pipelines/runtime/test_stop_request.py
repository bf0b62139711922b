"""The first signal requests a stop, the second interrupts; while Spark starts the first one does."""

import os
import signal
from collections.abc import Iterator

import pytest

from moldau.pipelines.runtime.stop_request import SIGNALS, StopRequest, stop_on_signals


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Restores the default handlers for each test: under nohup or in the background, a shell ignores these signals."""
    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled(number: int) -> None:
    """Sends the signal to this process, and lets Python handle it."""
    os.kill(os.getpid(), number)
    signal.sigtimedwait([], 0.01)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_requests_a_stop_and_a_second_one_interrupts(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with stop_on_signals() as stop_request:
        stop_request.defer_signals()
        assert not stop_request.wait(0)
        signalled(number)
        assert stop_request.wait(5)
        assert (stop_request.is_requested, stop_request.signal_number) == (True, number)
        with pytest.raises(KeyboardInterrupt):
            signalled(signal.SIGINT)
        assert stop_request.signal_number == number
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_signal_before_spark_starts_raises_at_once() -> None:
    with stop_on_signals() as stop_request:
        with pytest.raises(KeyboardInterrupt):
            signalled(signal.SIGINT)
        with pytest.raises(SystemExit, match="143"):
            signalled(signal.SIGTERM)
        with pytest.raises(SystemExit, match="129"):
            signalled(signal.SIGHUP)
        assert not stop_request.is_requested, "whoever catches it may go on"


def test_sighup_stays_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop_request:
            stop_request.defer_signals()
            signalled(signal.SIGHUP)
            assert not stop_request.wait(0)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sparks_sigint_handler_is_replaced() -> None:
    with stop_on_signals() as stop_request:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stop_request.defer_signals()
        signalled(signal.SIGINT)
        assert stop_request.wait(5)


def test_a_stop_can_be_requested_without_a_signal() -> None:
    stop_request = StopRequest()
    stop_request.request()
    assert stop_request.wait(0)
    assert stop_request.signal_number is None
