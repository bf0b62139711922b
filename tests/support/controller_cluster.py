"""Controllers and brokers of several nodes on virtual time: real controllers, real broker lifecycles, and a metadata
log that all nodes see as soon as a majority would have it.

A node can be partitioned (its requests hang), killed (its connections are refused), or restarted.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

from moldau.broker_lifecycle.manager import BrokerLifecycleManager
from moldau.controller.quorum_controller import QuorumController
from moldau.controller.requests import BrokerHeartbeat, BrokerHeartbeatReply, BrokerRegistrationRequest, OfflineReplica
from moldau.errors import NotControllerError, PeerUnreachableError
from moldau.metadata.image import Endpoint, MetadataDelta, MetadataImage
from moldau.metadata.loader import MetadataLoader
from moldau.metadata.records import Record, decode
from moldau.peers.probe import ProbeResult
from moldau.raft.batches import CommittedBatch
from moldau.raft.messages import EpochEndOffset
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.testing.simulation.platform.loop import SimulatedLoop
from moldau.testing.simulation.platform.simulation import SimulatedClock

CLUSTER = "test-cluster"
NETWORK_S = 0.001
COMMIT_S = 0.004


def run_on_virtual_time(scenario: Callable[["ControllerCluster"], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Runs a test on virtual time; an unexpected exception anywhere fails it."""

    async def run() -> None:
        cluster = ControllerCluster(**settings)
        await scenario(cluster)
        await cluster.close()
        assert cluster.violations == []

    loop = SimulatedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())
    assert loop.errors == []


class ControllerCluster:
    def __init__(self, **settings: Any) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self.clock = SimulatedClock(loop, monotonic_start_ms=1_000_000)
        self.random = random.Random(7)
        self.settings = settings
        self.nodes: dict[int, Node] = {}
        self.batches: list[CommittedBatch] = []
        self.leader_id = -1
        self.epoch = 0
        self.on_append: Callable[[int, Record], None] = lambda offset, record: None
        self.log_ends: dict[int, EpochEndOffset] = {}
        self.asked: list[int] = []
        self.violations: list[str] = []
        """Violations found so far: the code under test would treat an exception as another failure."""
        self.lives: dict[int, list[UUID]] = {}
        """The incarnations that ran on each node's disk."""

    async def boot(self, *node_ids: int, leader: int | None = None) -> None:
        """Boots these nodes and returns when the controller and all brokers are active."""
        for node_id in node_ids:
            self.add(node_id)
        self.elect(leader or node_ids[0])
        for node_id in node_ids:
            await self.nodes[node_id].start()
        for node_id in node_ids:
            await self.nodes[node_id].lifecycle.wait_until_active()

    def add(self, node_id: int, *, previous_epoch: int = -1) -> "Node":
        """Starts a new process in place of a stopped one."""
        node = self.nodes[node_id] = Node(self, node_id, previous_epoch=previous_epoch)
        node.see()
        return node

    async def until(self, condition: Callable[[], bool], within_ms: int = 20_000) -> int:
        """Returns how long it takes in milliseconds."""
        began_ms = self.clock.monotonic_ms()
        while not condition():
            assert self.clock.monotonic_ms() - began_ms <= within_ms, "the condition was not met in time"
            await self.pass_ms(1)
        return self.clock.monotonic_ms() - began_ms

    def elect(self, node_id: int) -> None:
        previous = self.nodes.get(self.leader_id)
        heard_ms = None if previous is None else previous.quorum.confirmed_until_ms
        leader_silence_ms = 0 if heard_ms is None else self.clock.monotonic_ms() - heard_ms
        self.nodes[node_id].quorum.leader_silence_ms = leader_silence_ms
        self.epoch += 1
        self.leader_id = node_id
        for node in self.nodes.values():
            if not node.is_cut_off and not node.is_dead:
                node.controller.leader_changed(node_id, self.epoch)
                node.lifecycle.on_controller_change()
        offset = self.end_offset
        self.commit(CommittedBatch(offset, offset, self.epoch, leader_id=node_id))

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def commit(self, batch: CommittedBatch) -> None:
        self.batches.append(batch)
        for node in list(self.nodes.values()):
            node.see()

    @property
    def image(self) -> MetadataImage:
        return self.nodes[self.leader_id].loader.image

    @property
    def controller(self) -> QuorumController:
        return self.nodes[self.leader_id].controller

    async def pass_ms(self, milliseconds: int) -> None:
        await asyncio.sleep(milliseconds / 1000)

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.close()


