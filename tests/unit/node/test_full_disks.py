"""Nodes with full disks: leadership moves, reads continue, and they rejoin when there is space."""

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from moldau.controller.alter_partition import alter_partition
from moldau.controller.offline_replicas import remove_offline_replicas
from moldau.controller.requests import BrokerHeartbeat, IsrChange, IsrChangeResult
from moldau.controller.state import ControllerState
from moldau.errors import StorageError
from moldau.logs.files.store import FileLogStore
from moldau.metadata.records import Record
from moldau.partitions.log_maintenance import LogMaintenance
from moldau.platform.clock import SystemClock
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record as Message
from moldau.settings.broker import BrokerSettings
from moldau.testing.simulation.platform.disk import DiskSettings, SimulatedDisk
from support.logs import values_of
from support.replication_nodes import DirectPeers, FakeController, ReplicaNode, until

PATIENCE_S = 20
QUICK = DiskSettings(sync_ms_min=0, sync_ms_max=0, slow_sync_chance=0)


def run(test: "Coroutine[Any, Any, None]") -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


class Node(ReplicaNode):
    def __init__(self, node_id: int, controller: "QuorumController", peers: DirectPeers, **settings: int) -> None:
        self.disk = SimulatedDisk(random.Random(node_id), settings=QUICK)
        self.usable_bytes = 1 << 30
        store = FileLogStore(self.disk, "data", SystemClock())
        store.space = lambda: (1 << 40, self.usable_bytes)  # type: ignore[method-assign]
        super().__init__(node_id, controller, peers, store, **settings)
        self.table.on_offline_replicas_changed.append(lambda: controller.report(self))
        self.housekeeping = LogMaintenance(self.table, self.settings, SystemClock())

    def fill_disk(self) -> None:
        self.usable_bytes = 0
        self.disk.inject("append", "*.log", error=errno.ENOSPC, times=None)

    def empty_disk(self) -> None:
        self.usable_bytes = 1 << 30
        self.disk.faults.clear()


class QuorumController(FakeController):
    """Handles offline replicas and ISR changes like the real controller."""

    def __init__(self, node_ids: Sequence[int], **topic: str) -> None:
        super().__init__(node_ids, **topic)
        self.state = ControllerState(self.image, BrokerSettings())
        self._lock = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    def report(self, node: Node) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self.handle_report(node)))

    async def handle_report(self, node: Node) -> None:
        beat = BrokerHeartbeat(node.node_id, node.broker_epoch, 0, not_ready=node.table.offline_replicas())
        self.state.update_offline_replicas(beat)
        while (decision := remove_offline_replicas(self.state, beat)).response:
            await self._apply(decision.records)

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrChangeResult]:
        decision = alter_partition(self.state, broker_id, broker_epoch, changes)
        await self._apply(decision.records)
        return list(decision.response)

    async def _apply(self, records: Sequence[Record]) -> None:
        self.state.apply(records, self.state.image.offset + 1 + len(records))
        async with self._lock:
            self.image = self.state.image
            for node in self.nodes.values():
                await node.publish(self.image)

    async def handle_all_reports(self) -> None:
        """Waits until all reports are handled."""
        while self._tasks:
            await self._tasks.pop(0)


@asynccontextmanager
async def cluster(*node_ids: int, **settings: int) -> AsyncIterator[tuple[QuorumController, dict[int, Node]]]:
    controller, peers = QuorumController(node_ids), DirectPeers()
    nodes = {each: Node(each, controller, peers, **settings) for each in node_ids}
    for node in nodes.values():
        await node.start()
    try:
        yield controller, nodes
    finally:
        for node in nodes.values():
            await node.close()
        await controller.handle_all_reports()


async def commit(node: Node, value: bytes) -> None:
    partition = node.partition
    batch = Batch(build_batch([Message(value=value)]))
    appended = await partition.append([batch], acks_all=True)
    waiting = partition.commit_future(appended.next_offset, appended.leader_epoch, acks_all=True)
    if waiting is not None:
        await waiting


async def consumed_values(node: Node) -> list[bytes | None]:
    """Returns the values that a consumer reads."""
    fetched = await node.partition.read(0, 1 << 20)
    assert fetched.high_watermark == node.partition.log.end_offset
    assert len(fetched.records.read()) > 0
    return await values_of(node.partition.log)


