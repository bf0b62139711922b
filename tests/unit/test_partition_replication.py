"""Partitions that replicate: what followers take, count and cut, what leaders believe and promise; and both histories
in which a high watermark that lags would lose or fork a log."""

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

import pytest

from moldau.controller.requests import InSyncResult
from moldau.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StaleBrokerEpochError,
    StorageError,
)
from moldau.partitions.partition import Diverged, Fetched
from moldau.quorum.messages import LogEnd
from support.replicas import TOPIC_ID, PageCacheLog, Replicas, batch, broker_image

PATIENCE_S = 20


def run(test: "Coroutine[Any, Any, None]") -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


# The histories in which cutting at the high watermark is wrong


def test_a_follower_that_restarts_behind_the_high_watermark_keeps_what_is_committed() -> None:
    """m1 is committed; the follower has it and does not know that it is. It restarts, the leader dies, it leads."""

    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin(leader=1)
        await both.produce(1, b"m0")
        await both.fetch(2)
        await both.produce(1, b"m1")
        await both.fetch(2)
        assert both[2].high_watermark == 1
        await both.ask(2)
        assert both[1].high_watermark == 2, "the follower has asked past m1"
        await both.power_cut(2)
        both.restart(2)
        await both.tell(2)
        assert both[2].high_watermark == 1
        await both.power_cut(1)
        both.elects(2, [2])
        await both.tell(2)
        assert await both.values(2) == ["m0@0", "m1@0"]
        assert await both.seen(2) == ["m0", "m1"]

    run(main())


def test_a_leader_that_comes_back_after_an_unclean_election_gives_its_tail_up() -> None:
    """m1 is on the old leader alone. The follower lost it, leads uncleanly and writes m2 in its place."""

    async def main() -> None:
        both = Replicas((1, 2), write_caching=True)
        await both.begin(leader=1)
        await both.produce(1, b"m0")
        await both.fetch(2)
        await both.log(2).make_durable()
        await both.produce(1, b"m1")
        await both.fetch(2)
        await both.ask(2)
        assert both[1].high_watermark == 2
        await both.log(1).make_durable()
        await both.power_cut(1)
        await both.power_cut(2)
        both.restart(2)
        both.elects(2, [2], recovering=True)
        await both.tell(2)
        await both.produce(2, b"m2", all_in_sync=False)
        assert await both.values(2) == ["m0@0", "m2@1"]
        both.restart(1)
        await both.tell(1)
        assert await both.values(1) == ["m0@0", "m1@0"]
        assert await both.fetch(1) == LogEnd(0, 1)
        assert await both.values(1) == ["m0@0"]
        await both.replicate(1)
        assert await both.values(1) == await both.values(2) == ["m0@0", "m2@1"]

    run(main())


def test_logs_that_forked_more_than_once_become_the_same_again() -> None:
    async def main() -> None:
        three = Replicas((1, 2, 3))
        await three.begin(leader=1)
        await three.produce(1, b"a")
        await three.replicate(2, 3)
        # Each leads for a while and nobody hears what it writes.
        for leader, value in itertools.islice(zip(itertools.cycle((1, 2)), (b"b", b"c", b"d", b"e")), 4):
            three.elects(leader, [leader])
            await three.tell(leader)
            await three.produce(leader, value, all_in_sync=False)
        three.elects(3, [3], recovering=True)
        await three.tell()
        await three.produce(3, b"f")
        await three.replicate(1, 2, times=4)
        assert await three.values(1) == await three.values(2) == await three.values(3) == ["a@0", "f@5"]
        assert list(three.log(1).epochs) == list(three.log(3).epochs)

    run(main())


def test_an_epoch_without_records_does_not_keep_a_follower_asking_for_ever() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin(leader=1)
        await both.produce(1, b"a")
        await both.fetch(2)
        both.elects(2, [2])
        await both.tell(2)
        assert both.log(2).epochs.latest == 1
        await both.produce(1, b"b", all_in_sync=False)
        both.elects(1, [1])
        await both.tell()
        assert await both.fetch(2) == LogEnd(0, 2)
        assert both.log(2).epochs.latest == 0
        await both.replicate(2)
        assert await both.values(2) == ["a@0", "b@0"]

    run(main())


# Leaders that lack what is committed


