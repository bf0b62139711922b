"""The first signal asks a run to end, the second makes it; while Spark starts, the first one does."""

import os
import signal

import pytest

from moldau.pipelines.running.stopping import SIGNALS, Wish, listening


def signalled(number: int) -> None:
    """Sends it to this process, and gives Python the moment to act on it."""
    os.kill(os.getpid(), number)
    signal.sigtimedwait([], 0.01)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_wish_and_a_second_one_does_not_wait(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with listening() as wish:
        wish.be_patient()
        assert not wish.wait(0)
        signalled(number)
        assert wish.wait(5)
        assert (wish.is_made, wish.number) == (True, number)
        with pytest.raises(KeyboardInterrupt):
            signalled(signal.SIGINT)
        assert wish.number == number
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_before_there_is_anything_to_finish_a_signal_ends_at_once() -> None:
    with listening() as wish:
        with pytest.raises(KeyboardInterrupt):
            signalled(signal.SIGINT)
        with pytest.raises(SystemExit, match="143"):
            signalled(signal.SIGTERM)
        with pytest.raises(SystemExit, match="129"):
            signalled(signal.SIGHUP)
        assert not wish.is_made, "whoever catches it may go on"


def test_a_run_that_shall_outlive_its_terminal_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listening() as wish:
            wish.be_patient()
            signalled(signal.SIGHUP)
            assert not wish.wait(0)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_handler_that_spark_sets_for_ctrl_c_is_replaced() -> None:
    with listening() as wish:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        wish.be_patient()
        signalled(signal.SIGINT)
        assert wish.wait(5)


def test_a_wish_can_be_made_without_a_signal() -> None:
    wish = Wish()
    wish.make()
    assert wish.wait(0)
    assert wish.number is None
