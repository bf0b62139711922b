"""A replica whose disk fails in the middle of an operation, with transient and permanent errors."""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.errors import StorageError
from moldau.logs.files.segment import LogSegment
from moldau.logs.files.store import FileLogStore
from moldau.logs.store import StoreUnavailableError
from moldau.metadata.image import PartitionRegistration
from moldau.partitions.partition import Partition
from moldau.platform.clock import SystemClock
from moldau.raft.messages import EpochEndOffset
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.platform.disk import DiskSettings, SimulatedDisk
from support.logs import NAME, TOPIC_ID, append, batch_at, flush_and_finalize, values_of

LEADER, SELF = 1, 2
SMALL = TopicSettings(segment_bytes=1024, index_interval_bytes=100)
QUICK = DiskSettings(sync_ms_min=0, sync_ms_max=0, slow_sync_chance=0)
PATIENCE_S = 20


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), PATIENCE_S))


def image(leader: int, epoch: int) -> PartitionRegistration:
    return PartitionRegistration(0, (LEADER, SELF), (LEADER, SELF), leader, epoch, epoch)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def opened(disk: SimulatedDisk) -> Partition:
    store = FileLogStore(disk, "data", SystemClock())
    await store.start()
    return Partition(NAME, TOPIC_ID, SELF, await store.open(NAME, TOPIC_ID, SMALL), SystemClock())


class Follower:
    """A follower with two records of each of these epochs."""

    def __init__(self, *epochs: int, committed: int = 0) -> None:
        self.disk = SimulatedDisk(random.Random(1), settings=QUICK)
        self._epochs = epochs
        self._committed = committed

    async def start(self) -> Partition:
        partition = await opened(self.disk)
        for epoch in self._epochs:
            await partition.apply_image(image(LEADER, epoch))
            for _ in range(2):
                await self.apply_fetch(partition, epoch, self._committed)
        return partition

    async def apply_fetch(self, partition: Partition, epoch: int, committed: int = 0, start: int = 0) -> None:
        offset = partition.log.end_offset
        batch = batch_at(offset, [b"%d" % offset + b"x" * 300], leader_epoch=epoch)
        data = b"".join(bytes(part) for part in batch.parts())
        await partition.follower.append_as_follower(data, epoch, committed, start)


def test_appended_records_are_flushed_even_if_the_start_offset_cannot_advance() -> None:
    async def body() -> None:
        follower = Follower(0, committed=2)
        partition = await follower.start()
        notified: list[int] = []
        partition.delayed.high_watermark_listeners.add(lambda: notified.append(partition.high_watermark))
        await until(lambda: not partition._flusher.is_running)
        follower.disk.inject("append", "*log-start-offset*", error=errno.ENOSPC)
        with pytest.raises(StorageError):
            await follower.apply_fetch(partition, 0, 3, start=1)
        assert notified == [3]
        await until(lambda: partition.follower.fetch_position() is not None)
        await follower.apply_fetch(partition, 0, 4, start=1)
        assert (partition.log.start_offset, partition.log.durable_offset) == (1, 4)

    run(body)


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("append", "*recovery-point-offset-checkpoint*"),
        ("append", "*leader-epoch-checkpoint*"),
        ("sync_directory", f"*{NAME}"),
    ],
)
def test_a_truncation_on_a_full_disk_succeeds_later(operation: str, path: str) -> None:
    async def body() -> None:
        follower = Follower(0, 1, 2, committed=2)
        partition = await follower.start()
        await partition.log.finalize_segments()
        await partition.apply_image(image(LEADER, 3))
        epochs = list(partition.log.epochs)
        follower.disk.inject(operation, path, error=errno.ENOSPC)
        with pytest.raises(StorageError):
            await partition.follower.truncate_to_divergence(EpochEndOffset(0, 2), 3)
        assert partition.failure is None
        assert (partition.log.end_offset, list(partition.log.epochs)) == (6, epochs)
        await partition.log.finalize_segments()
        reopened = await opened(follower.disk.kill())
        assert (reopened.log.end_offset, list(reopened.log.epochs)) == (6, epochs)
        await reopened.apply_image(image(LEADER, 3))
        await reopened.follower.truncate_to_divergence(EpochEndOffset(0, 2), 3)
        assert (reopened.log.end_offset, list(reopened.log.epochs)) == (2, [(0, 0)])

    run(body)


