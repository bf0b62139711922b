"""Moldau's client with a crashing node and a faulty network: records once and in order, and every run replays."""

import asyncio
import random

import pytest

from moldau.client.admin.admin import Admin
from moldau.client.consumer.fetcher import Fetcher
from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import Producer
from moldau.client.record import TopicPartition, decode_records
from moldau.node.node import Node
from moldau.records.batch import Batch
from moldau.records.batch_builder import Section, build_batch
from moldau.records.record import Record
from moldau.settings.broker import BrokerSettings
from moldau.testing.simulation.platform.network import NetworkSettings
from moldau.testing.simulation.platform.simulation import Simulation

TOPIC = "orders"
PARTITIONS = 2
RECORDS = 300


class ClientScenario:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"{seed}/story")
        self.simulation = Simulation(
            seed, network=NetworkSettings(slow_packet_chance=0.02, partial_read_chance=self.random.random() / 2)
        )
        self.server = self.simulation.add_host("server")
        self.client = self.simulation.add_host("client")
        self.settings = BrokerSettings(listen=(f"{self.server.address}:9092",), data_dir="/var/moldau")
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failed: list[bytes] = []
        self.read: dict[int, list[tuple[int, bytes]]] = {index: [] for index in range(PARTITIONS)}
        self.faults = 0

    def run(self) -> str:
        self.simulation.run(self.main, 3_600_000)
        return self.simulation.trace_hash

    async def main(self) -> None:
        await self.boot()
        cluster = await self.client.run(self.open_cluster())
        reading = asyncio.ensure_future(self.client.run(self.fetch(cluster)))
        producing = asyncio.ensure_future(self.client.run(self.produce(cluster)))
        while not producing.done():
            await asyncio.sleep(self.random.uniform(0.05, 1.5))
            await self.fault()
        await producing
        await reading

    async def boot(self) -> None:
        node = Node(self.server.platform, self.settings)
        await self.server.run(node.start())

    async def fault(self) -> None:
        self.faults += 1
        match self.random.choice(("crash", "kill", "reset", "cut", "nothing")):
            case "crash" | "kill" as action:
                getattr(self.server, action)()
                await asyncio.sleep(self.random.uniform(0, 3))
                self.server.restart()
                await self.boot()
            case "reset":
                self.simulation.network.reset({"server"}, ["client"])
            case "cut":
                self.simulation.network.partition({"server"}, ["client"])
                await asyncio.sleep(self.random.uniform(0.1, 8))
                self.simulation.network.heal()

    async def open_cluster(self) -> Cluster:
        platform = self.client.platform
        cluster = Cluster("server:9092", clock=platform.clock, random=platform.random, request_timeout_ms=3_000)
        await cluster.start()
        await Admin(cluster).create_topic(TOPIC, PARTITIONS)
        return cluster

    async def produce(self, cluster: Cluster) -> None:
        async with Producer(cluster, linger_ms=2, batch_size=300, delivery_timeout_ms=60_000) as producer:
            sent = []
            for number in range(RECORDS):
                value = f"{number:05d}".encode()
                if number % 5 == 0:
                    batch = Batch(build_batch([Record(timestamp=number, value=value)]))
                    section = Section(batch.section, 1, batch.base_timestamp, batch.max_timestamp)
                    future = await producer.send_section(TOPIC, number % PARTITIONS, section)
                else:
                    future = await producer.send(TOPIC, value, partition=number % PARTITIONS)
                sent.append((value, future))
                if number % 10 == 0:
                    await asyncio.sleep(0.15)
            await producer.flush()
            for value, future in sent:
                try:
                    metadata = await future
                    self.acknowledged[metadata.partition, metadata.offset] = value
                except KafkaError:
                    self.failed.append(value)

    async def fetch(self, cluster: Cluster) -> None:
        """Reads to the last record of every partition."""
        async with Fetcher(cluster, max_wait_ms=200) as fetcher:
            fetcher.assign({TopicPartition(TOPIC, index): 0 for index in range(PARTITIONS)})
            unread = {RECORDS - 1 - index for index in range(PARTITIONS)}
            while unread:
                for fetched in await fetcher.next(1_000):
                    assert fetched.error is None, fetched.error
                    for batch in fetched.batches:
                        for record in decode_records(fetched.partition, batch, fetched.position):
                            assert record.value is not None
                            self.read[record.partition].append((record.offset, record.value))
                            unread.discard(int(record.value))


@pytest.mark.parametrize("seed", range(12))
def test_records_are_written_and_read_once_and_in_order(seed: int) -> None:
    scenario = ClientScenario(seed)
    scenario.run()
    assert scenario.faults > 1
    assert scenario.failed == []
    assert len(scenario.acknowledged) == RECORDS
    for index in range(PARTITIONS):
        offsets = [offset for offset, _ in scenario.read[index]]
        values = [value for _, value in scenario.read[index]]
        assert offsets == list(range(len(offsets)))
        assert values == sorted(values)
        assert len(values) == RECORDS // PARTITIONS
        for offset, value in scenario.read[index]:
            assert scenario.acknowledged[index, offset] == value


def test_a_seed_replays_to_the_same_trace() -> None:
    assert ClientScenario(3).run() == ClientScenario(3).run()
    assert ClientScenario(3).run() != ClientScenario(4).run()
