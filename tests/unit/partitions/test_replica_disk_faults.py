"""A replica whose disk refuses one step of several, for the moment or for good: it is left neither stuck nor half done,
and what may pass takes nothing offline."""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.errors import StorageError
from moldau.logs.files.segment import LogSegment
from moldau.logs.files.store import FileLogStore
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
    """With two records of each of these epochs, all of them committed up to `committed`."""

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


def test_what_is_appended_is_synced_though_the_start_cannot_be_moved() -> None:
    async def body() -> None:
        follower = Follower(0, committed=2)
        partition = await follower.start()
        told: list[int] = []
        partition.delayed.high_watermark_listeners.add(lambda: told.append(partition.high_watermark))
        await until(lambda: not partition._flusher.is_running)
        follower.disk.inject("append", "*log-start-offset*", error=errno.ENOSPC)
        with pytest.raises(StorageError):
            await follower.apply_fetch(partition, 0, 3, start=1)
        assert told == [3]
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
def test_a_cut_that_the_disk_has_no_room_for_is_made_later(operation: str, path: str) -> None:
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
        again = await opened(follower.disk.kill())
        assert (again.log.end_offset, list(again.log.epochs)) == (6, epochs)
        await again.apply_image(image(LEADER, 3))
        await again.follower.truncate_to_divergence(EpochEndOffset(0, 2), 3)
        assert (again.log.end_offset, list(again.log.epochs)) == (2, [(0, 0)])

    run(body)


def test_a_cut_whose_names_are_not_safe_yet_is_made() -> None:
    async def body() -> None:
        follower = Follower(0, 1, committed=4)
        partition = await follower.start()
        await until(lambda: not partition._flusher.is_running)
        await partition.apply_image(
            PartitionRegistration(0, (LEADER, SELF), (LEADER,), LEADER, 2, 2, unclean_epoch=2)
        )
        # The first sync of the directory is for the epochs, the second for the segments that are gone.
        fault = follower.disk.inject("sync_directory", f"*{NAME}", error=errno.EMFILE, after=1, times=2)
        await partition.follower.truncate_to_divergence(EpochEndOffset(0, 2), 2)
        assert fault.times == 1
        assert (partition.failure, partition.high_watermark, partition.log.end_offset) == (None, 2, 2)
        with pytest.raises(StorageError):
            await follower.apply_fetch(partition, 2, committed=3)
        assert (partition.failure, partition.log.end_offset) == (None, 2), (
            "segments may come back that were behind"
        )
        await follower.apply_fetch(partition, 2, committed=3)
        assert (partition.high_watermark, partition.log.durable_offset) == (3, 3)
        again = await opened(follower.disk.crash())
        assert (again.log.end_offset, list(again.log.epochs)) == (3, [(0, 0), (2, 2)])

    run(body)


def test_a_clean_shutdown_writes_the_epochs_that_a_cut_which_failed_has_left_out() -> None:
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
        assert fault.times == 0, "it was the directory with the epochs"
        assert log.failure is None
        await store.close()
        await store.start()
        assert store.had_clean_shutdown
        assert list((await store.open(NAME, TOPIC_ID, SMALL)).epochs) == epochs

    run(body)


def test_a_log_that_cannot_begin_anew_for_want_of_room_goes_on_as_it_is() -> None:
    async def body() -> None:
        follower = Follower(0, committed=2)
        partition = await follower.start()
        follower.disk.inject("append", "*incomplete-reset*", error=errno.ENOSPC)
        with pytest.raises(StorageError):
            await partition.follower.reset_to(10, 0)
        assert (partition.failure, partition.high_watermark, partition.log.end_offset) == (None, 2, 2)
        await follower.apply_fetch(partition, 0)
        again = await opened(follower.disk.kill())
        assert len(await values_of(again.log)) == 3

    run(body)


def test_a_log_of_which_the_next_start_would_begin_anew_is_offline() -> None:
    async def body() -> None:
        follower = Follower(0, committed=2)
        partition = await follower.start()
        follower.disk.inject("sync_directory", f"*{NAME}", error=errno.ENOSPC)
        with pytest.raises(StorageError):
            await partition.follower.reset_to(10, 0)
        assert partition.failure is not None
        again = await opened(follower.disk.kill())
        assert (again.log.start_offset, again.log.end_offset) == (10, 10)

    run(body)


def test_damage_found_in_the_middle_of_a_cut_takes_the_log_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        follower = Follower(0, 1)
        partition = await follower.start()
        await partition.apply_image(image(LEADER, 2))
        truncate_to_position = LogSegment.truncate_to_position

        def damaged_cut(segment: LogSegment, position: int) -> None:
            reading = segment.file.read
            monkeypatch.setattr(segment.file, "read", lambda at, size: b"\0" * len(reading(at, size)))
            truncate_to_position(segment, position)

        monkeypatch.setattr(LogSegment, "truncate_to_position", damaged_cut)
        with pytest.raises(StorageError):
            await partition.follower.truncate_to_divergence(EpochEndOffset(0, 2), 2)
        assert partition.failure is not None

    run(body)


def test_no_high_watermark_above_the_cut_is_saved_while_a_log_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        follower = Follower(0, 1, committed=4)
        partition = await follower.start()
        # After an unclean election what was committed may be cut.
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
        assert (seen, partition.high_watermark) == ([2], 4), "nothing was cut"
        await partition.follower.truncate_to_divergence(EpochEndOffset(0, 2), 2)
        assert (seen, partition.high_watermark) == ([2, 2], 2)

    run(body)


def test_a_log_with_records_of_an_epoch_that_never_was_is_offline_and_says_why() -> None:
    async def body() -> None:
        partition = await opened(SimulatedDisk(random.Random(1), settings=QUICK))
        await append(partition.log, b"x", leader_epoch=3)
        await append(partition.log, b"y", leader_epoch=3 + (1 << 20))
        await flush_and_finalize(partition.log)
        told: list[str] = []
        partition.guarded_log.on_error_changed = lambda: told.append(str(partition.failure))
        await partition.apply_image(image(SELF, 4))
        assert not partition.is_leader
        assert "epoch 1048579" in told[0]

    run(body)


def test_who_comes_between_a_failure_and_the_end_of_a_sync_does_not_wait_for_ever() -> None:
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


def test_a_follower_that_closes_tells_who_waits_for_a_sync_that_fails() -> None:
    async def body() -> None:
        follower = Follower()
        partition = await opened(follower.disk)
        await partition.apply_image(image(LEADER, 0))
        await follower.apply_fetch(partition, 0, committed=1)
        moving = asyncio.ensure_future(follower.apply_fetch(partition, 0, committed=1, start=1))
        await asyncio.sleep(0)
        assert partition._lock.locked(), "its start is being moved"
        closing = asyncio.ensure_future(partition.close())
        follower.disk.inject("sync", "*.log", error=errno.EIO)
        with pytest.raises(StorageError):
            await moving
        await closing

    run(body)


def test_an_offline_partition_does_not_hold_on_to_who_has_asked() -> None:
    async def body() -> None:
        partition = await opened(SimulatedDisk(random.Random(1), settings=QUICK))
        await partition.apply_image(image(LEADER, 0))
        partition.guarded_log.mark_offline(StorageError("EIO"))
        for ask in (partition.latest_epoch_and_end_offset, partition.require_leader):
            lengths = []
            for _ in range(3):
                with pytest.raises(StorageError, match="EIO") as told:
                    ask()
                lengths.append(len(told.traceback))
            assert len(set(lengths)) == 1

    run(body)