def test_a_truncation_whose_directory_sync_fails_is_done() -> None:
    async def body() -> None:
        follower = Follower(0, 1, committed=4)
        partition = await follower.start()
        flusher = partition._flusher
        await until(lambda: not flusher.is_running and flusher._finalizer is None)
        await partition.apply_image(PartitionRegistration(0, (LEADER, SELF), (LEADER,), LEADER, 2, 2, unclean_epoch=2))
        # The first directory sync is for the epochs, the second for the deleted segments.
        fault = follower.disk.inject("sync_directory", f"*{NAME}", error=errno.EMFILE, after=1, times=2)
        await partition.follower.truncate_to_divergence(EpochEndOffset(0, 2), 2)
        assert fault.times == 1
        assert (partition.failure, partition.high_watermark, partition.log.end_offset) == (None, 2, 2)
        with pytest.raises(StorageError):
            await follower.apply_fetch(partition, 2, committed=3)
        assert (partition.failure, partition.log.end_offset) == (None, 2), "segments may come back that were behind"
        await follower.apply_fetch(partition, 2, committed=3)
        assert (partition.high_watermark, partition.log.durable_offset) == (3, 3)
        reopened = await opened(follower.disk.crash())
        assert (reopened.log.end_offset, list(reopened.log.epochs)) == (3, [(0, 0), (2, 2)])

    run(body)


def test_a_clean_shutdown_rewrites_the_epochs_after_a_failed_truncation() -> None:
    async def body() -> None:
        follower = Follower(0, 1)
        partition = await follower.start()
        await partition.log.close()
        store = FileLogStore(follower.disk, "data", SystemClock())
        await store.start()
        log = await store.open(NAME, TOPIC_ID, SMALL)
        await store.close()
        await store.start()
        log = await store.open(NAME, TOPIC_ID, SMALL)
        epochs = list(log.epochs)
        fault = follower.disk.inject("sync_directory", f"*{NAME}", error=errno.ENOSPC)
        with pytest.raises(StorageError):
            await log.truncate_to(2)
        assert fault.times == 0, "the directory sync of the epochs"
        assert log.failure is None
        await store.close()
        await store.start()
        assert store.had_clean_shutdown
        assert list((await store.open(NAME, TOPIC_ID, SMALL)).epochs) == epochs

    run(body)


def test_a_reset_on_a_full_disk_leaves_the_log_unchanged() -> None:
    async def body() -> None:
        follower = Follower(0, committed=2)
        partition = await follower.start()
        follower.disk.inject("append", "*incomplete-reset*", error=errno.ENOSPC)
        with pytest.raises(StorageError):
            await partition.follower.reset_to(10, 0)
        assert (partition.failure, partition.high_watermark, partition.log.end_offset) == (None, 2, 2)
        await follower.apply_fetch(partition, 0)
        reopened = await opened(follower.disk.kill())
        assert len(await values_of(reopened.log)) == 3

    run(body)


def test_a_log_with_a_committed_reset_marker_goes_offline_on_an_error() -> None:
    async def body() -> None:
        follower = Follower(0, committed=2)
        partition = await follower.start()
        follower.disk.inject("sync_directory", f"*{NAME}", error=errno.ENOSPC)
        with pytest.raises(StorageError):
            await partition.follower.reset_to(10, 0)
        assert partition.failure is not None
        reopened = await opened(follower.disk.kill())
        assert (reopened.log.start_offset, reopened.log.end_offset) == (10, 10)

    run(body)


def test_damage_found_during_a_truncation_takes_the_log_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        follower = Follower(0, 1)
        partition = await follower.start()
        await partition.apply_image(image(LEADER, 2))
        truncate_to_position = LogSegment.truncate_to_position

        def fail_as_damaged(segment: LogSegment, position: int) -> None:
            reading = segment.file.read
            monkeypatch.setattr(segment.file, "read", lambda at, size: b"\0" * len(reading(at, size)))
            truncate_to_position(segment, position)

        monkeypatch.setattr(LogSegment, "truncate_to_position", fail_as_damaged)
        with pytest.raises(StorageError):
            await partition.follower.truncate_to_divergence(EpochEndOffset(0, 2), 2)
        assert partition.failure is not None

    run(body)


