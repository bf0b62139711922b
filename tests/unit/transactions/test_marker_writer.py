"""MarkerWriter: markers in the log of a replicated partition, and their errors."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from moldau.errors import (
    MoldauError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from moldau.partitions.partition import Partition
from moldau.records.batch import Batch, split
from moldau.records.control_records import EndTransaction, decode
from moldau.records.record import iterate_records
from moldau.transactions import marker_writer
from moldau.transactions.marker_writer import EndTransactionMarker, MarkersToWrite, MarkerWriter, append_marker
from support.replicas import NAME, Replicas

PARTITION = (NAME.topic, NAME.partition)
MARKER = EndTransactionMarker(producer_id=7, producer_epoch=3, coordinator_epoch=11, commit=True, transaction_version=2)


class ReplicaManager:
    def __init__(self, partition: Partition) -> None:
        self.partition = partition

    def get(self, topic: str, index: int) -> Partition | None:
        if topic == "damaged":
            raise StorageError("the log cannot be opened")
        return self.partition if (topic, index) == PARTITION else None


def on_replicas(scene: Callable[[Replicas, MarkerWriter], Awaitable[None]]) -> None:
    async def main() -> None:
        replicas = Replicas((1, 2, 3), min_insync_replicas=2)
        await replicas.begin(leader=1)
        await scene(replicas, MarkerWriter(cast(Any, ReplicaManager(replicas[1])), append_marker))

    asyncio.run(asyncio.wait_for(main(), 20))


async def write(writer: MarkerWriter, *partitions: tuple[str, int]) -> list[MoldauError | None]:
    (errors,) = await writer.write([MarkersToWrite(MARKER, partitions)])
    return [errors[partition] for partition in partitions]


async def batches(partition: Partition) -> list[Batch]:
    found = await partition.log.read(0, 1 << 20, partition.log.end_offset)
    return list(split(found.read()))


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_marker_is_written_when_it_is_committed() -> None:
    async def scene(replicas: Replicas, writer: MarkerWriter) -> None:
        writing = asyncio.ensure_future(write(writer, PARTITION, (NAME.topic, 99), ("other", 0), ("damaged", 0)))
        await turns()
        assert not writing.done()
        await replicas.replicate(2, 3)
        written, *rejected = await writing
        assert written is None
        kinds = [UnknownTopicOrPartitionError, UnknownTopicOrPartitionError, StorageError]
        assert [type(error) for error in rejected] == kinds
        (batch,) = await batches(replicas[1])
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 3, -1)
        assert (batch.is_control, batch.is_transactional) == (True, True)
        (record,) = iterate_records(batch)
        assert decode(record) == EndTransaction(commit=True, coordinator_epoch=11)
        assert record.timestamp == replicas.clock.now_ms

    on_replicas(scene)


def test_a_follower_rejects_markers() -> None:
    async def scene(replicas: Replicas, writer: MarkerWriter) -> None:
        replicas.elect(2)
        await replicas.publish_image()
        (error,) = await write(writer, PARTITION)
        assert isinstance(error, NotLeaderOrFollowerError)

    on_replicas(scene)


def test_too_few_in_sync_replicas_reject_markers() -> None:
    async def scene(replicas: Replicas, writer: MarkerWriter) -> None:
        replicas.elect(1, [1])
        await replicas.publish_image()
        (error,) = await write(writer, PARTITION)
        assert isinstance(error, NotEnoughReplicasError)
        assert await batches(replicas[1]) == []

    on_replicas(scene)


def test_a_leader_change_fails_markers_that_are_not_committed() -> None:
    async def scene(replicas: Replicas, writer: MarkerWriter) -> None:
        writing = asyncio.ensure_future(write(writer, PARTITION))
        await turns()
        replicas.elect(2)
        await replicas.publish_image()
        (error,) = await writing
        assert isinstance(error, NotLeaderOrFollowerError)

    on_replicas(scene)


def test_a_marker_that_is_not_committed_in_time_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_writer, "COMMIT_TIMEOUT_S", 0.001)

    async def scene(replicas: Replicas, writer: MarkerWriter) -> None:
        (error,) = await write(writer, PARTITION)
        assert isinstance(error, RequestTimedOutError)
        assert len(await batches(replicas[1])) == 1

    on_replicas(scene)
