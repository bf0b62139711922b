"""When records are committed, what consumers and followers can read, and ISR proposals."""

import pytest

from moldau.controller.requests import IsrChangeResult
from moldau.errors import (
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
)
from moldau.partitions.partition import DivergingEpochError, LogReadInfo
from support.replicas import TOPIC_ID, Replicas
from support.replication_stories import run

# Reads


def test_consumers_read_committed_records_and_followers_read_everything() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        assert await both.seen(1) == []
        await both.fetch(2)
        assert await both.values(2) == ["a@0"]
        assert await both.seen(2, from_follower=True) == []
        with pytest.raises(NotLeaderOrFollowerError) as raised:
            await both.seen(2)
        assert (raised.value.leader_id, raised.value.leader_epoch) == (1, 0)
        await both.fetch(2)
        assert await both.seen(1) == ["a"]
        assert await both.seen(2, from_follower=True) == ["a"]

    run(main())


def test_appends_wake_followers_and_commits_wake_consumers() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        notified: list[str] = []
        both[1].delayed.append_listeners.add(lambda: notified.append("follower"))
        both[1].delayed.high_watermark_listeners.add(lambda: notified.append("consumer"))
        await both.produce(1, b"a")
        assert notified == ["follower"]
        await both.fetch(2)
        await both.send_fetch(2)
        assert notified == ["follower", "consumer"]
        both.elect(2)
        await both.publish_image()
        assert notified == ["follower", "consumer", "consumer", "follower"], "both are notified that it no longer leads"

    run(main())


def test_a_new_leader_has_no_latest_offset_before_it_knows_the_high_watermark() -> None:
    async def main() -> None:
        three = Replicas((1, 2, 3))
        await three.begin()
        await three.produce(1, b"a")
        await three.replicate(2, 3, times=1)
        three.elect(2, [2, 3])
        await three.publish_image()
        with pytest.raises(OffsetNotAvailableError):
            three[2].latest_offset()
        await three.fetch(3)
        assert three[2].latest_offset() == 1

    run(main())


# Commits


def test_acks_all_waits_for_the_isr_and_fails_below_min_isr() -> None:
    async def main() -> None:
        three = Replicas((1, 2, 3), min_insync_replicas=2)
        await three.begin()
        appended = await three.produce(1, b"a")
        acknowledged = three[1].commit_future(appended.next_offset, appended.leader_epoch, acks_all=True)
        committed = three[1].commit_future(appended.next_offset, appended.leader_epoch)
        assert acknowledged is not None
        assert committed is not None
        answer = IsrChangeResult(TOPIC_ID, 0, 1, 0, (1,), False, 1)
        three[1].leader.on_alter_partition_response(answer)
        with pytest.raises(NotEnoughReplicasAfterAppendError):
            await acknowledged
        assert not committed.done(), "the records may still be committed, and group loading waits for that"
        with pytest.raises(NotEnoughReplicasError):
            await three.produce(1, b"b")
        with pytest.raises(NotEnoughReplicasAfterAppendError):
            three[1].commit_future(appended.next_offset, appended.leader_epoch, acks_all=True)

    run(main())


def test_pending_commits_fail_with_the_new_leader() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        appended = await both.produce(1, b"a")
        waiting = both[1].commit_future(appended.next_offset, appended.leader_epoch, acks_all=True)
        assert waiting is not None
        both.elect(2)
        await both.publish_image()
        with pytest.raises(NotLeaderOrFollowerError) as raised:
            await waiting
        assert (raised.value.leader_id, raised.value.leader_epoch) == (2, 1)

    run(main())


def test_without_a_lease_a_leader_commits_nothing_but_serves_reads() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        await both.replicate(2)
        both.leases[1].valid = False
        with pytest.raises(NotLeaderOrFollowerError):
            await both.produce(1, b"b")
        with pytest.raises(NotLeaderOrFollowerError):
            both[1].check_lease()
        assert await both.seen(1) == ["a"]
        assert isinstance(await both.send_fetch(2), LogReadInfo), "followers are served too"

    run(main())


