"""Logs that part from their leader's are cut by epoch, and nothing committed goes."""

import itertools

import pytest

from moldau.errors import (
    StorageError,
)
from moldau.raft.messages import EpochEndOffset
from support.replicas import PageCacheLog, Replicas
from support.replication_stories import run

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
        await both.send_fetch(2)
        assert both[1].high_watermark == 2, "the follower has asked past m1"
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


def test_a_leader_that_comes_back_after_an_unclean_election_gives_its_tail_up() -> None:
    """m1 is on the old leader alone. The follower lost it, leads uncleanly and writes m2 in its place."""

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


def test_logs_that_forked_more_than_once_become_the_same_again() -> None:
    async def main() -> None:
        three = Replicas((1, 2, 3))
        await three.begin(leader=1)
        await three.produce(1, b"a")
        await three.replicate(2, 3)
        # Each leads for a while and nobody hears what it writes.
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


def test_an_epoch_without_records_does_not_keep_a_follower_asking_for_ever() -> None:
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


# Leaders that lack what is committed


async def with_a_leader_that_lost_its_disk(*, recovering: bool = False, **settings: object) -> Replicas:
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


def test_what_is_committed_is_not_cut_off_for_a_leader_that_lost_it() -> None:
    async def main() -> None:
        three = await with_a_leader_that_lost_its_disk()
        for node in (2, 3):
            with pytest.raises(StorageError, match="lacks the committed records from offset 0 to 1"):
                await three.fetch(node)
            assert three[node].failure is not None
            assert three[node].follower.fetch_position() is None
            assert await three.values(node) == ["a@0", "b@0"]

    run(main())


def test_what_is_committed_is_cut_off_after_an_unclean_election_also_by_who_comes_late() -> None:
    async def main() -> None:
        three = await with_a_leader_that_lost_its_disk(recovering=True)
        await three.replicate(2)
        assert await three.values(2) == ["new@1"]
        # Another leads cleanly since, and nothing is said of recovering any more.
        three.elect(2, [2, 1])
        await three.publish_image()
        assert not three.image.is_recovering
        await three.replicate(3)
        assert await three.values(3) == ["new@1"]

    run(main())


def test_what_was_committed_since_an_unclean_election_is_not_cut_off() -> None:
    async def main() -> None:
        three = await with_a_leader_that_lost_its_disk(recovering=True)
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
        three.elect(1)
        await three.publish_image()
        await three.produce(1, b"b")
        await three.replicate(2, 3, times=2)
        assert three[3].high_watermark == 2
        # As on a replica that copied a compacted log: what epoch 1 had written was not there any more.
        epochs = three.log(2).epochs
        epochs.truncate_from_end(1)
        three.elect(2, [2])
        await three.publish_image()
        assert list(epochs) == [(0, 0), (2, 2)]
        assert await three.fetch(3) == EpochEndOffset(0, 2)
        assert three[3].failure is None

    run(main())
