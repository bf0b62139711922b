"""Truncation of logs that diverge from the leader's, without loss of committed records."""

import itertools

import pytest

from moldau.errors import StorageError
from moldau.raft.messages import EpochEndOffset
from support.replicas import PageCacheLog, Replicas
from support.replication_stories import run

# Histories in which truncation to the high watermark is wrong


def test_a_restarted_follower_below_the_high_watermark_keeps_committed_records() -> None:
    """m1 is committed, and the follower has it below no high watermark. It restarts, the leader dies, and it leads."""

    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin(leader=1)
        await both.produce(1, b"m0")
        await both.fetch(2)
        await both.produce(1, b"m1")
        await both.fetch(2)
        assert both[2].high_watermark == 1
        await both.send_fetch(2)
        assert both[1].high_watermark == 2, "the follower has fetched past m1"
        await both.lose_power(2)
        both.restart(2)
        await both.publish_image(2)
        assert both[2].high_watermark == 1
        await both.lose_power(1)
        both.elect(2, [2])
        await both.publish_image(2)
        assert await both.values(2) == ["m0@0", "m1@0"]
        assert await both.seen(2) == ["m0", "m1"]

    run(main())


def test_a_previous_leader_truncates_its_tail_after_an_unclean_election() -> None:
    """Only the old leader has m1. The follower lost it, is elected uncleanly and appends m2 at its offset."""

    async def main() -> None:
        both = Replicas((1, 2), write_caching=True)
        await both.begin(leader=1)
        await both.produce(1, b"m0")
        await both.fetch(2)
        await both.log(2).flush()
        await both.produce(1, b"m1")
        await both.fetch(2)
        await both.send_fetch(2)
        assert both[1].high_watermark == 2
        await both.log(1).flush()
        await both.lose_power(1)
        await both.lose_power(2)
        both.restart(2)
        both.elect(2, [2], recovering=True)
        await both.publish_image(2)
        await both.produce(2, b"m2", acks_all=False)
        assert await both.values(2) == ["m0@0", "m2@1"]
        both.restart(1)
        await both.publish_image(1)
        assert await both.values(1) == ["m0@0", "m1@0"]
        assert await both.fetch(1) == EpochEndOffset(0, 1)
        assert await both.values(1) == ["m0@0"]
        await both.replicate(1)
        assert await both.values(1) == await both.values(2) == ["m0@0", "m2@1"]

    run(main())


def test_logs_that_diverged_more_than_once_converge() -> None:
    async def main() -> None:
        three = Replicas((1, 2, 3))
        await three.begin(leader=1)
        await three.produce(1, b"a")
        await three.replicate(2, 3)
        # Each leads for a while and its records are not replicated.
        for leader, value in itertools.islice(zip(itertools.cycle((1, 2)), (b"b", b"c", b"d", b"e")), 4):
            three.elect(leader, [leader])
            await three.publish_image(leader)
            await three.produce(leader, value, acks_all=False)
        three.elect(3, [3], recovering=True)
        await three.publish_image()
        await three.produce(3, b"f")
        await three.replicate(1, 2, times=4)
        assert await three.values(1) == await three.values(2) == await three.values(3) == ["a@0", "f@5"]
        assert list(three.log(1).epochs) == list(three.log(3).epochs)

    run(main())


def test_an_epoch_without_records_does_not_make_a_follower_truncate_forever() -> None:
    async def main() -> None:
        both = Replicas((1, 2))
        await both.begin(leader=1)
        await both.produce(1, b"a")
        await both.fetch(2)
        both.elect(2, [2])
        await both.publish_image(2)
        assert both.log(2).epochs.latest == 1
        await both.produce(1, b"b", acks_all=False)
        both.elect(1, [1])
        await both.publish_image()
        assert await both.fetch(2) == EpochEndOffset(0, 2)
        assert both.log(2).epochs.latest == 0
        await both.replicate(2)
        assert await both.values(2) == ["a@0", "b@0"]

    run(main())


# Leaders without committed records


async def replicas_with_a_leader_that_lost_its_disk(*, recovering: bool = False, **settings: object) -> Replicas:
    three = Replicas((1, 2, 3), **settings)
    await three.begin(leader=1)
    await three.produce(1, b"a", b"b")
    await three.replicate(2, 3, times=3)
    assert (three[2].high_watermark, three[3].high_watermark) == (2, 2)
    three.open(1, PageCacheLog(three.settings))
    three.elect(1, [1], recovering=recovering)
    await three.publish_image()
    await three.produce(1, b"new", acks_all=False)
    return three


def test_a_follower_goes_offline_instead_of_truncating_committed_records_its_leader_lost() -> None:
    async def main() -> None:
        three = await replicas_with_a_leader_that_lost_its_disk()
        for node in (2, 3):
            with pytest.raises(StorageError, match="lacks the committed records from offset 0 to 1"):
                await three.fetch(node)
            assert three[node].failure is not None
            assert three[node].follower.fetch_position() is None
            assert await three.values(node) == ["a@0", "b@0"]

    run(main())


def test_after_an_unclean_election_even_a_late_follower_truncates_committed_records() -> None:
    async def main() -> None:
        three = await replicas_with_a_leader_that_lost_its_disk(recovering=True)
        await three.replicate(2)
        assert await three.values(2) == ["new@1"]
        # A clean election since then has ended the recovery.
        three.elect(2, [2, 1])
        await three.publish_image()
        assert not three.image.is_recovering
        await three.replicate(3)
        assert await three.values(3) == ["new@1"]

    run(main())


def test_records_committed_after_an_unclean_election_are_not_truncated() -> None:
    async def main() -> None:
        three = await replicas_with_a_leader_that_lost_its_disk(recovering=True)
        three.elect(1, [1, 2, 3])
        await three.publish_image()
        await three.replicate(2, 3, times=4)
        assert three[2].high_watermark == 1
        three.open(1, PageCacheLog(three.settings))
        three.elect(1, [1])
        await three.publish_image()
        with pytest.raises(StorageError, match="lacks the committed records from offset 0 to 0"):
            await three.fetch(2)
        assert await three.values(2) == ["new@1"]

    run(main())


def test_with_write_caching_a_follower_truncates_what_its_leader_lost() -> None:
    async def main() -> None:
        three = await replicas_with_a_leader_that_lost_its_disk(write_caching=True)
        await three.replicate(2)
        assert await three.values(2) == ["new@1"]

    run(main())


def test_a_leader_that_lacks_an_epoch_but_has_its_offsets_has_lost_nothing() -> None:
    async def main() -> None:
        three = Replicas((1, 2, 3))
        await three.begin(leader=1)
        await three.produce(1, b"a")
        await three.replicate(2, 3, times=2)
        three.elect(1)
        await three.publish_image()
        await three.produce(1, b"b")
        await three.replicate(2, 3, times=2)
        assert three[3].high_watermark == 2
        # As on a replica that copied a compacted log without records of epoch 1.
        epochs = three.log(2).epochs
        epochs.truncate_from_end(1)
        three.elect(2, [2])
        await three.publish_image()
        assert list(epochs) == [(0, 0), (2, 2)]
        assert await three.fetch(3) == EpochEndOffset(0, 2)
        assert three[3].failure is None

    run(main())