async def with_a_leader_that_lost_its_disk(*, recovering: bool = False, **settings: object) -> Replicas:
    three = Replicas((1, 2, 3), **settings)
    await three.begin(leader=1)
    await three.produce(1, b"a", b"b")
    await three.replicate(2, 3, times=3)
    assert (three[2].high_watermark, three[3].high_watermark) == (2, 2)
    three.open(1, PageCacheLog(three.settings))
    three.elects(1, [1], recovering=recovering)
    await three.tell()
    await three.produce(1, b"new", all_in_sync=False)
    return three


def test_what_is_committed_is_not_cut_off_for_a_leader_that_lost_it() -> None:
    async def main() -> None:
        three = await with_a_leader_that_lost_its_disk()
        for node in (2, 3):
            with pytest.raises(StorageError, match="lacks records from offset 0 to 1"):
                await three.fetch(node)
            assert three[node].failure is not None
            assert three[node].fetch_position() is None
            assert await three.values(node) == ["a@0", "b@0"]

    run(main())


def test_what_is_committed_is_cut_off_after_an_unclean_election_also_by_who_comes_late() -> None:
    async def main() -> None:
        three = await with_a_leader_that_lost_its_disk(recovering=True)
        await three.replicate(2)
        assert await three.values(2) == ["new@1"]
        # Another leads cleanly since, and nothing is said of recovering any more.
        three.elects(2, [2, 1])
        await three.tell()
        assert not three.image.is_recovering
        await three.replicate(3)
        assert await three.values(3) == ["new@1"]

    run(main())


def test_what_was_committed_since_an_unclean_election_is_not_cut_off() -> None:
    async def main() -> None:
        three = await with_a_leader_that_lost_its_disk(recovering=True)
        three.elects(1, [1, 2, 3])
        await three.tell()
        await three.replicate(2, 3, times=4)
        assert three[2].high_watermark == 1
        three.open(1, PageCacheLog(three.settings))
        three.elects(1, [1])
        await three.tell()
        with pytest.raises(StorageError, match="lacks records from offset 0 to 0"):
            await three.fetch(2)
        assert await three.values(2) == ["new@1"]

    run(main())


def test_who_does_without_syncing_does_without_what_its_leader_lost() -> None:
    async def main() -> None:
        three = await with_a_leader_that_lost_its_disk(write_caching=True)
        await three.replicate(2)
        assert await three.values(2) == ["new@1"]

    run(main())


def test_a_leader_that_lacks_an_epoch_but_not_its_offsets_has_lost_nothing() -> None:
    async def main() -> None:
        three = Replicas((1, 2, 3))
        await three.begin(leader=1)
        await three.produce(1, b"a")
        await three.replicate(2, 3, times=2)
        three.elects(1)
        await three.tell()
        await three.produce(1, b"b")
        await three.replicate(2, 3, times=2)
        assert three[3].high_watermark == 2
        # As on a replica that copied a compacted log: what epoch 1 had written was not there any more.
        epochs = three.log(2).epochs
        epochs.truncate_from_end(1)
        three.elects(2, [2])
        await three.tell()
        assert list(epochs) == [(0, 0), (2, 2)]
        assert await three.fetch(3) == LogEnd(0, 2)
        assert three[3].failure is None

    run(main())


# What a leader counts


def test_what_was_sent_counts_only_when_the_follower_asks_past_it() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        fetched = await both.ask(2)
        assert fetched.records.size > 0
        assert both[1].high_watermark == 0
        await both.take(2, fetched)
        assert both[1].high_watermark == 0
        await both.ask(2)
        assert both[1].high_watermark == 1

    run(main())


def test_a_request_that_is_looked_at_again_does_not_count_again() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        asked = both.asking(2)
        await both[1].read_for_replica(asked, 1000)
        both.clock.now_ms += 5_000
        await both[1].read_for_replica(asked, 1000, is_asked=False)
        assert both[1].leader().followers[2].fetched_ms == 1_000

    run(main())


def test_a_follower_vouches_only_for_what_it_has_synced() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        fetched = await both.ask(2)
        both.log(2).disk_is_stuck = True
        taking = asyncio.ensure_future(both.take(2, fetched))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not taking.done()
        assert both.log(2).end_offset == 1
        assert both[2].fetch_position() is None
        both.log(2).free_disk()
        await taking
        position = both[2].fetch_position()
        assert position is not None
        assert position.offset == 1

    run(main())


