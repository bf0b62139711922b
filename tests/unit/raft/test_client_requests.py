"""Responses of nodes to votes and fetches, and their handling of responses."""

import asyncio
from typing import Any

import pytest

from moldau.errors import InvalidVoterKeyError, NotControllerError, StorageError
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochEndOffset,
    QuorumFetchRequest,
    ReplicaKey,
    VoteRequest,
)
from support.quorum_nodes import (
    InProcessNetwork,
    QuorumNode,
    directory_of,
    leader_of,
    other_nodes,
    run,
    start_quorum,
    stop_nodes,
    wait_until,
)


def test_a_vote_of_an_earlier_epoch_is_ignored() -> None:
    async def scenario() -> None:
        network = InProcessNetwork()
        node = QuorumNode(network, 1, [1, 2, 3])
        await node.start()
        await wait_until(lambda: any(isinstance(request, VoteRequest) for _, _, request in network.calls))
        reply = await node.quorum.vote(
            VoteRequest(ReplicaKey(2), 9, EpochEndOffset(0, 0), is_pre_vote=False, voter=ReplicaKey(1))
        )
        assert (reply.epoch, reply.is_granted) == (9, True)
        assert node.elections.load() == ElectionState(9, -1, 2)
        await node.stop()

    run(scenario())


def test_a_vote_is_durable_before_the_response() -> None:
    async def scenario() -> None:
        node = QuorumNode(InProcessNetwork(), 1, [1, 2, 3])
        await node.start()
        gate, saved = asyncio.Event(), node.elections.save

        async def slow(election: ElectionState) -> None:
            await gate.wait()
            await saved(election)

        node.elections.save = slow  # type: ignore[method-assign]
        request = VoteRequest(ReplicaKey(2), 9, EpochEndOffset(0, 0), is_pre_vote=False, voter=ReplicaKey(1))
        answer = asyncio.ensure_future(node.quorum.vote(request))
        await asyncio.sleep(0.02)
        assert not answer.done()
        answer.cancel()
        gate.set()
        again = await node.quorum.vote(request)
        assert again.is_granted
        other = await node.quorum.vote(
            VoteRequest(ReplicaKey(3), 9, EpochEndOffset(0, 0), is_pre_vote=False, voter=ReplicaKey(1))
        )
        assert not other.is_granted
        await node.stop()

    run(scenario())


def test_a_vote_that_cannot_be_persisted_is_not_granted_and_is_fatal() -> None:
    async def scenario() -> None:
        node = QuorumNode(InProcessNetwork(), 1, [1, 2, 3])
        await node.start()

        async def fail(election: ElectionState) -> None:
            raise StorageError("the disk is gone")

        node.elections.save = fail  # type: ignore[method-assign]
        request = VoteRequest(ReplicaKey(2), 9, EpochEndOffset(0, 0), is_pre_vote=False, voter=ReplicaKey(1))
        with pytest.raises(StorageError):
            await node.quorum.vote(request)
        assert [str(error) for error in node.failures] == ["the disk is gone"]
        with pytest.raises(StorageError):
            await node.quorum.vote(request)
        await node.stop()

    run(scenario())


def test_a_node_rejects_requests_before_its_log_is_loaded() -> None:
    async def scenario() -> None:
        node = QuorumNode(InProcessNetwork(), 1, [1, 2, 3])
        await node.start()
        await node.stop()
        gate = asyncio.Event()
        node.log.sync_gate = gate
        starting = asyncio.ensure_future(node.start())
        await asyncio.sleep(0.01)
        early = asyncio.ensure_future(
            node.quorum.vote(VoteRequest(ReplicaKey(2), 9, EpochEndOffset(0, 0), False, ReplicaKey(1)))
        )
        await node.quorum.resign()
        gate.set()
        await starting
        assert (await early).epoch == 9, "requests are handled in order"
        await node.stop()
        other = QuorumNode(InProcessNetwork(), 1, [1, 2, 3])
        gate.clear()
        other.log.sync_gate, other.log.sync_error = gate, StorageError("the disk is gone")
        starting = asyncio.ensure_future(other.start())
        await asyncio.sleep(0.01)
        early = asyncio.ensure_future(
            other.quorum.vote(VoteRequest(ReplicaKey(2), 9, EpochEndOffset(0, 0), False, ReplicaKey(1)))
        )
        gate.set()
        with pytest.raises(StorageError):
            await starting
        with pytest.raises(NotControllerError):
            await early
        assert other.elections.load().epoch == 0
        await other.stop()

    run(scenario())


