"""Appends, flushes, waiters and disk failures of a partition."""

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


class HeldFlush:
    """Lets a test decide when a flush ends."""

    def __init__(self, log: Log) -> None:
        self.syncs = 0
        self._sync = log.flush
        self.release = asyncio.Event()
        self.error: Exception | None = None
        self.is_for_good = True
        log.flush = self._flush  # type: ignore[method-assign]

        self._log = log
        self._append = log.append
        log.append = self._append_without_flush  # type: ignore[method-assign]

    async def _append_without_flush(self, batches: Any) -> None:
        durable = self._log.durable_offset
        await self._append(batches)
        self._log.durable_offset = durable

    async def _flush(self) -> None:
        self.syncs += 1
        end_offset = self._log.end_offset
        await self.release.wait()
        if self.error is not None:
            if self.is_for_good:
                offline = {"failure": property(lambda _: "the disk has failed")}
                self._log.__class__ = type("OfflineLog", (type(self._log),), offline)
            raise self.error
        self._log.durable_offset = end_offset


def test_offsets_are_consecutive_and_committed_when_durable() -> None:
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


def test_nothing_is_readable_before_it_is_durable_and_appends_share_a_flush() -> None:
    async def main() -> None:
        partition = await opened()
        held_flush = HeldFlush(partition.log)
        waiting = []
        for _ in range(10):
            appended = await partition.append([batch()])
            waiting.append(partition.commit_future(appended.next_offset, appended.leader_epoch))
        assert partition.high_watermark == 0
        assert (await partition.read(0, 1000)).records.size == 0
        held_flush.release.set()
        await asyncio.gather(*(each for each in waiting if each is not None))
        assert partition.high_watermark == 10
        assert held_flush.syncs == 2, "one for the first append, one shared by the other nine"

    with_partition(main())


def test_write_caching_commits_from_the_page_cache() -> None:
    async def main() -> None:
        partition = await opened(TopicSettings(write_caching=True))
        held_flush = HeldFlush(partition.log)
        await partition.append([batch()])
        assert partition.high_watermark == 1
        assert held_flush.syncs == 0

    with_partition(main())


def test_a_failed_flush_takes_the_partition_offline_and_fails_waiters() -> None:
    async def main() -> None:
        partition = await opened()
        held_flush = HeldFlush(partition.log)
        held_flush.error = StorageError("the disk has failed")
        appended = await partition.append([batch()])
        commit_future = partition.commit_future(appended.next_offset, appended.leader_epoch)
        notified: list[str] = []
        partition.delayed.high_watermark_listeners.add(lambda: notified.append("fetch"))
        held_flush.release.set()
        assert commit_future is not None
        with pytest.raises(StorageError):
            await commit_future
        assert notified == ["fetch"]
        with pytest.raises(StorageError):
            await partition.append([batch()])
        with pytest.raises(StorageError):
            await partition.read(0, 100)

    with_partition(main())


def test_a_flush_with_a_transient_error_is_retried_without_an_append(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.partitions.log_flusher.FLUSH_RETRY_S_MIN", 0.001)

    async def main() -> None:
        partition = await opened()
        held_flush = HeldFlush(partition.log)
        held_flush.error, held_flush.is_for_good = StorageError("no descriptors"), False
        await partition.append([batch()])
        held_flush.release.set()
        while held_flush.syncs < 4:
            await asyncio.sleep(0.001)
        assert partition.high_watermark == 0
        assert partition.failure is None
        held_flush.error = None
        commit_future = partition.commit_future(1, partition.leader_epoch)
        while commit_future is not None:
            # A running flush may have failed once more.
            await asyncio.gather(commit_future, return_exceptions=True)
            commit_future = partition.commit_future(1, partition.leader_epoch)
        assert partition.high_watermark == 1

    with_partition(main())


def test_a_closed_partition_does_not_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.partitions.log_flusher.FLUSH_RETRY_S_MIN", 0.001)

    async def main() -> None:
        partition = await opened()
        held_flush = HeldFlush(partition.log)
        held_flush.error, held_flush.is_for_good = StorageError("no descriptors"), False
        held_flush.release.set()
        await partition.append([batch()])
        await partition.close()
        assert partition._flusher._retry_timer is None
        syncs = held_flush.syncs
        await asyncio.sleep(0.01)
        assert held_flush.syncs == syncs

    with_partition(main())


def test_a_flush_with_a_transient_error_is_retried_by_the_next_append() -> None:
    async def main() -> None:
        partition = await opened()
        held_flush = HeldFlush(partition.log)
        held_flush.error, held_flush.is_for_good = StorageError("no descriptors"), False
        appended = await partition.append([batch()])
        commit_future = partition.commit_future(appended.next_offset, appended.leader_epoch)
        held_flush.release.set()
        assert commit_future is not None
        with pytest.raises(StorageError):
            await commit_future
        assert partition.failure is None
        held_flush.error = None
        appended = await partition.append([batch()])
        commit_future = partition.commit_future(appended.next_offset, appended.leader_epoch)
        if commit_future is not None:
            await commit_future
        assert partition.high_watermark == 2

    with_partition(main())


def test_a_duplicate_batch_gets_its_first_offset() -> None:
    async def main() -> None:
        partition = await opened()
        await partition.append([batch(2)])
        first = await partition.append([batch(2, producer_id=4, producer_epoch=0, base_sequence=0)])
        reopened = await partition.append([batch(2, producer_id=4, producer_epoch=0, base_sequence=0)])
        assert reopened[:2] == first[:2] == (2, 4)
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


def test_a_caller_in_another_epoch_is_fenced() -> None:
    async def main() -> None:
        partition = await opened()
        with pytest.raises(FencedLeaderEpochError):
            await partition.read(0, 100, current_leader_epoch=2)
        with pytest.raises(UnknownLeaderEpochError):
            await partition.read(0, 100, current_leader_epoch=4)
        await partition.read(0, 100, current_leader_epoch=3)

    with_partition(main())


def test_a_partition_that_loses_leadership_fails_requests_and_waiters() -> None:
    async def main() -> None:
        partition = await opened()
        HeldFlush(partition.log)
        appended = await partition.append([batch()])
        commit_future = partition.commit_future(appended.next_offset, appended.leader_epoch)
        await partition.apply_image(image(leader=2, epoch=4))
        assert commit_future is not None
        with pytest.raises(NotLeaderOrFollowerError):
            await commit_future
        with pytest.raises(NotLeaderOrFollowerError):
            await partition.append([batch()])

    with_partition(main())


def test_a_new_epoch_keeps_the_high_watermark_and_is_written_into_batches() -> None:
    async def main() -> None:
        partition = await opened()
        await partition.append([batch()])
        await asyncio.sleep(0)
        await partition.apply_image(image(epoch=7))
        assert partition.high_watermark == 1
        await partition.append([batch()])
        assert list(partition.log.epochs) == [(3, 0), (7, 1)]

    with_partition(main())