def test_with_write_caching_a_follower_does_not_wait_for_its_disk() -> None:
    async def main() -> None:
        both = Replicas((1, 2), write_caching=True)
        await both.begin()
        await both.produce(1, b"a")
        both.log(2).disk_is_stuck = True
        await both.fetch(2)
        await both.ask(2)
        assert both[1].high_watermark == 1

    run(main())


def test_a_former_leader_asks_when_its_own_last_records_are_safe() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        both.log(1).disk_is_stuck = True
        await both.produce(1, b"a", all_in_sync=False)
        both.elects(2, [2])
        await both.tell()
        assert both[1].fetch_position() is None
        both.log(1).free_disk()
        for _ in range(10):
            await asyncio.sleep(0)
        assert both[1].fetch_position() is not None

    run(main())


def test_a_follower_of_a_former_life_or_epoch_does_not_count() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        asked = both.asking(2)._replace(offset=1)
        both.brokers = {**both.brokers, 2: broker_image(2, epoch=999)}
        both[1].on_brokers(both.brokers)
        with pytest.raises(StaleBrokerEpochError):
            await both[1].read_for_replica(asked, 1000)
        with pytest.raises(FencedLeaderEpochError):
            await both[1].read_for_replica(asked._replace(known_epoch=-1), 1000)
        assert both[1].high_watermark == 0

    run(main())


def test_a_follower_that_has_more_than_its_leader_does_not_count_before_it_has_cut() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        asked = both.asking(2)._replace(offset=5, last_fetched_epoch=0)
        with pytest.raises(Diverged):
            await both[1].read_for_replica(asked, 1000)
        with pytest.raises(OffsetOutOfRangeError):
            await both[1].read_for_replica(asked._replace(last_fetched_epoch=-1), 1000)
        assert both[1].leader().followers[2].durable_offset == -1

    run(main())


def test_a_follower_whose_last_batch_claims_an_epoch_to_come_cuts_it_and_goes_on() -> None:
    """The epoch stands outside of a batch's checksum: a bit of it was flipped on the follower's disk."""

    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        for value in (b"a", b"b", b"c"):
            await both.produce(1, value)
        await both.replicate(2)
        both.log(2).epochs.assign(1 << 20, 2)
        assert await both.fetch(2) == LogEnd(0, 3)
        assert both.log(2).end_offset == 2
        await both.replicate(2)
        assert both.log(2).end_offset == both[1].high_watermark == 3

    run(main())


def test_a_batch_of_an_epoch_to_come_is_not_taken_from_a_leader() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        records = bytearray((await both.ask(2)).records.read())
        records[12:16] = (1 << 20).to_bytes(4, "big")
        with pytest.raises(CorruptRecordError):
            await both[2].append_as_follower(memoryview(records), 0, 0, 0)

    run(main())


# What a follower takes


def test_an_answer_of_another_epoch_is_not_taken() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        late = await both.ask(2)
        both.elects(1)
        await both.tell()
        with pytest.raises(FencedLeaderEpochError):
            await both.take(2, late, leader_epoch=0)
        with pytest.raises(FencedLeaderEpochError):
            await both[2].truncate_for(LogEnd(0, 0), 0)
        both.elects(2)
        await both.tell()
        with pytest.raises(NotLeaderError):
            await both.take(2, late, leader_epoch=2)
        assert both.log(2).end_offset == 0

    run(main())


def test_an_answer_that_comes_twice_is_taken_once() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        fetched = await both.ask(2)
        await both.take(2, fetched)
        with pytest.raises(CorruptRecordError):
            await both.take(2, fetched)
        assert await both.values(2) == ["a@0"]

    run(main())


def test_a_batch_that_was_damaged_on_its_way_is_not_taken_and_one_that_is_cut_off_is_left() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        await both.produce(1, b"b")
        data = bytearray((await both.ask(2)).records.read())
        data[-1] ^= 1
        with pytest.raises(CorruptRecordError):
            await both[2].append_as_follower(data, 0, 0, 0)
        assert both.log(2).end_offset == 0
        await both[2].append_as_follower(memoryview(data)[:-10], 0, 0, 0)
        assert await both.values(2) == ["a@0"]

    run(main())


