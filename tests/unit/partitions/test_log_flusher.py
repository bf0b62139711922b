"""The flusher of a partition: closed segments are flushed and finalized in the background."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.logs.files.log import FileLog
from moldau.logs.files.segment import LogSegment
from moldau.logs.files.store import FileLogStore
from moldau.partitions.log_flusher import LogFlusher
from moldau.platform.clock import SystemClock
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.platform.disk import DiskSettings, SimulatedDisk
from support.logs import NAME, TOPIC_ID, append

SLOW = DiskSettings(sync_ms_min=2, sync_ms_max=5, slow_sync_chance=0)
PATIENCE_S = 20


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), PATIENCE_S))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def opened(settings: TopicSettings) -> tuple[FileLog, LogFlusher]:
    store = FileLogStore(SimulatedDisk(random.Random(1), settings=SLOW), "data", SystemClock())
    await store.start()
    log = await store.open(NAME, TOPIC_ID, settings)
    return log, LogFlusher(log, on_flushed=lambda: None, on_error=lambda error, is_permanent: pytest.fail(str(error)))


@pytest.mark.parametrize("write_caching", [False, True])
def test_segments_that_roll_while_others_are_finalized_are_finalized_too(
    write_caching: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        may_write, write_indexes = asyncio.Event(), LogSegment.write_indexes

        async def write_indexes_later(segment: LogSegment) -> None:
            await may_write.wait()
            await write_indexes(segment)

        monkeypatch.setattr(LogSegment, "write_indexes", write_indexes_later)
        settings = TopicSettings(
            cleanup_policy=("compact",), segment_bytes=1024, min_cleanable_dirty_ratio=0.01, write_caching=write_caching
        )
        log, flusher = await opened(settings)
        for _ in range(10):
            await append(log, b"x" * 900, keys=[b"k"])
            flusher.start()
        await until(lambda: flusher._finalizer is not None and log.durable_offset == 10)
        for _ in range(20):
            await append(log, b"x" * 900, keys=[b"k"])
            flusher.start()
        await until(lambda: not flusher.is_running)
        may_write.set()
        await until(lambda: flusher._finalizer is None)
        assert not log.has_unfinalized_segments
        assert log.durable_offset >= 29
        assert log.checkpoints.recovery_points.get(NAME) >= 29
        assert await log.compact(1_000_000, 30)
        assert log.checkpoints.cleaned_offsets.get(NAME) == 29
        await flusher.stop()

    run(body)


def test_a_log_with_write_caching_is_not_flushed_before_a_segment_is_closed() -> None:
    async def body() -> None:
        log, flusher = await opened(TopicSettings(segment_bytes=1024, write_caching=True))
        await append(log, b"x" * 900)
        flusher.start()
        await flusher.stop()
        assert (log.durable_offset, flusher.flushed_offset()) == (0, 1)

    run(body)