def test_without_a_lease_a_missing_offset_is_not_out_of_range() -> None:
    """A consumer that read further from a newer leader and fetches from the previous one must not reset its
    position."""

    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        await both.replicate(2, times=2)
        await both.produce(1, b"b")
        with pytest.raises(OffsetOutOfRangeError):
            await both[1].read(7, 1000)
        with pytest.raises(DivergingEpochError):
            await both[1].read(7, 1000, last_fetched_epoch=0)
        with pytest.raises(OffsetOutOfRangeError):
            await both[1].read(1, 1000, last_fetched_epoch=1)
        assert both[1].end_offset_for_epoch(1) == (-1, -1)
        assert both[1].end_offset_for_epoch(0) == (0, 2)
        both.leases[1].valid = False
        for last_fetched_epoch in (-1, 0, 1):
            with pytest.raises(NotLeaderOrFollowerError):
                await both[1].read(7, 1000, last_fetched_epoch=last_fetched_epoch)
        with pytest.raises(NotLeaderOrFollowerError):
            await both[1].read(1, 1000, last_fetched_epoch=1)
        with pytest.raises(NotLeaderOrFollowerError):
            both[1].end_offset_for_epoch(1)
        with pytest.raises(NotLeaderOrFollowerError):
            both[1].end_offset_for_epoch(0)
        assert await both.seen(1) == ["a"]

    run(main())


def test_without_a_lease_a_leader_returns_committed_epoch_end_offsets() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        await both.replicate(2, times=2)
        both.elect(2)
        await both.publish_image()
        await both.replicate(1, times=2)
        both.leases[2].valid = False
        assert both[2].end_offset_for_epoch(0) == (0, 1)

    run(main())


# The ISR


def test_a_pending_isr_change_is_the_same_until_its_response() -> None:
    async def main() -> None:
        three = Replicas((1, 2, 3))
        await three.begin(isr=[1, 2])
        await three.produce(1, b"a")
        await three.replicate(2, times=2)
        await three.fetch(3)
        assert not three[1].leader.can_join_isr(3)
        await three.fetch(3)
        assert three[1].leader.can_join_isr(3)
        change = three[1].leader.propose_isr_change(10_000)
        assert change is not None
        assert change.isr == ((1, 100), (2, 200), (3, 300))
        assert (change.leader_epoch, change.partition_epoch) == (0, 0)
        assert three[1].leader.propose_isr_change(10_000) is None
        assert three[1].leader.pending_isr_change == change
        three[1].leader.on_alter_partition_response(IsrChangeResult(TOPIC_ID, 0, 1, 0, (1, 2, 3), False, 1))
        assert three[1].leader.pending_isr_change is None
        assert three[1].require_leader().isr == (1, 2, 3)

    run(main())


def test_records_of_a_previous_epoch_are_not_acknowledged_even_if_their_offsets_are_committed() -> None:
    async def main() -> None:
        three = Replicas((1, 2, 3))
        await three.begin()
        appended = await three.produce(1, b"lost")
        three.elect(2)
        await three.publish_image()
        await three.produce(2, b"other")
        await three.replicate(1, 3)
        three.elect(1)
        await three.publish_image()
        await three.replicate(2, 3)
        assert three[1].high_watermark >= appended.next_offset
        assert await three.values(1) == ["other@1"]
        with pytest.raises(NotLeaderOrFollowerError):
            three[1].commit_future(appended.next_offset, appended.leader_epoch, acks_all=True)

    run(main())


def test_a_duplicate_batch_is_acknowledged_in_its_own_epoch() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a", producer_id=5, sequence=0)
        await both.replicate(2)
        both.elect(2)
        await both.publish_image()
        await both.replicate(1)
        repeated = await both.produce(2, b"a", producer_id=5, sequence=0)
        assert (repeated.base_offset, repeated.leader_epoch) == (0, 1)
        assert both[2].commit_future(repeated.next_offset, repeated.leader_epoch) is None

    run(main())


def test_a_lagging_follower_does_not_make_consumers_reset_their_offsets() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        for _ in range(3):
            await both.produce(1, b"a", acks_all=False)
        with pytest.raises(OffsetNotAvailableError):
            await both[2].read(3, 1_000, from_follower=True)
        with pytest.raises(OffsetNotAvailableError):
            await both[2].read(3, 1_000, last_fetched_epoch=0, from_follower=True)
        await both.replicate(2)
        assert (await both[2].read(3, 1_000, from_follower=True)).high_watermark == 3

    run(main())
