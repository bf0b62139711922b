"""Quorums of several nodes, drivers and all: elections, replication, divergence, full disks, closing."""

import asyncio
from dataclasses import replace

import pytest

from moldau.errors import NotControllerError, StorageError
from moldau.raft.messages import QuorumFetchRequest, QuorumFetchResponse, SnapshotId
from moldau.records import control_records as control
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from support.control_plane import TestLog
from support.quorum_nodes import FAST, QuorumNode, Wires, leader_of, others, run, started, stop, until


def test_three_nodes_elect_one_and_agree_on_what_it_appends() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        await leader.quorum.append([b"a", b"b"])
        await leader.quorum.append([b"c"])
        await until(lambda: all(node.values == [b"a", b"b", b"c"] for node in nodes))
        assert all(node.leaders[-1] == (leader.node_id, leader.quorum.epoch) for node in nodes)
        for node in others(nodes, leader):
            with pytest.raises(NotControllerError):
                await node.quorum.append([b"d"])
            assert node.quorum.leader_endpoint() == (f"node-{leader.node_id}", 9092)
        await stop(nodes)

    run(story())


def test_nothing_is_handed_on_before_a_majority_has_it_on_disk() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        followers = others(nodes, leader)
        await until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        for node in followers:
            node.log.sync_gate = asyncio.Event()
        await leader.quorum.append([b"a"])
        await until(lambda: all(node.log.end_offset == leader.log.end_offset for node in nodes))
        await asyncio.sleep(0.02)
        assert leader.log.durable_offset == leader.log.end_offset
        assert [node.values for node in nodes] == [[], [], []]
        gate = followers[0].log.sync_gate
        assert gate is not None
        gate.set()
        await until(lambda: leader.values == [b"a"] and followers[0].values == [b"a"])
        assert followers[1].values == []
        gate = followers[1].log.sync_gate
        assert gate is not None
        gate.set()
        await until(lambda: followers[1].values == [b"a"])
        await stop(nodes)

    run(story())


def test_when_the_leaders_process_is_gone_another_is_elected_without_waiting_for_a_timeout() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        await leader.quorum.append([b"a"])
        await until(lambda: all(node.values == [b"a"] for node in nodes))
        epoch = leader.quorum.epoch
        await leader.stop()
        left = others(nodes, leader)
        await until(lambda: leader_of(left))
        successor = leader_of(left)
        assert successor is not None
        assert successor.quorum.epoch > epoch
        await successor.quorum.append([b"b"])
        await until(lambda: all(node.values == [b"a", b"b"] for node in left))
        await leader.start()
        await until(lambda: leader.values == [b"a", b"b"])
        assert leader_of(nodes) is successor
        await stop(nodes)

    run(story())


def test_a_leader_that_is_cut_off_resigns_and_what_it_alone_appended_is_truncated() -> None:
    async def story() -> None:
        wires, nodes, leader = await started(3)
        await until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        wires.cut = {leader.node_id}
        await leader.quorum.append([b"lost"])
        left = others(nodes, leader)
        await until(lambda: leader_of(left))
        successor = leader_of(left)
        assert successor is not None
        await successor.quorum.append([b"kept"])
        await until(lambda: not leader.quorum.is_leader)
        with pytest.raises(NotControllerError):
            await leader.quorum.append([b"refused"])
        await until(lambda: successor.values == [b"kept"])
        wires.cut = set()
        await until(lambda: all(node.values == [b"kept"] for node in nodes))
        assert leader_of(nodes) is successor, "a node that comes back causes no election"
        await stop(nodes)

    run(story())


def test_a_node_that_resigns_hands_over_at_once() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        await leader.quorum.append([b"a"])
        await until(lambda: all(node.values == [b"a"] for node in nodes))
        await leader.quorum.resign()
        assert not leader.quorum.is_leader
        left = others(nodes, leader)
        await until(lambda: leader_of(left))
        await leader.stop()
        await stop(nodes)

    run(story())


