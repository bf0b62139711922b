"""Moldau's client through `kill -9` of nodes: an idempotent producer and a group of two continue by themselves, and
every record is written once, in order, and read once."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from moldau.client import Admin, Consumer, Producer, TopicPartition
from moldau.client.record import ConsumerRecord
from support.broker_process_cluster import BrokerProcessCluster
from support.log_reader import all_records

PARTITIONS = 3
RECORDS_PER_KILL = 300
"""Records read between two kills."""
TIMEOUT_S = 240.0
GROUP = "readers"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcessCluster]:
    with BrokerProcessCluster(tmp_path_factory.mktemp("cluster")) as served:
        yield served
        for node in served.nodes.values():
            assert "Traceback" not in node.log_path.read_text()


class ClientRun:
    """One producer and two group members that work until stopped; `read` has the records by partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.sent = 0
        self.read: dict[int, list[bytes | None]] = {part: [] for part in range(PARTITIONS)}
        self.progress = asyncio.Event()
        self._stop = False
        self._working: list[asyncio.Task[None]] = []

    @property
    def read_count(self) -> int:
        return sum(map(len, self.read.values()))

    async def begin(self) -> None:
        members = [asyncio.create_task(self._consume()) for _ in range(2)]
        self._working = [asyncio.create_task(self._produce()), *members]

    async def _produce(self) -> None:
        async with Producer(self.bootstrap, linger_ms=0, batch_size=200) as producer:
            sent = []
            while not self._stop:
                sent.append(await producer.send(self.topic, b"%06d" % self.sent, partition=self.sent % PARTITIONS))
                self.sent += 1
                await asyncio.sleep(0.001)
            for number, place in enumerate(await asyncio.gather(*sent)):
                assert (place.partition, place.offset) == (number % PARTITIONS, number // PARTITIONS)

    async def _consume(self) -> None:
        consumer = Consumer(self.bootstrap, group_id=GROUP, auto_offset_reset="earliest", heartbeat_interval_ms=200)
        async with consumer:
            consumer.subscribe([self.topic])
            while not self._stop or self.read_count < self.sent:
                self._note(await consumer.poll(100))

    def _note(self, records: list[ConsumerRecord]) -> None:
        for record in records:
            self.read[record.partition].append(record.value)
        self.progress.set()

    async def wait_for(self, count: int) -> None:
        """Waits until `count` more records are read; raises the error of a failed task."""
        wanted = self.read_count + count
        while self.read_count < wanted:
            self.progress.clear()
            progress = asyncio.create_task(self.progress.wait())
            await asyncio.wait([progress, *self._working], return_when=asyncio.FIRST_COMPLETED)
            progress.cancel()
            for each in self._working:
                if each.done():
                    each.result()

    async def finish(self) -> None:
        self._stop = True
        await asyncio.gather(*self._working)

    async def stop(self) -> None:
        for each in self._working:
            each.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    def expected(self, part: int) -> list[bytes]:
        return [b"%06d" % number for number in range(part, self.sent, PARTITIONS)]


def test_producer_and_group_continue_when_nodes_are_killed(cluster: BrokerProcessCluster) -> None:
    async def victim_of(role: str, scenario: ClientRun, admin: Admin) -> int:
        if role == "leader":
            return await asyncio.to_thread(cluster.leader_of, scenario.topic)
        if role == "coordinator":
            return await admin.cluster.coordinator_of(GROUP)
        return (await admin.describe_quorum()).leader_id

    async def main() -> ClientRun:
        scenario = ClientRun(cluster.bootstrap, "kills")
        async with AsyncExitStack() as ending, Admin(cluster.bootstrap) as admin:
            ending.push_async_callback(scenario.stop)
            await scenario.begin()
            await scenario.wait_for(RECORDS_PER_KILL)
            for role in ("leader", "coordinator", "controller"):
                victim = await victim_of(role, scenario, admin)
                await asyncio.to_thread(cluster.kill, victim)
                await scenario.wait_for(RECORDS_PER_KILL)
                await asyncio.to_thread(cluster.start, victim)
                await asyncio.to_thread(cluster.wait_in_sync, scenario.topic)
                await asyncio.to_thread(cluster.wait_in_sync, "__consumer_offsets")
            await scenario.finish()
        return scenario

    cluster.create_topic("kills", PARTITIONS)
    scenario = asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))
    for part in range(PARTITIONS):
        held = [each.value for each in all_records(cluster.bootstrap, "kills") if each.partition == part]
        assert held == scenario.expected(part)
        assert scenario.read[part] == scenario.expected(part)


def test_committed_offsets_survive_the_kill_of_their_coordinator(cluster: BrokerProcessCluster) -> None:
    topic = "committed"
    partitions = [TopicPartition(topic, part) for part in range(PARTITIONS)]
    cluster.create_topic(topic, PARTITIONS)

    async def main() -> None:
        async with Consumer(cluster.bootstrap, group_id="keepers", auto_offset_reset="earliest") as consumer:
            consumer.assign(partitions)
            await consumer.commit({each: 7 + each.partition for each in partitions})
            killed = await consumer.cluster.coordinator_of("keepers")
            await asyncio.to_thread(cluster.kill, killed)
            found = await consumer.committed(partitions)
            assert {each: place.offset for each, place in found.items() if place is not None} == {
                each: 7 + each.partition for each in partitions
            }
            await consumer.commit(dict.fromkeys(partitions, 5))
        async with Consumer(cluster.bootstrap, group_id="keepers") as other:
            found = await other.committed(partitions)
            assert [place.offset for place in found.values() if place is not None] == [5] * PARTITIONS

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))
