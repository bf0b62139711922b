"""Voters that a node does not know: it was away when they were added, or they are none."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.client.net.api_versions import SUPPORTED_VERSIONS
from moldau.handlers import REGISTRY
from moldau.metadata.image import MetadataImage
from moldau.server.errors import ErrorCode
from moldau.server.session import ClientConnection, Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder
from support.quorum_nodes import QuorumNode, Wires, run, until

TOPIC = "__cluster_metadata"
NEW, STRANGER = 4, 99


async def ask(node: QuorumNode, api: ApiKey, partition: dict[str, Any], **more: Any) -> Message:
    """The partition in the answer of a node that knows nothing of the cluster but its own log."""
    version = SUPPORTED_VERSIONS[api].maximum
    of_log = {"partition_index": 0, "voter_directory_id": None, **partition}
    tree = {
        "cluster_id": "cluster",
        "voter_id": node.node_id,
        "topics": [{"topic_name": TOPIC, "partitions": [of_log]}],
        "leader_endpoints": [],
        **more,
    }
    frame, answer = bytearray(), bytearray()
    encoder(api, version, "request")(frame, tree)
    request = decoder(api, version, "request")(memoryview(bytes(frame)))
    session = Session(ClientConnection("127.0.0.1:1", "NODES"), version, None)
    broker: Any = SimpleNamespace(
        quorum=node.quorum, metadata=SimpleNamespace(image=MetadataImage(cluster_id="cluster"))
    )
    encoder(api, version, "response")(answer, await REGISTRY[api].handler(request, session, broker))
    found: Message = decoder(api, version, "response")(memoryview(bytes(answer))).topics[0].partitions[0]
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
    return await ask(node, ApiKey.VOTE, partition)


async def begin(node: QuorumNode, leader_id: int, epoch: int) -> Message:
    return await ask(node, ApiKey.BEGIN_QUORUM_EPOCH, {"leader_id": leader_id, "leader_epoch": epoch})


async def end(node: QuorumNode, leader_id: int, epoch: int) -> Message:
    partition = {"leader_id": leader_id, "leader_epoch": epoch, "preferred_candidates": []}
    return await ask(node, ApiKey.END_QUORUM_EPOCH, partition)


def test_a_voter_that_hears_no_leader_votes_for_one_it_does_not_know_and_follows_it() -> None:
    async def story() -> None:
        node = QuorumNode(Wires(), 3, [1, 2, 3])
        await node.start()
        assert (await vote(node, NEW, 5, pre_vote=True)).vote_granted
        response = await vote(node, NEW, 6)
        assert (response.error_code, response.vote_granted) == (0, True)
        assert not (await vote(node, 2, 6)).vote_granted
        begun = await begin(node, NEW, 6)
        assert (begun.error_code, begun.leader_id) == (0, NEW)
        assert node.quorum.leader_id == NEW
        # Its log does not name it yet, and it says it again, or that it goes.
        assert (await begin(node, NEW, 6)).error_code == 0
        assert (await end(node, NEW, 6)).error_code == 0
        assert node.quorum.leader_id == -1
        await node.stop()

    run(story())


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_stranger_does_nothing_to_a_node_that_hears_its_leader(is_leader: bool) -> None:
    async def story() -> None:
        wires = Wires()
        nodes = [QuorumNode(wires, node_id, [1, 2]) for node_id in (1, 2)]
        await asyncio.gather(*(node.start() for node in nodes))
        await until(lambda: all(node.quorum.has_live_leader for node in nodes))
        node = next(node for node in nodes if node.quorum.is_leader == is_leader)
        epoch, leader_id = node.quorum.epoch, node.quorum.leader_id
        for answer in (
            await vote(node, STRANGER, epoch + 1),
            await vote(node, STRANGER, epoch + 1, pre_vote=True),
            await begin(node, STRANGER, epoch + 1),
            await end(node, STRANGER, epoch + 1),
        ):
            assert answer.error_code == ErrorCode.inconsistent_voter_set
        assert (node.quorum.epoch, node.quorum.leader_id) == (epoch, leader_id)
        for each in nodes:
            await each.stop()

    run(story())


def test_a_stranger_that_led_a_node_astray_is_left_when_voters_elect_one() -> None:
    async def story() -> None:
        wires = Wires()
        nodes = [QuorumNode(wires, node_id, [1, 2]) for node_id in (1, 2)]
        await nodes[0].start()
        await begin(nodes[0], STRANGER, 7)
        assert nodes[0].quorum.leader_id == STRANGER
        await nodes[1].start()
        await until(lambda: {node.quorum.leader_id for node in nodes} in ({1}, {2}))
        assert nodes[0].quorum.epoch > 7
        for each in nodes:
            await each.stop()

    run(story())
