"""A control plane of one node, wired as a node wires it, on a log that outlives a crash."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from moldau.controller.driver import Controller
from moldau.controller.ids import new_id
from moldau.controller.requests import Heartbeat, Registration
from moldau.errors import PeerUnreachableError
from moldau.logs.memory import MemoryLog
from moldau.logs.store import Slices
from moldau.metadata.image import ClusterDelta, ClusterImage, Endpoint
from moldau.metadata.loader import MetadataLoader
from moldau.raft.driver import METADATA_LOG, METADATA_TOPIC_ID, Quorum
from moldau.raft.elections import ElectionMemory, Elections
from moldau.raft.messages import (
    BeginEpochRequest,
    EndEpochRequest,
    EpochReply,
    QuorumFetch,
    QuorumFetched,
    SnapshotFetch,
    SnapshotFetched,
    Voter,
    VoterEndpoint,
    VoteReply,
    VoteRequest,
)
from moldau.records.batch import Batch
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.settings.topic import TopicSettings

NODE = 1
DIRECTORY = UUID(int=0xD1)
ENDPOINT = Endpoint("PLAINTEXT", "127.0.0.1", 9092)


class NoPeers:
    """Of a quorum of one."""

    def know(self, node_id: int, endpoints: Sequence[VoterEndpoint]) -> None:
        raise AssertionError("there is nobody to know")

    async def vote(self, node_id: int, request: VoteRequest) -> VoteReply:
        raise PeerUnreachableError("there is nobody else")

    async def begin_epoch(self, node_id: int, request: BeginEpochRequest) -> EpochReply:
        raise PeerUnreachableError("there is nobody else")

    async def end_epoch(self, node_id: int, request: EndEpochRequest) -> EpochReply:
        raise PeerUnreachableError("there is nobody else")

    async def fetch(self, node_id: int, request: QuorumFetch) -> QuorumFetched:
        raise PeerUnreachableError("there is nobody else")

    async def fetch_snapshot(self, node_id: int, request: SnapshotFetch) -> SnapshotFetched:
        raise PeerUnreachableError("there is nobody else")


class FixedClock:
    def monotonic_ms(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 1_700_000_000_000


class TestLog(MemoryLog):
    """A log whose calls really await if asked to, that can fail on demand and lose what is not durable."""

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

    async def make_durable(self) -> None:
        end_offset = self.end_offset
        await self._pause(turns=20)
        if self.sync_gate is not None:
            await self.sync_gate.wait()
        if self.sync_error is not None:
            raise self.sync_error
        self.syncs += 1
        self.durable_offset = max(self.durable_offset, end_offset)

    async def read(self, offset: int, bytes_max: int, below: int, *, whole_first: bool = True) -> Slices:
        await self._pause()
        return await super().read(offset, bytes_max, below, whole_first=whole_first)

    async def lose_power(self) -> None:
        await self.truncate_to(self.durable_offset)

    async def _pause(self, turns: int = 3) -> None:
        if self.awaits:
            for _ in range(turns):
                await asyncio.sleep(0)


class ControlPlane:
    """`boot` may be called again and again on what is left in `log` and `elections`: each is a restart."""

    def __init__(
        self, *, log: TestLog | None = None, elections: Elections | None = None, seed: int = 1
    ) -> None:
        self.log = log or TestLog()
        self.elections = elections or ElectionMemory()
        self.random = random.Random(seed)
        self.published: list[tuple[ClusterDelta, ClusterImage]] = []
        self.failures: list[BaseException] = []

    async def boot(
        self,
        *,
        register: bool = True,
        clean: bool = True,
        settings: BrokerSettings | None = None,
        publisher: Callable[[ClusterDelta, ClusterImage], None] | None = None,
    ) -> Controller:
        self.loader = MetadataLoader("test-cluster")
        self.settings = EffectiveSettings(settings or BrokerSettings(node_id=NODE))
        self.loader.subscribe(lambda delta, image: self.settings.apply(image, delta))
        self.loader.subscribe(self._take)
        if publisher is not None:
            self.loader.subscribe(publisher)
        self.loader.on_failure(self.failures.append)
        self.quorum = Quorum(
            NODE,
            DIRECTORY,
            self.log,
            self.elections,
            FixedClock(),
            self.random,
            first_voters=[Voter(NODE, DIRECTORY)],
            peers=NoPeers(),
            on_commit=self.loader.commit,
            on_leader_change=lambda leader_id, epoch: self.controller.leader_changed(leader_id, epoch),
            on_fatal=self.loader.fail,
        )
        self.controller = Controller(NODE, self.quorum, self.loader, self.settings, self.random, FixedClock())
        await self.controller.start()
        if register:
            await self.register(clean=clean)
        return self.controller

    async def register(self, *, clean: bool = True) -> None:
        """A broker that begins a new life, and is taken in by its first heartbeat."""
        known = self.image.brokers.get(NODE)
        previous = known.epoch if clean and known is not None else -1
        former = () if known is None else (known.incarnation_id,)
        anew = replace(self.registration(previous), former_incarnations=former)
        self.broker_epoch = await self.controller.register_broker(anew)
        await self.until_published()
        await self.controller.heartbeat(Heartbeat(NODE, self.broker_epoch, self.image.offset))
        await self.until_published()

    async def until_published(self) -> None:
        await self.loader.wait_for(self.loader.committed.offset)

    def registration(self, previous_epoch: int = -1, *, incarnation: UUID | None = None) -> Registration:
        return Registration(
            NODE, incarnation or new_id(self.random), [ENDPOINT], previous_epoch=previous_epoch
        )

    async def shut_down(self) -> None:
        await self.controller.close()
        await self.quorum.close()
        await self.loader.close()

    @property
    def image(self) -> ClusterImage:
        return self.loader.image

    async def _take(self, delta: ClusterDelta, image: ClusterImage) -> None:
        await asyncio.sleep(0)
        self.published.append((delta, image))