def test_another_replica_leads_while_the_leaders_disk_is_full() -> None:
    async def test() -> None:
        async with cluster(1, 2, 3, replica_lag_time_max_ms=2_000) as (controller, nodes):
            await commit(nodes[1], b"a")
            nodes[1].fill_disk()
            with pytest.raises(StorageError):
                await commit(nodes[1], b"does not fit")
            await controller.handle_all_reports()
            assert (controller.partition.leader, controller.partition.isr) == (2, (2, 3))
            await commit(nodes[2], b"b")
            await nodes[1].housekeeping.check_disk_space()
            assert nodes[1].partition.guarded_log.transient_error is not None, "the disk is still full"
            nodes[1].empty_disk()
            await until(lambda: controller.partition.isr == (1, 2, 3))
            assert nodes[1].table.offline_replicas() == ()
            await commit(nodes[2], b"c")
            await until(lambda: nodes[1].partition.log.durable_offset == 3)
            assert await values_of(nodes[1].partition.log) == [b"a", b"b", b"c"]

    run(test())


def test_a_follower_with_a_full_disk_leaves_the_isr() -> None:
    async def test() -> None:
        # Long enough that the replica does not leave the ISR because of its lag.
        async with cluster(1, 2, 3, replica_lag_time_max_ms=600_000) as (controller, nodes):
            await commit(nodes[1], b"a")
            nodes[3].fill_disk()
            await commit(nodes[1], b"b")
            assert (controller.partition.leader, controller.partition.isr) == (1, (1, 2))

    run(test())


def test_a_leader_alone_in_the_isr_stays_readable_while_its_disk_is_full() -> None:
    async def test() -> None:
        async with cluster(1) as (controller, nodes):
            node = nodes[1]
            await commit(node, b"a")
            node.fill_disk()
            for _ in range(2):
                with pytest.raises(StorageError):
                    await commit(node, b"does not fit")
            await controller.handle_all_reports()
            assert (controller.partition.leader, controller.partition.leader_epoch) == (1, 1)
            assert await consumed_values(node) == [b"a"]
            [full] = node.table.offline_replicas()
            assert full.is_transient
            node.empty_disk()
            await commit(node, b"b")
            assert node.table.offline_replicas() == ()
            assert await consumed_values(node) == [b"a", b"b"]

    run(test())


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_opening_a_log_is_retried_after_a_full_disk(error: int) -> None:
    async def test() -> None:
        controller = QuorumController((1,))
        node = Node(1, controller, DirectPeers())
        node.disk.inject("append", "*partition.metadata*", error=error)
        await node.start()
        [unopened] = node.table.offline_replicas()
        assert not unopened.is_transient
        node.usable_bytes = 0
        await node.housekeeping.check_disk_space()
        assert node.table.offline_replicas() == (unopened,)
        node.usable_bytes = 1 << 30
        await node.housekeeping.check_disk_space()
        assert (node.table.offline_replicas() == ()) == (error == errno.ENOSPC)
        await node.housekeeping.run_retention()
        assert node.partition.is_leader
        await node.close()
        await controller.handle_all_reports()

    run(test())


def test_with_all_disks_full_leadership_stays_until_one_has_space() -> None:
    async def test() -> None:
        async with cluster(1, 2) as (controller, nodes):
            await commit(nodes[1], b"a")
            for node in nodes.values():
                node.fill_disk()
            for leader in (1, 2, 2, 2):
                assert controller.partition.leader == leader
                with pytest.raises(StorageError):
                    await commit(nodes[leader], b"does not fit")
                await controller.handle_all_reports()
                for node in nodes.values():
                    await node.housekeeping.check_disk_space()
                    await controller.handle_report(node)
            assert (controller.partition.isr, controller.partition.leader_epoch) == ((2,), 2)
            nodes[1].empty_disk()
            await nodes[1].housekeeping.check_disk_space()
            await until(lambda: controller.partition.isr == (1, 2))
            await controller.handle_report(nodes[2])
            assert (controller.partition.leader, controller.partition.isr) == (1, (1,))
            await commit(nodes[1], b"b")

    run(test())


def test_a_full_disk_triggers_one_round_of_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        controller = QuorumController((1,), retention_bytes="0", segment_bytes="1024")
        node = Node(1, controller, DirectPeers())
        await node.start()
        rounds, for_each_partition = 0, node.housekeeping._for_each_partition

        async def counted(work: Any) -> None:
            nonlocal rounds
            rounds += 1
            await for_each_partition(work)

        monkeypatch.setattr(node.housekeeping, "_for_each_partition", counted)
        for expected in (1, 2):
            for _ in range(4):
                await commit(node, b"x" * 600)
            await node.partition.log.finalize_segments()
            node.fill_disk()
            with pytest.raises(StorageError):
                await commit(node, b"does not fit" * 100)
            start_offset = node.partition.log.start_offset
            for _ in range(3):
                await node.housekeeping.check_disk_space()
            assert rounds == expected
            assert node.partition.log.start_offset > start_offset
            node.empty_disk()
            await node.housekeeping.check_disk_space()
        await node.close()
        await controller.handle_all_reports()

    run(test())
