"""Raft clients of several nodes: elections, replication, divergence, full disks, closing."""

import asyncio

import pytest

from moldau.errors import NotControllerError, StorageError
from moldau.raft.messages import QuorumFetchRequest, QuorumFetchResponse, SnapshotId
from moldau.records import control_records as control
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from support.control_plane import TestLog
from support.quorum_nodes import (
    FAST,
    InProcessNetwork,
    QuorumNode,
    leader_of,
    other_nodes,
    run,
    start_quorum,
    stop_nodes,
    wait_until,
)


def test_three_nodes_elect_a_leader_and_commit_its_records() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        await leader.quorum.append([b"a", b"b"])
        await leader.quorum.append([b"c"])
        await wait_until(lambda: all(node.values == [b"a", b"b", b"c"] for node in nodes))
        assert all(node.leaders[-1] == (leader.node_id, leader.quorum.epoch) for node in nodes)
        for node in other_nodes(nodes, leader):
            with pytest.raises(NotControllerError):
                await node.quorum.append([b"d"])
            assert node.quorum.leader_endpoint() == (f"node-{leader.node_id}", 9092)
        await stop_nodes(nodes)

    run(scenario())


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("delay_s", [0.0, 0.2])
def test_the_lowest_id_is_the_first_leader_of_a_new_cluster(count: int, delay_s: float) -> None:
    async def scenario() -> None:
        network = InProcessNetwork()
        nodes = [QuorumNode(network, node_id, range(1, count + 1)) for node_id in range(1, count + 1)]
        for node in nodes[1:]:
            await node.start()
        await asyncio.sleep(delay_s)
        assert delay_s * 1000 < FAST.first_election_margin_ms
        await nodes[0].start()
        await wait_until(lambda: leader_of(nodes))
        assert leader_of(nodes) is nodes[0]
        assert nodes[0].quorum.epoch == 1
        await stop_nodes(nodes)

    run(scenario())


def test_a_new_cluster_elects_a_leader_without_the_lowest_id() -> None:
    async def scenario() -> None:
        network = InProcessNetwork()
        nodes = [QuorumNode(network, node_id, (1, 2, 3)) for node_id in (2, 3)]
        for node in nodes:
            await node.start()
        began = asyncio.get_running_loop().time()
        await wait_until(lambda: leader_of(nodes))
        took_ms = (asyncio.get_running_loop().time() - began) * 1000
        margin_ms = FAST.first_election_margin_ms
        assert margin_ms <= took_ms < margin_ms + 2 * FAST.election_timeout_ms
        await stop_nodes(nodes)

    run(scenario())


def test_nothing_is_delivered_before_a_majority_has_it_on_disk() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        followers = other_nodes(nodes, leader)
        await wait_until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        for node in followers:
            node.log.sync_gate = asyncio.Event()
        await leader.quorum.append([b"a"])
        await wait_until(lambda: all(node.log.end_offset == leader.log.end_offset for node in nodes))
        await asyncio.sleep(0.02)
        assert leader.log.durable_offset == leader.log.end_offset
        assert [node.values for node in nodes] == [[], [], []]
        gate = followers[0].log.sync_gate
        assert gate is not None
        gate.set()
        await wait_until(lambda: leader.values == [b"a"] and followers[0].values == [b"a"])
        assert followers[1].values == []
        gate = followers[1].log.sync_gate
        assert gate is not None
        gate.set()
        await wait_until(lambda: followers[1].values == [b"a"])
        await stop_nodes(nodes)

    run(scenario())


def test_a_dead_leader_is_replaced_without_a_timeout() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        await leader.quorum.append([b"a"])
        await wait_until(lambda: all(node.values == [b"a"] for node in nodes))
        epoch = leader.quorum.epoch
        await leader.stop()
        left = other_nodes(nodes, leader)
        await wait_until(lambda: leader_of(left))
        successor = leader_of(left)
        assert successor is not None
        assert successor.quorum.epoch > epoch
        await successor.quorum.append([b"b"])
        await wait_until(lambda: all(node.values == [b"a", b"b"] for node in left))
        await leader.start()
        await wait_until(lambda: leader.values == [b"a", b"b"])
        assert leader_of(nodes) is successor
        await stop_nodes(nodes)

    run(scenario())


def test_a_disconnected_leader_resigns_and_its_uncommitted_records_are_truncated() -> None:
    async def scenario() -> None:
        network, nodes, leader = await start_quorum(3)
        await wait_until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        network.disconnected = {leader.node_id}
        await leader.quorum.append([b"lost"])
        left = other_nodes(nodes, leader)
        await wait_until(lambda: leader_of(left))
        successor = leader_of(left)
        assert successor is not None
        await successor.quorum.append([b"kept"])
        await wait_until(lambda: not leader.quorum.is_leader)
        with pytest.raises(NotControllerError):
            await leader.quorum.append([b"refused"])
        await wait_until(lambda: successor.values == [b"kept"])
        network.disconnected = set()
        await wait_until(lambda: all(node.values == [b"kept"] for node in nodes))
        assert leader_of(nodes) is successor, "a node that comes back causes no election"
        await stop_nodes(nodes)

    run(scenario())


