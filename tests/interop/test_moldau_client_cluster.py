"""Moldau's client on three nodes of Apache Kafka, which stop while it reads and writes."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from apache_kafka import available
from confluent_kafka import Producer as ConfluentProducer
from kafka_cluster import KafkaCluster

from clients.test_moldau_bulk import *  # noqa: F403 - its tests run here as well, on the cluster below
from moldau.client import Admin, Cluster, Consumer, Fetcher, Producer, TopicPartition
from moldau.client.consumer.completed_fetch import READ_COMMITTED
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, OffsetAndTimestamp, list_offsets
from moldau.client.record import decode_records
from support.topics import unique

DEADLINE_S = 120
PARTITIONS = 6
NODES = 3


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka is not there: {reason}")
    with KafkaCluster(tmp_path_factory.mktemp("three"), NODES) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bootstrap(kafka: KafkaCluster) -> str:
    return kafka.bootstrap


def run_on(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    asyncio.run(limited())


async def new_topic(cluster: Cluster) -> list[TopicPartition]:
    """Creates a topic on all three nodes, each of which leads some partitions."""
    topic = unique()
    while len(cluster.brokers) < NODES:
        # A restarted node may not be registered yet.
        await cluster.refresh()
        await asyncio.sleep(0.05)
    async with Admin(cluster) as admin:
        await admin.create_topic(topic, PARTITIONS, NODES)
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    leaders = {await cluster.leader_of(each) for each in partitions}
    assert len(leaders) == NODES
    return partitions


async def write(cluster: Cluster, partitions: list[TopicPartition], numbers: range) -> None:
    async with Producer(cluster, batch_size=1_000) as producer:
        sent = [
            await producer.send(
                partitions[0].topic, b"%06d" % number, partition=partitions[number % PARTITIONS].partition
            )
            for number in numbers
        ]
        await asyncio.gather(*sent)


def in_partition(index: int, numbers: range) -> list[bytes]:
    return [b"%06d" % number for number in numbers if number % PARTITIONS == index]


async def stable_ends(cluster: Cluster, partitions: list[TopicPartition]) -> dict[TopicPartition, OffsetAndTimestamp]:
    return await list_offsets(cluster, dict.fromkeys(partitions, LATEST), isolation_level=READ_COMMITTED)


async def read_to_the_end(
    cluster: Cluster, partitions: list[TopicPartition], *, halfway: Callable[[], None] = lambda: None, **settings: Any
) -> dict[int, list[bytes | None]]:
    """Returns all values by partition; calls `halfway` once when half of the offsets are read."""
    starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = await stable_ends(cluster, partitions)
    total = sum(ends[each].offset - starts[each].offset for each in partitions)
    values: dict[int, list[bytes | None]] = {each.partition: [] for each in partitions}
    passed, was_halfway = 0, False
    async with Fetcher(cluster, **settings) as fetcher:
        fetcher.assign(
            {each: place.offset for each, place in starts.items()},
            until={each: place.offset for each, place in ends.items()},
        )
        while not fetcher.is_finished:
            for fetched in await fetcher.next(1_000):
                assert fetched.error is None, fetched.error
                passed += fetched.next_offset - fetched.position
                for batch in fetched.batches:
                    values[fetched.partition.partition] += [
                        record.value for record in decode_records(fetched.partition, batch, fetched.position)
                    ]
            if passed >= total / 2 and not was_halfway:
                was_halfway = True
                await asyncio.to_thread(halfway)
    return values


def test_partitions_on_all_nodes_are_written_and_read(kafka: KafkaCluster) -> None:
    async def test() -> None:
        async with Cluster(kafka.bootstrap) as cluster:
            partitions = await new_topic(cluster)
            await write(cluster, partitions, range(6_000))
            ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
            assert {place.offset for place in ends.values()} == {1_000}
            values = await read_to_the_end(cluster, partitions)
            assert values == {index: in_partition(index, range(6_000)) for index in range(PARTITIONS)}

    run_on(test)


def test_one_bootstrap_server_is_enough(kafka: KafkaCluster) -> None:
    async def test() -> None:
        async with Cluster(f"127.0.0.1:1,{kafka.nodes[2].bootstrap}") as cluster:
            assert set(cluster.brokers) == set(kafka.nodes)
            partitions = await new_topic(cluster)
            await write(cluster, partitions, range(60))
            assert sum(map(len, (await read_to_the_end(cluster, partitions)).values())) == 60

    run_on(test)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_bounded_read_ends_after_transaction_markers(kafka: KafkaCluster, is_committed: bool) -> None:
    """The last offsets of the log are transaction markers, which consumers do not see."""

    async def test() -> None:
        async with Cluster(kafka.bootstrap) as cluster:
            partitions = await new_topic(cluster)
            await write(cluster, partitions, range(12))
            await asyncio.to_thread(transaction, partitions[0].topic)
            # Two records, three of the transaction, and its marker, which is written a little later.
            while {place.offset for place in (await stable_ends(cluster, partitions)).values()} != {6}:
                await asyncio.sleep(0.05)
            values = await read_to_the_end(cluster, partitions, isolation_level=READ_COMMITTED, max_wait_ms=60_000)
            seen = [b"of a transaction"] * 3 if is_committed else []
            assert values == {index: in_partition(index, range(12)) + seen for index in range(PARTITIONS)}

    def transaction(topic: str) -> None:
        producer = ConfluentProducer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(3 * PARTITIONS):
            producer.produce(topic, b"of a transaction", partition=number % PARTITIONS)
        producer.flush(30)
        if is_committed:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)

    run_on(test)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_node_that_stops_during_a_read_loses_nothing(kafka: KafkaCluster, way: str) -> None:
    async def test() -> None:
        async with Cluster(kafka.bootstrap, request_timeout_ms=10_000) as cluster:
            partitions = await new_topic(cluster)
            await write(cluster, partitions, range(30_000))
            stopped = kafka.nodes[await cluster.leader_of(partitions[0])]
            limits = {"partition_max_bytes": 2_000, "max_bytes": 4_000}
            values = await read_to_the_end(cluster, partitions, halfway=getattr(stopped, way), **limits)
            stopped.start()
            assert values == {index: in_partition(index, range(30_000)) for index in range(PARTITIONS)}

    run_on(test)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_group_reads_once_and_in_order_while_its_coordinator_stops(kafka: KafkaCluster, way: str) -> None:
    async def test() -> None:
        topic_partitions: list[TopicPartition] = []
        async with Cluster(kafka.bootstrap, request_timeout_ms=10_000) as cluster:
            topic_partitions += await new_topic(cluster)
            topic = topic_partitions[0].topic
            coordinator = kafka.nodes[await cluster.coordinator_of(topic)]
            values: dict[int, list[bytes | None]] = {index: [] for index in range(PARTITIONS)}
            consumer = Consumer(cluster=cluster, group_id=topic, auto_offset_reset="earliest")
            async with Producer(cluster, batch_size=1_000) as producer, consumer:
                consumer.subscribe([topic])
                sent = []
                going: asyncio.Future[None] | None = None
                while len(sent) < 6_000 or sum(map(len, values.values())) < 6_000:
                    for number in range(len(sent), min(len(sent) + 60, 6_000)):
                        sent.append(await producer.send(topic, b"%06d" % number, partition=number % PARTITIONS))
                    for record in await consumer.poll(50):
                        values[record.partition].append(record.value)
                    if going is None and sum(map(len, values.values())) > 1_500:
                        going = asyncio.ensure_future(asyncio.to_thread(getattr(coordinator, way)))
                assert going is not None
                await going
                await asyncio.gather(*sent)
                await consumer.commit()
            coordinator.start()
            assert values == {index: in_partition(index, range(6_000)) for index in range(PARTITIONS)}

    run_on(test)
