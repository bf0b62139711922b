"""End offsets are fetched in the background, and unreachable brokers are not an error."""

import asyncio
import time

import pytest

from moldau.client import Producer
from moldau.pipelines.definition import PipelineDefinition
from moldau.pipelines.runtime import end_offsets
from moldau.pipelines.runtime.end_offsets import EndOffsets, EndOffsetTracker
from moldau.pipelines.runtime.progress import Progress
from moldau.testing import Broker

BATCH = Progress("out", "", 0, 1, 0.0, 0.0, 1, 0, read={"numbers": {"0": 0, "1": 0}})
WITHIN_S = 30.0


def send(broker: Broker, count: int) -> None:
    async def sending() -> None:
        async with Producer(broker.bootstrap) as producer:
            for _ in range(count):
                await producer.send("numbers", b"x", partition=1)

    asyncio.run(sending())


def looked(ends: EndOffsetTracker, wanted: EndOffsets) -> EndOffsets | None:
    deadline = time.monotonic() + WITHIN_S
    while (known := ends.poll([BATCH])) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    return known


def test_end_offsets_are_current_and_unknown_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_offsets, "FETCH_INTERVAL_S", 0.05)
    with Broker(topics={"numbers": 2}) as broker:
        ends = EndOffsetTracker(PipelineDefinition("p", (), (), (), bootstrap=broker.bootstrap))
        assert ends.poll([]) is None, "nothing is asked where nothing is read"
        for sent in (3, 5):
            send(broker, sent - (0 if sent == 3 else 3))
            wanted = {("numbers", "0"): 0, ("numbers", "1"): sent}
            assert looked(ends, wanted) == wanted
            assert BATCH.lag_to(wanted) == sent
    monkeypatch.setattr(end_offsets, "STALE_AFTER_S", 0.2)
    monkeypatch.setattr(end_offsets, "FETCH_TIMEOUT_MS", 200)
    assert looked(ends, {}) == {}
    assert BATCH.lag_to({}) is None
    ends.close()