def test_another_node_is_elected_at_once_after_a_resignation() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        await leader.quorum.append([b"a"])
        await wait_until(lambda: all(node.values == [b"a"] for node in nodes))
        await leader.quorum.resign()
        assert not leader.quorum.is_leader
        left = other_nodes(nodes, leader)
        await wait_until(lambda: leader_of(left))
        await leader.stop()
        await stop_nodes(nodes)

    run(scenario())


def test_committed_records_survive_a_restart_of_all_nodes() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        await leader.quorum.append([b"a"])
        await wait_until(lambda: all(node.values == [b"a"] for node in nodes))
        epoch = leader.quorum.epoch
        await stop_nodes(nodes)
        await asyncio.gather(*(node.start() for node in nodes))
        await wait_until(lambda: leader_of(nodes))
        await wait_until(lambda: all(node.values == [b"a"] for node in nodes))
        assert nodes[0].quorum.epoch > epoch
        await stop_nodes(nodes)

    run(scenario())


def test_a_starting_node_delivers_nothing_before_it_has_caught_up() -> None:
    async def scenario() -> None:
        network, nodes, leader = await start_quorum(3)
        away = other_nodes(nodes, leader)[0]
        await leader.quorum.append([b"a"])
        await wait_until(lambda: away.values == [b"a"])
        await away.quorum.write_snapshot([b"a"], SnapshotId(away.quorum.high_watermark, leader.quorum.epoch))
        await away.stop()
        for value in (b"b", b"c"):
            await leader.quorum.append([value])
        await wait_until(lambda: leader.values == [b"a", b"b", b"c"])
        network.disconnected = {away.node_id}
        await away.start()
        await asyncio.sleep(0.1)
        assert away.taken == []
        assert away.committed == []
        seen: list[list[bytes]] = []
        delivery = away.quorum._executor._delivery
        on_commit = delivery._on_commit
        delivery._on_commit = lambda batches: (on_commit(batches), seen.append(away.values))[0]
        network.disconnected = set()
        await wait_until(lambda: away.values == [b"a", b"b", b"c"])
        assert seen[0] == [b"a", b"b", b"c"]
        await stop_nodes(nodes)

    run(scenario())


def test_a_follower_fetches_unflushed_records_again_after_a_power_failure() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        follower = other_nodes(nodes, leader)[0]
        await wait_until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        follower.log.sync_gate = asyncio.Event()
        await leader.quorum.append([b"a"])
        await wait_until(lambda: follower.log.end_offset == leader.log.end_offset)
        closing = asyncio.ensure_future(follower.stop())
        follower.log.sync_error = StorageError("power is out")
        follower.log.sync_gate.set()
        await closing
        follower.failures.clear()
        await follower.log.lose_power()
        follower.log.sync_gate, follower.log.sync_error = None, None
        assert follower.log.end_offset < leader.log.end_offset
        await follower.start()
        await wait_until(lambda: follower.values == [b"a"])
        await stop_nodes(nodes)

    run(scenario())


def test_a_hanging_peer_delays_no_other_request() -> None:
    async def scenario() -> None:
        network, nodes, leader = await start_quorum(3)
        hung = other_nodes(nodes, leader)[0]
        network.disconnected = {hung.node_id}
        await leader.quorum.append([b"a"])
        await wait_until(lambda: all(node.values == [b"a"] for node in other_nodes(nodes, hung)))
        await stop_nodes(nodes)

    run(scenario())


def test_the_leader_knows_when_a_majority_last_confirmed_it() -> None:
    async def scenario() -> None:
        network, nodes, leader = await start_quorum(3)
        loop = asyncio.get_running_loop()
        before = leader.quorum.majority_confirmed_ms
        await wait_until(lambda: leader.quorum.majority_confirmed_ms > before)
        assert other_nodes(nodes, leader)[0].quorum.majority_confirmed_ms < -(2**60)
        network.disconnected = {leader.node_id}
        cut_ms = int(loop.time() * 1000)
        await wait_until(lambda: not leader.quorum.is_leader or loop.time() * 1000 > cut_ms + 50)
        assert leader.quorum.majority_confirmed_ms <= cut_ms + 1
        await stop_nodes(nodes)

    run(scenario())


def test_closing_cancels_requests_waits_and_timers() -> None:
    async def scenario() -> None:
        network, nodes, leader = await start_quorum(3)
        network.disconnected = {1, 2, 3}
        await asyncio.sleep(0.02)
        await asyncio.gather(*(node.stop() for node in nodes))
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []
        with pytest.raises(NotControllerError):
            await leader.quorum.append([b"late"])
        await asyncio.sleep(2 * FAST.fetch_timeout_ms / 1000)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    run(scenario())


