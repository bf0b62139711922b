"""Requests of nodes that are not known as voters: new voters, or nodes of no cluster."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.client.net.api_versions import SUPPORTED_VERSIONS
from moldau.error_codes import ErrorCode
from moldau.handlers import REGISTRY
from moldau.metadata.image import MetadataImage
from moldau.server.api import ClientConnection, RequestContext
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder
from support.quorum_nodes import InProcessNetwork, QuorumNode, run, wait_until

TOPIC = "__cluster_metadata"
NEW, UNKNOWN = 4, 99


async def call(node: QuorumNode, api: ApiKey, partition: dict[str, Any], **more: Any) -> Message:
    """Returns the partition in the response of a node without metadata."""
    version = SUPPORTED_VERSIONS[api].maximum
    partitions_entry = {"partition_index": 0, "voter_directory_id": None, **partition}
    tree = {
        "cluster_id": "cluster",
        "voter_id": node.node_id,
        "topics": [{"topic_name": TOPIC, "partitions": [partitions_entry]}],
        "leader_endpoints": [],
        **more,
    }
    frame, response_frame = bytearray(), bytearray()
    encoder(api, version, "request")(frame, tree)
    request = decoder(api, version, "request")(memoryview(bytes(frame)))
    session = RequestContext(ClientConnection("127.0.0.1:1", "NODES"), version, None)
    broker: Any = SimpleNamespace(
        quorum=node.quorum, metadata=SimpleNamespace(image=MetadataImage(cluster_id="cluster"))
    )
    encoder(api, version, "response")(response_frame, await REGISTRY[api].handler(request, session, broker))
    found: Message = decoder(api, version, "response")(memoryview(bytes(response_frame))).topics[0].partitions[0]
    return found


async def vote(node: QuorumNode, candidate: int, epoch: int, *, pre_vote: bool = False) -> Message:
    partition = {
        "replica_epoch": epoch,
        "replica_id": candidate,
        "replica_directory_id": UUID(int=7),
        "last_offset_epoch": epoch - 1,
        "last_offset": 1_000,
        "pre_vote": pre_vote,
    }
    return await call(node, ApiKey.VOTE, partition)


async def begin(node: QuorumNode, leader_id: int, epoch: int) -> Message:
    return await call(node, ApiKey.BEGIN_QUORUM_EPOCH, {"leader_id": leader_id, "leader_epoch": epoch})


async def end(node: QuorumNode, leader_id: int, epoch: int) -> Message:
    partition = {"leader_id": leader_id, "leader_epoch": epoch, "preferred_candidates": []}
    return await call(node, ApiKey.END_QUORUM_EPOCH, partition)


def test_a_voter_without_a_leader_votes_for_an_unknown_node_and_follows_it() -> None:
    async def scenario() -> None:
        node = QuorumNode(InProcessNetwork(), 3, [1, 2, 3])
        await node.start()
        assert (await vote(node, NEW, 5, pre_vote=True)).vote_granted
        response = await vote(node, NEW, 6)
        assert (response.error_code, response.vote_granted) == (0, True)
        assert not (await vote(node, 2, 6)).vote_granted
        begun = await begin(node, NEW, 6)
        assert (begun.error_code, begun.leader_id) == (0, NEW)
        assert node.quorum.leader_id == NEW
        # The new voter is not in the node's log yet, and repeats or ends its epoch.
        assert (await begin(node, NEW, 6)).error_code == 0
        assert (await end(node, NEW, 6)).error_code == 0
        assert node.quorum.leader_id == -1
        await node.stop()

    run(scenario())


@pytest.mark.parametrize("is_leader", [True, False])
def test_an_unknown_node_cannot_disturb_a_node_with_a_live_leader(is_leader: bool) -> None:
    async def scenario() -> None:
        network = InProcessNetwork()
        nodes = [QuorumNode(network, node_id, [1, 2]) for node_id in (1, 2)]
        await asyncio.gather(*(node.start() for node in nodes))
        await wait_until(lambda: all(node.quorum.has_live_leader for node in nodes))
        node = next(node for node in nodes if node.quorum.is_leader == is_leader)
        epoch, leader_id = node.quorum.epoch, node.quorum.leader_id
        for response_frame in (
            await vote(node, UNKNOWN, epoch + 1),
            await vote(node, UNKNOWN, epoch + 1, pre_vote=True),
            await begin(node, UNKNOWN, epoch + 1),
            await end(node, UNKNOWN, epoch + 1),
        ):
            assert response_frame.error_code == ErrorCode.inconsistent_voter_set
        assert (node.quorum.epoch, node.quorum.leader_id) == (epoch, leader_id)
        for each in nodes:
            await each.stop()

    run(scenario())


def test_a_node_leaves_an_unknown_leader_when_the_voters_elect_one() -> None:
    async def scenario() -> None:
        network = InProcessNetwork()
        nodes = [QuorumNode(network, node_id, [1, 2]) for node_id in (1, 2)]
        await nodes[0].start()
        await begin(nodes[0], UNKNOWN, 7)
        assert nodes[0].quorum.leader_id == UNKNOWN
        await nodes[1].start()
        await wait_until(lambda: {node.quorum.leader_id for node in nodes} in ({1}, {2}))
        assert nodes[0].quorum.epoch > 7
        for each in nodes:
            await each.stop()

    run(scenario())
