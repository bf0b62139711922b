"""Graceful stop on signals."""

import asyncio
import os
import signal

import pytest

from moldau.cli.signals import SIGNALS, stop_signal


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_requests_a_stop_and_the_second_cancels(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    heard: list[int] = []

    async def run() -> None:
        with stop_signal() as asked:
            os.kill(os.getpid(), number)
            heard.append(await asked)
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert heard == [number]
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_the_handlers_from_before_are_restored(handler: signal.Handlers) -> None:
    async def run() -> None:
        with stop_signal() as asked:
            os.kill(os.getpid(), signal.SIGINT)
            assert await asked == signal.SIGINT

    before = signal.signal(signal.SIGINT, handler)
    try:
        asyncio.run(run())
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
