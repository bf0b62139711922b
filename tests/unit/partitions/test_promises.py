"""What a leader promises and shows: writes, reads, and the set of those in sync."""

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

# What readers see


def test_consumers_see_what_is_committed_and_followers_see_all() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        assert await both.seen(1) == []
        await both.fetch(2)
        assert await both.values(2) == ["a@0"]
        assert await both.seen(2, from_follower=True) == []
        with pytest.raises(NotLeaderOrFollowerError) as refused:
            await both.seen(2)
        assert (refused.value.leader_id, refused.value.leader_epoch) == (1, 0)
        await both.fetch(2)
        assert await both.seen(1) == ["a"]
        assert await both.seen(2, from_follower=True) == ["a"]

    run(main())


def test_followers_are_woken_by_appends_and_consumers_by_commits() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        told: list[str] = []
        both[1].delayed.append_listeners.add(lambda: told.append("follower"))
        both[1].delayed.high_watermark_listeners.add(lambda: told.append("consumer"))
        await both.produce(1, b"a")
        assert told == ["follower"]
        await both.fetch(2)
        await both.send_fetch(2)
        assert told == ["follower", "consumer"]
        both.elect(2)
        await both.publish_image()
        assert told == ["follower", "consumer", "consumer", "follower"], (
            "both are told that it no longer leads"
        )

    run(main())


def test_a_new_leader_does_not_say_where_its_log_ends_before_it_knows() -> None:
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


# What a leader promises


def test_a_write_waits_for_all_in_sync_and_fails_when_too_few_are_left() -> None:
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
        assert not committed.done(), "the records may still be committed, and who loads groups waits for that"
        with pytest.raises(NotEnoughReplicasError):
            await three.produce(1, b"b")
        with pytest.raises(NotEnoughReplicasAfterAppendError):
            three[1].commit_future(appended.next_offset, appended.leader_epoch, acks_all=True)

    run(main())


def test_who_waits_is_told_of_the_new_leader() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        appended = await both.produce(1, b"a")
        waiting = both[1].commit_future(appended.next_offset, appended.leader_epoch, acks_all=True)
        assert waiting is not None
        both.elect(2)
        await both.publish_image()
        with pytest.raises(NotLeaderOrFollowerError) as refused:
            await waiting
        assert (refused.value.leader_id, refused.value.leader_epoch) == (2, 1)

    run(main())


def test_without_a_lease_a_leader_promises_nothing_and_shows_what_is_committed() -> None:
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
        assert isinstance(await both.send_fetch(2), LogReadInfo), "followers are served as well"

    run(main())


def test_without_a_lease_a_leader_takes_nothing_that_it_has_not_for_lost() -> None:
    """A consumer that has come further with a newer leader, and asks the former one, would begin anew."""

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


def test_without_a_lease_a_leader_tells_what_is_committed_of_former_epochs() -> None:
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


# The in-sync set


def test_a_proposal_is_the_same_until_it_is_answered() -> None:
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


def test_records_of_a_former_epoch_are_not_acknowledged_though_their_offsets_are_committed() -> None:
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


def test_a_repeated_batch_is_acknowledged_in_the_epoch_in_which_it_is_repeated() -> None:
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


def test_a_follower_that_lags_does_not_send_consumers_back_to_the_beginning() -> None:
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
