"""Replication between nodes with real partitions: commits, ISR changes and diverging logs."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from moldau.errors import NotLeaderOrFollowerError
from moldau.partitions.partition import Partition
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from support.logs import batches_of
from support.replication_nodes import ReplicaNode, cluster, until

PATIENCE_S = 20


def run(test: "Coroutine[Any, Any, None]") -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


def batch(*values: bytes) -> Batch:
    return Batch(build_batch([Record(value=value) for value in values]))


async def write(node: ReplicaNode, *values: bytes) -> int:
    """Appends without waiting for the commit and returns the next offset."""
    return (await node.partition.append([batch(*values)])).next_offset


async def commit(node: ReplicaNode, *values: bytes) -> None:
    partition = node.partition
    appended = await partition.append([batch(*values)], acks_all=True)
    waiting = partition.commit_future(appended.next_offset, appended.leader_epoch, acks_all=True)
    if waiting is not None:
        await waiting


async def bytes_of(partition: Partition) -> list[bytes]:
    return [bytes(each.data) for each in await batches_of(partition.log)]


class HeldSyncs:
    """Lets a test decide when a partition's log is synced."""

    def __init__(self, partition: Partition) -> None:
        self.released = asyncio.Event()
        self._sync = partition.log.flush
        partition.log.flush = self._held  # type: ignore[method-assign]

    async def _held(self) -> None:
        await self.released.wait()
        await self._sync()


def test_writes_are_committed_when_all_followers_have_synced_them() -> None:
    async def test() -> None:
        async with cluster(1, 2, 3) as (controller, _):
            nodes = controller.nodes
            for number in range(20):
                await commit(nodes[1], b"%d" % number)
            assert nodes[1].partition.high_watermark == 20
            for node_id in (2, 3):
                assert nodes[node_id].partition.log.durable_offset == 20
                assert await bytes_of(nodes[node_id].partition) == await bytes_of(nodes[1].partition)

    run(test())


def test_followers_learn_the_high_watermark() -> None:
    async def test() -> None:
        async with cluster(1, 2, replica_fetch_wait_max_ms=10) as (controller, _):
            await commit(controller.nodes[1], b"a", b"b")
            await until(lambda: controller.nodes[2].partition.high_watermark == 2)

    run(test())


def test_unsynced_records_of_a_follower_are_not_committed() -> None:
    async def test() -> None:
        async with cluster(1, 2) as (controller, _):
            leader, follower = controller.nodes[1], controller.nodes[2]
            await commit(leader, b"a")
            held = HeldSyncs(follower.partition)
            writing = asyncio.create_task(commit(leader, b"b"))
            await until(lambda: follower.partition.log.end_offset == 2)
            await asyncio.sleep(0.05)
            assert not writing.done()
            assert leader.partition.high_watermark == 1
            held.released.set()
            await writing

    run(test())


def test_a_follower_does_not_acknowledge_unsynced_records_to_a_new_leader() -> None:
    async def test() -> None:
        async with cluster(1, 2, 3) as (controller, _):
            nodes = controller.nodes
            await commit(nodes[1], b"a")
            held = HeldSyncs(nodes[2].partition)
            await write(nodes[1], b"b")
            await until(lambda: nodes[2].partition.log.end_offset == 2 == nodes[3].partition.log.end_offset)
            await controller.change(leader=3)
            await asyncio.sleep(0.05)
            assert nodes[3].partition.require_leader().followers[2].durable_offset < 2
            held.released.set()
            await until(lambda: nodes[3].partition.high_watermark == 2)

    run(test())


def test_a_previous_leader_truncates_records_its_successor_lacks() -> None:
    async def test() -> None:
        async with cluster(1, 2, 3) as (controller, peers):
            nodes = controller.nodes
            await commit(nodes[1], b"a")
            await commit(nodes[1], b"b")
            # Partitioned: its writes reach no follower, and it does not learn of the new leader.
            served = peers.nodes.pop(1)
            await write(nodes[1], b"lost 1")
            await write(nodes[1], b"lost 2")
            await controller.change(leader=2, isr=(2, 3), tell=(2, 3))
            await commit(nodes[2], b"c")
            peers.nodes[1] = served
            await nodes[1].publish(controller.image)
            await until(lambda: controller.partition.isr == (1, 2, 3))
            await commit(nodes[2], b"d")
            assert await bytes_of(nodes[1].partition) == await bytes_of(nodes[2].partition)
            assert await bytes_of(nodes[3].partition) == await bytes_of(nodes[2].partition)
            with pytest.raises(NotLeaderOrFollowerError):
                await write(nodes[1], b"never")

    run(test())


