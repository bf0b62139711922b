"""A log in files on a disk that fails or loses power at any point."""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.errors import MoldauError, StorageError
from moldau.logs.files.log import FileLog
from moldau.logs.files.store import FileLogStore
from moldau.platform.clock import SystemClock
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.platform.disk import DiskSettings, SimulatedDisk
from moldau.testing.simulation.platform.volume import Volume
from support.logs import NAME, OTHER_TOPIC_ID, TOPIC_ID, append, batch_at, flush_and_finalize, records_of, values_of

SMALL = TopicSettings(segment_bytes=1024, index_interval_bytes=100)
QUICK = DiskSettings(sync_ms_min=0, sync_ms_max=0, slow_sync_chance=0)
BIG = b"x" * 600


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def make_disk(seed: int = 1) -> SimulatedDisk:
    return SimulatedDisk(random.Random(seed), settings=QUICK)


async def open_log(disk: SimulatedDisk, settings: TopicSettings = SMALL) -> FileLog:
    store = FileLogStore(disk, "data", SystemClock())
    await store.start()
    return await store.open(NAME, TOPIC_ID, settings)


def test_appends_fail_on_a_full_disk_and_succeed_when_there_is_space() -> None:
    async def body() -> None:
        disk = make_disk()
        log = await open_log(disk)
        await append(log, b"before")
        for _ in range(5):
            disk.inject("append", "*.log", error=errno.ENOSPC)
            with pytest.raises(StorageError, match="appending"):
                await append(log, b"does not fit" * 10, b"neither")
            assert log.end_offset == 1
        await append(log, b"after")
        await flush_and_finalize(log)
        assert await values_of(log) == [b"before", b"after"]
        log = await open_log(disk.crash())
        assert await values_of(log) == [b"before", b"after"]

    run(body)


def test_a_segment_that_cannot_be_created_leaves_the_log_usable() -> None:
    async def body() -> None:
        disk = make_disk()
        log = await open_log(disk)
        await append(log, BIG)
        disk.inject("open", "*.log", error=errno.ENOSPC)
        with pytest.raises(StorageError):
            await append(log, BIG)
        await append(log, BIG)
        await flush_and_finalize(log)
        assert len(await values_of(log)) == 2

    run(body)


@pytest.mark.parametrize("operation", ["append", "truncate"])
def test_a_failing_write_takes_the_log_offline(operation: str) -> None:
    async def body() -> None:
        disk = make_disk()
        log = await open_log(disk)
        await append(log, b"before")
        await flush_and_finalize(log)
        disk.inject("append", "*.log", error=errno.EIO if operation == "append" else errno.ENOSPC)
        if operation == "truncate":
            disk.inject("truncate", "*.log", error=errno.EIO)
        with pytest.raises(StorageError):
            await append(log, b"lost")
        with pytest.raises(StorageError):
            await append(log, b"after")
        with pytest.raises(StorageError):
            await log.flush()
        assert log.end_offset == 1
        assert await values_of(await open_log(disk.kill())) == [b"before"]

    run(body)


