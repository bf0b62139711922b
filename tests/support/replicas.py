"""Replicas of one partition on several brokers without a network: a test decides who fetches, leads or loses power.

The logs distinguish appended and flushed records, as disks do.
"""

import asyncio
from collections.abc import Mapping, Sequence
from uuid import UUID

from moldau.logs.memory import MemoryLog
from moldau.logs.producer_state import PRODUCER_EXPIRATION_MS_DEFAULT
from moldau.logs.store import LogName
from moldau.metadata.image import BrokerRegistration, PartitionRegistration
from moldau.partitions.leader_state import FollowerFetch
from moldau.partitions.partition import DivergingEpochError, LogAppendInfo, LogReadInfo, Partition
from moldau.raft.messages import EpochEndOffset
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record, iterate_records
from moldau.settings.topic import TopicSettings

NAME = LogName("orders", 0)
TOPIC_ID = UUID(int=9)
BYTES_MAX = 1 << 20


class TestClock:
    __test__ = False

    def __init__(self) -> None:
        self.now_ms = 1_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class TestLease:
    __test__ = False

    def __init__(self) -> None:
        self.valid = True

    def is_valid(self) -> bool:
        return self.valid


class PageCacheLog(MemoryLog):
    """A log that loses unflushed records in a power failure."""

    def __init__(self, settings: TopicSettings) -> None:
        super().__init__(NAME, TOPIC_ID, settings, PRODUCER_EXPIRATION_MS_DEFAULT)
        self.disk_is_stuck = False
        self.released = asyncio.Event()

    async def flush(self) -> None:
        end_offset = self.end_offset
        while self.disk_is_stuck:
            self.released.clear()
            await self.released.wait()
        self.durable_offset = min(end_offset, self.end_offset)

    def free_disk(self) -> None:
        self.disk_is_stuck = False
        self.released.set()

    async def after_power_cut(self) -> "PageCacheLog":
        """Returns the log after a restart."""
        found = PageCacheLog(self.settings)
        batches = [Batch(data) for data in self._batches]
        await found.append([batch for batch in batches if batch.next_offset <= self.durable_offset])
        found.durable_offset = found.end_offset
        found.checkpointed_high_watermark = self.checkpointed_high_watermark
        return found


def broker_image(
    broker_id: int, *, epoch: int = 0, rack: str | None = None, fenced: bool = False
) -> BrokerRegistration:
    return BrokerRegistration(broker_id, epoch or broker_id * 100, UUID(int=broker_id), (), rack, fenced)


