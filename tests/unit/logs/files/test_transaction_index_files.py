"""The files of transaction indexes: their format, and that crashes and damage never lose an aborted transaction."""

import asyncio
import random
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.errors import CorruptRecordError, StorageError
from moldau.logs.files.file_names import TRANSACTION_INDEX_SUFFIX
from moldau.logs.files.log import FileLog
from moldau.logs.files.store import FileLogStore
from moldau.logs.transaction_index import ABORTED_ENTRY_SIZE, AbortedTransaction, TransactionIndex
from moldau.platform.clock import SystemClock
from moldau.records.batch import split
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.platform.disk import DiskSettings, SimulatedDisk
from support.logs import FOREVER, NAME, TOPIC_ID, append, batches_of, flush_and_finalize
from support.transactional_logs import data, marker

SMALL = TopicSettings(segment_bytes=1024, index_interval_bytes=100)
QUICK = DiskSettings(sync_ms_min=0, sync_ms_max=0, slow_sync_chance=0)
DIRECTORY = "data/orders-0"


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def new_disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1), settings=QUICK)


async def open_store(disk: SimulatedDisk) -> tuple[FileLogStore, FileLog]:
    store = FileLogStore(disk, "data", SystemClock())
    await store.start()
    return store, await store.open(NAME, TOPIC_ID, SMALL)


async def aborted_in(log: FileLog, start: int = 0) -> list[AbortedTransaction]:
    """Returns the aborted transactions of the whole log."""
    return log.segments.aborted_transactions(start, FOREVER)


async def write_transactions(log: FileLog) -> list[AbortedTransaction]:
    """Aborts a transaction in each of several segments. One of another producer is open all the time."""
    expected = []
    open_since = log.end_offset
    await log.append([data(open_since, producer=9)])
    for number in range(4):
        first = log.end_offset
        await log.append([data(first, [b"v" * 700], sequence=number)])
        await append(log, b"v" * 300)
        await log.append([marker(log.end_offset)])
        expected.append(AbortedTransaction(7, first, log.end_offset - 1, open_since))
    return expected


def index_files(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.list(DIRECTORY) if name.endswith(TRANSACTION_INDEX_SUFFIX)]


def test_an_index_file_has_kafkas_format() -> None:
    index = TransactionIndex()
    index.append(AbortedTransaction(0x0102030405060708, 5, 9, 7))
    assert index.to_bytes() == struct.pack(">hqqqq", 0, 0x0102030405060708, 5, 9, 7)
    assert len(index.to_bytes()) == ABORTED_ENTRY_SIZE == 34
    assert list(TransactionIndex.from_bytes(index.to_bytes(), 0, 10)) == list(index)