def test_all_nodes_stop_and_start_again_with_what_was_agreed_on() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        await leader.quorum.append([b"a"])
        await until(lambda: all(node.values == [b"a"] for node in nodes))
        epoch = leader.quorum.epoch
        await stop(nodes)
        await asyncio.gather(*(node.start() for node in nodes))
        await until(lambda: leader_of(nodes))
        await until(lambda: all(node.values == [b"a"] for node in nodes))
        assert nodes[0].quorum.epoch > epoch
        await stop(nodes)

    run(story())


def test_a_node_that_starts_hands_on_nothing_before_it_knows_all_that_was_agreed_on() -> None:
    async def story() -> None:
        wires, nodes, leader = await started(3)
        away = others(nodes, leader)[0]
        await leader.quorum.append([b"a"])
        await until(lambda: away.values == [b"a"])
        await away.quorum.write_snapshot([b"a"], SnapshotId(away.quorum.high_watermark, leader.quorum.epoch))
        await away.stop()
        for value in (b"b", b"c"):
            await leader.quorum.append([value])
        await until(lambda: leader.values == [b"a", b"b", b"c"])
        wires.cut = {away.node_id}
        await away.start()
        await asyncio.sleep(0.1)
        assert away.taken == []
        assert away.committed == []
        seen: list[list[bytes]] = []
        delivery = away.quorum._executor._delivery
        on_commit = delivery._on_commit
        delivery._on_commit = lambda batches: (on_commit(batches), seen.append(away.values))[0]
        wires.cut = set()
        await until(lambda: away.values == [b"a", b"b", b"c"])
        assert seen[0] == [b"a", b"b", b"c"]
        await stop(nodes)

    run(story())


def test_a_follower_that_lost_power_fetches_again_what_it_had_not_synced() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        follower = others(nodes, leader)[0]
        await until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        follower.log.sync_gate = asyncio.Event()
        await leader.quorum.append([b"a"])
        await until(lambda: follower.log.end_offset == leader.log.end_offset)
        closing = asyncio.ensure_future(follower.stop())
        follower.log.sync_error = StorageError("power is out")
        follower.log.sync_gate.set()
        await closing
        follower.failures.clear()
        await follower.log.lose_power()
        follower.log.sync_gate, follower.log.sync_error = None, None
        assert follower.log.end_offset < leader.log.end_offset
        await follower.start()
        await until(lambda: follower.values == [b"a"])
        await stop(nodes)

    run(story())


def test_a_peer_that_hangs_holds_up_nobody() -> None:
    async def story() -> None:
        wires, nodes, leader = await started(3)
        hung = others(nodes, leader)[0]
        wires.cut = {hung.node_id}
        await leader.quorum.append([b"a"])
        await until(lambda: all(node.values == [b"a"] for node in others(nodes, hung)))
        await stop(nodes)

    run(story())


def test_the_leader_tells_when_a_majority_was_last_heard_of() -> None:
    async def story() -> None:
        wires, nodes, leader = await started(3)
        loop = asyncio.get_running_loop()
        before = leader.quorum.majority_confirmed_ms
        await until(lambda: leader.quorum.majority_confirmed_ms > before)
        assert others(nodes, leader)[0].quorum.majority_confirmed_ms < -(2**60)
        wires.cut = {leader.node_id}
        cut_ms = int(loop.time() * 1000)
        await until(lambda: not leader.quorum.is_leader or loop.time() * 1000 > cut_ms + 50)
        assert leader.quorum.majority_confirmed_ms <= cut_ms + 1
        await stop(nodes)

    run(story())


def test_closing_ends_calls_waits_and_timers() -> None:
    async def story() -> None:
        wires, nodes, leader = await started(3)
        wires.cut = {1, 2, 3}
        await asyncio.sleep(0.02)
        await asyncio.gather(*(node.stop() for node in nodes))
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []
        with pytest.raises(NotControllerError):
            await leader.quorum.append([b"late"])
        await asyncio.sleep(2 * FAST.fetch_timeout_ms / 1000)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    run(story())


