"""Quorums of several nodes, drivers and all: elections, replication, divergence, snapshots, voters, closing."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from moldau.errors import (
    DuplicateVoterError,
    InvalidRequestError,
    InvalidVoterKeyError,
    NotControllerError,
    RequestTimedOutError,
    StorageError,
    VoterNotFoundError,
)
from moldau.quorum.driver import Quorum
from moldau.quorum.events import Election
from moldau.quorum.messages import (
    BeginEpochRequest,
    EndEpochRequest,
    LogEnd,
    QuorumFetch,
    ReplicaKey,
    SnapshotFetch,
    SnapshotFetched,
    SnapshotId,
    Voter,
    VoterEndpoint,
    VoteRequest,
)
from moldau.testing.simulation.loop import SimulatedLoop
from support.control_plane import TestLog
from support.quorum_nodes import FAST, QuorumNode, Wires, directory_of, leader_of, until


def run(story: Coroutine[Any, Any, None]) -> None:
    """On virtual time: a busy machine causes no elections."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(story)


async def started(count: int, wires: Wires | None = None) -> tuple[Wires, list[QuorumNode], QuorumNode]:
    wires = wires or Wires()
    nodes = [QuorumNode(wires, node_id, range(1, count + 1)) for node_id in range(1, count + 1)]
    await asyncio.gather(*(node.start() for node in nodes))
    await until(lambda: leader_of(nodes))
    leader = leader_of(nodes)
    assert leader is not None
    return wires, nodes, leader


async def stop(nodes: list[QuorumNode]) -> None:
    for node in nodes:
        if node.is_up:
            await node.stop()
    assert all(node.failures == [] for node in nodes)


def others(nodes: list[QuorumNode], *not_these: QuorumNode) -> list[QuorumNode]:
    return [node for node in nodes if node not in not_these]


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
        await away.quorum.snapshot([b"a"], SnapshotId(away.quorum.high_watermark, leader.quorum.epoch))
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
        handed_on = away.quorum._on_commit
        away.quorum._on_commit = lambda batches: (handed_on(batches), seen.append(away.values))[0]
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


def test_an_answer_to_a_vote_of_a_former_epoch_counts_for_nothing() -> None:
    async def story() -> None:
        wires = Wires()
        node = QuorumNode(wires, 1, [1, 2, 3])
        await node.start()
        await until(lambda: any(isinstance(request, VoteRequest) for _, _, request in wires.calls))
        reply = await node.quorum.vote(
            VoteRequest(ReplicaKey(2), 9, LogEnd(0, 0), is_pre_vote=False, voter=ReplicaKey(1))
        )
        assert (reply.epoch, reply.is_granted) == (9, True)
        assert node.elections.load() == Election(9, -1, 2)
        await node.stop()

    run(story())


def test_a_vote_is_on_disk_before_it_is_answered() -> None:
    async def story() -> None:
        node = QuorumNode(Wires(), 1, [1, 2, 3])
        await node.start()
        gate, saved = asyncio.Event(), node.elections.save

        async def slow(election: Election) -> None:
            await gate.wait()
            await saved(election)

        node.elections.save = slow  # type: ignore[method-assign]
        request = VoteRequest(ReplicaKey(2), 9, LogEnd(0, 0), is_pre_vote=False, voter=ReplicaKey(1))
        answer = asyncio.ensure_future(node.quorum.vote(request))
        await asyncio.sleep(0.02)
        assert not answer.done()
        answer.cancel()
        gate.set()
        again = await node.quorum.vote(request)
        assert again.is_granted
        other = await node.quorum.vote(
            VoteRequest(ReplicaKey(3), 9, LogEnd(0, 0), is_pre_vote=False, voter=ReplicaKey(1))
        )
        assert not other.is_granted
        await node.stop()

    run(story())


