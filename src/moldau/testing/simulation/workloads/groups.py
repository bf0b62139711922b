"""Group workloads: consumers in groups, offsets stored without a group, requests of fenced members, and administration.

All workloads use a RecordingCluster, which writes the history.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.producer.producer import ACKS_ALL, Producer, RecordMetadata
from moldau.testing.simulation.checkers.fencing import FencingIndex
from moldau.testing.simulation.checkers.history import History, Partition, SendOperation
from moldau.testing.simulation.checkers.history_groups import NO_GENERATION, Delivery, GroupHistory, RequestIdentity
from moldau.testing.simulation.workloads.group_requests import (
    commit,
    create_partitions,
    delete_group,
    delete_offsets,
    describe_group,
    fetch_offsets,
    heartbeat,
    join,
)
from moldau.testing.simulation.workloads.recorder import RecordingCluster
from moldau.testing.simulation.workloads.records import TIMESTAMP_MS
from moldau.testing.simulation.workloads.workload import Workload
from moldau.wire.api_keys import ApiKey

ClusterFactory = Callable[[str], RecordingCluster]
"""A function that takes a client id and opens a cluster client on a fixed host."""

OFFSET_MAX = 1_000_000
PARTITIONS_MAX = 6
DELIVERY_TIMEOUT_MS = 20_000
RECENT_SYNCS_MAX = 40
"""The number of latest assignments that FencedMember considers."""


@dataclass(eq=False)
class ClusterWorkload(Workload):
    """A client that reopens its cluster after an error."""

    open_cluster: ClusterFactory

    async def run(self) -> None:
        while not self._stopping:
            cluster = self.open_cluster(self.name)
            try:
                await cluster.start()
                await self._on_connect(cluster)
                while not self._stopping:
                    await self._run_once(cluster)
            except KafkaError:
                await self._sleep_after_error()
            finally:
                await cluster.close()

    async def _on_connect(self, cluster: RecordingCluster) -> None:
        """Called after each connect. Reads state that a crash may have lost, before `_run_once` overwrites it."""

    async def _run_once(self, cluster: RecordingCluster) -> None:
        raise NotImplementedError

    async def _pause(self, seconds_max: float) -> None:
        await asyncio.sleep(self.randomness.uniform(0, seconds_max))


@dataclass(eq=False)
class ClusterProducer(ClusterWorkload):
    """Moldau's producer, which sends single records to random partitions. It is idempotent only with acks=all."""

    partitions: Sequence[Partition]
    history: History
    acks: int = ACKS_ALL
    _incarnations: int = field(default=0, init=False)
    _sent: int = field(default=0, init=False)

    async def _run_once(self, cluster: RecordingCluster) -> None:
        self._incarnations += 1
        # Use a new name for each producer: order is checked per name, and old requests may still be in flight.
        name = f"{self.name}-{self._incarnations}"
        linger_ms = self.randomness.choice((0, 5, 50))
        async with Producer(
            cluster,
            acks=self.acks,
            idempotent=self.acks == ACKS_ALL,
            linger_ms=linger_ms,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        ) as producer:
            while not self._stopping:
                for _ in range(self.randomness.choice((1, 1, 3, 10))):
                    await self._send(producer, name)
                await self._pause(0.6)

    async def _send(self, producer: Producer, name: str) -> None:
        self._sent += 1
        topic, index = partition = self.randomness.choice(self.partitions)
        value = f"{self.name}/{self._sent}".encode()
        send = self.history.send(name, partition, [value], acks=self.acks, is_idempotent=self.acks == ACKS_ALL)
        delivered = await producer.send(topic, value, partition=index, timestamp_ms=TIMESTAMP_MS)
        delivered.add_done_callback(lambda done: self._delivered(send, done))

    def _delivered(self, send: SendOperation, done: "asyncio.Future[RecordMetadata]") -> None:
        if not done.cancelled() and done.exception() is None:
            offset = done.result().offset
            self.history.acknowledge(send, offset if offset >= 0 else None)
            self.progress += 1


@dataclass(frozen=True, slots=True)
class GroupMemberPlan:
    group: str
    topics: Sequence[str]
    assignors: Sequence[str]
    instance_id: str | None
    session_timeout_ms: int
    poll_interval_max_ms: int
    auto_commit: bool
    pause: Callable[[], float]
    """Returns the number of seconds until the next poll. This is sometimes more than `poll_interval_max_ms`."""