class FakeQuorum:
    """The quorum as one controller sees it."""

    def __init__(self, cluster: ControllerCluster, node: "Node") -> None:
        self._stage = cluster
        self._node = node
        self.confirmed_until_ms: int | None = None
        """Since when this node has not heard from a majority."""
        self.leader_silence_ms = 0
        """For how long its voters had not heard from a leader at the election."""
        self.append_error: Exception | None = None

    @property
    def is_leader(self) -> bool:
        # A partitioned leader still believes it leads.
        return self._node.led_epoch == self._stage.epoch or (self._node.is_cut_off and self._node.led_epoch > 0)

    @property
    def epoch(self) -> int:
        return self._node.led_epoch if self._node.is_cut_off else self._stage.epoch

    @property
    def majority_confirmed_ms(self) -> int:
        now_ms = self._stage.clock.monotonic_ms()
        return now_ms if self.confirmed_until_ms is None else self.confirmed_until_ms

    async def start(self) -> None: ...

    async def append(self, values: Sequence[bytes]) -> int:
        await asyncio.sleep(0)
        if self.append_error is not None:
            raise self.append_error
        if self._stage.leader_id != self._node.node_id and not self._node.is_cut_off:
            raise NotControllerError("this node does not lead the metadata quorum")
        base = max(self._stage.end_offset, self._node.appended_offset)
        batch = CommittedBatch(base, base + len(values) - 1, self._stage.epoch, tuple(values))
        self._node.appended_offset = batch.last_offset + 1
        if self._node.is_cut_off:
            # Only in its own log, which no majority replicates.
            return batch.last_offset
        for offset, value in enumerate(values, base):
            self._stage.on_append(offset, decode(value))
        asyncio.get_running_loop().call_later(COMMIT_S, self._commit, batch)
        return batch.last_offset

    def _commit(self, batch: CommittedBatch) -> None:
        if batch.epoch == self._stage.epoch and not self._node.is_dead:
            self._stage.commit(batch)


