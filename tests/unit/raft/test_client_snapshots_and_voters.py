"""Snapshots and changes of the voters in quorums of several nodes."""

import pytest

from moldau.errors import DuplicateVoterError, InvalidRequestError, RequestTimedOutError, VoterNotFoundError
from moldau.raft.messages import (
    EpochEndOffset,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    ReplicaKey,
    SnapshotId,
    VoterEndpoint,
    VoterNode,
)
from moldau.raft.raft_client import RaftClient
from support.quorum_nodes import QuorumNode, directory_of, other_nodes, run, start_quorum, stop_nodes, wait_until


def test_a_node_far_behind_loads_a_snapshot() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        away = other_nodes(nodes, leader)[0]
        await wait_until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        await away.stop()
        for round_ in range(3):
            await leader.quorum.append([b"%d" % round_])
            await wait_until(lambda: leader.quorum.high_watermark == leader.log.end_offset)
            await leader.quorum.write_snapshot(
                leader.values, SnapshotId(leader.log.end_offset, leader.quorum.epoch), leader.node_id
            )
        await leader.quorum.append([b"3"])
        assert leader.log.start_offset > away.log.end_offset
        await away.start()
        await wait_until(lambda: away.values == [b"0", b"1", b"2", b"3"])
        assert away.log.start_offset == away.taken[-1][0].end_offset
        await away.stop()
        await away.start()
        await wait_until(lambda: away.values == [b"0", b"1", b"2", b"3"])
        assert [voter.node_id for voter in away.quorum.voters] == [1, 2, 3]
        await stop_nodes(nodes)

    run(scenario())


def test_the_log_starts_at_the_end_of_the_older_of_two_snapshots() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(1)
        ends = []
        for round_ in range(3):
            await leader.quorum.append([b"%d" % round_])
            await wait_until(lambda: leader.quorum.high_watermark == leader.log.end_offset)
            ends.append(leader.log.end_offset)
            await leader.quorum.write_snapshot(leader.values, SnapshotId(ends[-1], leader.quorum.epoch))
        assert leader.log.start_offset == ends[-2]
        with pytest.raises(InvalidRequestError, match="uncommitted"):
            await leader.quorum.write_snapshot([], SnapshotId(ends[-1] + 1, leader.quorum.epoch))
        await leader.quorum.append([b"3"])
        await leader.stop()
        await leader.start()
        await wait_until(lambda: leader.values == [b"0", b"1", b"2", b"3"])
        await stop_nodes(nodes)

    run(scenario())


def test_an_invalid_snapshot_response_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        away = other_nodes(nodes, leader)[0]
        await wait_until(lambda: all(node.quorum.high_watermark == leader.log.end_offset for node in nodes))
        await away.stop()
        for value in (b"a", b"b"):
            await leader.quorum.append([value])
            await wait_until(lambda: leader.quorum.high_watermark == leader.log.end_offset)
            end = SnapshotId(leader.log.end_offset, leader.quorum.epoch)
            await leader.quorum.write_snapshot(leader.values, end)
        fetched, odd = RaftClient.fetch_snapshot, [ValueError("what is this?")]

        async def fetch_snapshot(self: RaftClient, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
            if odd:
                raise odd.pop()
            return await fetched(self, request)

        monkeypatch.setattr(RaftClient, "fetch_snapshot", fetch_snapshot)
        await away.start()
        await wait_until(lambda: away.values == [b"a", b"b"])
        assert odd == []
        await stop_nodes(nodes)

    run(scenario())


def test_an_observer_follows_and_becomes_a_voter_and_the_leader_can_be_removed() -> None:
    async def scenario() -> None:
        network, nodes, leader = await start_quorum(1)
        joining = QuorumNode(network, 2, [], bootstrap=[1])
        nodes.append(joining)
        await leader.quorum.append([b"a"])
        await joining.start()
        await wait_until(lambda: joining.values == [b"a"])
        assert [each.key.node_id for each in leader.quorum.describe().observers] == [2]
        endpoint = VoterEndpoint("PLAINTEXT", "node-2", 9092)
        await leader.quorum.add_voter(VoterNode(2, directory_of(2), (endpoint,)))
        assert [each.node_id for each in leader.quorum.voters] == [1, 2]
        assert network.known[1, 2] == (endpoint,)
        with pytest.raises(DuplicateVoterError):
            await leader.quorum.add_voter(VoterNode(2, directory_of(2)))
        with pytest.raises(VoterNotFoundError):
            await leader.quorum.remove_voter(ReplicaKey(2, directory_of(9)))
        moved = VoterEndpoint("PLAINTEXT", "elsewhere", 9092)
        await leader.quorum.update_voter(VoterNode(2, directory_of(2), (moved,)))
        assert network.known[1, 2] == (moved,)
        await leader.quorum.remove_voter(ReplicaKey(1, directory_of(1)))
        await wait_until(lambda: joining.quorum.is_leader)
        assert [each.node_id for each in joining.quorum.voters] == [2]
        await wait_until(lambda: leader.quorum.leader_id == 2)
        await joining.quorum.append([b"b"])
        await wait_until(lambda: leader.values == [b"a", b"b"])
        with pytest.raises(InvalidRequestError, match="only voter"):
            await joining.quorum.remove_voter(ReplicaKey(2, directory_of(2)))
        await stop_nodes(nodes)

    run(scenario())


def test_a_voter_that_does_not_fetch_is_not_added() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(1)
        await wait_until(lambda: leader.quorum.high_watermark == leader.log.end_offset)
        with pytest.raises(RequestTimedOutError):
            await leader.quorum.add_voter(VoterNode(2, directory_of(2)), timeout_ms=30)
        with pytest.raises(InvalidRequestError, match="directory id"):
            await leader.quorum.add_voter(VoterNode(2))
        await stop_nodes(nodes)

    run(scenario())


def test_directories_of_initial_voters_are_learned_and_an_empty_disk_is_not_a_voter() -> None:
    async def scenario() -> None:
        _, nodes, leader = await start_quorum(3)
        known = {directory_of(node.node_id) for node in nodes}
        await wait_until(lambda: {voter.directory_id for voter in leader.quorum.voters} == known)
        lost = other_nodes(nodes, leader)[0]
        await wait_until(lambda: lost.quorum.voters == leader.quorum.voters)
        await lost.stop()
        imposter = ReplicaKey(lost.node_id, directory_of(99))
        end = EpochEndOffset(leader.quorum.epoch, leader.log.end_offset)
        await leader.quorum.fetch(QuorumFetchRequest(imposter, leader.quorum.epoch, end))
        description = leader.quorum.describe()
        assert imposter in [each.key for each in description.observers]
        assert imposter not in [each.key for each in description.voters]
        await stop_nodes(nodes)

    run(scenario())


def test_a_node_with_store_memory_cannot_become_a_voter() -> None:
    async def scenario() -> None:
        network, nodes, leader = await start_quorum(1)
        diskless = QuorumNode(network, 2, [1], has_disk=False)
        await diskless.start()
        await wait_until(lambda: diskless.quorum.leader_id == 1)
        with pytest.raises(InvalidRequestError, match="store=memory"):
            await leader.quorum.add_voter(VoterNode(2, directory_of(2)))
        await stop_nodes([*nodes, diskless])

    run(scenario())