def test_a_vote_that_cannot_be_kept_is_not_given_and_ends_the_quorum() -> None:
    async def story() -> None:
        node = QuorumNode(Wires(), 1, [1, 2, 3])
        await node.start()

        async def fail(election: Election) -> None:
            raise StorageError("the disk is gone")

        node.elections.save = fail  # type: ignore[method-assign]
        request = VoteRequest(ReplicaKey(2), 9, LogEnd(0, 0), is_pre_vote=False, voter=ReplicaKey(1))
        with pytest.raises(StorageError):
            await node.quorum.vote(request)
        assert [str(error) for error in node.failures] == ["the disk is gone"]
        with pytest.raises(StorageError):
            await node.quorum.vote(request)
        await node.stop()

    run(story())


def test_a_node_that_has_not_looked_at_its_log_yet_answers_nobody() -> None:
    async def story() -> None:
        node = QuorumNode(Wires(), 1, [1, 2, 3])
        await node.start()
        await node.stop()
        gate = asyncio.Event()
        node.log.sync_gate = gate
        starting = asyncio.ensure_future(node.start())
        await asyncio.sleep(0.01)
        early = asyncio.ensure_future(
            node.quorum.vote(VoteRequest(ReplicaKey(2), 9, LogEnd(0, 0), False, ReplicaKey(1)))
        )
        await node.quorum.resign()
        gate.set()
        await starting
        assert (await early).epoch == 9, "it waited for its turn"
        await node.stop()
        other = QuorumNode(Wires(), 1, [1, 2, 3])
        gate.clear()
        other.log.sync_gate, other.log.sync_error = gate, StorageError("the disk is gone")
        starting = asyncio.ensure_future(other.start())
        await asyncio.sleep(0.01)
        early = asyncio.ensure_future(
            other.quorum.vote(VoteRequest(ReplicaKey(2), 9, LogEnd(0, 0), False, ReplicaKey(1)))
        )
        gate.set()
        with pytest.raises(StorageError):
            await starting
        with pytest.raises(NotControllerError):
            await early
        assert other.elections.load().epoch == 0
        await other.stop()

    run(story())


def test_requests_for_another_voter_are_refused() -> None:
    async def story() -> None:
        node = QuorumNode(Wires(), 1, [1, 2, 3])
        await node.start()
        for key in (ReplicaKey(2), ReplicaKey(1, directory_of(5))):
            with pytest.raises(InvalidVoterKeyError):
                await node.quorum.vote(VoteRequest(ReplicaKey(2), 9, LogEnd(0, 0), False, key))
            with pytest.raises(InvalidVoterKeyError):
                await node.quorum.begin_epoch(BeginEpochRequest(2, 9, key))
        assert node.quorum.epoch < 9
        await node.stop()

    run(story())


def test_stale_requests_are_answered_with_the_epoch_that_is() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        epoch = leader.quorum.epoch
        follower = others(nodes, leader)[0]
        begun = await follower.quorum.begin_epoch(
            BeginEpochRequest(9, epoch - 1, ReplicaKey(follower.node_id))
        )
        ended = await follower.quorum.end_epoch(EndEpochRequest(9, epoch - 1, ()))
        for reply in (begun, ended):
            assert (reply.epoch, reply.leader_id) == (epoch, leader.node_id)
        for known in (epoch - 1, epoch + 1):
            fetched = await leader.quorum.fetch(QuorumFetch(ReplicaKey(2), known, LogEnd(-1, 0)))
            assert (fetched.is_leader, fetched.epoch, fetched.leader_id) == (False, epoch, leader.node_id)
        fetched = await follower.quorum.fetch(QuorumFetch(ReplicaKey(2), epoch, LogEnd(-1, 0)))
        assert (fetched.is_leader, fetched.leader_id) == (False, leader.node_id)
        assert leader_of(nodes) is leader, "a fetch, whatever it says, deposes nobody"
        await stop(nodes)

    run(story())


def test_a_waiting_fetch_is_answered_when_there_is_news_or_the_leader_closes() -> None:
    async def story() -> None:
        _, nodes, leader = await started(1)
        quorum = leader.quorum
        await until(lambda: quorum.high_watermark == leader.log.end_offset)
        end = LogEnd(quorum.epoch, leader.log.end_offset)
        wanted = QuorumFetch(ReplicaKey(7, directory_of(7)), quorum.epoch, end, quorum.high_watermark, 60_000)
        first = asyncio.ensure_future(quorum.fetch(wanted))
        await asyncio.sleep(0.01)
        assert not first.done()
        await quorum.append([b"a"])
        fetched = await first
        assert fetched.records
        at_end = LogEnd(quorum.epoch, leader.log.end_offset)
        await until(lambda: quorum.high_watermark == leader.log.end_offset)
        caught_up = QuorumFetch(wanted.replica, quorum.epoch, at_end, quorum.high_watermark, 60_000)
        second = asyncio.ensure_future(quorum.fetch(caught_up))
        await asyncio.sleep(0.01)
        assert not second.done()
        await leader.stop()
        assert not (await second).is_leader
        await stop(nodes)

    run(story())


