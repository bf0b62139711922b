"""Segments after a compaction: without batches, and with gaps between them."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from moldau.logs.files.log import FileLog
from moldau.logs.files.store import FileLogStore
from moldau.platform.clock import SystemClock
from moldau.platform.os_disk import OsDisk
from moldau.settings.topic import TopicSettings
from support.logs import NAME, TOPIC_ID, append, flush_and_finalize, records_of

SETTINGS = TopicSettings(
    cleanup_policy=("compact",), segment_bytes=1024, index_interval_bytes=0, min_cleanable_dirty_ratio=0.01
)
LARGE = b"x" * 900
"""A value that fills a segment."""


class Data:
    """A data directory with one log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log_path = path / str(NAME)
        self.store: FileLogStore

    async def open(self, settings: TopicSettings = SETTINGS) -> FileLog:
        self.store = FileLogStore(OsDisk(), str(self.path), SystemClock())
        await self.store.start()
        return await self.store.open(NAME, TOPIC_ID, settings)

    async def open_compacted(self, settings: TopicSettings = SETTINGS) -> FileLog:
        """Opens a log of ten segments with one record each. After a compaction only those at 0, 5, 8 and 9 are left."""
        log = await self.open(settings)
        for number, key in enumerate([b"a", b"k", b"k", b"k", b"k", b"b", b"k", b"k", b"k", b"end"]):
            await append(log, LARGE, keys=[key], timestamp_ms=1_000 * number)
        await flush_and_finalize(log)
        assert await log.compact(1_000_000, 10)
        assert await offsets_of(log) == [0, 5, 8, 9]
        return log

    def sizes(self) -> dict[int, int]:
        return {int(path.stem): path.stat().st_size for path in sorted(self.log_path.glob("*.log"))}


async def offsets_of(log: FileLog) -> list[int]:
    return [record.offset for record in await records_of(log)]


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def test_the_next_compaction_merges_segments_without_batches(data: Data) -> None:
    async def body() -> None:
        log = await data.open_compacted()
        assert [base for base, size in data.sizes().items() if not size] == [1, 2, 3, 4, 6, 7]
        assert not await log.compact(1_000_000, 10), "nothing is dirty"
        await append(log, LARGE, keys=[b"more"])
        await flush_and_finalize(log)
        assert await log.compact(1_000_000, 11)
        assert [base for base, size in data.sizes().items() if not size] == []
        assert await offsets_of(log) == [0, 5, 8, 9, 10]

    run(body)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    "lost",
    [
        (),
        ("recovery-point-offset-checkpoint",),
        ("recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"),
        ("*-checkpoint",),
        ("*/*index",),
        ("*/*.snapshot",),
    ],
)
def test_a_compacted_log_is_opened_again(data: Data, is_clean: bool, lost: tuple[str, ...]) -> None:
    async def body() -> None:
        log = await data.open_compacted()
        if is_clean:
            await data.store.close()
        for pattern in lost:
            for path in data.path.glob(pattern):
                path.unlink()
        log = await data.open()
        assert (log.start_offset, log.end_offset, log.durable_offset) == (0, 10, 10)
        assert await offsets_of(log) == [0, 5, 8, 9]
        found = await log.offset_for_timestamp(1_500, 10)
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (5, 5_000)
        assert await log.offset_for_timestamp(9_001, 10) is None
        await append(log, LARGE, keys=[b"more"])
        assert log.end_offset == 11

    run(body)


def test_unflushed_batches_that_are_lost_without_the_checkpoints_end_the_log(data: Data) -> None:
    async def body() -> None:
        log = await data.open_compacted()
        for number in range(3):
            await append(log, LARGE, keys=[b"unflushed-%d" % number])
        for path in data.path.glob("*-checkpoint"):
            path.unlink()
        # A power cut: the segment at 11 has lost its batch, and the later one has not.
        (data.log_path / "00000000000000000011.log").write_bytes(b"")
        log = await data.open()
        assert log.end_offset == 11
        assert await offsets_of(log) == [0, 5, 8, 9, 10]

    run(body)


@pytest.mark.parametrize(("offset", "end"), [(9, 9), (8, 6), (7, 6), (6, 6), (5, 1), (4, 1), (1, 1), (0, 0)])
def test_a_truncated_log_ends_after_its_last_batch(data: Data, offset: int, end: int) -> None:
    async def body() -> None:
        log = await data.open_compacted()
        await log.truncate_to(offset)
        assert (log.end_offset, log.durable_offset) == (end, end)
        assert await offsets_of(log) == [each for each in (0, 5, 8, 9) if each < end]
        # Without a clean shutdown.
        log = await data.open()
        assert log.end_offset == end
        await append(log, b"next", keys=[b"next"])
        assert await offsets_of(log) == [*[each for each in (0, 5, 8, 9) if each < end], end]

    run(body)


@pytest.mark.parametrize("offset", range(11))
def test_the_start_offset_can_be_in_a_gap(data: Data, offset: int) -> None:
    async def body() -> None:
        log = await data.open_compacted()
        await log.advance_start_offset(offset)
        expected = [each for each in (0, 5, 8, 9) if each >= offset]
        assert await offsets_of(log) == expected
        log = await data.open()
        assert (log.start_offset, log.end_offset) == (offset, 10)
        assert await offsets_of(log) == expected

    run(body)


def test_segments_without_batches_do_not_stop_retention(data: Data) -> None:
    async def body() -> None:
        log = await data.open_compacted()
        log.configure(TopicSettings(cleanup_policy=("compact", "delete"), segment_bytes=1024, retention_ms=10_000))
        await log.apply_retention(15_001, 10)
        assert log.start_offset == 6
        assert await offsets_of(log) == [8, 9]

    run(body)


def test_an_interrupted_swap_is_completed_and_compaction_repeated(data: Data) -> None:
    async def body() -> None:
        settings = TopicSettings(
            cleanup_policy=("compact",), segment_bytes=3000, index_interval_bytes=0, min_cleanable_dirty_ratio=0.01
        )
        log = await data.open()
        for number in range(9):
            await append(log, LARGE, keys=[b"k"], timestamp_ms=1_000 * number)
        await flush_and_finalize(log)
        old = {path.name: path.read_bytes() for path in data.log_path.glob("*.log")}
        log.configure(settings)
        assert await log.compact(1_000_000, 9)
        assert data.sizes().keys() == {0, 3, 6, 8}, "groups of three segments, and the active segment"
        assert await offsets_of(log) == [7, 8]

        # A crash after the rename of the first cleaned segment to .swap, when one of its old segments is deleted.
        for path in data.log_path.glob("*.log"):
            if path.stem == "00000000000000000000":
                path.rename(path.with_suffix(".log.swap"))
            else:
                path.unlink()
        for name in sorted(old)[2:]:
            (data.log_path / name).write_bytes(old[name])
        (data.path / "cleaner-offset-checkpoint").unlink()
        log = await data.open(settings)
        assert (log.start_offset, log.end_offset) == (0, 9)
        assert await offsets_of(log) == [2, 3, 4, 5, 6, 7, 8], "the segment at 2 is not replaced yet"
        assert await log.compact(1_000_000, 9)
        assert await offsets_of(log) == [7, 8]

    run(body)