def test_a_follower_takes_gaps_that_compaction_left() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        later = batch(b"later")
        later.base_offset, later.leader_epoch = 40, 0
        await both[2].append_as_follower(later.to_bytes(), 0, 0, 0)
        assert both.log(2).end_offset == 41

    run(main())


def test_a_follower_begins_where_its_leader_begins() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        for value in (b"a", b"b", b"c"):
            await both.produce(1, value)
        await both.replicate(2)
        deleting = asyncio.ensure_future(both[1].delete_records(2))
        await deleting
        assert both[1].deleting(2) is not None, "the follower still has them"
        await both.fetch(2)
        assert both.log(2).start_offset == 2
        await both.ask(2)
        assert both[1].deleting(2) is None

    run(main())


def test_a_follower_whose_leader_has_deleted_all_that_it_has_begins_anew() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin(in_sync=[1])
        await both.produce(1, b"a", b"b", b"c")
        await both.produce(1, b"d")
        await both[1].delete_records(2)
        with pytest.raises(OffsetOutOfRangeError) as refused:
            await both.ask(2)
        start_offset = refused.value.start_offset  # type: ignore[attr-defined]
        await both[2].begin_at(start_offset, 0)
        # The log begins inside of a batch, which comes whole.
        await both.replicate(2)
        assert (both.log(2).start_offset, both.log(2).end_offset) == (2, 4)
        assert await both.seen(2, 2, from_follower=True) == ["a", "b", "c", "d"], (
            "a reader skips what is before"
        )

    run(main())


def test_producers_are_known_to_the_next_leader() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        first = await both.produce(1, b"a", producer_id=7, sequence=0)
        await both.produce(1, b"b", producer_id=7, sequence=1)
        await both.replicate(2)
        both.elects(2)
        await both.tell()
        again = await both.produce(2, b"a", producer_id=7, sequence=0)
        assert again.base_offset == first.base_offset
        assert (await both.produce(2, b"c", producer_id=7, sequence=2)).base_offset == 2

    run(main())


def test_producers_forget_what_is_cut() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a", producer_id=7, sequence=0)
        await both.replicate(2)
        await both.produce(1, b"b", producer_id=7, sequence=1)
        both.elects(2, [2])
        await both.tell()
        await both.replicate(1)
        assert await both.values(1) == ["a@0"]
        both.elects(1, [1, 2])
        await both.tell()
        assert (await both.produce(1, b"b", producer_id=7, sequence=1)).base_offset == 1

    run(main())


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
        with pytest.raises(NotLeaderError) as refused:
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
        both[1].growth.add(lambda: told.append("follower"))
        both[1].progress.add(lambda: told.append("consumer"))
        await both.produce(1, b"a")
        assert told == ["follower"]
        await both.fetch(2)
        await both.ask(2)
        assert told == ["follower", "consumer"]
        both.elects(2)
        await both.tell()
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
        three.elects(2, [2, 3])
        await three.tell()
        with pytest.raises(OffsetNotAvailableError):
            three[2].latest()
        await three.fetch(3)
        assert three[2].latest() == 1

    run(main())


# What a leader promises


def test_a_write_waits_for_all_in_sync_and_fails_when_too_few_are_left() -> None:
    async def main() -> None:
        three = Replicas((1, 2, 3), min_insync_replicas=2)
        await three.begin()
        appended = await three.produce(1, b"a")
        acknowledged = three[1].committing(appended.next_offset, appended.leader_epoch, all_in_sync=True)
        committed = three[1].committing(appended.next_offset, appended.leader_epoch)
        assert acknowledged is not None
        assert committed is not None
        answer = InSyncResult(TOPIC_ID, 0, 1, 0, (1,), False, 1)
        three[1].on_in_sync_answer(answer)
        with pytest.raises(NotEnoughReplicasAfterAppendError):
            await acknowledged
        assert not committed.done(), "the records may still be committed, and who loads groups waits for that"
        with pytest.raises(NotEnoughReplicasError):
            await three.produce(1, b"b")
        with pytest.raises(NotEnoughReplicasAfterAppendError):
            three[1].committing(appended.next_offset, appended.leader_epoch, all_in_sync=True)

    run(main())


