"""A voter whose disk is full keeps no vote and tells none, syncs nothing, and goes on when there is room."""

import asyncio
import errno
import logging

import pytest

from moldau.errors import StorageError
from moldau.raft.epoch_state import ElectionState
from moldau.raft.messages import EpochEndOffset, QuorumFetchRequest, ReplicaKey, VoteRequest, VoteResponse
from support.quorum_nodes import QuorumNode, Wires, leader_of, run, until


class Votes:
    """What a node remembers of elections, on a disk that can fail."""

    def __init__(self, node: QuorumNode) -> None:
        self.error: int | None = None
        self.tries = 0
        self._save = node.elections.save
        node.elections.save = self.save  # type: ignore[method-assign]

    async def save(self, election: ElectionState) -> None:
        self.tries += 1
        if self.error is not None:
            cause = OSError(self.error, errno.errorcode[self.error])
            raise StorageError(f"quorum-state cannot be written: {cause}") from cause
        await self._save(election)


REQUEST = VoteRequest(ReplicaKey(2), 9, EpochEndOffset(0, 0), is_pre_vote=False, voter=ReplicaKey(1))


async def waiting_voter(
    error: int = errno.ENOSPC,
) -> tuple[QuorumNode, Votes, "asyncio.Future[VoteResponse]"]:
    """A node that has been asked for its vote, and cannot keep it."""
    node = QuorumNode(Wires(), 1, [1, 2, 3])
    votes = Votes(node)
    await node.start()
    votes.error = error
    answer = asyncio.ensure_future(node.quorum.vote(REQUEST))
    await asyncio.sleep(1)
    return node, votes, answer


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_a_vote_for_which_there_is_no_room_is_given_when_there_is(
    error: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        node, votes, answer = await waiting_voter(error)
        assert not answer.done()
        assert 5 < votes.tries < 15
        votes.error = None
        assert (await answer).is_granted
        assert node.elections.load() == ElectionState(9, -1, 2)
        assert node.failures == []
        await node.stop()

    with caplog.at_level(logging.WARNING):
        run(story())
    assert caplog.text.count("disk full") == 1


def test_others_are_refused_meanwhile_and_not_kept_in_line() -> None:
    async def story() -> None:
        node, votes, answer = await waiting_voter()
        for asked in (
            node.quorum.vote(REQUEST),
            node.quorum.fetch(QuorumFetchRequest(ReplicaKey(2), 9, EpochEndOffset(0, 0))),
        ):
            with pytest.raises(StorageError, match="waits for space"):
                await asked
        votes.error = None
        await answer
        assert (await node.quorum.vote(REQUEST)).is_granted
        await node.stop()

    run(story())


def test_a_disk_that_fails_for_good_meanwhile_ends_the_quorum() -> None:
    async def story() -> None:
        node, votes, answer = await waiting_voter()
        votes.error = errno.EIO
        with pytest.raises(StorageError, match="EIO"):
            await answer
        assert len(node.failures) == 1
        await node.stop()

    run(story())


@pytest.mark.parametrize("resigns", [True, False])
def test_a_node_that_waits_for_room_can_be_stopped(resigns: bool) -> None:
    async def story() -> None:
        node, _, answer = await waiting_voter()
        if resigns:
            await node.quorum.resign()
        await node.stop()
        with pytest.raises(StorageError):
            await answer
        assert node.failures == []

    run(story())


def test_voters_that_share_a_full_disk_elect_a_leader_when_there_is_room() -> None:
    async def story() -> None:
        wires = Wires()
        nodes = [QuorumNode(wires, node_id, [1, 2, 3]) for node_id in (1, 2, 3)]
        disks = [Votes(node) for node in nodes]
        await asyncio.gather(*(node.start() for node in nodes))
        await until(lambda: leader_of(nodes))
        leader = leader_of(nodes)
        assert leader is not None
        for node, votes in zip(nodes, disks, strict=True):
            votes.error = errno.ENOSPC
            node.log.append_error = StorageError("no space left")
        with pytest.raises(StorageError):
            await leader.quorum.append([b"a"])
        await asyncio.sleep(5)
        for node, votes in zip(nodes, disks, strict=True):
            votes.error = None
            node.log.append_error = None
        await until(lambda: leader_of(nodes))
        leader = leader_of(nodes)
        assert leader is not None
        await leader.quorum.append([b"b"])
        await until(lambda: all(node.values == [b"b"] for node in nodes))
        for node in nodes:
            await node.stop()
            assert node.failures == []

    run(story())


def test_a_follower_without_room_for_records_says_so_once_and_does_not_hurry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        wires = Wires()
        nodes = [QuorumNode(wires, node_id, [1, 2, 3]) for node_id in (1, 2, 3)]
        await asyncio.gather(*(node.start() for node in nodes))
        await until(lambda: leader_of(nodes))
        leader = leader_of(nodes)
        assert leader is not None
        await until(lambda: all(node.log.end_offset == leader.log.end_offset for node in nodes))
        follower = next(node for node in nodes if node is not leader)
        for why in ("no space left", "still none", "no space left"):
            follower.log.append_error = StorageError(why)
            await leader.quorum.append([b"a"])
            before = len(wires.calls)
            await asyncio.sleep(2)
            fetches = [each for each in wires.calls[before:] if each[0] == follower.node_id]
            assert len(fetches) <= 45, "a fetch every 50 ms, a third of the time a leader may be silent"
        assert leader_of(nodes) is leader
        follower.log.append_error = None
        await until(lambda: follower.values == [b"a"] * 3)
        for node in nodes:
            await node.stop()

    with caplog.at_level(logging.WARNING):
        run(story())
    assert caplog.text.count("cannot append fetched") == 3


def test_a_leader_that_is_deposed_while_its_disk_is_full_decides_no_more() -> None:
    async def story() -> None:
        wires = Wires()
        nodes = [QuorumNode(wires, node_id, [1, 2, 3]) for node_id in (1, 2, 3)]
        disks = {node.node_id: Votes(node) for node in nodes}
        await asyncio.gather(*(node.start() for node in nodes))
        await until(lambda: leader_of(nodes))
        leader = leader_of(nodes)
        assert leader is not None
        await until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        disks[leader.node_id].error = errno.ENOSPC
        wires.cut = {leader.node_id}
        candidate = next(node.node_id for node in nodes if node is not leader)
        request = VoteRequest(
            ReplicaKey(candidate),
            9,
            EpochEndOffset(9, 99),
            is_pre_vote=False,
            voter=ReplicaKey(leader.node_id),
        )
        answer = asyncio.ensure_future(leader.quorum.vote(request))
        await asyncio.sleep(1)
        assert not answer.done(), "it cannot keep the epoch, and so says nothing of it"
        assert leader.leaders[-1] == (-1, 9), "its controller has heard that it leads no more"
        with pytest.raises(StorageError, match="waits for space"):
            await leader.quorum.append([b"a"])
        disks[leader.node_id].error = None
        await answer
        for node in nodes:
            await node.stop()
            assert node.failures == []

    run(story())


def test_a_log_is_cut_to_its_leaders_when_there_is_room() -> None:
    async def story() -> None:
        wires = Wires()
        nodes = [QuorumNode(wires, node_id, [1, 2, 3]) for node_id in (1, 2, 3)]
        await asyncio.gather(*(node.start() for node in nodes))
        await until(lambda: leader_of(nodes))
        former = leader_of(nodes)
        assert former is not None
        await until(lambda: all(node.quorum.high_watermark == former.log.end_offset for node in nodes))
        wires.cut = {former.node_id}
        await former.quorum.append([b"lost"])
        left = [node for node in nodes if node is not former]
        await until(lambda: leader_of(left))
        successor = leader_of(left)
        assert successor is not None
        await successor.quorum.append([b"kept"])
        is_full, truncate_to = True, former.log.truncate_to

        async def truncate_if_there_is_room(offset: int) -> None:
            if is_full:
                raise StorageError("no room for epochs") from OSError(errno.ENOSPC, "no space left")
            await truncate_to(offset)

        former.log.truncate_to = truncate_if_there_is_room  # type: ignore[method-assign]
        wires.cut = set()
        await asyncio.sleep(2)
        assert former.failures == []
        assert former.values == []
        is_full = False
        await until(lambda: former.values == [b"kept"])
        assert leader_of(nodes) is successor
        for node in nodes:
            await node.stop()

    run(story())


def passing(error: int = errno.EMFILE) -> StorageError:
    """What a log says whose directory cannot be synced for the moment."""
    failed = StorageError(f"syncing the directory failed: {errno.errorcode[error]}")
    failed.__cause__ = OSError(error, errno.errorcode[error])
    return failed


async def unsynced_voter(error: int = errno.EMFILE) -> QuorumNode:
    """A quorum of one that has appended what it cannot sync."""
    node = QuorumNode(Wires(), 1, [1])
    await node.start()
    await until(lambda: node.quorum.high_watermark == node.log.end_offset)
    node.log.sync_error = passing(error)
    await node.quorum.append([b"a"])
    await asyncio.sleep(1)
    assert node.values == []
    assert node.failures == []
    return node


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_a_sync_that_may_yet_succeed_is_tried_again(error: int, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        node = await unsynced_voter(error)
        node.log.sync_error = None
        await until(lambda: node.values == [b"a"])
        await node.stop()
        assert node.failures == []

    with caplog.at_level(logging.WARNING):
        run(story())
    assert caplog.text.count("cannot flush the metadata log") == 1


def test_a_sync_that_fails_for_good_after_one_that_might_pass_ends_the_quorum() -> None:
    async def story() -> None:
        node = await unsynced_voter()
        node.log.offline = "the disk is gone"
        await until(lambda: node.failures)
        assert node.failures == [node.log.sync_error]
        await node.stop()

    run(story())


def test_a_node_that_cannot_sync_for_the_moment_can_be_stopped() -> None:
    async def story() -> None:
        node = await unsynced_voter()
        await node.stop()
        assert node.failures == []

    run(story())