class Node:
    def __init__(
        self, cluster: ControllerCluster, node_id: int, *, previous_epoch: int = -1, cluster_id: str = CLUSTER
    ) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.is_cut_off = False
        self.is_dead = False
        self.appended_offset = 0
        self.led_epoch = 0
        self.stuck_with: int | None = None
        """The only node it reaches, even if that is not the controller any more."""
        self.not_ready: list[OfflineReplica] = []
        self.fatal: list[BaseException] = []
        self.sent: list[BrokerHeartbeat] = []
        incarnation_id = UUID(int=cluster.random.getrandbits(128), version=4)
        self.former_lives = tuple(cluster.lives.setdefault(node_id, []))
        cluster.lives[node_id].append(incarnation_id)
        static = BrokerSettings(node_id=node_id, **cluster.settings)
        self.settings = EffectiveSettings(static)
        self.loader = MetadataLoader(CLUSTER)
        self.loader.add_publisher(self._publish)
        self.quorum = FakeQuorum(cluster, self)
        self.controller = QuorumController(
            node_id,
            self.quorum,
            self.loader,
            self.settings,
            cluster.random,
            cluster.clock,
            probe=self._probe,
            fetch_log_end=self._ask_log_end,
        )
        self.lifecycle = BrokerLifecycleManager(
            node_id,
            incarnation_id,
            FakeControllerChannel(cluster, self),
            static,
            cluster.clock,
            cluster_id=cluster_id,
            endpoints=[Endpoint("PLAINTEXT", "127.0.0.1", 9091 + node_id)],
            previous_epoch=previous_epoch,
            on_fatal=self.fatal.append,
        )
        self.loader.add_image_listener(lambda image: self.lifecycle.report(image.offset, tuple(self.not_ready)))
        self._waiting: list[asyncio.Future[None]] = []
        self._seen = 0

    async def start(self) -> None:
        await self.lifecycle.start(self.former_lives)

    def see(self) -> None:
        """Applies what was committed since the last call."""
        if not self.is_cut_off and not self.is_dead:
            if self.cluster.leader_id == self.node_id:
                self.led_epoch = self.cluster.epoch
            new, self._seen = self.cluster.batches[self._seen :], len(self.cluster.batches)
            self.loader.commit(new)

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.settings.apply(image, delta)

    def cut_off(self) -> None:
        """Partitions the node from the others; its connections stay open."""
        self.is_cut_off = True
        self.quorum.confirmed_until_ms = self.cluster.clock.monotonic_ms()

    def heal(self) -> None:
        self.is_cut_off = False
        self.quorum.confirmed_until_ms = None
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        self.appended_offset = 0
        if self.controller.is_active and self.cluster.leader_id != self.node_id:
            self.controller.leader_changed(self.cluster.leader_id, self.cluster.epoch)
            self.lifecycle.on_controller_change()
        self.see()

    async def kill(self) -> None:
        """Kills the process: its connections close, and new ones are refused."""
        self.is_dead = True
        epoch = self.lifecycle.broker_epoch
        await self.close()
        for node in self.cluster.nodes.values():
            if node is not self and not node.is_dead:
                node.controller.broker_connection_closed(self.node_id, epoch)

    async def close(self) -> None:
        await self.lifecycle.close()
        await self.controller.close()
        await self.loader.close()

    async def until_connected(self) -> None:
        while self.is_cut_off:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    async def _probe(self, broker_id: int) -> ProbeResult:
        await asyncio.sleep(NETWORK_S)
        broker = self.cluster.nodes[broker_id]
        if broker.is_dead:
            return ProbeResult.REFUSED
        return ProbeResult.UNKNOWN if broker.is_cut_off or self.is_cut_off else ProbeResult.REACHABLE

    async def _ask_log_end(self, broker_id: int, topic: str, partition: int) -> EpochEndOffset:
        await asyncio.sleep(NETWORK_S)
        self.cluster.asked.append(broker_id)
        broker = self.cluster.nodes[broker_id]
        if broker.is_dead or broker.is_cut_off or broker_id not in self.cluster.log_ends:
            raise PeerUnreachableError(f"node {broker_id} does not answer")
        return self.cluster.log_ends[broker_id]


class FakeControllerChannel:
    """Calls the active controller that the quorum knows at this moment."""

    def __init__(self, cluster: ControllerCluster, node: Node) -> None:
        self._stage = cluster
        self._node = node

    async def register_broker(self, broker: BrokerRegistrationRequest) -> int:
        controller = await self._controller()
        return await controller.register_broker(broker, is_remote=controller is not self._node.controller)

    async def heartbeat(self, heartbeat: BrokerHeartbeat, timeout_ms: int | None = None) -> BrokerHeartbeatReply:
        self._node.sent.append(heartbeat)
        controller = await self._controller()
        return await controller.heartbeat(heartbeat)

    async def _controller(self) -> QuorumController:
        if self._node.controller.is_active:
            return self._node.controller
        await asyncio.sleep(NETWORK_S)
        if self._node.stuck_with is not None:
            return self._stage.nodes[self._node.stuck_with].controller
        await self._node.until_connected()
        leader = self._stage.nodes.get(self._stage.leader_id)
        if leader is None:
            raise NotControllerError("no controller is known")
        if leader.is_dead:
            raise PeerUnreachableError("connection refused", is_connection_refused=True)
        if leader.is_cut_off:
            await asyncio.get_running_loop().create_future()
        return leader.controller
