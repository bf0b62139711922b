"""A partition: its high watermark, who may read what, who is woken when, and what a failing disk does to
it."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest

from moldau.errors import (
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    StorageError,
    UnknownLeaderEpochError,
)
from moldau.logs.memory import MemoryLogStore
from moldau.logs.store import Log, LogName
from moldau.metadata.image import PartitionRegistration
from moldau.partitions.partition import Partition
from moldau.platform.clock import SystemClock
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from moldau.settings.topic import TopicSettings

NAME = LogName("orders", 0)
PATIENCE_S = 20


def image(leader: int = 1, epoch: int = 3) -> PartitionRegistration:
    return PartitionRegistration(0, (1, 2), (leader,), leader, epoch, epoch)


def batch(count: int = 1, **more: Any) -> Batch:
    return Batch(build_batch([Record(value=b"v%d" % number) for number in range(count)], **more))


def with_partition(test: "Coroutine[Any, Any, None]") -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


async def opened(settings: TopicSettings | None = None) -> Partition:
    store = MemoryLogStore()
    await store.start()
    log = await store.open(NAME, UUID(int=9), settings or TopicSettings())
    partition = Partition(NAME, UUID(int=9), 1, log, SystemClock())
    await partition.apply_image(image())
    return partition


class Held:
    """Lets a test decide when a sync ends."""

    def __init__(self, log: Log) -> None:
        self.syncs = 0
        self._sync = log.flush
        self.release = asyncio.Event()
        self.error: Exception | None = None
        self.is_for_good = True
        log.flush = self._make_durable  # type: ignore[method-assign]

        self._log = log
        self._append = log.append
        log.append = self._not_yet_durable  # type: ignore[method-assign]

    async def _not_yet_durable(self, batches: Any) -> None:
        durable = self._log.durable_offset
        await self._append(batches)
        self._log.durable_offset = durable

    async def _make_durable(self) -> None:
        self.syncs += 1
        end_offset = self._log.end_offset
        await self.release.wait()
        if self.error is not None:
            if self.is_for_good:
                offline = {"failure": property(lambda _: "the disk is gone")}
                self._log.__class__ = type("OfflineLog", (type(self._log),), offline)
            raise self.error
        self._log.durable_offset = end_offset


def test_offsets_count_on_and_are_committed_when_durable() -> None:
    async def main() -> None:
        partition = await opened()
        first = await partition.append([batch(3)])
        second = await partition.append([batch(2)])
        assert (first.base_offset, first.next_offset) == (0, 3)
        assert (second.base_offset, second.next_offset) == (3, 5)
        await asyncio.sleep(0)
        assert partition.high_watermark == 5
        assert partition.commit_future(5, partition.leader_epoch) is None

    with_partition(main())


def test_nothing_is_read_before_it_is_durable_and_many_appends_share_a_sync() -> None:
    async def main() -> None:
        partition = await opened()
        held = Held(partition.log)
        waiting = []
        for _ in range(10):
            appended = await partition.append([batch()])
            waiting.append(partition.commit_future(appended.next_offset, appended.leader_epoch))
        assert partition.high_watermark == 0
        assert (await partition.read(0, 1000)).records.size == 0
        held.release.set()
        await asyncio.gather(*(each for each in waiting if each is not None))
        assert partition.high_watermark == 10
        assert held.syncs == 2, "one for the first append, one shared by the other nine"

    with_partition(main())


def test_write_caching_commits_from_the_page_cache() -> None:
    async def main() -> None:
        partition = await opened(TopicSettings(write_caching=True))
        held = Held(partition.log)
        await partition.append([batch()])
        assert partition.high_watermark == 1
        assert held.syncs == 0

    with_partition(main())


def test_a_failed_sync_takes_the_partition_offline_and_tells_who_waits() -> None:
    async def main() -> None:
        partition = await opened()
        held = Held(partition.log)
        held.error = StorageError("the disk is gone")
        appended = await partition.append([batch()])
        commit_future = partition.commit_future(appended.next_offset, appended.leader_epoch)
        told: list[str] = []
        partition.delayed.high_watermark_listeners.add(lambda: told.append("fetch"))
        held.release.set()
        assert commit_future is not None
        with pytest.raises(StorageError):
            await commit_future
        assert told == ["fetch"]
        with pytest.raises(StorageError):
            await partition.append([batch()])
        with pytest.raises(StorageError):
            await partition.read(0, 100)

    with_partition(main())


def test_a_sync_that_fails_for_the_moment_is_tried_again_though_nobody_appends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moldau.partitions.log_flusher.FLUSH_RETRY_S_MIN", 0.001)

    async def main() -> None:
        partition = await opened()
        held = Held(partition.log)
        held.error, held.is_for_good = StorageError("no descriptors"), False
        await partition.append([batch()])
        held.release.set()
        while held.syncs < 4:
            await asyncio.sleep(0.001)
        assert partition.high_watermark == 0
        assert partition.failure is None
        held.error = None
        commit_future = partition.commit_future(1, partition.leader_epoch)
        while commit_future is not None:
            # A sync that was under way may have failed once more.
            await asyncio.gather(commit_future, return_exceptions=True)
            commit_future = partition.commit_future(1, partition.leader_epoch)
        assert partition.high_watermark == 1

    with_partition(main())


def test_a_partition_that_is_closed_syncs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.partitions.log_flusher.FLUSH_RETRY_S_MIN", 0.001)

    async def main() -> None:
        partition = await opened()
        held = Held(partition.log)
        held.error, held.is_for_good = StorageError("no descriptors"), False
        held.release.set()
        await partition.append([batch()])
        await partition.close()
        assert partition._flusher._retry_timer is None
        syncs = held.syncs
        await asyncio.sleep(0.01)
        assert held.syncs == syncs

    with_partition(main())


def test_a_sync_that_fails_for_the_moment_is_tried_again_with_the_next_append() -> None:
    async def main() -> None:
        partition = await opened()
        held = Held(partition.log)
        held.error, held.is_for_good = StorageError("no descriptors"), False
        appended = await partition.append([batch()])
        commit_future = partition.commit_future(appended.next_offset, appended.leader_epoch)
        held.release.set()
        assert commit_future is not None
        with pytest.raises(StorageError):
            await commit_future
        assert partition.failure is None
        held.error = None
        appended = await partition.append([batch()])
        commit_future = partition.commit_future(appended.next_offset, appended.leader_epoch)
        if commit_future is not None:
            await commit_future
        assert partition.high_watermark == 2

    with_partition(main())


def test_a_repeated_batch_gets_the_offset_it_had() -> None:
    async def main() -> None:
        partition = await opened()
        await partition.append([batch(2)])
        first = await partition.append([batch(2, producer_id=4, producer_epoch=0, base_sequence=0)])
        again = await partition.append([batch(2, producer_id=4, producer_epoch=0, base_sequence=0)])
        assert again[:2] == first[:2] == (2, 4)
        assert partition.log.end_offset == 4
        with pytest.raises(OutOfOrderSequenceError):
            await partition.append([batch(producer_id=4, producer_epoch=0, base_sequence=9)])

    with_partition(main())


def test_offsets_outside_the_log_are_out_of_range() -> None:
    async def main() -> None:
        partition = await opened()
        await partition.append([batch(3)])
        await asyncio.sleep(0)
        assert (await partition.read(3, 100)).records.size == 0
        for offset in (-1, 4):
            with pytest.raises(OffsetOutOfRangeError):
                await partition.read(offset, 100)
        assert await partition.delete_records(2) == 2
        with pytest.raises(OffsetOutOfRangeError):
            await partition.read(1, 100)
        with pytest.raises(OffsetOutOfRangeError):
            await partition.delete_records(4)
        assert await partition.delete_records(-1) == 3

    with_partition(main())


def test_a_caller_with_another_epoch_is_refused() -> None:
    async def main() -> None:
        partition = await opened()
        with pytest.raises(FencedLeaderEpochError):
            await partition.read(0, 100, current_leader_epoch=2)
        with pytest.raises(UnknownLeaderEpochError):
            await partition.read(0, 100, current_leader_epoch=4)
        await partition.read(0, 100, current_leader_epoch=3)

    with_partition(main())


def test_a_partition_that_is_led_elsewhere_refuses_and_tells_who_waits() -> None:
    async def main() -> None:
        partition = await opened()
        Held(partition.log)
        appended = await partition.append([batch()])
        commit_future = partition.commit_future(appended.next_offset, appended.leader_epoch)
        await partition.apply_image(image(leader=2, epoch=4))
        assert commit_future is not None
        with pytest.raises(NotLeaderOrFollowerError):
            await commit_future
        with pytest.raises(NotLeaderOrFollowerError):
            await partition.append([batch()])

    with_partition(main())


def test_a_new_epoch_keeps_the_high_watermark_and_stamps_batches() -> None:
    async def main() -> None:
        partition = await opened()
        await partition.append([batch()])
        await asyncio.sleep(0)
        await partition.apply_image(image(epoch=7))
        assert partition.high_watermark == 1
        await partition.append([batch()])
        assert list(partition.log.epochs) == [(3, 0), (7, 1)]

    with_partition(main())
