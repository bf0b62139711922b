"""Replication without a network: peers that encode and decode all messages, and nodes with real partitions."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from moldau.controller.requests import IsrChange, IsrChangeResult
from moldau.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    MoldauError,
    PeerUnreachableError,
)
from moldau.handlers.a01_fetch import fetch
from moldau.logs.memory import MemoryLogStore
from moldau.logs.store import RecordSlices
from moldau.metadata.image import (
    TOPIC_RESOURCE,
    BrokerRegistration,
    ConfigResource,
    Endpoint,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from moldau.metrics.topic_metrics import BrokerTopicMetrics
from moldau.partitions.delayed_operations import CallbackList
from moldau.partitions.partition import Partition
from moldau.partitions.replica_manager import ReplicaManager
from moldau.platform.clock import SystemClock
from moldau.replication.driver import ReplicaFetcherManager
from moldau.server.api import ClientConnection, RequestContext
from moldau.server.fetch_session import FetchSessionCache
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder

Tree = dict[str, Any]
Serve = Callable[[Message], Awaitable[Tree]]


class DirectPeers:
    """Nodes are functions from request to response. Disconnecting fails the request in flight, as over TCP."""

    def __init__(self) -> None:
        self.nodes: dict[int, Serve] = {}
        self.drops = 0
        self._calls: dict[tuple[int, str], asyncio.Future[None]] = {}

    async def call(
        self,
        node_id: int,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        lane: str,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        version: int | None = None,
    ) -> Message:
        assert version is not None
        request = through_the_wire(api, version, "request", tree)
        if node_id not in self.nodes:
            raise PeerUnreachableError(f"node {node_id} is not there", is_connection_refused=True)
        dropped = asyncio.get_running_loop().create_future()
        self._calls[node_id, lane] = dropped
        serving = asyncio.ensure_future(self.nodes[node_id](request))
        try:
            await asyncio.wait([serving, dropped], return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                raise PeerUnreachableError("the connection was dropped", was_sent=True)
            return through_the_wire(api, version, "response", serving.result())
        finally:
            serving.cancel()
            dropped.cancel()

    def disconnect(self, node_id: int, lane: str) -> None:
        self.drops += 1
        under_way = self._calls.pop((node_id, lane), None)
        if under_way is not None and not under_way.done():
            under_way.set_result(None)


def through_the_wire(api: ApiKey, version: int, kind: Any, tree: Mapping[str, Any]) -> Message:
    out = bytearray()
    encoder(api, version, kind)(out, _with_bytes(tree))
    return decoder(api, version, kind)(memoryview(bytes(out)))


def _with_bytes(tree: Any) -> Any:
    """Reads records that a connection would send straight from the log file."""
    if isinstance(tree, RecordSlices):
        return tree.read()
    if isinstance(tree, Mapping):
        return {name: _with_bytes(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_with_bytes(each) for each in tree]
    return tree


# Nodes with real partitions, logs in memory and the real Fetch handler


LISTENER = "PLAINTEXT"
TOPIC = "orders"
TOPIC_ID = UUID(int=9)


class FakeController:
    """Keeps the image, accepts ISR changes of leaders, and publishes to the reachable nodes."""

    def __init__(self, node_ids: Sequence[int], **topic: str) -> None:
        replicas = tuple(node_ids)
        brokers = {
            each: BrokerRegistration(each, 40 + each, UUID(int=each), (Endpoint(LISTENER, "h", each),), None, False)
            for each in replicas
        }
        partition = PartitionRegistration(0, replicas, replicas, replicas[0], 1, 1)
        configs = {name.replace("_", "."): value for name, value in topic.items()}
        self.image = MetadataImage(
            cluster_id="c",
            brokers=brokers,
            topics={TOPIC: TopicImage(TOPIC, TOPIC_ID, (partition,))},
            topic_names={TOPIC_ID: TOPIC},
            configs={ConfigResource(TOPIC_RESOURCE, TOPIC): configs},
        )
        self.nodes: dict[int, ReplicaNode] = {}
        self.is_reachable = True

    @property
    def partition(self) -> PartitionRegistration:
        return self.image.topics[TOPIC].partitions[0]

    async def change(self, *, tell: Sequence[int] | None = None, **changes: Any) -> None:
        """Changes the partition; a new leader starts a new epoch."""
        before = self.partition
        changes.setdefault("partition_epoch", before.partition_epoch + 1)
        if "leader" in changes:
            changes.setdefault("leader_epoch", before.leader_epoch + 1)
        topic = TopicImage(TOPIC, TOPIC_ID, (replace(before, **changes),))
        self.image = replace(self.image, topics={TOPIC: topic})
        for node_id in self.nodes if tell is None else tell:
            await self.nodes[node_id].publish(self.image)

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrChangeResult]:
        if not self.is_reachable:
            raise PeerUnreachableError("the controller does not answer")
        results = []
        for each in changes:
            now = self.partition
            error: MoldauError | None = None
            if broker_id != now.leader or each.leader_epoch != now.leader_epoch:
                error = FencedLeaderEpochError("another epoch")
            elif each.partition_epoch != now.partition_epoch:
                error = InvalidUpdateVersionError("changed since")
            elif any(self.image.brokers[member].epoch != epoch for member, epoch in each.isr if epoch >= 0):
                error = IneligibleReplicaError("another life")
            if error is None:
                await self.change(isr=tuple(member for member, _ in each.isr))
            now = self.partition
            results.append(
                IsrChangeResult(TOPIC_ID, 0, now.leader, now.leader_epoch, now.isr, False, now.partition_epoch, error)
            )
        return results


class ReplicaNode:
    """A node of `FakeController`'s cluster."""

    def __init__(
        self, node_id: int, controller: FakeController, peers: DirectPeers, store: Any = None, **settings: Any
    ) -> None:
        self.node_id = node_id
        self.broker_epoch = controller.image.brokers[node_id].epoch
        self.image = controller.image
        broker_settings = BrokerSettings(node_id=node_id, **{"replica_fetch_backoff_ms": 5, **settings})
        self.settings = EffectiveSettings(broker_settings, controller.image)
        clock = SystemClock()
        self.store = MemoryLogStore() if store is None else store
        self.table = ReplicaManager(node_id, self.store, self.settings, clock, internal_logs=())
        self.replication = ReplicaFetcherManager(
            node_id,
            self.table,
            peers,  # type: ignore[arg-type]
            controller,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.settings,
            clock,
            random.Random(node_id),
            cluster_id="c",
        )
        self.broker: Any = SimpleNamespace(
            broker_id=node_id,
            platform=SimpleNamespace(clock=clock),
            settings=self.settings,
            metadata=self,
            replica_manager=self.table,
            fetch_session_cache=FetchSessionCache(random.Random(node_id), 100),
            shutdown_callbacks=CallbackList(),
            replication=self.replication,
            topic_metrics=BrokerTopicMetrics(),
        )
        self._connection = ClientConnection("node:1", LISTENER)
        peers.nodes[node_id] = self.serve
        controller.nodes[node_id] = self

    @property
    def partition(self) -> Partition:
        found = self.table.get(TOPIC, 0)
        assert found is not None
        return found

    async def start(self) -> None:
        await self.store.start()
        await self.publish(self.image)
        self.replication.start()

    async def publish(self, image: MetadataImage) -> None:
        self.image = image
        await self.table.publish(MetadataDelta(partitions_changed=((TOPIC, 0),)), image)

    async def close(self) -> None:
        self.broker.shutdown_callbacks.close()
        await self.replication.close()
        await self.table.close()

    async def serve(self, request: Message) -> Tree:
        response: Tree = await fetch(request, RequestContext(self._connection, 17, "test"), self.broker)
        return response


@asynccontextmanager
async def cluster(
    *node_ids: int, topic: Mapping[str, str] | None = None, **settings: Any
) -> AsyncIterator[tuple[FakeController, DirectPeers]]:
    controller, peers = FakeController(node_ids, **(topic or {})), DirectPeers()
    for node_id in node_ids:
        await ReplicaNode(node_id, controller, peers, **settings).start()
    try:
        yield controller, peers
    finally:
        for node in controller.nodes.values():
            await node.close()


async def until(condition: Callable[[], bool]) -> None:
    """Waits for the condition; the test's timeout ends it."""
    while not condition():
        await asyncio.sleep(0.001)