@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
def test_a_failed_sync_takes_the_log_offline_until_a_restart(operation: str) -> None:
    async def body() -> None:
        disk = make_disk()
        log = await open_log(disk)
        await append(log, BIG)
        await flush_and_finalize(log)
        await append(log, BIG)
        disk.inject(operation, "*.log" if operation == "sync" else "*", error=errno.EIO)
        waiting = [asyncio.ensure_future(log.flush()) for _ in range(3)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert any(isinstance(outcome, StorageError) for outcome in outcomes)
        assert log.durable_offset == 1
        with pytest.raises(StorageError):
            await log.flush()
        with pytest.raises(StorageError):
            await append(log, b"after")

    run(body)


def test_a_shutdown_with_an_offline_log_is_not_clean() -> None:
    async def body() -> None:
        disk = make_disk()
        store = FileLogStore(disk, "data", SystemClock())
        await store.start()
        failed = await store.open(NAME, TOPIC_ID, SMALL)
        fine = await store.open(NAME._replace(partition=1), TOPIC_ID, SMALL)
        await append(failed, b"a")
        await append(fine, b"b")
        disk.inject("sync", "*orders-0/*.log")
        with pytest.raises(StorageError):
            await failed.flush()
        await store.close()
        assert fine.durable_offset == 1
        store = FileLogStore(disk.kill(), "data", SystemClock())
        await store.start()
        assert not store.had_clean_shutdown

    run(body)


def test_an_unreadable_topic_id_does_not_affect_other_logs() -> None:
    async def body() -> None:
        disk = make_disk()
        other = NAME._replace(partition=1)
        for name in (NAME, other):
            store = FileLogStore(disk, "data", SystemClock())
            await store.start()
            log = await store.open(name, TOPIC_ID, SMALL)
            await append(log, b"kept")
            await flush_and_finalize(log)
        disk = disk.kill()
        fault = disk.inject("read", f"*{NAME}/partition.metadata", error=errno.EIO, times=None)
        store = FileLogStore(disk, "data", SystemClock())
        await store.start()
        assert store.list_logs() == [(other, TOPIC_ID)]
        assert await values_of(await store.open(other, TOPIC_ID, SMALL)) == [b"kept"]
        with pytest.raises(StorageError):
            await store.open(NAME, TOPIC_ID, SMALL)
        disk.faults.remove(fault)
        assert await values_of(await store.open(NAME, TOPIC_ID, SMALL)) == [b"kept"]

    run(body)


def test_an_index_that_cannot_be_written_fails_nothing() -> None:
    async def body() -> None:
        disk = make_disk()
        log = await open_log(disk)
        fault = disk.inject("append", "*.index.tmp", error=errno.ENOSPC, times=None)
        for _ in range(4):
            await append(log, BIG)
            await flush_and_finalize(log)
        assert log.durable_offset == 4
        disk.faults.remove(fault)
        await append(log, BIG)
        await flush_and_finalize(log)
        names = [path for path, _ in disk.volume.files()]
        assert sum(name.endswith(".index") for name in names) == sum(name.endswith(".log") for name in names) - 1
        assert len(await values_of(await open_log(disk.crash()))) == 5

    run(body)


def test_retention_and_compaction_are_postponed_while_the_disk_is_full() -> None:
    async def body() -> None:
        disk = make_disk()
        settings = TopicSettings(
            cleanup_policy=("compact", "delete"), segment_bytes=1024, retention_ms=1_000, min_cleanable_dirty_ratio=0.0
        )
        log = await open_log(disk, settings)
        for number in range(6):
            await append(log, BIG, keys=[b"k"], timestamp_ms=10_000 + number)
        await flush_and_finalize(log)
        faults = [
            disk.inject("open", "*.cleaned", error=errno.ENOSPC, times=None),
            disk.inject("append", "*", error=errno.ENOSPC, times=None),
        ]
        assert not await log.compact(10_000, 6)
        await log.apply_retention(10_500, 6)
        assert len(await values_of(log)) == 6
        await log.apply_retention(11_003, 6)
        assert log.start_offset == 3
        for fault in faults:
            disk.faults.remove(fault)
        assert await log.compact(10_000, 6)
        assert len(await values_of(log)) < 3

    run(body)


@pytest.mark.parametrize("newest_ms", [19_000, 12_000], ids=["the active one stays", "all are too old"])
def test_segments_are_deleted_even_without_space_for_a_new_one(newest_ms: int) -> None:
    async def body() -> None:
        disk = make_disk()
        log = await open_log(disk, TopicSettings(segment_bytes=1024, retention_ms=5_000, segment_ms=500))
        for timestamp_ms in (10_000, 11_000, newest_ms):
            await append(log, BIG, timestamp_ms=timestamp_ms)
        await flush_and_finalize(log)
        fault = disk.inject("open", "*.log", error=errno.ENOSPC, times=None)
        await log.apply_retention(20_000, 3)
        assert (log.failure, log.start_offset) == (None, 2)
        assert disk.list("data/orders-0").count("00000000000000000000.log") == 0
        disk.faults.remove(fault)
        await log.apply_retention(20_000, 3)
        assert log.start_offset == (2 if newest_ms == 19_000 else 3)

    run(body)


def test_damage_found_by_a_read_is_a_storage_error() -> None:
    async def body() -> None:
        disk = make_disk()
        log = await open_log(disk, TopicSettings(segment_bytes=1024, index_interval_bytes=10_000))
        for _ in range(20):
            await append(log, b"v" * 50)
        await flush_and_finalize(log)
        inode = log.segments[0].file._inode  # type: ignore[attr-defined]
        inode.flip_bits(16, 0xFF)
        with pytest.raises(StorageError, match="moldau log verify"):
            await log.read(1, 1000, 20)

    run(body)


def test_records_appended_during_a_sync_are_not_durable() -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=DiskSettings(sync_ms_min=1, sync_ms_max=2, slow_sync_chance=0))
        log = await open_log(disk)
        await append(log, b"a")
        first = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0)
        await append(log, BIG)
        await append(log, BIG)
        await first
        assert log.durable_offset == 1
        second = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0)
        await log.truncate_to(2)
        await append(log, b"c")
        await second
        assert log.durable_offset == 2
        await flush_and_finalize(log)
        assert log.durable_offset == 3

    run(body)


