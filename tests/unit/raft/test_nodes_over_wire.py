"""Raft clients that exchange Kafka's messages: elections, commits, snapshots, new voters."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.client.net.api_versions import SUPPORTED_VERSIONS
from moldau.error_codes import ErrorCode
from moldau.errors import PeerUnreachableError
from moldau.logs.memory import MemoryLogStore
from moldau.platform.clock import SystemClock
from moldau.raft.batches import CommittedBatch
from moldau.raft.kafka_network_channel import KafkaNetworkChannel
from moldau.raft.messages import SnapshotId, VoterEndpoint, VoterNode
from moldau.raft.quorum_config import QuorumConfig
from moldau.raft.quorum_state_store import MemoryQuorumStateStore
from moldau.raft.raft_client import RaftClient, open_metadata_log
from moldau.raft.snapshot_store import MemorySnapshotStore
from moldau.server.api import ClientConnection, RequestContext
from moldau.server.metadata_fetch import fetch_metadata
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder
from support.admin_broker import handle

CONFIG = QuorumConfig(fetch_timeout_ms=600, election_timeout_ms=200, request_timeout_ms=400)


class InProcessPeerClient:
    """A peer client between nodes of one process: calls go through the codecs to the handlers."""

    def __init__(self, node_id: int, nodes: "dict[tuple[str, int], Node]") -> None:
        self.node_id = node_id
        self._nodes = nodes
        self._addresses: dict[int, tuple[str, int]] = {}

    def update_endpoint(self, node_id: int, host: str, port: int) -> None:
        self._addresses[node_id] = (host, port)

    async def call(
        self,
        node_id: int,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        lane: str,
        timeout_ms: int | None = None,
        version: int | None = None,
    ) -> Message:
        await asyncio.sleep(0)
        node = self._nodes.get(self._addresses.get(node_id, ("", 0)))
        if node is None:
            raise PeerUnreachableError(f"node {node_id} is not running", is_connection_refused=True)
        return await node.serve(api, SUPPORTED_VERSIONS[api].maximum if version is None else version, tree)


class Node:
    def __init__(
        self, node_id: int, nodes: "dict[tuple[str, int], Node]", voters: Sequence[VoterNode], **more: Any
    ) -> None:
        self.node_id = node_id
        self.nodes = nodes
        self.voter = VoterNode(node_id, UUID(int=node_id), (VoterEndpoint("NODES", f"host-{node_id}", 9000),))
        self.values: list[bytes] = []
        self.began_with: list[SnapshotId] = []
        self.snapshots = MemorySnapshotStore()
        self._voters = voters
        self._more = more

    async def start(self) -> None:
        peers = KafkaNetworkChannel(
            InProcessPeerClient(self.node_id, self.nodes),  # type: ignore[arg-type]
            "cluster",
            listener="NODES",
            request_timeout_ms=400,
            bootstrap={-2: ("host-1", 9000)},
        )
        self.quorum = RaftClient(
            self.node_id,
            self.voter.directory_id,
            await open_metadata_log(MemoryLogStore()),
            MemoryQuorumStateStore(),
            SystemClock(),
            random.Random(self.node_id),
            initial_voters=self._voters,
            channel=peers,
            snapshots=self.snapshots,
            config=CONFIG,
            on_commit=self._committed,
            on_load_snapshot=self._load_snapshot,
            on_fatal=lambda error: pytest.fail(f"node {self.node_id}: {error!r}"),
            **self._more,
        )
        settings = SimpleNamespace(broker=SimpleNamespace(inter_broker_listener="NODES"))
        metadata = SimpleNamespace(image=SimpleNamespace(cluster_id="cluster"))
        self.broker: Any = SimpleNamespace(quorum=self.quorum, settings=settings, metadata=metadata)
        self.nodes[f"host-{self.node_id}", 9000] = self
        await self.quorum.start()

    def _committed(self, batches: Sequence[CommittedBatch]) -> None:
        self.values += [value for batch in batches for value in batch.values]

    def _load_snapshot(self, values: Sequence[bytes], snapshot: SnapshotId, leader_id: int) -> None:
        self.values = list(values)
        self.began_with.append(snapshot)

    async def serve(self, api: ApiKey, version: int, tree: Mapping[str, Any]) -> Message:
        frame = bytearray()
        encoder(api, version, "request")(frame, tree)
        request = decoder(api, version, "request")(memoryview(bytes(frame)))
        session = RequestContext(ClientConnection("127.0.0.1:1", "NODES"), version, None)
        handler = fetch_metadata if api is ApiKey.FETCH else partial(handle, api)
        response = bytearray()
        encoder(api, version, "response")(response, await handler(request, session, self.broker))
        return decoder(api, version, "response")(memoryview(bytes(response)))

    async def stop(self) -> None:
        del self.nodes[f"host-{self.node_id}", 9000]
        await self.quorum.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def make_snapshot(leader: Node) -> None:
    """Writes a snapshot of all committed records, and appends one more record."""
    end = SnapshotId(leader.quorum.high_watermark, leader.quorum.epoch)
    await leader.quorum.write_snapshot([b"all so far"], end, leader.node_id)
    await leader.quorum.append([b"more"])
    await until(lambda: leader.quorum.high_watermark > end.end_offset)


def leader_of(nodes: Sequence[Node]) -> Node | None:
    leading = [node for node in nodes if node.quorum.is_leader]
    return max(leading, key=lambda node: node.quorum.epoch) if leading else None


async def elected(nodes: Sequence[Node]) -> Node:
    def agreed() -> bool:
        leader = leader_of(nodes)
        return leader is not None and all(node.quorum.leader_id == leader.node_id for node in nodes)

    await until(agreed)
    leader = leader_of(nodes)
    assert leader is not None
    return leader


def with_nodes(count: int, scenario: Callable[[list[Node]], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        running: dict[tuple[str, int], Node] = {}
        nodes = [Node(node_id, running, ()) for node_id in range(1, count + 1)]
        for node in nodes:
            node._voters = [each.voter for each in nodes]
        await asyncio.gather(*(node.start() for node in nodes))
        try:
            await scenario(nodes)
        finally:
            for node in list(running.values()):
                await node.stop()

    asyncio.run(body())


def test_three_nodes_elect_a_leader_and_commit() -> None:
    async def scenario(nodes: list[Node]) -> None:
        leader = await elected(nodes)
        await leader.quorum.append([b"a", b"b"])
        await leader.quorum.append([b"c"])
        await until(lambda: all(node.values == [b"a", b"b", b"c"] for node in nodes))
        await leader.stop()
        others = [node for node in nodes if node is not leader]
        second = await elected(others)
        assert second.quorum.epoch > leader.quorum.epoch
        await second.quorum.append([b"d"])
        await until(lambda: all(node.values == [b"a", b"b", b"c", b"d"] for node in others))

    with_nodes(3, scenario)


def test_a_new_node_loads_a_snapshot_and_becomes_a_voter() -> None:
    async def scenario(nodes: list[Node]) -> None:
        leader = await elected(nodes)
        for number in range(5):
            await leader.quorum.append([b"%d" % number])
        await until(lambda: len(leader.values) == 5)
        # The log starts at the end of the older of two snapshots.
        await make_snapshot(leader)
        await make_snapshot(leader)

        newcomer = Node(4, leader.nodes, (), bootstrap_ids=(-2,))
        await newcomer.start()
        await until(lambda: newcomer.values[-1:] == [b"more"])
        assert newcomer.values == [b"all so far", b"more"]
        assert newcomer.began_with == [leader.snapshots.latest()]
        assert newcomer.quorum.leader_id == leader.node_id
        latest = leader.snapshots.latest()
        assert latest is not None
        kept, sent = newcomer.snapshots.read(latest), leader.snapshots.read(latest)
        assert kept == sent
        assert sent.leader_id == leader.node_id

        added = await leader.serve(
            ApiKey.ADD_RAFT_VOTER,
            1,
            {
                "cluster_id": "cluster",
                "timeout": 20_000,
                "voter_id": 4,
                "voter_directory_id": newcomer.voter.directory_id,
                "listeners": [{"name": "NODES", "host": "host-4", "port": 9000}],
                "ack_when_committed": True,
            },
        )
        assert (added.error_code, added.error_message) == (0, None)
        await until(lambda: len(newcomer.quorum.voters) == 4)
        request = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
        described = await leader.serve(ApiKey.DESCRIBE_QUORUM, 2, request)
        (partition,) = described.topics[0].partitions
        assert sorted(each.replica_id for each in partition.current_voters) == [1, 2, 3, 4]

        follower = next(node for node in nodes if node is not leader)
        refused = await follower.serve(ApiKey.DESCRIBE_QUORUM, 2, request)
        assert refused.error_code == ErrorCode.not_controller

        removed = await leader.serve(
            ApiKey.REMOVE_RAFT_VOTER,
            0,
            {"cluster_id": "cluster", "voter_id": 4, "voter_directory_id": newcomer.voter.directory_id},
        )
        assert removed.error_code == 0
        await until(lambda: len(newcomer.quorum.voters) == 3)

    with_nodes(3, scenario)