def test_who_waits_is_told_of_the_new_leader() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        appended = await both.produce(1, b"a")
        waiting = both[1].committing(appended.next_offset, appended.leader_epoch, all_in_sync=True)
        assert waiting is not None
        both.elects(2)
        await both.tell()
        with pytest.raises(NotLeaderError) as refused:
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
        with pytest.raises(NotLeaderError):
            await both.produce(1, b"b")
        with pytest.raises(NotLeaderError):
            both[1].check_lease()
        assert await both.seen(1) == ["a"]
        assert isinstance(await both.ask(2), Fetched), "followers are served as well"

    run(main())


# Roles


def test_a_stale_role_is_ignored() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin(leader=1)
        earlier = both.image
        both.elects(2)
        await both.tell()
        await both[1].take_role(earlier, brokers=both.brokers)
        assert both[1].leader_id == 2
        await both[2].take_role(earlier, brokers=both.brokers)
        assert both[2].is_leader

    run(main())


def test_a_node_whose_metadata_is_behind_its_own_log_does_not_lead() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin(leader=1)
        earlier = both.image
        both.elects(1)
        both.elects(1)
        await both.tell(1)
        await both.produce(1, b"a", all_in_sync=False)
        await both.power_cut(1)
        both.restart(1)
        await both[1].take_role(earlier, brokers=both.brokers)
        assert not both[1].is_leader
        assert list(both.log(1).epochs) == [(2, 0)]

    run(main())


def test_a_partition_without_a_leader_is_followed_by_nobody_and_keeps_what_it_knows() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a")
        await both.replicate(2)
        both.elects(-1, [2])
        await both.tell(2)
        assert not both[2].is_follower
        assert both[2].fetch_position() is None
        assert both[2].high_watermark == 1
        assert both[2].log_end() == LogEnd(0, 1)

    run(main())


# The in-sync set


def test_a_proposal_is_the_same_until_it_is_answered() -> None:
    async def main() -> None:
        three = Replicas((1, 2, 3))
        await three.begin(in_sync=[1, 2])
        await three.produce(1, b"a")
        await three.replicate(2, times=2)
        await three.fetch(3)
        assert not three[1].may_join(3)
        await three.fetch(3)
        assert three[1].may_join(3)
        change = three[1].propose_in_sync(10_000)
        assert change is not None
        assert change.in_sync == ((1, 100), (2, 200), (3, 300))
        assert (change.leader_epoch, change.partition_epoch) == (0, 0)
        assert three[1].propose_in_sync(10_000) is None
        assert three[1].proposed_in_sync == change
        three[1].on_in_sync_answer(InSyncResult(TOPIC_ID, 0, 1, 0, (1, 2, 3), False, 1))
        assert three[1].proposed_in_sync is None
        assert three[1].leader().in_sync == (1, 2, 3)

    run(main())


def test_records_of_a_former_epoch_are_not_acknowledged_though_their_offsets_are_committed() -> None:
    async def main() -> None:
        three = Replicas((1, 2, 3))
        await three.begin()
        appended = await three.produce(1, b"lost")
        three.elects(2)
        await three.tell()
        await three.produce(2, b"other")
        await three.replicate(1, 3)
        three.elects(1)
        await three.tell()
        await three.replicate(2, 3)
        assert three[1].high_watermark >= appended.next_offset
        assert await three.values(1) == ["other@1"]
        with pytest.raises(NotLeaderError):
            three[1].committing(appended.next_offset, appended.leader_epoch, all_in_sync=True)

    run(main())


def test_a_repeated_batch_is_acknowledged_in_the_epoch_in_which_it_is_repeated() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        await both.produce(1, b"a", producer_id=5, sequence=0)
        await both.replicate(2)
        both.elects(2)
        await both.tell()
        await both.replicate(1)
        repeated = await both.produce(2, b"a", producer_id=5, sequence=0)
        assert (repeated.base_offset, repeated.leader_epoch) == (0, 1)
        assert both[2].committing(repeated.next_offset, repeated.leader_epoch) is None

    run(main())


def test_a_follower_that_lags_does_not_send_consumers_back_to_the_beginning() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin()
        for _ in range(3):
            await both.produce(1, b"a", all_in_sync=False)
        with pytest.raises(OffsetNotAvailableError):
            await both[2].read(3, 1_000, from_follower=True)
        with pytest.raises(OffsetNotAvailableError):
            await both[2].read(3, 1_000, last_fetched_epoch=0, from_follower=True)
        await both.replicate(2)
        assert (await both[2].read(3, 1_000, from_follower=True)).high_watermark == 3

    run(main())
