"""How a follower applies the fetch responses of its leader."""

import asyncio

import pytest

from moldau.errors import CorruptRecordError, FencedLeaderEpochError, NotLeaderOrFollowerError, OffsetOutOfRangeError
from moldau.raft.messages import EpochEndOffset
from support.replicas import Replicas, batch
from support.replication_stories import run


def test_a_fetch_response_of_another_epoch_is_rejected() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        late = await both.send_fetch(2)
        both.elect(1)
        await both.publish_image()
        with pytest.raises(FencedLeaderEpochError):
            await both.apply_fetch(2, late, leader_epoch=0)
        with pytest.raises(FencedLeaderEpochError):
            await both[2].follower.truncate_to_divergence(EpochEndOffset(0, 0), 0)
        both.elect(2)
        await both.publish_image()
        with pytest.raises(NotLeaderOrFollowerError):
            await both.apply_fetch(2, late, leader_epoch=2)
        assert both.log(2).end_offset == 0

    run(main())


def test_a_duplicate_fetch_response_is_appended_once() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        fetched = await both.send_fetch(2)
        await both.apply_fetch(2, fetched)
        with pytest.raises(CorruptRecordError):
            await both.apply_fetch(2, fetched)
        assert await both.values(2) == ["a@0"]

    run(main())


def test_a_damaged_batch_is_rejected_and_a_truncated_one_ignored() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        await both.produce(1, b"b")
        data = bytearray((await both.send_fetch(2)).records.read())
        data[-1] ^= 1
        with pytest.raises(CorruptRecordError):
            await both[2].follower.append_as_follower(data, 0, 0, 0)
        assert both.log(2).end_offset == 0
        await both[2].follower.append_as_follower(memoryview(data)[:-10], 0, 0, 0)
        assert await both.values(2) == ["a@0"]

    run(main())


def test_a_follower_accepts_gaps_left_by_compaction() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        later = batch(b"later")
        later.base_offset, later.leader_epoch = 40, 0
        await both[2].follower.append_as_follower(later.to_bytes(), 0, 0, 0)
        assert both.log(2).end_offset == 41

    run(main())


def test_the_start_offset_of_a_follower_follows_the_leader() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        for value in (b"a", b"b", b"c"):
            await both.produce(1, value)
        await both.replicate(2)
        low_watermark_future = asyncio.ensure_future(both[1].delete_records(2))
        await low_watermark_future
        assert both[1].low_watermark_future(2) is not None, "the follower still has them"
        await both.fetch(2)
        assert both.log(2).start_offset == 2
        await both.send_fetch(2)
        assert both[1].low_watermark_future(2) is None

    run(main())


def test_a_follower_resets_its_log_when_its_leader_has_deleted_all_its_records() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin(isr=[1])
        await both.produce(1, b"a", b"b", b"c")
        await both.produce(1, b"d")
        await both[1].delete_records(2)
        with pytest.raises(OffsetOutOfRangeError) as raised:
            await both.send_fetch(2)
        start_offset = raised.value.start_offset  # type: ignore[attr-defined]
        await both[2].follower.reset_to(start_offset, 0)
        # The log starts inside a batch, which is appended whole.
        await both.replicate(2)
        assert (both.log(2).start_offset, both.log(2).end_offset) == (2, 4)
        assert await both.seen(2, 2, from_follower=True) == ["a", "b", "c", "d"], "a reader skips what is before"

    run(main())


def test_the_next_leader_knows_the_producer_state() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        first = await both.produce(1, b"a", producer_id=7, sequence=0)
        await both.produce(1, b"b", producer_id=7, sequence=1)
        await both.replicate(2)
        both.elect(2)
        await both.publish_image()
        reopened = await both.produce(2, b"a", producer_id=7, sequence=0)
        assert reopened.base_offset == first.base_offset
        assert (await both.produce(2, b"c", producer_id=7, sequence=2)).base_offset == 2

    run(main())


def test_truncation_truncates_producer_state() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a", producer_id=7, sequence=0)
        await both.replicate(2)
        await both.produce(1, b"b", producer_id=7, sequence=1)
        both.elect(2, [2])
        await both.publish_image()
        await both.replicate(1)
        assert await both.values(1) == ["a@0"]
        both.elect(1, [1, 2])
        await both.publish_image()
        assert (await both.produce(1, b"b", producer_id=7, sequence=1)).base_offset == 1

    run(main())