def test_a_quorum_of_two_goes_on_only_with_both() -> None:
    async def story() -> None:
        _, nodes, leader = await started(2)
        other = others(nodes, leader)[0]
        await other.stop()
        await leader.quorum.append([b"a"])
        await until(lambda: not leader.quorum.is_leader)
        assert leader.values == []
        await other.start()
        await until(lambda: leader_of(nodes))
        successor = leader_of(nodes)
        assert successor is leader, "it has the longer log"
        await until(lambda: all(node.values == [b"a"] for node in nodes))
        await stop(nodes)

    run(story())


def test_a_log_that_loses_what_was_committed_stops_the_node_that_finds_out() -> None:
    async def story() -> None:
        wires, nodes, leader = await started(3)
        for value in (b"a", b"b"):
            await leader.quorum.append([value])
        await until(lambda: all(node.values == [b"a", b"b"] for node in nodes))
        witness = others(nodes, leader)[0]
        amnesiacs = others(nodes, witness)
        wires.cut = {witness.node_id}
        for node in amnesiacs:
            await node.stop()
            node.log = TestLog(awaits=True)
        for node in amnesiacs:
            await node.start()
        await until(lambda: leader_of(amnesiacs))
        successor = leader_of(amnesiacs)
        assert successor is not None
        await successor.quorum.append([b"another history"])
        wires.cut = set()
        await until(lambda: witness.failures)
        assert "has lost committed records" in str(witness.failures[0])
        witness.failures.clear()
        await stop(nodes)

    run(story())


def test_a_follower_whose_disk_is_full_goes_on_when_there_is_room() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        await until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        follower = others(nodes, leader)[0]
        follower.log.append_error = StorageError("no space left")
        await leader.quorum.append([b"a"])
        await until(lambda: leader.values == [b"a"])
        await asyncio.sleep(0.05)
        assert follower.values == []
        follower.log.append_error = None
        await until(lambda: follower.values == [b"a"])
        await stop(nodes)

    run(story())


def test_records_that_cannot_be_understood_are_not_appended() -> None:
    """Their checksum is right, and so is all else that the log looks at."""

    async def story() -> None:
        _, nodes, leader = await started(2)
        [follower] = others(nodes, leader)
        await until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
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
            return replace(fetched, records=nonsense)

        leader.quorum.fetch = fetch_nonsense  # type: ignore[method-assign]
        # The fetch that is under way is not one of them.
        await asyncio.sleep(FAST.fetch_timeout_ms / 1000)
        await leader.quorum.append([b"a"])
        await until(lambda: follower.values == [b"a"] or follower.failures)
        assert fooled == 3
        assert follower.log.end_offset == leader.log.end_offset
        await stop(nodes)

    run(story())


def test_a_candidate_whose_disk_is_full_leaves_the_lead_to_another() -> None:
    async def story() -> None:
        wires = Wires()
        nodes = [QuorumNode(wires, node_id, (1, 2, 3)) for node_id in (1, 2, 3)]
        nodes[0].log.append_error = StorageError("no space left")
        await asyncio.gather(*(node.start() for node in nodes))
        await until(lambda: any(node.quorum.is_leader for node in nodes[1:]))
        nodes[0].log.append_error = None
        await until(lambda: leader_of(nodes))
        await stop(nodes)

    run(story())


def test_a_leader_whose_disk_is_full_gives_way_to_another() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        await leader.quorum.append([b"a"])
        await until(lambda: all(node.values == [b"a"] for node in nodes))
        leader.log.append_error = StorageError("No space left on device")
        with pytest.raises(StorageError, match="No space"):
            await leader.quorum.append([b"b"])
        assert not leader.quorum.is_leader
        await until(lambda: any(node.quorum.is_leader for node in others(nodes, leader)))
        successor = next(node for node in nodes if node.quorum.is_leader)
        leader.log.append_error = None
        await successor.quorum.append([b"c"])
        await until(lambda: all(node.values == [b"a", b"c"] for node in nodes))
        await stop(nodes)

    run(story())