def test_a_fetch_is_cut_off_by_its_size_and_goes_on_with_the_next() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        values = [b"%d" % number * 3000 for number in range(30)]
        for value in values:
            await leader.quorum.append([value])
        await until(lambda: all(node.values == values for node in nodes))
        await stop(nodes)

    run(story())


def test_records_that_were_damaged_on_the_way_are_not_appended() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        await until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
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
        await until(lambda: all(node.values == [b"a"] for node in nodes))
        assert damaged
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


def test_a_node_that_is_far_behind_begins_with_a_snapshot() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        away = others(nodes, leader)[0]
        await until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        await away.stop()
        for round_ in range(3):
            await leader.quorum.append([b"%d" % round_])
            await until(lambda: leader.quorum.high_watermark == leader.log.end_offset)
            await leader.quorum.snapshot(
                leader.values, SnapshotId(leader.log.end_offset, leader.quorum.epoch), leader.node_id
            )
        await leader.quorum.append([b"3"])
        assert leader.log.start_offset > away.log.end_offset
        await away.start()
        await until(lambda: away.values == [b"0", b"1", b"2", b"3"])
        assert away.log.start_offset == away.taken[-1][0].end_offset
        await away.stop()
        await away.start()
        await until(lambda: away.values == [b"0", b"1", b"2", b"3"])
        assert [voter.node_id for voter in away.quorum.voters] == [1, 2, 3]
        await stop(nodes)

    run(story())


def test_the_log_begins_at_the_end_of_the_older_of_two_snapshots() -> None:
    async def story() -> None:
        _, nodes, leader = await started(1)
        ends = []
        for round_ in range(3):
            await leader.quorum.append([b"%d" % round_])
            await until(lambda: leader.quorum.high_watermark == leader.log.end_offset)
            ends.append(leader.log.end_offset)
            await leader.quorum.snapshot(leader.values, SnapshotId(ends[-1], leader.quorum.epoch))
        assert leader.log.start_offset == ends[-2]
        with pytest.raises(InvalidRequestError, match="not committed"):
            await leader.quorum.snapshot([], SnapshotId(ends[-1] + 1, leader.quorum.epoch))
        await leader.quorum.append([b"3"])
        await leader.stop()
        await leader.start()
        await until(lambda: leader.values == [b"0", b"1", b"2", b"3"])
        await stop(nodes)

    run(story())


def test_an_observer_follows_and_becomes_a_voter_and_the_leader_can_be_removed() -> None:
    async def story() -> None:
        wires, nodes, leader = await started(1)
        joining = QuorumNode(wires, 2, [], bootstrap=[1])
        nodes.append(joining)
        await leader.quorum.append([b"a"])
        await joining.start()
        await until(lambda: joining.values == [b"a"])
        assert [each.key.node_id for each in leader.quorum.describe().observers] == [2]
        endpoint = VoterEndpoint("PLAINTEXT", "node-2", 9092)
        await leader.quorum.add_voter(Voter(2, directory_of(2), (endpoint,)))
        assert [each.node_id for each in leader.quorum.voters] == [1, 2]
        assert wires.known[1, 2] == (endpoint,)
        with pytest.raises(DuplicateVoterError):
            await leader.quorum.add_voter(Voter(2, directory_of(2)))
        with pytest.raises(VoterNotFoundError):
            await leader.quorum.remove_voter(ReplicaKey(2, directory_of(9)))
        moved = VoterEndpoint("PLAINTEXT", "elsewhere", 9092)
        await leader.quorum.update_voter(Voter(2, directory_of(2), (moved,)))
        assert wires.known[1, 2] == (moved,)
        await leader.quorum.remove_voter(ReplicaKey(1, directory_of(1)))
        await until(lambda: joining.quorum.is_leader)
        assert [each.node_id for each in joining.quorum.voters] == [2]
        await until(lambda: leader.quorum.leader_id == 2)
        await joining.quorum.append([b"b"])
        await until(lambda: leader.values == [b"a", b"b"])
        with pytest.raises(InvalidRequestError, match="only voter"):
            await joining.quorum.remove_voter(ReplicaKey(2, directory_of(2)))
        await stop(nodes)

    run(story())