@pytest.mark.parametrize(
    "content",
    [
        struct.pack(">hqqqq", 0, 1, 5, 9, 7)[:-1],
        struct.pack(">hqqqq", 1, 1, 5, 9, 7),
        struct.pack(">hqqqq", 0, 1, 5, 2, 7),
        struct.pack(">hqqqq", 0, 1, 5, 10, 7),
        struct.pack(">hqqqq", 0, 1, 9, 9, 7),
        struct.pack(">hqqqq", 0, -1, 5, 9, 7),
        struct.pack(">hqqqq", 0, 1, 5, 9, 7) * 2,
    ],
)
def test_a_damaged_index_is_noticed(content: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        TransactionIndex.from_bytes(content, 3, 10)


def test_only_segments_with_aborted_transactions_have_a_file() -> None:
    async def body() -> None:
        disk = new_disk()
        store, log = await open_store(disk)
        for number in range(5):
            await append(log, b"v" * 900)
            await log.append([data(log.end_offset, sequence=number)])
            await log.append([marker(log.end_offset, commit=True)])
        await flush_and_finalize(log)
        await store.close()
        assert index_files(disk) == []
        _, log = await open_store(disk.next_boot())
        assert len(log.segments) > 3
        assert all(segment._transaction_index is None for segment in log.segments.closed), "nor memory"

    run(body)


def test_the_index_is_beside_the_segment_of_the_marker() -> None:
    async def body() -> None:
        disk = new_disk()
        store, log = await open_store(disk)
        expected = await write_transactions(log)
        await store.close()
        bases = log.segments.base_offsets
        segments = {max(base for base in bases if base <= each.last_offset) for each in expected}
        assert len(segments) > 2
        assert index_files(disk) == [f"{base:020d}{TRANSACTION_INDEX_SUFFIX}" for base in sorted(segments)]
        file = disk.open(f"{DIRECTORY}/{index_files(disk)[0]}")
        assert file.read(0, file.size)[:34] == struct.pack(">hqqqq", 0, *expected[0])
        _, log = await open_store(disk.next_boot())
        assert await aborted_in(log) == expected

    run(body)


def test_the_search_goes_on_to_the_segment_of_the_marker() -> None:
    async def body() -> None:
        _, log = await open_store(new_disk())
        await log.append([data(0)])
        while len(log.segments) < 4:
            await append(log, b"v" * 900)
        last = log.end_offset
        await log.append([marker(last)])
        records, aborted = await log.read_committed(0, 1, log.last_stable_offset(log.end_offset))
        assert records.size
        assert list(aborted) == [AbortedTransaction(7, 0, last, last + 1)]

    run(body)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing with its other indexes"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_index_is_rebuilt_when_the_log_is_opened(damage: str, clean: bool) -> None:
    async def body() -> None:
        disk = new_disk()
        store, log = await open_store(disk)
        expected = await write_transactions(log)
        await flush_and_finalize(log)
        if clean:
            await store.close()
        before = len(index_files(disk))
        name = index_files(disk)[1]
        if damage == "missing with its other indexes":
            for suffix in (TRANSACTION_INDEX_SUFFIX, ".index", ".timeindex"):
                disk.remove(f"{DIRECTORY}/{name[:20]}{suffix}")
        else:
            file = disk.open(f"{DIRECTORY}/{name}")
            content = bytearray(file.read(0, file.size))
            content[0] ^= 0x40
            await disk.replace(f"{DIRECTORY}/{name}", bytes(content) if damage == "flipped" else bytes(content[:20]))
        disk = disk.next_boot() if clean else disk.kill()
        store, log = await open_store(disk)
        assert await aborted_in(log) == expected
        await log.apply_retention(0, 0)
        assert len(index_files(disk)) >= before, "the rebuilt index is written"
        _, log = await open_store(disk.kill())
        assert await aborted_in(log) == expected

    run(body)


def test_truncation_removes_the_aborted_transactions_it_reaches() -> None:
    async def body() -> None:
        disk = new_disk()
        store, log = await open_store(disk)
        expected = await write_transactions(log)
        await flush_and_finalize(log)
        await log.truncate_to(expected[2].last_offset)
        assert await aborted_in(log) == expected[:2]
        state = log.producers.get(7)
        assert state is not None
        assert state.transaction_first_offset == expected[2].first_offset, "open again"
        await log.append([marker(log.end_offset, commit=True)])
        await store.close()
        disk = disk.next_boot()
        store, log = await open_store(disk)
        assert await aborted_in(log) == expected[:2]
        await log.truncate_fully_and_start_at(50)
        assert index_files(disk) == []
        assert await aborted_in(log) == []

    run(body)


def test_deleted_segments_take_their_indexes_with_them() -> None:
    async def body() -> None:
        disk = new_disk()
        _, log = await open_store(disk)
        await write_transactions(log)
        await flush_and_finalize(log)
        await log.advance_start_offset(log.end_offset)
        assert index_files(disk) == []
        assert await aborted_in(log, log.start_offset) == []
        assert log.last_stable_offset(log.end_offset) == log.start_offset, "a transaction is still open"
        await log.append([marker(log.end_offset, producer=9)])
        assert log.last_stable_offset(log.end_offset) == log.end_offset

    run(body)


def test_reads_find_aborted_transactions_while_compaction_replaces_segments() -> None:
    async def body() -> None:
        _, log = await open_store(new_disk())
        for number in range(12):
            await log.append([data(log.end_offset, [b"v" * 250], keys=[b"k"], sequence=number)])
            await log.append([marker(log.end_offset)])
            await append(log, b"v" * 300, keys=[b"k"])
        await flush_and_finalize(log)
        segments = len(log.segments)
        log.configure(TopicSettings(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0))
        compaction = asyncio.create_task(log.compact(0, log.end_offset))
        while not compaction.done():
            for offset in range(log.end_offset):
                records, aborted = await log.read_committed(offset, 1, log.end_offset)
                (batch,) = split(records.read())
                if batch.is_transactional and batch.count and not batch.is_control:
                    assert [each.first_offset for each in aborted] == [batch.base_offset]
            await asyncio.sleep(0)
        assert await compaction
        assert len(log.segments) < segments

    run(body)


@pytest.mark.parametrize("recovers", [True, False])
def test_a_log_remembers_no_transactions_that_ended_below_the_high_watermark(recovers: bool) -> None:
    async def body() -> None:
        disk = new_disk()
        store, log = await open_store(disk)
        for number in range(200):
            await log.append([data(log.end_offset, sequence=number)])
            await log.append([marker(log.end_offset, commit=True)])
        await flush_and_finalize(log)
        log.checkpointed_high_watermark = 380
        await store.checkpoint_high_watermarks()
        if recovers:
            _, log = await open_store(disk.kill())
        else:
            await log.truncate_to(log.end_offset - 1)
        remembered = [last_offset for last_offset, _ in log.producers.unstable.completed]
        assert remembered == list(range(381, log.end_offset, 2))
        assert log.last_stable_offset(390) == 390

    run(body)


class DyingDisk(SimulatedDisk):
    """A disk whose process is killed at its n-th operation."""

    left = 10**9

    def trace_event(self, kind: str, *facts: Any) -> None:
        super().trace_event(kind, *facts)
        if kind in ("append", "truncate", "rename", "remove", "sync", "sync_directory", "create", "mkdir"):
            self.left -= 1
            if self.left == 0:
                self._is_dead = True

    @property
    def is_dead(self) -> bool:
        return self._is_dead

    def after(self, *, power_failure: bool) -> SimulatedDisk:
        self._is_dead = False
        return self.crash() if power_failure else self.kill()


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_crash_at_any_step_keeps_the_transactions_of_durable_records(power_failure: bool) -> None:
    """Rolls, finalizes, truncates and closes a log, and is killed at each operation of the disk in turn."""

    async def life(disk: DyingDisk, durable: list[int]) -> None:
        store, log = await open_store(disk)
        for _ in range(2):
            await write_transactions(log)
            await flush_and_finalize(log)
            durable[0] = log.end_offset - 4
            await log.truncate_to(log.end_offset - 4)
            await log.flush()
            await log.append([marker(log.end_offset, producer=9)])
        await store.close()
        if not disk.is_dead:
            durable[0] = log.end_offset

    async def body() -> None:
        killed_at, is_complete = 1, False
        while not is_complete:
            disk = DyingDisk(random.Random(killed_at), settings=QUICK)
            disk.left = killed_at
            durable = [0]
            try:
                await life(disk, durable)
                is_complete = not disk.is_dead
            except (StorageError, OSError):
                if not disk.is_dead:
                    raise
            _, log = await open_store(disk.after(power_failure=power_failure))
            assert log.end_offset >= durable[0], killed_at
            await check_against_a_replay(log, killed_at)
            killed_at += 1
        assert killed_at > 60

    async def check_against_a_replay(log: FileLog, killed_at: int) -> None:
        """The log knows the same as a new log with the same batches."""
        _, copy = await open_store(new_disk())
        for batch in await batches_of(log):
            await copy.append([batch])
        assert await aborted_in(log) == await aborted_in(copy), killed_at
        opened = [
            {state.producer_id: state.transaction_first_offset for state in each.producers} for each in (log, copy)
        ]
        assert opened[0] == opened[1], killed_at
        assert log.last_stable_offset(log.end_offset) == copy.last_stable_offset(log.end_offset)

    run(body)
