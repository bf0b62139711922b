"""Situations in which a log could lose, repeat or resurrect records."""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.errors import CorruptRecordError, MoldauError, StorageError
from moldau.logs.files.cleaner import Cleaner
from moldau.logs.files.log import FileLog
from moldau.logs.files.segment import LogSegment
from moldau.logs.files.store import FileLogStore
from moldau.platform.clock import SystemClock
from moldau.records.batch import split
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.platform.disk import DiskSettings, SimulatedDisk
from support.logs import (
    NAME,
    OTHER_TOPIC_ID,
    TOPIC_ID,
    append,
    batch_at,
    batches_of,
    flush_and_finalize,
    records_of,
    values_of,
)

SMALL = TopicSettings(segment_bytes=1024, index_interval_bytes=100)
COMPACTED = TopicSettings(
    cleanup_policy=("compact",),
    segment_bytes=1024,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=0,
)
QUICK = DiskSettings(sync_ms_min=0, sync_ms_max=0, slow_sync_chance=0)
SEGMENT = "data/orders-0/00000000000000000000.log"
STARTS = "data/log-start-offset-checkpoint"


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


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


async def open_store(disk: SimulatedDisk, settings: TopicSettings = SMALL) -> tuple[FileLogStore, FileLog]:
    store = FileLogStore(disk, "data", SystemClock())
    await store.start()
    return store, await store.open(NAME, TOPIC_ID, settings)


async def rewrite(disk: SimulatedDisk, path: str, change: Callable[[bytearray], None]) -> None:
    file = disk.open(path)
    data = bytearray(file.read(0, file.size))
    change(data)
    file.truncate(0)
    file.append([bytes(data)])
    await file.sync()


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_crash_during_record_deletion_keeps_the_producer_state(power_failure: bool) -> None:
    async def body() -> None:
        for step in range(1, 60):
            disk = DyingDisk(random.Random(step), settings=QUICK)
            _, log = await open_store(disk, TopicSettings())
            for sequence in range(3):
                await append(log, b"v", producer_id=7, producer_epoch=0, base_sequence=sequence)
            await flush_and_finalize(log)
            disk.left = step
            try:
                await log.advance_start_offset(3)
            except MoldauError:
                pass
            if not disk.is_dead:
                return
            _, log = await open_store(disk.after(power_failure=power_failure), TopicSettings())
            reopened = batch_at(0, [b"v"], producer_id=7, producer_epoch=0, base_sequence=2)
            assert log.producers.check(reopened) is not None, f"lost after {step} steps"
        raise AssertionError("the deletion never completed")

    run(body)


def test_a_sync_concurrent_with_a_truncation_does_not_overstate_the_durable_offset() -> None:
    slow = DiskSettings(sync_ms_min=0.1, sync_ms_max=2, slow_sync_chance=0)

    async def body() -> None:
        for seed in range(60):
            chance = random.Random(seed)
            disk = SimulatedDisk(chance, settings=slow)
            _, log = await open_store(disk)
            for number in range(3):
                await append(log, b"a%d" % number * 200)
            syncing = asyncio.ensure_future(log.flush())
            await asyncio.sleep(chance.random() * 0.01)
            await log.truncate_to(chance.choice([1, 2]))
            for number in range(3):
                await append(log, b"b%d" % number * 200)
            await asyncio.gather(syncing, return_exceptions=True)
            await flush_and_finalize(log)
            expected = await values_of(log)
            _, log = await open_store(disk.crash())
            assert (await values_of(log))[: len(expected)] == expected, f"seed {seed}"

    run(body)


def test_a_sync_concurrent_with_a_reset_does_not_overstate_the_durable_offset() -> None:
    slow = DiskSettings(sync_ms_min=0.1, sync_ms_max=2, slow_sync_chance=0)

    async def body() -> None:
        for seed in range(60):
            chance = random.Random(seed)
            disk = SimulatedDisk(chance, settings=slow)
            _, log = await open_store(disk)
            for number in range(3):
                await append(log, b"a%d" % number * 200)
            syncing = asyncio.ensure_future(log.flush())
            await asyncio.sleep(chance.random() * 0.01)
            await log.truncate_fully_and_start_at(chance.choice([1, 9]))
            assert log.durable_offset == log.end_offset
            for number in range(3):
                await append(log, b"b%d" % number * 200)
            await asyncio.gather(syncing, return_exceptions=True)
            assert log.durable_offset <= log.end_offset
            await flush_and_finalize(log)
            expected = await values_of(log)
            start = log.start_offset
            _, log = await open_store(disk.crash())
            assert (log.start_offset, await values_of(log)) == (start, expected), f"seed {seed}"

    run(body)