def test_a_voter_that_does_not_follow_is_not_added() -> None:
    async def story() -> None:
        _, nodes, leader = await started(1)
        await until(lambda: leader.quorum.high_watermark == leader.log.end_offset)
        with pytest.raises(RequestTimedOutError):
            await leader.quorum.add_voter(Voter(2, directory_of(2)), timeout_ms=30)
        with pytest.raises(InvalidRequestError, match="directory id"):
            await leader.quorum.add_voter(Voter(2))
        await stop(nodes)

    run(story())


def test_directories_of_the_first_voters_are_learned_and_an_empty_disk_is_no_voter() -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        known = {directory_of(node.node_id) for node in nodes}
        await until(lambda: {voter.directory_id for voter in leader.quorum.voters} == known)
        lost = others(nodes, leader)[0]
        await until(lambda: lost.quorum.voters == leader.quorum.voters)
        await lost.stop()
        imposter = ReplicaKey(lost.node_id, directory_of(99))
        end = LogEnd(leader.quorum.epoch, leader.log.end_offset)
        await leader.quorum.fetch(QuorumFetch(imposter, leader.quorum.epoch, end))
        description = leader.quorum.describe()
        assert imposter in [each.key for each in description.observers]
        assert imposter not in [each.key for each in description.voters]
        await stop(nodes)

    run(story())


def test_the_leader_tells_when_a_majority_was_last_heard_of() -> None:
    async def story() -> None:
        wires, nodes, leader = await started(3)
        loop = asyncio.get_running_loop()
        before = leader.quorum.confirmed_ms
        await until(lambda: leader.quorum.confirmed_ms > before)
        assert others(nodes, leader)[0].quorum.confirmed_ms < -(2**60)
        wires.cut = {leader.node_id}
        cut_ms = int(loop.time() * 1000)
        await until(lambda: not leader.quorum.is_leader or loop.time() * 1000 > cut_ms + 50)
        assert leader.quorum.confirmed_ms <= cut_ms + 1
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
        assert "has lost what it had on disk" in str(witness.failures[0])
        witness.failures.clear()
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


def test_a_snapshot_that_a_peer_sends_in_an_odd_way_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        _, nodes, leader = await started(3)
        away = others(nodes, leader)[0]
        await until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        await away.stop()
        for value in (b"a", b"b"):
            await leader.quorum.append([value])
            await until(lambda: leader.quorum.high_watermark == leader.log.end_offset)
            end = SnapshotId(leader.log.end_offset, leader.quorum.epoch)
            await leader.quorum.snapshot(leader.values, end)
        fetched, odd = Quorum.fetch_snapshot, [ValueError("what is this?")]

        async def fetch_snapshot(self: Quorum, request: SnapshotFetch) -> SnapshotFetched:
            if odd:
                raise odd.pop()
            return await fetched(self, request)

        monkeypatch.setattr(Quorum, "fetch_snapshot", fetch_snapshot)
        await away.start()
        await until(lambda: away.values == [b"a", b"b"])
        assert odd == []
        await stop(nodes)

    run(story())


def test_a_node_without_a_disk_is_not_added_to_the_voters() -> None:
    async def story() -> None:
        wires, nodes, leader = await started(1)
        diskless = QuorumNode(wires, 2, [1], has_disk=False)
        await diskless.start()
        await until(lambda: diskless.quorum.leader_id == 1)
        with pytest.raises(InvalidRequestError, match="store=memory"):
            await leader.quorum.add_voter(Voter(2, directory_of(2)))
        await stop([*nodes, diskless])

    run(story())