def test_a_deleted_log_leaves_nothing_to_a_new_log_of_its_name() -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=DiskSettings(sync_ms_min=1, sync_ms_max=2, slow_sync_chance=0))
        store = FileLogStore(disk, "data", SystemClock())
        await store.start()
        old = await store.open(NAME, TOPIC_ID, SMALL)
        for number in range(6):
            await append(
                old, BIG, leader_epoch=5, producer_id=1, producer_epoch=0, base_sequence=number, timestamp_ms=1
            )
        work = [
            asyncio.ensure_future(old.flush()),
            asyncio.ensure_future(old.advance_start_offset(3)),
            asyncio.ensure_future(old.apply_retention(2, 6)),
        ]
        await asyncio.sleep(0.004)
        new = await store.open(NAME, OTHER_TOPIC_ID, SMALL)
        await asyncio.gather(*work, return_exceptions=True)
        assert (new.start_offset, new.end_offset, new.epochs.latest, len(new.producers)) == (0, 0, -1, 0)
        names = {path.rpartition("/")[2] for path, _ in disk.volume.files() if "orders-0/" in path}
        assert names == {"00000000000000000000.log", "partition.metadata"}
        store = FileLogStore(disk.crash(), "data", SystemClock())
        await store.start()
        new = await store.open(NAME, OTHER_TOPIC_ID, SMALL)
        assert (new.start_offset, new.end_offset, new.epochs.latest, len(new.producers)) == (0, 0, -1, 0)

    run(body)


# Power failures


class PowerFailureDisk(SimulatedDisk):
    """A disk that loses power at its n-th change; everything after that fails."""

    changes_left = 0

    def trace_event(self, kind: str, *fields: str | int | bytes) -> None:
        super().trace_event(kind, *fields)
        if kind in ("append", "truncate", "rename", "remove", "sync", "sync_directory", "create", "mkdir"):
            self.changes_left -= 1
            if self.changes_left == 0:
                self._is_dead = True


class Acknowledged:
    """What the log has acknowledged and a crash must preserve."""

    def __init__(self) -> None:
        self.values: dict[int, tuple[bytes | None, bytes | None]] = {}
        self.durable = 0
        self.start = 0
        self.may_be_deleted: set[int] = set()
        self.recreated = False
        self.removing = False


COMPACTED = TopicSettings(
    cleanup_policy=("compact",), segment_bytes=1024, index_interval_bytes=100, min_cleanable_dirty_ratio=0.0
)


async def busy_life(disk: SimulatedDisk, acknowledged: Acknowledged) -> None:
    """Rolls, compacts, truncates, advances the start offset, closes, opens, deletes and recreates a log."""
    store = FileLogStore(disk, "data", SystemClock())
    await store.start()
    log = await store.open(NAME, TOPIC_ID, COMPACTED)

    async def produce(count: int) -> None:
        for _ in range(count):
            offset = log.end_offset
            key = b"k%d" % (offset % 3)
            value = b"%d" % offset * 60
            acknowledged.values[offset] = (key, value)
            batch = batch_at(
                offset,
                [value],
                keys=[key],
                producer_id=1,
                producer_epoch=0,
                base_sequence=offset,
                leader_epoch=offset // 10,
            )
            await log.append([batch])
            if offset % 4 == 3:
                await flush_and_finalize(log)
                acknowledged.durable = log.durable_offset
        await flush_and_finalize(log)
        acknowledged.durable = log.durable_offset

    await produce(22)
    acknowledged.may_be_deleted = set(range(acknowledged.durable - 3))
    await log.compact(1_000_000, log.durable_offset)
    await produce(6)
    acknowledged.durable = 24
    await log.truncate_to(24)
    for offset in (24, 25, 26, 27):
        acknowledged.values.pop(offset)
    await produce(4)
    acknowledged.may_be_deleted |= set(range(9))
    acknowledged.start = 0
    await log.advance_start_offset(9)
    acknowledged.start = 9
    await store.close()
    store = FileLogStore(disk, "data", SystemClock())
    await store.start()
    log = await store.open(NAME, TOPIC_ID, COMPACTED)
    await produce(9)
    acknowledged.may_be_deleted = set(range(acknowledged.durable - 3))
    await log.compact(2_000_000, log.durable_offset)
    acknowledged.removing = True
    await store.remove(NAME)
    acknowledged.recreated = True
    acknowledged.values, acknowledged.durable, acknowledged.start = {}, 0, 0
    log = await store.open(NAME, OTHER_TOPIC_ID, COMPACTED)
    await produce(5)
    await store.close()


