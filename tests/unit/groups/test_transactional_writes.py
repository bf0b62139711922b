"""Transactions in the log of a group coordinator: batches and markers, failed appends, loading, leader changes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from moldau.errors import (
    CoordinatorLoadInProgressError,
    InvalidCommitOffsetSizeError,
    InvalidGroupIdError,
    MoldauError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    StorageError,
    TransactionAbortableError,
)
from moldau.groups.coordinator import GroupCoordinator
from moldau.groups.offsets_topic import OFFSETS_TOPIC
from moldau.groups.records import NO_EXPIRY, CommittedOffset
from moldau.groups.requests import MemberIdentity, OffsetToCommit, TransactionalCommitRequest
from moldau.partitions.partition import Partition
from moldau.records.batch import Batch, split
from moldau.records.control_records import EndTransaction, decode
from moldau.records.record import iterate_records
from moldau.testing import Broker
from moldau.transactions.marker_writer import EndTransactionMarker, MarkersToWrite
from moldau.transactions.transaction_metadata import TV2
from support.groups import standalone_identity

PRODUCER_ID, EPOCH = 7, 3
PLACE = ("orders", 0)


async def accept(partition: Partition) -> None:
    """The transaction coordinator has no objection."""


def request_of(
    *offsets: int, producer_id: int = PRODUCER_ID, identity: MemberIdentity | None = None, metadata: str = ""
) -> TransactionalCommitRequest:
    made = [OffsetToCommit("orders", index, each, -1, metadata, NO_EXPIRY, None) for index, each in enumerate(offsets)]
    return TransactionalCommitRequest(
        identity=identity or standalone_identity(),
        offsets=tuple(made),
        producer_id=producer_id,
        producer_epoch=EPOCH,
        client_version=TV2,
    )


def marker(*, commit: bool, producer_id: int = PRODUCER_ID, epoch: int = EPOCH + 1) -> EndTransactionMarker:
    return EndTransactionMarker(producer_id, epoch, coordinator_epoch=1, commit=commit, transaction_version=2)


class Node:
    """The group coordinator of a node."""

    def __init__(self, broker: Broker) -> None:
        self.parts = broker.node.broker
        self.groups: GroupCoordinator = self.parts.groups

    async def ready(self) -> "Node":
        await self.groups.ensure_topic()
        async with asyncio.timeout(20):
            while True:
                try:
                    await self.groups.list_groups()
                except CoordinatorLoadInProgressError:
                    await asyncio.sleep(0.001)
                else:
                    return self

    async def commit(self, *offsets: int, producer_id: int = PRODUCER_ID) -> None:
        errors = await self.groups.commit_transactional(request_of(*offsets, producer_id=producer_id), accept)
        assert set(errors.values()) == {None}

    @property
    def partition(self) -> Partition:
        return self.groups._shards.shard_of("g").driver.partition

    async def end(self, *, commit: bool, **more: int) -> MoldauError | None:
        partition = (OFFSETS_TOPIC, self.partition.name.partition)
        (errors,) = await self.parts.marker_writer.write([MarkersToWrite(marker(commit=commit, **more), [partition])])
        return errors[partition]

    async def offsets(self, *, require_stable: bool = True) -> list[int | str | None]:
        found = await self.groups.fetch_offsets("g", [PLACE, ("orders", 1)], require_stable=require_stable)
        return [
            each.offset if isinstance(each, CommittedOffset) else each and type(each).__name__
            for each in found.values()
        ]

    async def batches(self) -> list[Batch]:
        log = self.partition.log
        found = await log.read(0, 1 << 20, log.end_offset)
        return list(split(found.read()))


UNSTABLE = "UnstableOffsetCommitError"


def on_node(scene: Callable[[Node], Awaitable[None]], **settings: str) -> None:
    async def main() -> None:
        async with Broker(topics={"orders": 3}, settings=settings) as broker:
            await scene(await Node(broker).ready())

    asyncio.run(main())


def test_offsets_and_marker_are_batches_of_the_producer() -> None:
    async def scene(node: Node) -> None:
        await node.commit(5, 6)
        assert await node.offsets() == [UNSTABLE, UNSTABLE]
        assert await node.offsets(require_stable=False) == [None, None]
        assert await node.end(commit=True) is None
        assert await node.offsets() == [5, 6]
        data, control = await node.batches()
        assert (data.producer_id, data.producer_epoch, data.base_sequence) == (PRODUCER_ID, EPOCH, -1)
        assert (data.is_transactional, data.is_control, data.count) == (True, False, 2)
        assert (control.producer_id, control.producer_epoch, control.is_control) == (PRODUCER_ID, EPOCH + 1, True)
        (record,) = iterate_records(control)
        assert decode(record) == EndTransaction(commit=True, coordinator_epoch=1)

    on_node(scene)


def test_nothing_is_written_if_the_transaction_is_not_verified() -> None:
    async def scene(node: Node) -> None:
        async def reject(partition: Partition) -> None:
            assert partition is node.partition
            raise TransactionAbortableError("not in the transaction")

        with pytest.raises(TransactionAbortableError):
            await node.groups.commit_transactional(request_of(5), reject)
        assert node.partition.log.end_offset == 0
        await node.commit(6)

    on_node(scene)


def test_an_open_transaction_is_verified_once() -> None:
    async def scene(node: Node) -> None:
        verified: list[Partition] = []

        async def count(partition: Partition) -> None:
            verified.append(partition)

        for number in range(3):
            await node.groups.commit_transactional(request_of(number), count)
        assert verified == [node.partition]
        await node.end(commit=True)
        with pytest.raises(MoldauError):
            # The marker has increased the epoch.
            await node.groups.commit_transactional(request_of(9), count)
        assert await node.offsets() == [2, None]

    on_node(scene)


def test_invalid_requests() -> None:
    async def scene(node: Node) -> None:
        with pytest.raises(InvalidGroupIdError):
            await node.groups.commit_transactional(request_of(5, identity=standalone_identity("")), accept)
        with pytest.raises(InvalidCommitOffsetSizeError):
            await node.groups.commit_transactional(request_of(*[5] * 700, metadata="x" * 4000), accept)
        assert node.partition.log.end_offset == 0

    on_node(scene)


@pytest.mark.parametrize("commit", [True, False])
def test_pending_offsets_survive_a_restart(tmp_path: Path, commit: bool) -> None:
    settings = {"store": "files", "data.dir": str(tmp_path / "data")}

    async def main() -> None:
        async with Broker(topics={"orders": 3}, settings=settings) as broker:
            node = await Node(broker).ready()
            await node.commit(1, producer_id=8)
            assert await node.end(commit=True, producer_id=8) is None
            await node.commit(5, 6)
        async with Broker(settings=settings) as broker:
            node = await Node(broker).ready()
            assert await node.offsets() == [UNSTABLE, UNSTABLE]
            assert await node.offsets(require_stable=False) == [1, None]
            assert await node.end(commit=commit) is None
        async with Broker(settings=settings) as broker:
            node = await Node(broker).ready()
            assert await node.offsets() == ([5, 6] if commit else [1, None])

    asyncio.run(main())


def test_a_failed_marker_changes_nothing_and_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(node: Node) -> None:
        async def fail(*arguments: object, **more: object) -> None:
            raise StorageError("no space left on device")

        await node.commit(5)
        with monkeypatch.context() as full_disk:
            full_disk.setattr(node.partition.guarded_log, "append", fail)
            assert isinstance(await node.end(commit=True), NotLeaderOrFollowerError)
            with pytest.raises(NotCoordinatorError):
                await node.groups.commit_transactional(request_of(9), accept)
        assert await node.offsets() == [UNSTABLE, None]
        assert await node.end(commit=True) is None
        assert await node.offsets() == [5, None]

    on_node(scene)


def test_markers_wait_for_the_shard() -> None:
    async def scene(node: Node) -> None:
        await node.commit(5)
        partition = node.partition
        shards = node.groups._shards
        index = partition.name.partition
        shards._on_resignation(index)
        with pytest.raises(NotLeaderOrFollowerError):
            await node.groups.append_marker(partition, marker(commit=True))
        shards._on_partition_changed(shards.image.topics[OFFSETS_TOPIC].partitions[index])
        with pytest.raises(NotLeaderOrFollowerError):
            await node.groups.append_marker(partition, marker(commit=True))
        await node.ready()
        await node.groups.append_marker(partition, marker(commit=True))
        assert await node.offsets() == [5, None]

    on_node(scene)


def test_concurrent_commits_and_markers_are_applied_in_the_order_of_the_log() -> None:
    async def scene(node: Node) -> None:
        producers = range(100, 120)
        await asyncio.gather(*(node.commit(each, producer_id=each) for each in producers))
        order = [each.producer_id for each in await node.batches()]
        assert sorted(order) == list(producers)
        outcomes = await asyncio.gather(*(node.end(commit=each % 2 == 0, producer_id=each) for each in producers))
        assert set(outcomes) == {None}
        assert await node.offsets() == [[each for each in order if each % 2 == 0][-1], None]

    on_node(scene)