def test_a_quorum_of_two_needs_both_voters() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(2)
        other = other_nodes(nodes, leader)[0]
        await other.stop()
        await leader.quorum.append([b"a"])
        await wait_until(lambda: not leader.quorum.is_leader)
        assert leader.values == []
        await other.start()
        await wait_until(lambda: leader_of(nodes))
        successor = leader_of(nodes)
        assert successor is leader, "it has the longer log"
        await wait_until(lambda: all(node.values == [b"a"] for node in nodes))
        await stop_nodes(nodes)

    run(scenario())


def test_a_node_that_finds_committed_records_lost_stops() -> None:
    async def scenario() -> None:
        network, nodes, leader = await start_quorum(3)
        for value in (b"a", b"b"):
            await leader.quorum.append([value])
        await wait_until(lambda: all(node.values == [b"a", b"b"] for node in nodes))
        witness = other_nodes(nodes, leader)[0]
        amnesiacs = other_nodes(nodes, witness)
        network.disconnected = {witness.node_id}
        for node in amnesiacs:
            await node.stop()
            node.log = TestLog(awaits=True)
        for node in amnesiacs:
            await node.start()
        await wait_until(lambda: leader_of(amnesiacs))
        successor = leader_of(amnesiacs)
        assert successor is not None
        await successor.quorum.append([b"another history"])
        network.disconnected = set()
        await wait_until(lambda: witness.failures)
        assert "has lost committed records" in str(witness.failures[0])
        witness.failures.clear()
        await stop_nodes(nodes)

    run(scenario())


def test_a_follower_with_a_full_disk_continues_when_there_is_space() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        await wait_until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        follower = other_nodes(nodes, leader)[0]
        follower.log.append_error = StorageError("no space left")
        await leader.quorum.append([b"a"])
        await wait_until(lambda: leader.values == [b"a"])
        await asyncio.sleep(0.05)
        assert follower.values == []
        follower.log.append_error = None
        await wait_until(lambda: follower.values == [b"a"])
        await stop_nodes(nodes)

    run(scenario())


def test_invalid_records_are_not_appended() -> None:
    """The records have a valid checksum and valid headers."""

    async def scenario() -> None:
        _, nodes, leader = await start_quorum(2)
        [follower] = other_nodes(nodes, leader)
        await wait_until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        fetch, fooled = leader.quorum.fetch, 0

        async def fetch_nonsense(request: QuorumFetchRequest) -> QuorumFetchResponse:
            nonlocal fooled
            fetched = await fetch(request)
            if not fetched.records or fooled == 3:
                return fetched
            fooled += 1
            record = Record(timestamp=0, key=control.encode_key(control.Voters(())), value=b"")
            nonsense = build_batch(
                [record], base_offset=request.log_end.offset, leader_epoch=request.epoch, control=True
            )
            return fetched._replace(records=nonsense)

        leader.quorum.fetch = fetch_nonsense  # type: ignore[method-assign]
        # The fetch in flight is not counted.
        await asyncio.sleep(FAST.fetch_timeout_ms / 1000)
        await leader.quorum.append([b"a"])
        await wait_until(lambda: follower.values == [b"a"] or follower.failures)
        assert fooled == 3
        assert follower.log.end_offset == leader.log.end_offset
        await stop_nodes(nodes)

    run(scenario())


def test_a_candidate_with_a_full_disk_does_not_block_another_leader() -> None:
    async def scenario() -> None:
        network = InProcessNetwork()
        nodes = [QuorumNode(network, node_id, (1, 2, 3)) for node_id in (1, 2, 3)]
        nodes[0].log.append_error = StorageError("no space left")
        await asyncio.gather(*(node.start() for node in nodes))
        await wait_until(lambda: any(node.quorum.is_leader for node in nodes[1:]))
        nodes[0].log.append_error = None
        await wait_until(lambda: leader_of(nodes))
        await stop_nodes(nodes)

    run(scenario())


def test_a_leader_with_a_full_disk_resigns() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        await leader.quorum.append([b"a"])
        await wait_until(lambda: all(node.values == [b"a"] for node in nodes))
        leader.log.append_error = StorageError("No space left on device")
        with pytest.raises(StorageError, match="No space"):
            await leader.quorum.append([b"b"])
        assert not leader.quorum.is_leader
        await wait_until(lambda: any(node.quorum.is_leader for node in other_nodes(nodes, leader)))
        successor = next(node for node in nodes if node.quorum.is_leader)
        leader.log.append_error = None
        await successor.quorum.append([b"c"])
        await wait_until(lambda: all(node.values == [b"a", b"c"] for node in nodes))
        await stop_nodes(nodes)

    run(scenario())
