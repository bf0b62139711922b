"""Transaction groups in a cluster: the coordinator dies before and after the decision about a batch."""

import asyncio
from collections.abc import Iterator

import pytest

from moldau.client import Cluster as ClientCluster
from moldau.client.producer.transaction_group import GroupMember, TransactionGroup
from moldau.coordinator.java_hash import partition_for
from moldau.testing import Cluster
from moldau.transactions.state_topic import TRANSACTION_STATE_TOPIC
from moldau.wire.transaction_group_id import group_coordinator_key
from support.log_reader import committed_records
from support.transaction_cluster import PATIENCE_S, STATE_PARTITIONS

TOPIC = "orders"
PARTITIONS = 6
GROUP = "q"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    settings = {"transaction.state.log.num.partitions": str(STATE_PARTITIONS)}
    with Cluster(3, topics={TOPIC: PARTITIONS}, settings=settings) as started:
        yield started


def kill_coordinator(cluster: Cluster) -> int:
    partition = partition_for(group_coordinator_key(GROUP), STATE_PARTITIONS)
    node_id = cluster.leader_of(TRANSACTION_STATE_TOPIC, partition)
    cluster.kill(node_id)
    return node_id


async def write(client: ClientCluster, run_id: str, batch_id: int, member: str) -> GroupMember:
    group = TransactionGroup(client, GROUP, run_id, transaction_timeout_ms=60_000)
    started = await group.start_member(batch_id, member)
    assert started is not None
    for partition in range(PARTITIONS):
        await started.producer.send(TOPIC, f"{run_id} {batch_id} {member}".encode(), partition=partition)
    return await started.finish()


async def commit(client: ClientCluster, run_id: str, batch_id: int, *members: GroupMember) -> None:
    await TransactionGroup(client, GROUP, run_id, transaction_timeout_ms=60_000).commit(batch_id, members)


def test_a_batch_is_committed_once_although_its_coordinators_die(cluster: Cluster) -> None:
    async def run() -> None:
        async with asyncio.timeout(4 * PATIENCE_S), ClientCluster(cluster.bootstrap) as client:
            # The next coordinator commits a batch whose members have written before.
            members = [await write(client, "r1", 0, "0/0"), await write(client, "r1", 0, "1/0")]
            killed = await asyncio.to_thread(kill_coordinator, cluster)
            await commit(client, "r1", 0, *members)
            await asyncio.to_thread(cluster.restart, killed)
            # The next coordinator knows a decision, writes its markers, and recognises the replay and late tasks.
            members = [await write(client, "r1", 1, "0/0")]
            await write(client, "r1", 1, "0/1")
            await commit(client, "r1", 1, *members)
            killed = await asyncio.to_thread(kill_coordinator, cluster)
            replay = TransactionGroup(client, GROUP, "r2", transaction_timeout_ms=60_000)
            assert await replay.start_member(1, "0/0") is None
            await replay.commit(1, [])
            await asyncio.to_thread(cluster.restart, killed)
            # The next coordinator aborts what a dead run has left, and refuses its tasks.
            await write(client, "r2", 2, "0/0")
            killed = await asyncio.to_thread(kill_coordinator, cluster)
            await commit(client, "r3", 2, await write(client, "r3", 2, "0/0"))
            await asyncio.to_thread(cluster.restart, killed)

    asyncio.run(run())
    found = [(each.value or b"").decode() for each in committed_records(cluster.bootstrap, TOPIC, PATIENCE_S)]
    expected = ["r1 0 0/0", "r1 0 1/0", "r1 1 0/0", "r3 2 0/0"]
    assert sorted(found) == sorted(expected * PARTITIONS)
