"""Voters with a full disk: they grant no vote, flush nothing, and continue when there is space."""

import asyncio
import errno
import logging

import pytest

from moldau.errors import StorageError
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.messages import EpochEndOffset, QuorumFetchRequest, ReplicaKey, VoteRequest, VoteResponse
from support.quorum_nodes import InProcessNetwork, QuorumNode, leader_of, run, wait_until


class FailingStateStore:
    """A state store on a disk that can fail."""

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
) -> tuple[QuorumNode, FailingStateStore, "asyncio.Future[VoteResponse]"]:
    """Returns a node with a pending vote that it cannot persist."""
    node = QuorumNode(InProcessNetwork(), 1, [1, 2, 3])
    votes = FailingStateStore(node)
    await node.start()
    votes.error = error
    answer = asyncio.ensure_future(node.quorum.vote(REQUEST))
    await asyncio.sleep(1)
    return node, votes, answer


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_a_vote_waits_for_disk_space(error: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        node, votes, answer = await waiting_voter(error)
        assert not answer.done()
        assert 5 < votes.tries < 15
        votes.error = None
        assert (await answer).is_granted
        assert node.elections.load() == ElectionState(9, -1, 2)
        assert node.failures == []
        await node.stop()

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert caplog.text.count("disk full") == 1


def test_requests_are_rejected_while_the_node_waits_for_disk_space() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_permanent_disk_error_while_waiting_for_space_is_fatal() -> None:
    async def scenario() -> None:
        node, votes, answer = await waiting_voter()
        votes.error = errno.EIO
        with pytest.raises(StorageError, match="EIO"):
            await answer
        assert len(node.failures) == 1
        await node.stop()

    run(scenario())


@pytest.mark.parametrize("resigns", [True, False])
def test_a_node_that_waits_for_disk_space_can_be_stopped(resigns: bool) -> None:
    async def scenario() -> None:
        node, _, answer = await waiting_voter()
        if resigns:
            await node.quorum.resign()
        await node.stop()
        with pytest.raises(StorageError):
            await answer
        assert node.failures == []

    run(scenario())


def test_voters_that_share_a_full_disk_elect_a_leader_when_there_is_space() -> None:
    async def scenario() -> None:
        network = InProcessNetwork()
        nodes = [QuorumNode(network, node_id, [1, 2, 3]) for node_id in (1, 2, 3)]
        disks = [FailingStateStore(node) for node in nodes]
        await asyncio.gather(*(node.start() for node in nodes))
        await wait_until(lambda: leader_of(nodes))
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
        await wait_until(lambda: leader_of(nodes))
        leader = leader_of(nodes)
        assert leader is not None
        await leader.quorum.append([b"b"])
        await wait_until(lambda: all(node.values == [b"b"] for node in nodes))
        for node in nodes:
            await node.stop()
            assert node.failures == []

    run(scenario())


def test_a_follower_without_disk_space_logs_once_and_retries_slowly(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        network = InProcessNetwork()
        nodes = [QuorumNode(network, node_id, [1, 2, 3]) for node_id in (1, 2, 3)]
        await asyncio.gather(*(node.start() for node in nodes))
        await wait_until(lambda: leader_of(nodes))
        leader = leader_of(nodes)
        assert leader is not None
        await wait_until(lambda: all(node.log.end_offset == leader.log.end_offset for node in nodes))
        follower = next(node for node in nodes if node is not leader)
        for why in ("no space left", "still none", "no space left"):
            follower.log.append_error = StorageError(why)
            await leader.quorum.append([b"a"])
            before = len(network.calls)
            await asyncio.sleep(2)
            fetches = [each for each in network.calls[before:] if each[0] == follower.node_id]
            assert len(fetches) <= 45, "a fetch every 50 ms, a third of the time a leader may be silent"
        assert leader_of(nodes) is leader
        follower.log.append_error = None
        await wait_until(lambda: follower.values == [b"a"] * 3)
        for node in nodes:
            await node.stop()

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert caplog.text.count("cannot append fetched") == 3


def test_a_leader_deposed_while_its_disk_is_full_is_notified_first() -> None:
    async def scenario() -> None:
        network = InProcessNetwork()
        nodes = [QuorumNode(network, node_id, [1, 2, 3]) for node_id in (1, 2, 3)]
        disks = {node.node_id: FailingStateStore(node) for node in nodes}
        await asyncio.gather(*(node.start() for node in nodes))
        await wait_until(lambda: leader_of(nodes))
        leader = leader_of(nodes)
        assert leader is not None
        await wait_until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        disks[leader.node_id].error = errno.ENOSPC
        network.disconnected = {leader.node_id}
        candidate = next(node.node_id for node in nodes if node is not leader)
        request = VoteRequest(
            ReplicaKey(candidate), 9, EpochEndOffset(9, 99), is_pre_vote=False, voter=ReplicaKey(leader.node_id)
        )
        answer = asyncio.ensure_future(leader.quorum.vote(request))
        await asyncio.sleep(1)
        assert not answer.done(), "no response before the epoch is persisted"
        assert leader.leaders[-1] == (-1, 9), "its controller is notified first"
        with pytest.raises(StorageError, match="waits for space"):
            await leader.quorum.append([b"a"])
        disks[leader.node_id].error = None
        await answer
        for node in nodes:
            await node.stop()
            assert node.failures == []

    run(scenario())


def test_a_truncation_waits_for_disk_space() -> None:
    async def scenario() -> None:
        network = InProcessNetwork()
        nodes = [QuorumNode(network, node_id, [1, 2, 3]) for node_id in (1, 2, 3)]
        await asyncio.gather(*(node.start() for node in nodes))
        await wait_until(lambda: leader_of(nodes))
        previous = leader_of(nodes)
        assert previous is not None
        await wait_until(lambda: all(node.quorum.high_watermark == previous.log.end_offset for node in nodes))
        network.disconnected = {previous.node_id}
        await previous.quorum.append([b"lost"])
        left = [node for node in nodes if node is not previous]
        await wait_until(lambda: leader_of(left))
        successor = leader_of(left)
        assert successor is not None
        await successor.quorum.append([b"kept"])
        is_full, truncate_to = True, previous.log.truncate_to

        async def truncate_if_there_is_room(offset: int) -> None:
            if is_full:
                raise StorageError("no room for epochs") from OSError(errno.ENOSPC, "no space left")
            await truncate_to(offset)

        previous.log.truncate_to = truncate_if_there_is_room  # type: ignore[method-assign]
        network.disconnected = set()
        await asyncio.sleep(2)
        assert previous.failures == []
        assert previous.values == []
        is_full = False
        await wait_until(lambda: previous.values == [b"kept"])
        assert leader_of(nodes) is successor
        for node in nodes:
            await node.stop()

    run(scenario())


def transient_error(error: int = errno.EMFILE) -> StorageError:
    """Returns a transient error of a log."""
    failed = StorageError(f"syncing the directory failed: {errno.errorcode[error]}")
    failed.__cause__ = OSError(error, errno.errorcode[error])
    return failed


async def unsynced_voter(error: int = errno.EMFILE) -> QuorumNode:
    """Returns a single voter that cannot flush its last append."""
    node = QuorumNode(InProcessNetwork(), 1, [1])
    await node.start()
    await wait_until(lambda: node.quorum.high_watermark == node.log.end_offset)
    node.log.sync_error = transient_error(error)
    await node.quorum.append([b"a"])
    await asyncio.sleep(1)
    assert node.values == []
    assert node.failures == []
    return node


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_a_transient_flush_error_is_retried(error: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        node = await unsynced_voter(error)
        node.log.sync_error = None
        await wait_until(lambda: node.values == [b"a"])
        await node.stop()
        assert node.failures == []

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert caplog.text.count("cannot flush the metadata log") == 1


def test_a_permanent_flush_error_after_a_transient_one_is_fatal() -> None:
    async def scenario() -> None:
        node = await unsynced_voter()
        node.log.offline = "the disk is gone"
        await wait_until(lambda: node.failures)
        assert node.failures == [node.log.sync_error]
        await node.stop()

    run(scenario())


def test_a_node_that_retries_a_flush_can_be_stopped() -> None:
    async def scenario() -> None:
        node = await unsynced_voter()
        await node.stop()
        assert node.failures == []

    run(scenario())