@pytest.mark.parametrize("fully", [False, True])
def test_a_truncation_with_a_cancelled_caller_completes(fully: bool) -> None:
    slow = DiskSettings(sync_ms_min=0.1, sync_ms_max=2, slow_sync_chance=0)

    async def body() -> None:
        for seed in range(40):
            chance = random.Random(seed)
            disk = SimulatedDisk(chance, settings=slow)
            _, log = await open_store(disk)
            for number in range(4):
                await append(log, b"a%d" % number * 200, leader_epoch=number)
            await flush_and_finalize(log)
            work = log.truncate_fully_and_start_at(9) if fully else log.truncate_to(2)
            truncating = asyncio.ensure_future(work)
            for _ in range(2):
                await asyncio.sleep(chance.random() * 0.004)
                truncating.cancel()
            await asyncio.gather(truncating, return_exceptions=True)
            if (log.start_offset, log.end_offset) == (0, 4):
                assert not log.epochs.latest < 3, "it was cancelled before it started"
                continue
            assert (log.start_offset, log.end_offset) == ((9, 9) if fully else (0, 2)), f"seed {seed}"
            await append(log, b"next", leader_epoch=7)
            await flush_and_finalize(log)
            expected, epochs = await values_of(log), list(log.epochs)
            assert epochs == ([(7, 9)] if fully else [(0, 0), (1, 1), (7, 2)])
            _, log = await open_store(disk.crash())
            assert (await values_of(log), list(log.epochs)) == (expected, epochs), f"seed {seed}"

    run(body)


def test_a_log_is_deleted_on_a_full_disk_and_its_name_is_free() -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        store, log = await open_store(disk)
        for _ in range(10):
            await append(log, b"v" * 900)
        await flush_and_finalize(log)
        await log.advance_start_offset(7)
        disk.inject("append", "*checkpoint*", error=errno.ENOSPC, times=3)
        await store.remove(NAME)
        for _ in range(2):
            with pytest.raises(StorageError, match="cannot create"):
                await store.open(NAME, OTHER_TOPIC_ID, SMALL)
        log = await store.open(NAME, OTHER_TOPIC_ID, SMALL)
        assert (log.start_offset, log.end_offset) == (0, 0)

    run(body)


@pytest.mark.parametrize("aside", [False, True])
def test_a_recreated_log_does_not_inherit_checkpoints_of_one_deleted_on_a_full_disk(aside: bool) -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        store, log = await open_store(disk)
        for _ in range(10):
            await append(log, b"v" * 900)
        await flush_and_finalize(log)
        await log.advance_start_offset(7)
        disk.inject("append", "*checkpoint*", error=errno.ENOSPC)
        await (store.move_to_stray(NAME) if aside else store.remove(NAME))
        log = await store.open(NAME, OTHER_TOPIC_ID, SMALL)
        await append(log, b"first of its own")
        await flush_and_finalize(log)
        store = FileLogStore(disk.kill(), "data", SystemClock())
        await store.start()
        log = await store.open(NAME, OTHER_TOPIC_ID, SMALL)
        assert await values_of(log) == [b"first of its own"]

    run(body)


def test_a_new_log_does_not_write_checkpoints_of_other_logs() -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        store, log = await open_store(disk)
        log.checkpointed_high_watermark = 3
        disk.inject("append", "*checkpoint*", times=None)
        await store.open(NAME._replace(partition=1), TOPIC_ID, SMALL)

    run(body)


def test_a_checkpointed_high_watermark_does_not_cover_records_appended_after_a_crash() -> None:
    """With write.caching records are committed before they are flushed."""

    async def body() -> None:
        settings = TopicSettings(write_caching=True)
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        store, log = await open_store(disk, settings)
        first = await append(log, b"a")
        await append(log, b"b")
        log.checkpointed_high_watermark = 2
        await store.checkpoint_high_watermarks()

        def lose_the_second(data: bytearray) -> None:
            del data[first.size :]

        await rewrite(disk, SEGMENT, lose_the_second)
        disk = disk.kill()
        _, log = await open_store(disk, settings)
        assert log.end_offset == 1
        await append(log, b"not committed")
        _, log = await open_store(disk.kill(), settings)
        assert (log.checkpointed_high_watermark, log.end_offset) == (1, 2)

    run(body)