@dataclass(eq=False)
class GroupMember(ClusterWorkload):
    """Moldau's consumer in a group. Records that the consumer returns count as read."""

    plan: GroupMemberPlan
    history: GroupHistory

    async def _run_once(self, cluster: RecordingCluster) -> None:
        plan, draw = self.plan, self.randomness
        async with Consumer(
            cluster=cluster,
            group_id=plan.group,
            group_instance_id=plan.instance_id,
            assignors=plan.assignors,
            auto_offset_reset="earliest",
            enable_auto_commit=plan.auto_commit,
            auto_commit_interval_ms=draw.choice((100, 500, 2000)),
            session_timeout_ms=plan.session_timeout_ms,
            # Heartbeats must be frequent, because members learn of a rebalance from heartbeats and must rejoin within
            # the poll interval.
            heartbeat_interval_ms=min(plan.session_timeout_ms // 3, plan.poll_interval_max_ms // 4),
            max_poll_interval_ms=plan.poll_interval_max_ms,
            max_poll_records=draw.choice((3, 20, 500)),
        ) as consumer:
            consumer.subscribe(plan.topics)
            while not self._stopping:
                await self._poll(consumer)

    async def _poll(self, consumer: Consumer) -> None:
        plan, draw = self.plan, self.randomness
        records = await consumer.poll(timeout_ms=draw.choice((0, 100, 500)))
        for record in records:
            partition = record.topic, record.partition
            self.history.deliveries.append(Delivery(self.history.next_event(), plan.group, partition, record.offset))
            self.progress += 1
        if not plan.auto_commit and draw.random() < 0.5:
            # Ignore a failed commit, because the next owner of the partition reads the records again.
            with suppress(KafkaError):
                await consumer.commit()
        await asyncio.sleep(plan.pause())


@dataclass(eq=False)
class OffsetStoreWorkload(ClusterWorkload):
    """Commits offsets under a group id without joining the group. Several workloads may share a group id."""

    group: str
    partitions: Sequence[Partition]

    async def _on_connect(self, cluster: RecordingCluster) -> None:
        await fetch_offsets(cluster, self.group, self.partitions)

    async def _run_once(self, cluster: RecordingCluster) -> None:
        draw = self.randomness
        some = draw.sample(self.partitions, draw.randint(1, len(self.partitions)))
        match draw.choices(("commit", "look", "delete offsets", "delete group"), (10, 6, 2, 1))[0]:
            case "commit":
                no_member = RequestIdentity(self.group, NO_GENERATION, "", None)
                offsets = {partition: draw.randrange(OFFSET_MAX) for partition in some}
                if await commit(cluster, no_member, offsets) == ErrorCode.none:
                    self.progress += 1
            case "look":
                await fetch_offsets(cluster, self.group, some)
            case "delete offsets":
                await delete_offsets(cluster, self.group, some)
            case _:
                await delete_group(cluster, self.group)
        await self._pause(0.2)


@dataclass(eq=False)
class FencedMember(ClusterWorkload):
    """Sends commits and heartbeats of fenced members, like a client that was paused too long or a delayed packet."""

    MUST_PROGRESS = False

    history: GroupHistory

    async def _run_once(self, cluster: RecordingCluster) -> None:
        await self._pause(0.2)
        fencing = FencingIndex(self.history)
        fenced_syncs = [
            sync
            for sync in self.history.syncs[-RECENT_SYNCS_MAX:]
            if fencing.newer_generation(sync.identity) is not None or fencing.successor(sync.identity) is not None
        ]
        if not fenced_syncs:
            return
        sync = self.randomness.choice(fenced_syncs)
        if sync.partitions and self.randomness.random() < 0.7:
            await commit(cluster, sync.identity, dict.fromkeys(sync.partitions, 0))
        else:
            await heartbeat(cluster, sync.identity)
        self.progress += 1


@dataclass(eq=False)
class AbandonedJoin(ClusterWorkload):
    """Joins a group, possibly as its leader, and then disappears."""

    MUST_PROGRESS = False

    assignors: Mapping[str, Sequence[str]]
    topics: Sequence[str]

    async def _run_once(self, cluster: RecordingCluster) -> None:
        await self._pause(5)
        group = self.randomness.choice(list(self.assignors))
        timeout_ms = self.randomness.choice((1000, 3000))
        await join(cluster, group, self.topics, self.assignors[group], timeout_ms)
        self.progress += 1


@dataclass(eq=False)
class PartitionGrower(ClusterWorkload):
    """Adds partitions to topics that groups read."""

    MUST_PROGRESS = False

    partitions: list[Partition]
    """All partitions of the topics. Each new partition is appended."""

    async def _run_once(self, cluster: RecordingCluster) -> None:
        await self._pause(10)
        topic, _ = self.randomness.choice(self.partitions)
        count = sum(each[0] == topic for each in self.partitions)
        if count < PARTITIONS_MAX and await create_partitions(cluster, topic, count + 1) == ErrorCode.none:
            self.partitions.append((topic, count))
            self.progress += 1


@dataclass(eq=False)
class GroupAdminWorkload(ClusterWorkload):
    """Lists and describes groups, fetches their offsets, and tries to delete groups and offsets while they are used."""

    groups: Sequence[str]
    partitions: Sequence[Partition]

    async def _on_connect(self, cluster: RecordingCluster) -> None:
        for group in self.groups:
            await fetch_offsets(cluster, group, self.partitions)

    async def _run_once(self, cluster: RecordingCluster) -> None:
        draw = self.randomness
        group = draw.choice(self.groups)
        match draw.choices(("look", "describe", "list", "delete offsets", "delete group"), (10, 3, 2, 1, 1))[0]:
            case "look":
                await fetch_offsets(cluster, group, self.partitions)
            case "describe":
                await describe_group(cluster, group)
            case "list":
                await cluster.call(None, ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []})
            case "delete offsets":
                await delete_offsets(cluster, group, [draw.choice(self.partitions)])
            case _:
                await delete_group(cluster, group)
        self.progress += 1
        await self._pause(0.5)
