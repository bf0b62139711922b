"""A request that is queued while another epoch starts."""

import asyncio

from moldau.raft.messages import EpochEndOffset, FetchSnapshotRequest, ReplicaKey, SnapshotId, VoteRequest
from support.quorum_nodes import InProcessNetwork, QuorumNode, directory_of, leader_of, run, wait_until


def test_a_deposed_leader_does_not_serve_a_snapshot_in_the_new_epoch() -> None:
    async def scenario() -> None:
        network = InProcessNetwork()
        nodes = [QuorumNode(network, node_id, [1, 2, 3]) for node_id in (1, 2, 3)]
        await asyncio.gather(*(node.start() for node in nodes))
        await wait_until(lambda: leader_of(nodes))
        leader = leader_of(nodes)
        assert leader is not None
        quorum, epoch = leader.quorum, leader.quorum.epoch
        await wait_until(lambda: quorum.high_watermark == leader.log.end_offset)
        snapshot = SnapshotId(quorum.high_watermark, epoch)
        await quorum.write_snapshot([b"all so far"], snapshot)
        second, third = (ReplicaKey(node.node_id) for node in nodes if node is not leader)

        asked = asyncio.ensure_future(quorum.fetch_snapshot(FetchSnapshotRequest(third, epoch, snapshot, 0)))
        candidate = VoteRequest(
            second,
            epoch + 1,
            EpochEndOffset(epoch, 1_000),
            False,
            ReplicaKey(leader.node_id, directory_of(leader.node_id)),
        )
        voted = asyncio.ensure_future(quorum.vote(candidate))
        assert (await voted).is_granted
        reply = await asked
        assert (reply.epoch, reply.leader_id, reply.is_leader) == (epoch + 1, -1, False)
        for node in nodes:
            await node.stop()

    run(scenario())