@pytest.mark.parametrize("keys", [1, 8])
@pytest.mark.parametrize("group", [0, 1, 2])
@pytest.mark.parametrize("when", ["before", "meanwhile", "after"])
def test_a_segment_reopened_by_a_truncation_is_not_replaced_by_compaction(
    when: str, group: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        _, log = await open_store(disk, COMPACTED)
        for number in range(8):
            await append(log, b"%d" % number * 300, keys=[b"key %d" % (number % keys)])
        await flush_and_finalize(log)
        clean, cleaned = Cleaner.clean, 0

        async def truncated(cleaner: Cleaner, segments: list[LogSegment]) -> LogSegment | None:
            nonlocal cleaned
            cleaned += 1
            if cleaned != group + 1:
                return await clean(cleaner, segments)
            found = await clean(cleaner, segments) if when == "after" else None
            await log.truncate_to(5)
            if when == "meanwhile":
                raise CorruptRecordError("the segment was truncated")
            return found if when == "after" else await clean(cleaner, segments)

        monkeypatch.setattr(Cleaner, "clean", truncated)
        assert not await log.compact(2000, log.end_offset)
        assert log.end_offset == 5
        await append(log, b"new", keys=[b"another"])
        await flush_and_finalize(log)
        expected = await values_of(log)
        assert expected[-1] == b"new"
        assert log.checkpoints.cleaned_offsets.get(NAME) <= 5
        assert not any(name.endswith(".cleaned") for name, _ in disk.volume.files())
        _, log = await open_store(disk.kill(), COMPACTED)
        assert await values_of(log) == expected

    run(body)


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_in_an_offset_is_reported_as_damage(clean: bool) -> None:
    """The checksum of a batch does not cover its offset."""

    def flip(data: bytearray) -> None:
        last = sum(batch.size for batch in list(split(bytes(data)))[:-1])
        data[last + 2] ^= 1

    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        store, log = await open_store(disk, TopicSettings(index_interval_bytes=100))
        for number in range(4):
            await append(log, b"v%d" % number * 60)
        await flush_and_finalize(log)
        if clean:
            await store.close()
        await rewrite(disk, SEGMENT, flip)
        try:
            _, log = await open_store(disk.kill(), TopicSettings(index_interval_bytes=100))
        except StorageError:
            return
        assert log.end_offset <= 4

    run(body)


def test_a_failed_swap_leaves_no_swap_file() -> None:
    async def body() -> None:
        settings = TopicSettings(
            cleanup_policy=("compact", "delete"),
            segment_bytes=1024,
            index_interval_bytes=100,
            min_cleanable_dirty_ratio=0.0,
            retention_ms=1000,
        )
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        store, log = await open_store(disk, settings)
        for number in range(12):
            key = b"unique" if number == 0 else b"k%d" % (number % 3)
            await append(log, b"v%d" % number * 100, keys=[key], timestamp_ms=1000 + number)
        await flush_and_finalize(log)
        rename = disk.rename

        def fails_after_the_first(old: str, new: str) -> None:
            rename(old, new)
            if new.endswith(".swap"):
                disk.inject("sync_directory", "data/orders-0", error=errno.EMFILE)
                disk.rename = rename  # type: ignore[method-assign]

        disk.rename = fails_after_the_first  # type: ignore[method-assign]
        assert not await log.compact(2000, log.end_offset)
        assert log.failure is None
        await append(log, b"new" * 100, keys=[b"z"], timestamp_ms=900_000)
        await flush_and_finalize(log)
        await log.apply_retention(900_500, log.end_offset)
        expected = [record.offset for record in await records_of(log)]
        await store.close()
        _, log = await open_store(disk.kill(), settings)
        assert [record.offset for record in await records_of(log)] == expected

    run(body)


@pytest.mark.parametrize("seed", range(10))
def test_a_power_failure_after_a_compaction_keeps_producer_sequences(seed: int) -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(seed), settings=QUICK)
        _, log = await open_store(disk, COMPACTED)

        async def write(sequence: int, producer: int, size: int = 400) -> None:
            await append(log, b"x" * size, keys=[b"k"], producer_id=producer, producer_epoch=0, base_sequence=sequence)

        for sequence in range(3):
            await write(sequence, 7)
        await write(0, 8)
        await flush_and_finalize(log)
        durable = log.end_offset
        # Enough batches that none of the durable ones is retained.
        await write(3, 7)
        for sequence in range(4, 8):
            await write(sequence, 7, 10)
        await log.finalize_segments()
        assert (log.durable_offset, log.segments.base_offsets[-1]) == (durable, durable)
        assert await log.compact(10_000, log.end_offset)
        assert durable - 2 not in [batch.base_offset for batch in await batches_of(log)], "its last batch was removed"
        _, log = await open_store(disk.crash(), COMPACTED)
        state = log.producers.get(7)
        assert state is not None
        assert state.last_sequence == 2 + log.end_offset - durable

    run(body)


