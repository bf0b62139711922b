"""The control plane of one node, wired like in a node, on a log that survives a crash."""

import asyncio
import random
from collections.abc import Callable, Sequence
from uuid import UUID

from moldau.controller.ids import random_uuid
from moldau.controller.quorum_controller import QuorumController
from moldau.controller.requests import BrokerHeartbeat, BrokerRegistrationRequest
from moldau.errors import PeerUnreachableError
from moldau.logs.memory import MemoryLog
from moldau.logs.store import RecordSlices
from moldau.metadata.image import Endpoint, MetadataDelta, MetadataImage
from moldau.metadata.loader import MetadataLoader
from moldau.raft.messages import RaftRequest, RaftResponse, VoterEndpoint, VoterNode
from moldau.raft.quorum_state_store import MemoryQuorumStateStore, QuorumStateStore
from moldau.raft.raft_client import METADATA_LOG, METADATA_TOPIC_ID, RaftClient
from moldau.raft.snapshot_store import MemorySnapshotStore
from moldau.records.batch import Batch
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.settings.topic import TopicSettings

NODE = 1
DIRECTORY = UUID(int=0xD1)
ENDPOINT = Endpoint("PLAINTEXT", "127.0.0.1", 9092)


class NoPeers:
    """The peers of a single-node quorum."""

    def update_endpoint(self, node_id: int, endpoints: Sequence[VoterEndpoint]) -> None:
        raise AssertionError("there is nobody to know")

    async def send(self, node_id: int, request: RaftRequest) -> RaftResponse:
        raise PeerUnreachableError("there is nobody else")


class FixedClock:
    def monotonic_ms(self) -> int:
        return 0

    def monotonic_us(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 1_700_000_000_000


class TestLog(MemoryLog):
    """A log that can suspend in its calls, fail on demand and lose unsynced records."""

    __test__ = False

    def __init__(self, *, awaits: bool = False) -> None:
        super().__init__(METADATA_LOG, METADATA_TOPIC_ID, TopicSettings(), 86_400_000)
        self.awaits = awaits
        self.append_error: Exception | None = None
        self.sync_error: Exception | None = None
        self.syncs = 0
        self.gate: asyncio.Event | None = None
        """Appends wait for it."""
        self.sync_gate: asyncio.Event | None = None
        self.offline: str | None = None

    @property
    def failure(self) -> str | None:
        return self.offline

    async def append(self, batches: Sequence[Batch]) -> None:
        await self._pause()
        if self.gate is not None:
            await self.gate.wait()
        if self.append_error is not None:
            raise self.append_error
        await super().append(batches)
        await self._pause()

    async def flush(self) -> None:
        end_offset = self.end_offset
        await self._pause(turns=20)
        if self.sync_gate is not None:
            await self.sync_gate.wait()
        if self.sync_error is not None:
            raise self.sync_error
        self.syncs += 1
        self.durable_offset = max(self.durable_offset, end_offset)

    async def read(self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True) -> RecordSlices:
        await self._pause()
        return await super().read(offset, bytes_max, below, min_one_batch=min_one_batch)

    async def lose_power(self) -> None:
        await self.truncate_to(self.durable_offset)

    async def _pause(self, turns: int = 3) -> None:
        if self.awaits:
            for _ in range(turns):
                await asyncio.sleep(0)


class ControlPlane:
    """Each call of `boot` is a restart with the persistent state so far."""

    def __init__(self, *, log: TestLog | None = None, elections: QuorumStateStore | None = None, seed: int = 1) -> None:
        self.log = log or TestLog()
        self.elections = elections or MemoryQuorumStateStore()
        self.random = random.Random(seed)
        self.published: list[tuple[MetadataDelta, MetadataImage]] = []
        self.failures: list[BaseException] = []

    async def boot(
        self,
        *,
        register: bool = True,
        clean: bool = True,
        settings: BrokerSettings | None = None,
        publisher: Callable[[MetadataDelta, MetadataImage], None] | None = None,
    ) -> QuorumController:
        self.loader = MetadataLoader("test-cluster")
        self.settings = EffectiveSettings(settings or BrokerSettings(node_id=NODE))
        self.loader.add_publisher(lambda delta, image: self.settings.apply(image, delta))
        self.loader.add_publisher(self._take)
        if publisher is not None:
            self.loader.add_publisher(publisher)
        self.loader.on_failure(self.failures.append)
        self.quorum = RaftClient(
            NODE,
            DIRECTORY,
            self.log,
            self.elections,
            FixedClock(),
            self.random,
            initial_voters=[VoterNode(NODE, DIRECTORY)],
            channel=NoPeers(),
            snapshots=MemorySnapshotStore(),
            on_commit=self.loader.commit,
            on_leader_change=lambda leader_id, epoch: self.controller.leader_changed(leader_id, epoch),
            on_fatal=self.loader.fail,
        )
        self.controller = QuorumController(NODE, self.quorum, self.loader, self.settings, self.random, FixedClock())
        await self.controller.start()
        if register:
            await self.register(clean=clean)
        return self.controller

    async def register(self, *, clean: bool = True) -> None:
        """Registers a new incarnation, which its first heartbeat unfences."""
        known = self.image.brokers.get(NODE)
        previous = known.epoch if clean and known is not None else -1
        former = () if known is None else (known.incarnation_id,)
        anew = self.registration(previous)._replace(previous_incarnations=former)
        self.broker_epoch = await self.controller.register_broker(anew)
        await self.until_published()
        await self.controller.heartbeat(BrokerHeartbeat(NODE, self.broker_epoch, self.image.offset))
        await self.until_published()

    async def until_published(self) -> None:
        await self.loader.wait_for_offset(self.loader.committed_image.offset)

    def registration(self, previous_epoch: int = -1, *, incarnation: UUID | None = None) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(
            NODE, incarnation or random_uuid(self.random), [ENDPOINT], previous_epoch=previous_epoch
        )

    async def shut_down(self) -> None:
        await self.controller.close()
        await self.quorum.close()
        await self.loader.close()

    @property
    def image(self) -> MetadataImage:
        return self.loader.image

    async def _take(self, delta: MetadataDelta, image: MetadataImage) -> None:
        await asyncio.sleep(0)
        self.published.append((delta, image))
