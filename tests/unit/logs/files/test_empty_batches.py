"""Reads of logs with empty batches: which headers they scan, and how many indexes stay in memory."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from moldau.logs.files.empty_batches import EmptyBatches
from moldau.logs.files.log import FileLog
from moldau.logs.files.store import FileLogStore
from moldau.platform.clock import SystemClock
from moldau.platform.os_disk import OsDisk
from moldau.records.batch import HEADER_SIZE, split
from moldau.records.batch_builder import replace_records
from moldau.settings.topic import TopicSettings
from support.logs import NAME, TOPIC_ID, append, batch_at, flush_and_finalize

COMPACTED = TopicSettings(
    cleanup_policy=("compact",), segment_bytes=1024, index_interval_bytes=0, min_cleanable_dirty_ratio=0.01
)
LARGE = b"x" * 900


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


async def opened(path: Path, settings: TopicSettings = COMPACTED) -> tuple[FileLogStore, FileLog]:
    store = FileLogStore(OsDisk(), str(path), SystemClock())
    await store.start()
    return store, await store.open(NAME, TOPIC_ID, settings)


async def read_offsets(log: FileLog, offset: int, bytes_max: int = 1_000_000) -> list[int]:
    slices = await log.read(offset, bytes_max, log.end_offset, skip_empty=True)
    return [batch.base_offset for batch in split(slices.read())]


class ScannedFile:
    """A file that records which ranges are read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def read(self, position: int, size: int) -> bytes:
        self.reads.append((position, size))
        return self.data[position : position + size]


@pytest.mark.parametrize("seed", range(20))
def test_each_part_of_a_segment_is_scanned_once(seed: int) -> None:
    chosen = random.Random(seed)
    data, boundaries, is_empty = b"", [0], []
    for offset in range(chosen.randint(1, 60)):
        batch = batch_at(offset, [b"x" * chosen.choice([1, 100, 5_000])])
        is_empty.append(chosen.random() < 0.4)
        data += (replace_records(batch, b"", count=0) if is_empty[-1] else batch).to_bytes()
        boundaries.append(len(data))
    known_from = chosen.choice(boundaries)
    empty = EmptyBatches(known_from)
    empty.positions.extend(
        start for start, found in zip(boundaries, is_empty, strict=False) if found and start >= known_from
    )
    file: Any = ScannedFile(data)
    scanned: set[int] = set()
    for _ in range(100):
        start, end = sorted(chosen.sample(boundaries, 2))
        inside = [number for number, each in enumerate(boundaries[:-1]) if start <= each < end]
        runs = [boundaries[first] for first, second in pairwise(inside) if is_empty[first] and is_empty[second]]
        file.reads.clear()
        assert empty.first_run(file, start, end) == (runs[0] if runs else end)
        new = {boundaries[number] for number in inside if boundaries[number] < known_from} - scanned
        assert bool(file.reads) == bool(new), "only what was not scanned is read"
        scanned |= new


async def with_empty_batches(log: FileLog) -> None:
    """Leaves the batches 0 (a record), 1 and 2 (empty), and 3 to 5 (a record each) in one segment, 6 in the next."""
    await append(log, b"1", keys=[b"a"])
    for producer_id in (2, 3):
        await append(log, b"4", keys=[b"k"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    for key in (b"k", b"l", b"m"):
        await append(log, b"5", keys=[key])
    await append(log, LARGE, keys=[b"filler"])
    await append(log, LARGE, keys=[b"more"])
    await flush_and_finalize(log)
    assert await log.compact(1_000_000, log.end_offset)
    assert [batch.count for batch in split((await log.read(0, 10_000, 6)).read())] == [1, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("policy", [("compact",), ("delete",)])
def test_a_reopened_log_is_scanned_by_the_first_read_only(
    tmp_path: Path, policy: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after cleanup.policy has changed: the empty batches are still there."""

    async def body() -> None:
        store, log = await opened(tmp_path)
        await with_empty_batches(log)
        assert await read_offsets(log, 0) == [0]
        await store.close()
        settings = TopicSettings(cleanup_policy=policy, segment_bytes=1024, index_interval_bytes=0)
        store, log = await opened(tmp_path, settings)
        assert await read_offsets(log, 0) == [0]
        assert await read_offsets(log, 1) == [3, 4, 5]
        scans = []
        find = EmptyBatches._find

        def counted_find(empty: EmptyBatches, file: Any, start: int, end: int) -> None:
            if start < end:
                scans.append((start, end))
            find(empty, file, start, end)

        monkeypatch.setattr(EmptyBatches, "_find", counted_find)
        assert await read_offsets(log, 0) == [0]
        assert await read_offsets(log, 1) == [3, 4, 5]
        assert await read_offsets(log, 4) == [4, 5]
        assert scans == []
        await store.close()

    run(body)


def loaded(log: FileLog) -> list[int]:
    return [segment.base_offset for segment in log.segments.closed if segment.has_loaded_indexes]


def test_reads_over_many_segments_keep_few_indexes_in_memory(tmp_path: Path) -> None:
    async def body() -> None:
        store, log = await opened(tmp_path)
        for number in range(12):
            # Each segment has two batches, of which compaction keeps the first, without records in the even ones.
            producer = {} if number % 2 else {"producer_id": number, "producer_epoch": 0, "base_sequence": 0}
            await append(log, b"x" * 400, keys=[b"k"], **producer)
            await append(log, b"x" * 400, keys=[b"k"])
        await append(log, LARGE, keys=[b"end"])
        await flush_and_finalize(log)
        assert await log.compact(1_000_000, log.end_offset)
        for is_clean in (True, False):
            if is_clean:
                await store.close()
            else:
                (tmp_path / "recovery-point-offset-checkpoint").unlink()
            store, log = await opened(tmp_path)
            assert len(log.segments) > 6
            assert len(loaded(log)) <= 2, "after opening"
            for offset in range(log.end_offset):
                await read_offsets(log, offset, 1)
                assert len(loaded(log)) <= 2, f"after a read from {offset}"
            await log.read(0, 1, log.segments.active.base_offset - 1, skip_empty=True)
            assert len(loaded(log)) <= 2, "after a read of the last batch"
            await log.max_timestamp(log.end_offset)
            await log.offset_for_timestamp(0, log.end_offset)
            assert len(loaded(log)) <= 2, "after lookups by timestamp"
        assert HEADER_SIZE in {segment.size for segment in log.segments.closed}

    run(body)


def test_lookups_of_batch_times_keep_few_indexes_in_memory(tmp_path: Path) -> None:
    async def body() -> None:
        settings = TopicSettings(segment_bytes=1024, index_interval_bytes=0)
        store, log = await opened(tmp_path, settings)
        for _ in range(8):
            await append(log, LARGE)
        await flush_and_finalize(log)
        await store.close()
        store, log = await opened(tmp_path, settings)
        for offset in range(8):
            found = await log.find_batch_time(offset, log.end_offset)
            assert found is not None
            assert found.offset == offset
            assert len(loaded(log)) <= 2
        assert loaded(log)
        await store.close()

    run(body)