def test_the_high_watermark_is_not_above_a_log_that_is_truncated_but_not_flushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        follower = Follower(0, 1, committed=4)
        partition = await follower.start()
        await partition.apply_image(PartitionRegistration(0, (LEADER, SELF), (LEADER,), LEADER, 2, 2, unclean_epoch=2))
        truncate_to = partition.log.truncate_to

        async def truncate_without_flush(offset: int) -> None:
            await truncate_to(offset)
            raise StoreUnavailableError("the flush of the remaining records failed")

        monkeypatch.setattr(partition.log, "truncate_to", truncate_without_flush)
        with pytest.raises(StoreUnavailableError):
            await partition.follower.truncate_to_divergence(EpochEndOffset(0, 2), 2)
        assert (partition.failure, partition.high_watermark, partition.log.end_offset) == (None, 2, 2)

    run(body)


def test_the_high_watermark_is_lowered_before_a_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        follower = Follower(0, 1, committed=4)
        partition = await follower.start()
        # After an unclean election committed records may be truncated.
        unclean = PartitionRegistration(0, (LEADER, SELF), (LEADER,), LEADER, 2, 2, unclean_epoch=2)
        await partition.apply_image(unclean)
        truncating, seen = partition.log.truncate_to, []

        async def truncate_to(offset: int) -> None:
            seen.append(partition.high_watermark)
            await truncating(offset)

        monkeypatch.setattr(partition.log, "truncate_to", truncate_to)
        follower.disk.inject("append", "*leader-epoch-checkpoint*", error=errno.ENOSPC, times=None)
        with pytest.raises(StorageError):
            await partition.follower.truncate_to_divergence(EpochEndOffset(0, 2), 2)
        follower.disk.faults.clear()
        assert (seen, partition.high_watermark) == ([2], 4), "nothing was truncated"
        await partition.follower.truncate_to_divergence(EpochEndOffset(0, 2), 2)
        assert (seen, partition.high_watermark) == ([2, 2], 2)

    run(body)


def test_a_log_with_records_of_an_unknown_epoch_is_offline() -> None:
    async def body() -> None:
        partition = await opened(SimulatedDisk(random.Random(1), settings=QUICK))
        await append(partition.log, b"x", leader_epoch=3)
        await append(partition.log, b"y", leader_epoch=3 + (1 << 20))
        await flush_and_finalize(partition.log)
        notified: list[str] = []
        partition.guarded_log.on_error_changed = lambda: notified.append(str(partition.failure))
        await partition.apply_image(image(SELF, 4))
        assert not partition.is_leader
        assert "epoch 1048579" in notified[0]

    run(body)


def test_a_waiter_added_between_a_failure_and_the_end_of_a_flush_fails() -> None:
    async def body() -> None:
        disk = SimulatedDisk(random.Random(1), settings=DiskSettings(sync_ms_min=5, sync_ms_max=5))
        partition = await opened(disk)
        await partition.apply_image(PartitionRegistration(0, (SELF,), (SELF,), SELF, 0, 0))
        await partition.append([batch_at(0, [b"a"])])
        assert partition._flusher.is_running
        disk.inject("append", "*.log", error=errno.EIO)
        with pytest.raises(StorageError):
            await partition.append([batch_at(0, [b"b"])])
        assert partition._flusher.is_running
        with pytest.raises(StorageError):
            await partition.delete_records(-1)

    run(body)


def test_a_closing_follower_fails_waiters_of_a_failed_flush() -> None:
    async def body() -> None:
        follower = Follower()
        partition = await opened(follower.disk)
        await partition.apply_image(image(LEADER, 0))
        await follower.apply_fetch(partition, 0, committed=1)
        moving = asyncio.ensure_future(follower.apply_fetch(partition, 0, committed=1, start=1))
        await asyncio.sleep(0)
        assert partition._lock.locked(), "its start offset is being advanced"
        closing = asyncio.ensure_future(partition.close())
        follower.disk.inject("sync", "*.log", error=errno.EIO)
        with pytest.raises(StorageError):
            await moving
        await closing

    run(body)


def test_an_offline_partition_keeps_no_tracebacks() -> None:
    async def body() -> None:
        partition = await opened(SimulatedDisk(random.Random(1), settings=QUICK))
        await partition.apply_image(image(LEADER, 0))
        partition.guarded_log.mark_offline(StorageError("EIO"))
        for ask in (partition.latest_epoch_and_end_offset, partition.require_leader):
            lengths = []
            for _ in range(3):
                with pytest.raises(StorageError, match="EIO") as notified:
                    ask()
                lengths.append(len(notified.traceback))
            assert len(set(lengths)) == 1

    run(body)
