"""Reassignments and leader elections on running nodes while a producer writes."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from moldau.client import Admin, Consumer, Producer, TopicPartition
from moldau.client.admin.types import ElectionType
from moldau.metadata.image import PartitionRegistration
from moldau.testing import Cluster

ORDERS = TopicPartition("orders", 0)
TIMEOUT_S = 30.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(4) as running:
        yield running


def partition(cluster: Cluster) -> PartitionRegistration:
    images = [node.broker.metadata.image for node in cluster.nodes.values()]
    found = max(images, key=lambda image: image.offset).partition(*ORDERS)
    assert found is not None
    return found


async def wait_until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not happened():
        assert time.monotonic() < deadline, f"in {TIMEOUT_S} s it never was so that {what}"
        await asyncio.sleep(0.02)


async def write(producer: Producer, values: range) -> None:
    """Returns when all records are acknowledged."""
    sent = [await producer.send("orders", b"%d" % value, partition=0) for value in values]
    await asyncio.gather(*sent)


async def read(cluster: Cluster, count: int) -> list[int]:
    found: list[int] = []
    async with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([ORDERS])
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records"
            found += [int(record.value or b"") for record in await consumer.poll(200)]
    return found


async def reassign(admin: Admin, replicas: Sequence[int]) -> None:
    assert await admin.alter_reassignments({ORDERS: replicas}) == {ORDERS: None}
    while await admin.list_reassignments([ORDERS]):
        await asyncio.sleep(0.02)


def test_replicas_are_added_and_moved_while_a_producer_writes(cluster: Cluster) -> None:
    async def main() -> None:
        async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            await admin.create_topic("orders", 1, 1, {"min.insync.replicas": "2"})
            first = partition(cluster).leader
            others = [node_id for node_id in cluster.nodes if node_id != first]
            written = 0

            async def keep_writing() -> None:
                nonlocal written
                while True:
                    await write(producer, range(written, written + 10))
                    written += 10

            writing = asyncio.create_task(keep_writing())
            await wait_until(lambda: written >= 100, "a hundred records are written")
            await reassign(admin, [first, *others[:2]])
            assert set(partition(cluster).isr) == {first, *others[:2]}
            await reassign(admin, [others[2], others[1], others[0]])
            assert partition(cluster).leader in others
            before = written
            await wait_until(lambda: written > before, "writes go on")
            cluster.kill(partition(cluster).leader)
            before = written
            await wait_until(lambda: written >= before + 20, "writes go on without the leader")
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            assert (await read(cluster, written))[:written] == list(range(written))

    asyncio.run(main())


def test_leadership_returns_to_the_preferred_replica(cluster: Cluster) -> None:
    async def main() -> None:
        async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            await admin.create_topic("orders", 1, 3)
            preferred = partition(cluster).replicas[0]
            await write(producer, range(10))
            cluster.stop(preferred)
            await wait_until(lambda: partition(cluster).leader not in (-1, preferred), "another leads")
            await write(producer, range(10, 20))
            cluster.restart(preferred)
            await wait_until(lambda: preferred in partition(cluster).isr, "it has caught up")
            assert await admin.elect_leaders(ElectionType.PREFERRED, [ORDERS]) == {ORDERS: None}
            assert partition(cluster).leader == preferred
            await write(producer, range(20, 30))
            assert await read(cluster, 30) == list(range(30))

    asyncio.run(main())


def test_an_unclean_election_picks_the_live_replica_with_the_longest_log() -> None:
    async def main(cluster: Cluster) -> None:
        async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            await admin.create_topic("orders", 1, 3, {"min.insync.replicas": "1"})
            leader, short, long = partition(cluster).replicas
            await write(producer, range(10))
            cluster.stop(short)
            await wait_until(lambda: short not in partition(cluster).isr, "a follower is left behind")
            await write(producer, range(10, 20))
            cluster.stop(long)
            await wait_until(lambda: partition(cluster).isr == (leader,), "the other one is too")
            await write(producer, range(20, 30))
            cluster.kill(leader)
            cluster.restart(short)
            cluster.restart(long)
            await wait_until(lambda: partition(cluster).leader == -1, "the partition has no leader")
            assert await admin.elect_leaders(ElectionType.UNCLEAN, [ORDERS]) == {ORDERS: None}
            assert partition(cluster).leader == long
            assert await read(cluster, 20) == list(range(20))
            await write(producer, range(30, 40))
            cluster.restart(leader)
            await wait_until(lambda: leader in partition(cluster).isr, "the former leader follows")
            assert await read(cluster, 30) == [*range(20), *range(30, 40)]

    with Cluster(5) as running:
        asyncio.run(main(running))


def test_a_partition_waits_for_its_only_in_sync_replica(cluster: Cluster) -> None:
    async def main() -> None:
        async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            await admin.create_topic("orders", 1, 1)
            only = partition(cluster).leader
            await write(producer, range(10))
            cluster.kill(only)
            await wait_until(lambda: partition(cluster).leader == -1, "the partition has no leader")
            assert partition(cluster).isr == (only,)
            cluster.restart(only)
            await wait_until(lambda: partition(cluster).leader == only, "it leads again")
            assert await read(cluster, 10) == list(range(10))

    asyncio.run(main())