def test_requests_for_another_voter_are_rejected() -> None:
    async def scenario() -> None:
        node = QuorumNode(InProcessNetwork(), 1, [1, 2, 3])
        await node.start()
        for key in (ReplicaKey(2), ReplicaKey(1, directory_of(5))):
            with pytest.raises(InvalidVoterKeyError):
                await node.quorum.vote(VoteRequest(ReplicaKey(2), 9, EpochEndOffset(0, 0), False, key))
            with pytest.raises(InvalidVoterKeyError):
                await node.quorum.begin_quorum_epoch(BeginQuorumEpochRequest(2, 9, key))
        assert node.quorum.epoch < 9
        await node.stop()

    run(scenario())


def test_stale_requests_get_the_current_epoch() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        epoch = leader.quorum.epoch
        follower = other_nodes(nodes, leader)[0]
        begun = await follower.quorum.begin_quorum_epoch(
            BeginQuorumEpochRequest(9, epoch - 1, ReplicaKey(follower.node_id))
        )
        ended = await follower.quorum.end_quorum_epoch(EndQuorumEpochRequest(9, epoch - 1, ()))
        for reply in (begun, ended):
            assert (reply.epoch, reply.leader_id) == (epoch, leader.node_id)
        for known in (epoch - 1, epoch + 1):
            fetched = await leader.quorum.fetch(QuorumFetchRequest(ReplicaKey(2), known, EpochEndOffset(-1, 0)))
            assert (fetched.is_leader, fetched.epoch, fetched.leader_id) == (False, epoch, leader.node_id)
        fetched = await follower.quorum.fetch(QuorumFetchRequest(ReplicaKey(2), epoch, EpochEndOffset(-1, 0)))
        assert (fetched.is_leader, fetched.leader_id) == (False, leader.node_id)
        assert leader_of(nodes) is leader, "a fetch, whatever it says, deposes nobody"
        await stop_nodes(nodes)

    run(scenario())


def test_a_waiting_fetch_ends_with_new_records_or_when_the_leader_closes() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(1)
        quorum = leader.quorum
        await wait_until(lambda: quorum.high_watermark == leader.log.end_offset)
        end = EpochEndOffset(quorum.epoch, leader.log.end_offset)
        wanted = QuorumFetchRequest(ReplicaKey(7, directory_of(7)), quorum.epoch, end, quorum.high_watermark, 60_000)
        first = asyncio.ensure_future(quorum.fetch(wanted))
        await asyncio.sleep(0.01)
        assert not first.done()
        await quorum.append([b"a"])
        fetched = await first
        assert fetched.records
        at_end = EpochEndOffset(quorum.epoch, leader.log.end_offset)
        await wait_until(lambda: quorum.high_watermark == leader.log.end_offset)
        caught_up = QuorumFetchRequest(wanted.replica, quorum.epoch, at_end, quorum.high_watermark, 60_000)
        second = asyncio.ensure_future(quorum.fetch(caught_up))
        await asyncio.sleep(0.01)
        assert not second.done()
        await leader.stop()
        assert not (await second).is_leader
        await stop_nodes(nodes)

    run(scenario())


def test_a_fetch_is_limited_by_size_and_the_next_one_continues() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        values = [b"%d" % number * 3000 for number in range(30)]
        for value in values:
            await leader.quorum.append([value])
        await wait_until(lambda: all(node.values == values for node in nodes))
        await stop_nodes(nodes)

    run(scenario())


def test_records_damaged_in_transit_are_not_appended() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        await wait_until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        read = leader.log.read
        damaged: list[int] = []

        async def damage_once(offset: int, bytes_max: int, below: int, **how: Any) -> Any:
            slices = await read(offset, bytes_max, below, **how)
            if not damaged and slices.size:
                damaged.append(offset)
                data = bytearray(slices.read())
                data[-2] ^= 1
                return slices._replace(parts=(bytes(data),))
            return slices

        leader.log.read = damage_once  # type: ignore[method-assign]
        await leader.quorum.append([b"a"])
        await wait_until(lambda: all(node.values == [b"a"] for node in nodes))
        assert damaged
        await stop_nodes(nodes)

    run(scenario())