def batch(*values: bytes, producer_id: int = -1, sequence: int = -1) -> Batch:
    epoch = 0 if producer_id >= 0 else -1
    return Batch(
        build_batch(
            [Record(value=value) for value in values],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


class Replicas:
    """The replicas of one partition. `image` is the committed metadata; `publish_image` applies it."""

    def __init__(self, nodes: Sequence[int] = (1, 2, 3), **settings: object) -> None:
        self.clock = TestClock()
        self.settings = TopicSettings(**settings)  # type: ignore[arg-type]
        self.nodes = tuple(nodes)
        self.leases = {node: TestLease() for node in nodes}
        self.brokers: Mapping[int, BrokerRegistration] = {node: broker_image(node) for node in nodes}
        self.partitions: dict[int, Partition] = {}
        self.image = PartitionRegistration(0, self.nodes, self.nodes, -1, -1, -1)
        for node in nodes:
            self.open(node, PageCacheLog(self.settings))

    def open(self, node: int, log: PageCacheLog) -> None:
        self.partitions[node] = Partition(NAME, TOPIC_ID, node, log, self.clock, self.leases[node])

    def __getitem__(self, node: int) -> Partition:
        return self.partitions[node]

    def log(self, node: int) -> PageCacheLog:
        log = self.partitions[node].log
        assert isinstance(log, PageCacheLog)
        return log

    # The controller

    def elect(self, leader: int, isr: Sequence[int] | None = None, *, recovering: bool = False) -> None:
        self.image = PartitionRegistration(
            0,
            self.nodes,
            self.image.isr if isr is None else tuple(isr),
            leader,
            self.image.leader_epoch + 1,
            self.image.partition_epoch + 1,
            is_recovering=recovering,
            unclean_epoch=self.image.leader_epoch + 1 if recovering else self.image.unclean_epoch,
        )

    async def publish_image(self, *nodes: int) -> None:
        for node in nodes or self.nodes:
            if node in self.partitions:
                await self.partitions[node].apply_image(self.image, brokers=self.brokers)

    async def begin(self, leader: int = 1, isr: Sequence[int] | None = None) -> None:
        self.elect(leader, isr or self.nodes)
        await self.publish_image()

    # The brokers

    async def produce(
        self, node: int, *values: bytes, acks_all: bool = True, producer_id: int = -1, sequence: int = -1
    ) -> LogAppendInfo:
        appended = await self[node].append(
            [batch(*values, producer_id=producer_id, sequence=sequence)], acks_all=acks_all
        )
        await asyncio.sleep(0)
        return appended

    def build_fetch(self, follower: int) -> FollowerFetch:
        position = self[follower].follower.fetch_position()
        assert position is not None, "it has no leader, or unflushed records"
        return FollowerFetch(
            follower,
            self.brokers[follower].epoch,
            position.offset,
            position.last_epoch,
            position.leader_epoch,
            position.start_offset,
        )

    async def send_fetch(self, follower: int, *, bytes_max: int = BYTES_MAX) -> LogReadInfo:
        """Sends a fetch and returns the response without applying it."""
        return await self[self[follower].leader_id].read_for_follower(self.build_fetch(follower), bytes_max)

    async def apply_fetch(self, follower: int, fetched: LogReadInfo, leader_epoch: int | None = None) -> None:
        await self[follower].follower.append_as_follower(
            memoryview(fetched.records.read()),
            self[follower].leader_epoch if leader_epoch is None else leader_epoch,
            fetched.high_watermark,
            fetched.start_offset,
        )

    async def fetch(self, follower: int) -> LogReadInfo | EpochEndOffset:
        """Sends a fetch and applies the response. Returns the diverging epoch if the follower had to truncate."""
        epoch = self[follower].leader_epoch
        try:
            fetched = await self.send_fetch(follower)
        except DivergingEpochError as diverged:
            end = EpochEndOffset(diverged.epoch, diverged.end_offset)
            await self[follower].follower.truncate_to_divergence(end, epoch)
            return end
        await self.apply_fetch(follower, fetched)
        return fetched

    async def replicate(self, *followers: int, times: int = 2) -> None:
        for _ in range(times):
            for follower in followers:
                while isinstance(await self.fetch(follower), EpochEndOffset):
                    pass

    async def lose_power(self, node: int) -> None:
        """Stops a broker, which loses its unflushed records."""
        partition = self.partitions.pop(node)
        log = partition.log
        assert isinstance(log, PageCacheLog)
        log.checkpointed_high_watermark = partition.high_watermark
        self._kept = getattr(self, "_kept", {})
        self._kept[node] = await log.after_power_cut()

    def restart(self, node: int) -> None:
        self.open(node, self._kept.pop(node))

    # The logs

    async def values(self, node: int) -> list[str]:
        """Returns every record with its epoch, such as `m0@0`."""
        log = self.partitions[node].log
        found = await log.read(log.start_offset, BYTES_MAX, log.end_offset)
        shown = []
        data = memoryview(found.read())
        position = 0
        while position < len(data):
            size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
            each = Batch(data[position : position + size])
            shown += [f"{(record.value or b'').decode()}@{each.leader_epoch}" for record in iterate_records(each)]
            position += size
        return shown

    async def seen(self, node: int, offset: int = 0, *, from_follower: bool = False) -> list[str]:
        """Returns what a consumer reads from this broker."""
        fetched = await self[node].read(offset, BYTES_MAX, from_follower=from_follower)
        data = fetched.records.read()
        return [(r.value or b"").decode() for r in _records(data)]


def _records(data: bytes) -> list[Record]:
    records = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        records += list(iterate_records(Batch(data[position : position + size])))
        position += size
    return records