async def check_acknowledged(disk: SimulatedDisk, acknowledged: Acknowledged) -> None:
    store = FileLogStore(disk, "data", SystemClock())
    await store.start()
    found = dict(store.list_logs())
    if acknowledged.recreated:
        assert found.get(NAME) != TOPIC_ID
        topic_id = OTHER_TOPIC_ID
    elif acknowledged.removing and NAME not in found:
        return
    else:
        topic_id = TOPIC_ID
    log = await store.open(NAME, topic_id, COMPACTED)
    assert log.end_offset >= acknowledged.durable
    assert log.durable_offset == log.end_offset
    assert log.start_offset >= acknowledged.start
    records = await records_of(log)
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    for record in records:
        if record.offset in acknowledged.values:
            assert (record.key, record.value) == acknowledged.values[record.offset]
        else:
            # Truncated, but the truncation had not returned yet.
            assert record.offset >= 24
    for offset in acknowledged.values:
        if acknowledged.start <= offset < acknowledged.durable and offset not in acknowledged.may_be_deleted:
            assert offset in offsets
    newest = {record.key: record.value for record in records}
    for key in (b"k0", b"k1", b"k2"):
        expected = [
            acknowledged.values[offset][1]
            for offset in sorted(acknowledged.values)
            if acknowledged.values[offset][0] == key and max(9, acknowledged.start) <= offset < acknowledged.durable
        ]
        if expected and log.end_offset == acknowledged.durable:
            assert newest[key] == expected[-1]
    if acknowledged.durable:
        last = log.end_offset - 1
        reopened = batch_at(0, [b""], producer_id=1, producer_epoch=0, base_sequence=last)
        repeated = log.producers.check(reopened)
        assert repeated is not None
        assert repeated.base_offset == last
    # The log can still be appended to.
    await append(log, b"next", keys=[b"next"])
    await flush_and_finalize(log)
    await log.compact(3_000_000, log.end_offset)
    await store.close()
    store = FileLogStore(disk, "data", SystemClock())
    await store.start()
    assert store.had_clean_shutdown
    log = await store.open(NAME, topic_id, COMPACTED)
    assert (await values_of(log))[-1] == b"next"


def count_changes() -> int:
    disk = PowerFailureDisk(random.Random(0), settings=QUICK, volume=Volume())
    asyncio.run(busy_life(disk, Acknowledged()))
    return -disk.changes_left


CHANGES = count_changes()


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=pytest.mark.slow) if part > 1 else part for part in range(10)]
)
def test_a_power_failure_at_any_point_loses_no_acknowledged_record(part: int) -> None:
    assert CHANGES > 300
    for cut_at in range(1 + part, CHANGES + 1, 10):
        disk = PowerFailureDisk(random.Random(cut_at), settings=QUICK, volume=Volume())
        disk.changes_left = cut_at
        acknowledged = Acknowledged()

        async def body(disk: SimulatedDisk = disk, acknowledged: Acknowledged = acknowledged) -> None:
            try:
                await busy_life(disk, acknowledged)
            except MoldauError:
                pass
            disk.volume.crash(disk.random)
            await check_acknowledged(disk.next_boot(), acknowledged)

        try:
            asyncio.run(body())
        except BaseException as error:
            raise AssertionError(f"after a power failure at change {cut_at} of {CHANGES}") from error
