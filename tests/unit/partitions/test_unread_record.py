"""The first unread record of a consumer: its time comes from the leader's notes, and else from the batch header."""

import asyncio
from uuid import UUID

from moldau.logs.memory import MemoryLogStore
from moldau.metadata.image import PartitionRegistration
from moldau.partitions.partition import Partition, UnreadRecord
from moldau.records.batch import NO_TIMESTAMP, Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from moldau.settings.topic import TopicSettings
from support.replicas import NAME, TestClock

NOW_MS = 1_000_000


def image(leader: int, epoch: int) -> PartitionRegistration:
    return PartitionRegistration(0, (1, 2), (leader,), leader, epoch, epoch)


async def opened(clock: TestClock) -> Partition:
    store = MemoryLogStore()
    await store.start()
    partition = Partition(NAME, UUID(int=9), 1, await store.open(NAME, UUID(int=9), TopicSettings()), clock)
    await partition.apply_image(image(1, 3))
    return partition


async def append(partition: Partition, clock: TestClock, at_ms: int, timestamp_ms: int) -> None:
    clock.now_ms = at_ms
    appended = await partition.append([Batch(build_batch([Record(value=b"v", timestamp=timestamp_ms)]))])
    committed = partition.commit_future(appended.next_offset, appended.leader_epoch)
    if committed is not None:
        await committed


def test_the_timestamp_of_a_producer_is_limited_to_what_the_leader_noted() -> None:
    async def main() -> None:
        clock = TestClock()
        partition = await opened(clock)
        await append(partition, clock, NOW_MS, NOW_MS - 20)
        await append(partition, clock, NOW_MS + 400, 77)
        await append(partition, clock, NOW_MS + 700, NOW_MS + 650)
        await append(partition, clock, NOW_MS + 90_000, NOW_MS + 500_000)
        assert await partition.find_unread_record(0) == UnreadRecord(0, NOW_MS, True)
        assert await partition.find_unread_record(1) == UnreadRecord(1, NOW_MS, True), "off by 400 ms, never by more"
        assert await partition.find_unread_record(2) == UnreadRecord(2, NOW_MS + 650, True)
        assert await partition.find_unread_record(3) == UnreadRecord(3, NOW_MS + 90_000, True)
        assert await partition.find_unread_record(4) is None

    asyncio.run(main())


def test_a_leader_that_stays_leader_keeps_its_notes_and_a_new_one_has_the_timestamps_of_producers() -> None:
    async def main() -> None:
        clock = TestClock()
        partition = await opened(clock)
        await append(partition, clock, NOW_MS, 77)
        await partition.apply_image(image(1, 4))
        assert await partition.find_unread_record(0) == UnreadRecord(0, NOW_MS, True)
        await partition.apply_image(image(2, 5))
        await partition.apply_image(image(1, 6))
        assert await partition.find_unread_record(0) == UnreadRecord(0, 77, False)
        await append(partition, clock, NOW_MS + 9_000, NOW_MS + 8_990)
        assert await partition.find_unread_record(0) == UnreadRecord(0, 77, False)
        assert await partition.find_unread_record(1) == UnreadRecord(1, NOW_MS + 9_000, True)

    asyncio.run(main())


def test_a_skipped_epoch_loses_the_notes() -> None:
    async def main() -> None:
        clock = TestClock()
        partition = await opened(clock)
        await append(partition, clock, NOW_MS, 77)
        await partition.apply_image(image(1, 5))
        assert await partition.find_unread_record(0) == UnreadRecord(0, 77, False)

    asyncio.run(main())


def test_a_record_without_a_timestamp_that_was_not_noted_has_no_time() -> None:
    async def main() -> None:
        clock = TestClock()
        partition = await opened(clock)
        await append(partition, clock, NOW_MS, NO_TIMESTAMP)
        await partition.apply_image(image(2, 4))
        await partition.apply_image(image(1, 5))
        await append(partition, clock, NOW_MS + 5_000, NO_TIMESTAMP)
        assert await partition.find_unread_record(0) == UnreadRecord(0, NO_TIMESTAMP, False)
        assert await partition.find_unread_record(1) == UnreadRecord(1, NOW_MS + 5_000, True)

    asyncio.run(main())
