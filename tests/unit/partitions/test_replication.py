"""What a leader counts as replicated, and role changes of a replica."""

import asyncio

import pytest

from moldau.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    StaleBrokerEpochError,
)
from moldau.partitions.partition import DivergingEpochError
from moldau.raft.messages import EpochEndOffset
from moldau.records.batch import Batch
from support.replicas import Replicas, batch, broker_image
from support.replication_stories import run

# Acknowledgement by fetches


def test_fetched_records_count_when_the_next_fetch_is_past_them() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        fetched = await both.send_fetch(2)
        assert fetched.records.size > 0
        assert both[1].high_watermark == 0
        await both.apply_fetch(2, fetched)
        assert both[1].high_watermark == 0
        await both.send_fetch(2)
        assert both[1].high_watermark == 1

    run(main())


def test_a_retried_delayed_fetch_does_not_count_again() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        fetch_request = both.build_fetch(2)
        await both[1].read_for_follower(fetch_request, 1000)
        both.clock.now_ms += 5_000
        await both[1].read_for_follower(fetch_request, 1000, is_new_request=False)
        assert both[1].require_leader().followers[2].fetched_ms == 1_000

    run(main())


def test_a_follower_acknowledges_only_flushed_records() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        fetched = await both.send_fetch(2)
        both.log(2).disk_is_stuck = True
        taking = asyncio.ensure_future(both.apply_fetch(2, fetched))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not taking.done()
        assert both.log(2).end_offset == 1
        assert both[2].follower.fetch_position() is None
        both.log(2).free_disk()
        await taking
        position = both[2].follower.fetch_position()
        assert position is not None
        assert position.offset == 1

    run(main())


def test_with_write_caching_a_follower_does_not_wait_for_a_flush() -> None:
    async def main() -> None:
        both = Replicas((1, 2), write_caching=True)
        await both.begin()
        await both.produce(1, b"a")
        both.log(2).disk_is_stuck = True
        await both.fetch(2)
        await both.send_fetch(2)
        assert both[1].high_watermark == 1

    run(main())


def test_a_previous_leader_fetches_only_when_its_records_are_flushed() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        both.log(1).disk_is_stuck = True
        await both.produce(1, b"a", acks_all=False)
        both.elect(2, [2])
        await both.publish_image()
        assert both[1].follower.fetch_position() is None
        both.log(1).free_disk()
        for _ in range(10):
            await asyncio.sleep(0)
        assert both[1].follower.fetch_position() is not None

    run(main())


def test_a_follower_of_a_previous_incarnation_or_epoch_does_not_count() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        fetch_request = both.build_fetch(2)._replace(offset=1)
        both.brokers = {**both.brokers, 2: broker_image(2, epoch=999)}
        both[1].leader.on_brokers(both.brokers)
        with pytest.raises(StaleBrokerEpochError):
            await both[1].read_for_follower(fetch_request, 1000)
        with pytest.raises(FencedLeaderEpochError):
            await both[1].read_for_follower(fetch_request._replace(current_leader_epoch=-1), 1000)
        assert both[1].high_watermark == 0

    run(main())


def test_a_follower_ahead_of_its_leader_counts_only_after_truncation() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        fetch_request = both.build_fetch(2)._replace(offset=5, last_fetched_epoch=0)
        with pytest.raises(DivergingEpochError):
            await both[1].read_for_follower(fetch_request, 1000)
        with pytest.raises(OffsetOutOfRangeError):
            await both[1].read_for_follower(fetch_request._replace(last_fetched_epoch=-1), 1000)
        assert both[1].require_leader().followers[2].durable_offset == -1

    run(main())


def test_a_follower_truncates_a_batch_of_a_future_epoch() -> None:
    """The checksum does not cover the epoch: a bit of it was flipped on the follower's disk."""

    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        for value in (b"a", b"b", b"c"):
            await both.produce(1, value)
        await both.replicate(2)
        both.log(2).epochs.assign(1 << 20, 2)
        assert await both.fetch(2) == EpochEndOffset(0, 3)
        assert both.log(2).end_offset == 2
        await both.replicate(2)
        assert both.log(2).end_offset == both[1].high_watermark == 3

    run(main())


def test_a_fetched_batch_of_a_future_epoch_is_rejected() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        records = bytearray((await both.send_fetch(2)).records.read())
        records[12:16] = (1 << 20).to_bytes(4, "big")
        with pytest.raises(CorruptRecordError):
            await both[2].follower.append_as_follower(memoryview(records), 0, 0, 0)

    run(main())


# Roles


def test_a_stale_image_is_ignored() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin(leader=1)
        earlier = both.image
        both.elect(2)
        await both.publish_image()
        await both[1].apply_image(earlier, brokers=both.brokers)
        assert both[1].leader_id == 2
        await both[2].apply_image(earlier, brokers=both.brokers)
        assert both[2].is_leader

    run(main())


def test_a_broker_whose_metadata_is_older_than_its_log_does_not_lead() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin(leader=1)
        earlier = both.image
        both.elect(1)
        both.elect(1)
        await both.publish_image(1)
        await both.produce(1, b"a", acks_all=False)
        await both.lose_power(1)
        both.restart(1)
        await both[1].apply_image(earlier, brokers=both.brokers)
        assert not both[1].is_leader
        assert list(both.log(1).epochs) == [(2, 0)]

    run(main())


def test_a_partition_without_a_leader_keeps_its_high_watermark() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        await both.replicate(2)
        both.elect(-1, [2])
        await both.publish_image(2)
        assert not both[2].is_follower
        assert both[2].follower.fetch_position() is None
        assert both[2].high_watermark == 1
        assert both[2].latest_epoch_and_end_offset() == EpochEndOffset(0, 1)

    run(main())


# Batches that come before the election


@pytest.mark.parametrize("refuse", ["append", "note_rejected"])
def test_a_batch_behind_one_that_came_before_the_election_is_rejected_too(refuse: str) -> None:
    """Producers have several batches in flight. After OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka would start a new epoch
    and write batches in flight to other partitions twice."""

    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a", producer_id=7, sequence=0)
        await both.replicate(2)
        early = batch(b"b", producer_id=7, sequence=1)
        if refuse == "append":
            with pytest.raises(NotLeaderOrFollowerError):
                await both[2].append([early])
        else:
            with pytest.raises(NotLeaderOrFollowerError) as refused:
                both[2].require_leader()
            both[2].note_rejected(early, refused.value)
        both.elect(2)
        await both.publish_image()
        with pytest.raises(NotLeaderOrFollowerError, match="sequence 1 of producer 7"):
            await both.produce(2, b"c", producer_id=7, sequence=2)
        for sequence, value in ((1, b"b"), (2, b"c")):
            await both.produce(2, value, producer_id=7, sequence=sequence)
        assert both[2].log.end_offset == 3

    run(main())


def test_a_damaged_batch_before_the_election_rejects_no_other() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        early = bytearray(batch(b"b", producer_id=7, sequence=0).data)
        early[-1] ^= 1
        both[2].note_rejected(Batch(memoryview(early)), NotLeaderOrFollowerError("not the leader"))
        both.elect(2)
        await both.publish_image()
        await both.produce(2, b"c", producer_id=7, sequence=5)

    run(main())
