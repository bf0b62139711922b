"""Raft clients of several nodes in one process, on a network that a test can disconnect."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

from moldau.errors import MoldauError, PeerUnreachableError
from moldau.raft.batches import CommittedBatch
from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    QuorumFetchRequest,
    RaftRequest,
    RaftResponse,
    SnapshotId,
    VoterEndpoint,
    VoteRequest,
    VoterNode,
)
from moldau.raft.quorum_config import QuorumConfig
from moldau.raft.quorum_state_store import MemoryQuorumStateStore
from moldau.raft.raft_client import RaftClient
from moldau.raft.snapshot_store import MemorySnapshotStore
from moldau.testing.simulation.platform.loop import SimulatedLoop
from support.control_plane import TestLog

FAST = QuorumConfig(fetch_timeout_ms=150, election_timeout_ms=50, request_timeout_ms=100)


class LoopClock:
    """The clock of the running event loop."""

    def monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def monotonic_us(self) -> int:
        return int(asyncio.get_running_loop().time() * 1_000_000)

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.monotonic_ms()


def directory_of(node_id: int) -> UUID:
    return UUID(int=0xD0 + node_id)


class InProcessNetwork:
    """All nodes of a test, and the faults between them."""

    def __init__(self) -> None:
        self.nodes: dict[int, QuorumNode] = {}
        self.disconnected: set[int] = set()
        """Nodes without a connection; requests from and to them hang."""
        self.calls: list[tuple[int, int, object]] = []
        self.known: dict[tuple[int, int], tuple[VoterEndpoint, ...]] = {}

    async def call(self, sender: int, to: int, request: RaftRequest) -> RaftResponse:
        self.calls.append((sender, to, request))
        await asyncio.sleep(0)
        node = self.nodes.get(to)
        if sender in self.disconnected or to in self.disconnected:
            await asyncio.get_running_loop().create_future()
        if node is None or not node.is_up:
            raise PeerUnreachableError(f"node {to} refuses the connection", is_connection_refused=True)
        try:
            reply = await _pass_on(node.quorum, request)
        except MoldauError as error:
            raise PeerUnreachableError(str(error)) from error
        if sender in self.disconnected or to in self.disconnected:
            await asyncio.get_running_loop().create_future()
        return reply


async def _pass_on(peer: RaftClient, request: RaftRequest) -> RaftResponse:
    match request:
        case VoteRequest():
            return await peer.vote(request)
        case BeginQuorumEpochRequest():
            return await peer.begin_quorum_epoch(request)
        case EndQuorumEpochRequest():
            return await peer.end_quorum_epoch(request)
        case QuorumFetchRequest():
            return await peer.fetch(request)
        case FetchSnapshotRequest():
            return await peer.fetch_snapshot(request)


class InProcessChannel:
    def __init__(self, network: InProcessNetwork, node_id: int) -> None:
        self._network = network
        self._node_id = node_id

    def update_endpoint(self, node_id: int, endpoints: Sequence[VoterEndpoint]) -> None:
        self._network.known[self._node_id, node_id] = tuple(endpoints)

    async def send(self, node_id: int, request: RaftRequest) -> RaftResponse:
        return await self._network.call(self._node_id, node_id, request)


class QuorumNode:
    """A node whose log, state store and snapshots survive a restart of its Raft client."""

    def __init__(
        self,
        network: InProcessNetwork,
        node_id: int,
        voters: Sequence[int],
        *,
        bootstrap: Sequence[int] = (),
        has_disk: bool = True,
    ) -> None:
        self.node_id = node_id
        self._directory_id = directory_of(node_id) if has_disk else None
        self.log = TestLog(awaits=True)
        self.elections = MemoryQuorumStateStore()
        self.snapshots = MemorySnapshotStore()
        self.committed: list[CommittedBatch] = []
        self.taken: list[tuple[SnapshotId, tuple[bytes, ...]]] = []
        self.leaders: list[tuple[int, int]] = []
        self.failures: list[BaseException] = []
        self.is_up = False
        self._network = network
        self._voters = [VoterNode(each, None, (VoterEndpoint("PLAINTEXT", f"node-{each}", 9092),)) for each in voters]
        self._bootstrap = bootstrap
        network.nodes[node_id] = self

    @property
    def values(self) -> list[bytes]:
        """All delivered values: those of the latest snapshot, and those after it."""
        values = list(self.taken[-1][1]) if self.taken else []
        below = self.taken[-1][0].end_offset if self.taken else 0
        return values + [value for batch in self.committed if batch.base_offset >= below for value in batch.values]

    async def start(self) -> None:
        self.committed, self.taken, self.leaders = [], [], []
        self.quorum = RaftClient(
            self.node_id,
            self._directory_id,
            self.log,
            self.elections,
            LoopClock(),
            random.Random(self.node_id),
            initial_voters=self._voters,
            channel=InProcessChannel(self._network, self.node_id),
            snapshots=self.snapshots,
            config=FAST,
            bootstrap_ids=self._bootstrap,
            on_commit=self.committed.extend,
            on_load_snapshot=lambda values, end, leader_id: self.taken.append((end, tuple(values))),
            on_leader_change=lambda leader_id, epoch: self.leaders.append((leader_id, epoch)),
            on_fatal=self.failures.append,
        )
        self.is_up = True
        await self.quorum.start()

    async def stop(self) -> None:
        self.is_up = False
        await self.quorum.close()


async def wait_until(condition: Callable[[], object], *, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def leader_of(nodes: Sequence[QuorumNode]) -> QuorumNode | None:
    """Returns the leader if all running nodes agree on it."""
    up = [node for node in nodes if node.is_up]
    leaders = {node.quorum.leader_id for node in up}
    if len(leaders) != 1 or -1 in leaders:
        return None
    return next((node for node in up if node.quorum.is_leader), None)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Runs in virtual time, so that a busy machine causes no elections."""

    async def in_time() -> None:
        async with asyncio.timeout(60):
            await scenario

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(in_time())


async def start_quorum(
    count: int, network: InProcessNetwork | None = None
) -> tuple[InProcessNetwork, list[QuorumNode], QuorumNode]:
    network = network or InProcessNetwork()
    nodes = [QuorumNode(network, node_id, range(1, count + 1)) for node_id in range(1, count + 1)]
    await asyncio.gather(*(node.start() for node in nodes))
    await wait_until(lambda: leader_of(nodes))
    leader = leader_of(nodes)
    assert leader is not None
    return network, nodes, leader


async def stop_nodes(nodes: list[QuorumNode]) -> None:
    for node in nodes:
        if node.is_up:
            await node.stop()
    assert all(node.failures == [] for node in nodes)


def other_nodes(nodes: list[QuorumNode], *not_these: QuorumNode) -> list[QuorumNode]:
    return [node for node in nodes if node not in not_these]
