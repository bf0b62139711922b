"""What each ack mode delivers how often when its process is killed: a sample of `python -m tests.ack_modes`."""

import asyncio
from pathlib import Path

import pytest

from ack_modes.deliveries import CALLED, COMPLETED, JournalReader, JournalWriter
from ack_modes.modes import MODES, Fault
from ack_modes.run import SETTINGS, Result, run_fault
from moldau.testing import Broker

TIMEOUT_S = 120


def test_every_mode_keeps_its_promise_when_its_process_is_killed() -> None:
    async def measure(bootstrap: str) -> list[Result]:
        async with asyncio.timeout(TIMEOUT_S):
            return await run_fault(bootstrap, Fault.CONSUMER_KILLED, 1)

    settings = {"group.initial.rebalance.delay.ms": "0", **SETTINGS}
    with Broker(settings=settings) as broker:
        results = asyncio.run(measure(broker.bootstrap))
    assert [result.mode.name for result in results] == list(MODES)
    for result in results:
        assert result.violations() == [], result.mode.name


@pytest.mark.parametrize(
    ("mode", "events", "violation"),
    [
        ("auto", [(CALLED, 0, 0), (COMPLETED, 0, 0)], "1 records are lost"),
        ("at most once", [(CALLED, 0, 0), (CALLED, 1, 0), (COMPLETED, 1, 0)], "1 records came again after one fault"),
        ("batch", [(CALLED, 0, 0), (CALLED, 1, 0), (COMPLETED, 1, 0), (CALLED, 1, 1), (COMPLETED, 1, 1)], ""),
    ],
)
def test_violations_are_found(tmp_path: Path, mode: str, events: list[tuple[str, int, int]], violation: str) -> None:
    for event, process, number in events:
        JournalWriter(tmp_path / "journal", process).write(event, [number])
    found = JournalReader(tmp_path / "journal").read()
    found.records = 2 if mode != "at most once" else 1
    violations = Result(MODES[mode], Fault.CONSUMER_KILLED, 1, found).violations()
    assert violations[:1] == ([violation] if violation else [])