def test_a_start_offset_beyond_the_end_is_damage() -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        store, log = await open_store(disk)
        for number in range(12):
            await append(log, b"v%d" % number * 150)
        await flush_and_finalize(log)
        await log.advance_start_offset(1)
        await store.close()

        def beyond(data: bytearray) -> None:
            data[:] = data.replace(b"orders 0 1", b"orders 0 17")

        await rewrite(disk, STARTS, beyond)
        with pytest.raises(StorageError, match="before its start"):
            await open_store(disk.kill())

    run(body)


def test_running_out_of_descriptors_at_a_roll_is_transient() -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        _, log = await open_store(disk)
        await append(log, b"x" * 900)
        await flush_and_finalize(log)
        disk.inject("sync_directory", "data/orders-0", error=errno.EMFILE)
        await append(log, b"x" * 900)
        with pytest.raises(StorageError):
            await log.flush()
        assert log.failure is None
        assert log.durable_offset == 1
        await flush_and_finalize(log)
        assert log.durable_offset == 2

    run(body)


def test_max_timestamp_is_found_when_compaction_has_emptied_its_batch() -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        _, log = await open_store(disk, COMPACTED)
        await append(log, b"live" * 50, keys=[b"a"], timestamp_ms=1000)
        await append(log, None, keys=[b"b"], timestamp_ms=5000, producer_id=1, producer_epoch=0, base_sequence=0)
        for now_ms in (0, 10_000, 20_000):
            await append(log, b"x" * 900, keys=[b"c"], timestamp_ms=100)
            await flush_and_finalize(log)
            await log.compact(now_ms, log.end_offset)
        assert b"b" not in [record.key for record in await records_of(log)]
        newest = await log.max_timestamp(log.end_offset)
        assert newest is not None
        assert (newest.timestamp_ms, newest.offset) == (1000, 0)

    run(body)