def test_logs_that_diverged_repeatedly_converge() -> None:
    async def test() -> None:
        async with cluster(1, 2, 3) as (controller, peers):
            nodes = controller.nodes
            await commit(nodes[1], b"a")
            # Three leaders in turn, each partitioned with records of its own epoch.
            for leader, others in ((1, (2, 3)), (2, (3, 1)), (3, (1, 2))):
                served = peers.nodes.pop(leader)
                for number in range(leader):
                    await write(nodes[leader], b"only %d has %d" % (leader, number))
                await controller.change(leader=others[0], isr=others, tell=others)
                await commit(nodes[others[0]], b"after %d" % leader)
                peers.nodes[leader] = served
                await nodes[leader].publish(controller.image)
                await until(lambda: controller.partition.isr == (1, 2, 3))
            await commit(nodes[controller.partition.leader], b"last")
            requested = await bytes_of(nodes[1].partition)
            assert await bytes_of(nodes[2].partition) == requested
            assert await bytes_of(nodes[3].partition) == requested
            assert len(requested) == 5

    run(test())


def test_a_lagging_follower_leaves_the_isr_and_rejoins_when_caught_up() -> None:
    async def test() -> None:
        async with cluster(1, 2, 3, replica_lag_time_max_ms=200) as (controller, _):
            leader, follower = controller.nodes[1], controller.nodes[3]
            await commit(leader, b"a")
            held = HeldSyncs(follower.partition)
            # One follower is down; the other ISR members get it.
            await commit(leader, b"b")
            assert controller.partition.isr == (1, 2)
            for _ in range(5):
                await commit(leader, b"more")
            held.released.set()
            await until(lambda: controller.partition.isr == (1, 2, 3))
            await commit(leader, b"c")
            assert await bytes_of(follower.partition) == await bytes_of(leader.partition)

    run(test())


def test_a_follower_without_controller_keeps_replicating() -> None:
    async def test() -> None:
        async with cluster(1, 2) as (controller, _):
            controller.is_reachable = False
            for number in range(5):
                await commit(controller.nodes[1], b"%d" % number)
            assert controller.nodes[2].partition.log.durable_offset == 5

    run(test())


def test_a_replica_without_common_records_resets_to_the_leaders_start() -> None:
    async def test() -> None:
        async with cluster(1, 2, 3) as (controller, _):
            nodes = controller.nodes
            await commit(nodes[1], b"a", b"b")
            await controller.change(isr=(1, 2), replicas=(1, 2))
            await commit(nodes[1], b"c", b"d")
            await nodes[1].partition.delete_records(3)
            assert nodes[1].partition.log.start_offset == 3
            await controller.change(replicas=(1, 2, 3))
            await until(lambda: controller.partition.isr == (1, 2, 3))
            await commit(nodes[1], b"e")
            assert nodes[3].partition.log.start_offset == 3
            assert nodes[3].partition.log.end_offset == 5

    run(test())


def test_a_batch_larger_than_the_limits_is_replicated() -> None:
    async def test() -> None:
        limits = {"replica_fetch_max_bytes": 1_000, "replica_fetch_response_max_bytes": 2_000}
        async with cluster(1, 2, **limits) as (controller, _):
            await commit(controller.nodes[1], bytes(50_000))
            await commit(controller.nodes[1], b"small", b"ones")
            assert controller.nodes[2].partition.log.durable_offset == 3

    run(test())


def test_a_restarted_follower_continues_at_its_log_end() -> None:
    async def test() -> None:
        async with cluster(1, 2) as (controller, peers):
            await commit(controller.nodes[1], b"a")
            before = controller.nodes[2]
            del peers.nodes[2]
            await before.close()
            await write(controller.nodes[1], b"b")
            after = ReplicaNode(2, controller, peers, before.store)
            await after.start()
            await until(lambda: controller.nodes[1].partition.high_watermark == 2)
            assert await bytes_of(after.partition) == await bytes_of(controller.nodes[1].partition)

    run(test())


def test_an_idle_follower_stays_in_the_isr() -> None:
    async def test() -> None:
        async with cluster(1, 2, replica_lag_time_max_ms=400) as (controller, _):
            leader = controller.nodes[1]
            await commit(leader, b"a")
            progress = leader.partition.require_leader().followers[2]
            for _ in range(3):
                seen_ms = progress.fetched_ms
                await until(lambda seen_ms=seen_ms: progress.fetched_ms > seen_ms)

    run(test())