@pytest.mark.parametrize("power_failure", [False, True])
@pytest.mark.parametrize("offset", [1, 3, 5, 40])
def test_a_crash_during_a_reset_leaves_the_old_or_the_new_log(offset: int, power_failure: bool) -> None:
    async def body() -> None:
        outcomes = set()
        for step in range(1, 200):
            disk = DyingDisk(random.Random(step), settings=QUICK)
            _, log = await open_store(disk)
            for number in range(5):
                await append(log, b"%d" % number * 600, leader_epoch=number)
            await flush_and_finalize(log)
            await log.advance_start_offset(2)
            expected = await values_of(log)
            disk.left = step
            try:
                await log.truncate_fully_and_start_at(offset)
            except MoldauError:
                pass
            is_complete = not disk.is_dead
            _, log = await open_store(disk.after(power_failure=power_failure))
            if is_complete or log.start_offset != 2:
                assert (log.start_offset, log.end_offset, log.size) == (offset, offset, 0), f"{step} steps"
                assert list(log.epochs) == []
                outcomes.add("new")
            else:
                assert (log.start_offset, log.end_offset) == (2, 5), f"{step} steps"
                assert await values_of(log) == expected
                assert list(log.epochs) == [(2, 2), (3, 3), (4, 4)]
                outcomes.add("old")
            await append(log, b"next", leader_epoch=7)
            await flush_and_finalize(log)
            _, log = await open_store(disk.next_boot())
            assert (await values_of(log))[-1] == b"next"
            if is_complete:
                assert outcomes == {"new", "old"}
                return
        raise AssertionError("it never completed")

    run(body)


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_crash_while_the_batch_with_the_start_offset_is_truncated_keeps_producer_state(power_failure: bool) -> None:
    async def body() -> None:
        producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
        for step in range(1, 100):
            disk = DyingDisk(random.Random(step), settings=QUICK)
            _, log = await open_store(disk)
            await append(log, b"a", base_sequence=0, **producer)
            await append(log, b"b", b"c", base_sequence=1, **producer)
            await log.advance_start_offset(2)
            disk.left = step
            try:
                await log.truncate_to(2)
            except MoldauError:
                pass
            is_complete = not disk.is_dead
            _, log = await open_store(disk.after(power_failure=power_failure))
            first = log.producers.check(batch_at(0, [b"a"], base_sequence=0, **producer))
            assert first is not None, f"lost after {step} steps"
            second = log.producers.check(batch_at(0, [b"b", b"c"], base_sequence=1, **producer))
            assert (second is not None) == (log.end_offset == 3), f"{step} steps"
            if is_complete:
                assert log.end_offset == 2
                return
        raise AssertionError("it never completed")

    run(body)


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_crash_during_truncation_leaves_no_epoch_without_its_records(power_failure: bool) -> None:
    async def body() -> None:
        for step in range(1, 100):
            disk = DyingDisk(random.Random(step), settings=QUICK)
            store, log = await open_store(disk)
            for number in range(4):
                await append(log, b"a" * 200, leader_epoch=1 if number < 2 else 5)
            await store.close()
            store, log = await open_store(disk)
            disk.left = step
            try:
                await log.truncate_to(2)
            except MoldauError:
                pass
            is_complete = not disk.is_dead
            _, log = await open_store(disk.after(power_failure=power_failure))
            epochs = [(1, 0)] if log.end_offset == 2 else [(1, 0), (5, 2)]
            assert list(log.epochs) == epochs, f"after {step} steps the log ends at {log.end_offset}"
            if is_complete:
                return
        raise AssertionError("it never completed")

    run(body)


def test_a_truncation_that_succeeds_at_the_second_attempt_is_not_reported_as_lost_records() -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        _, log = await open_store(disk)
        for number in range(4):
            await append(log, b"%d" % number * 600)
        await flush_and_finalize(log)
        disk.inject("append", "*recovery-point*", error=errno.ENOSPC)
        with pytest.raises(StorageError):
            await log.truncate_to(1)
        await log.truncate_to(1)
        _, log = await open_store(disk.kill())
        assert log.end_offset == 1

    run(body)


@pytest.mark.parametrize("marker", ["incomplete-reset", "begin-anew"])
def test_a_reset_marker_that_cannot_be_read_is_damage(marker: str) -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        _, log = await open_store(disk)
        await append(log, b"a")
        await flush_and_finalize(log)
        await disk.replace(f"data/orders-0/{marker}", b'{"version": 0, "offset": -4}')
        with pytest.raises(StorageError, match=marker):
            await open_store(disk)

    run(body)


@pytest.mark.parametrize("marker", ["incomplete-reset", "begin-anew"])
def test_opening_completes_the_reset_of_a_marker_with_the_current_or_the_old_name(marker: str) -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=QUICK)
        _, log = await open_store(disk)
        for number in range(3):
            await append(log, b"%d" % number * 600, leader_epoch=number)
        await flush_and_finalize(log)
        content = b'{"version": 0, "offset": 7, "producers": null, "epochs": "0\\n1\\n2 7\\n"}'
        await disk.replace(f"data/orders-0/{marker}", content)
        disk = disk.kill()
        _, log = await open_store(disk)
        assert (log.start_offset, log.end_offset, log.size) == (7, 7, 0)
        assert list(log.epochs) == [(2, 7)]
        assert not disk.exists(f"data/orders-0/{marker}")
        await append(log, b"next", leader_epoch=3)
        await flush_and_finalize(log)
        _, log = await open_store(disk.kill())
        assert (log.start_offset, await values_of(log)) == (7, [b"next"])

    run(body)
