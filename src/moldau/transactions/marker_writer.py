"""Writes transaction markers to the partitions that this broker leads.

Markers come from the coordinator of a transaction, on this node or in a WriteTxnMarkers request of another node.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from moldau.concurrency.eager import gather_eagerly
from moldau.errors import MoldauError, RequestTimedOutError, UnknownTopicOrPartitionError
from moldau.partitions.partition import Partition
from moldau.partitions.replica_manager import ReplicaManager
from moldau.records.control_records import EndTransaction
from moldau.transactions.transaction_metadata import TopicPartition

COMMIT_TIMEOUT_S = 5.0
"""How long a marker may take to be committed. The coordinator sends it again after an error."""


class EndTransactionMarker(NamedTuple):
    """The end of a transaction in one partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """The leader epoch of the coordinator's partition of `__transaction_state`."""
    commit: bool
    transaction_version: int
    """TV2 if the epoch was increased at the end, so that no batch of the transaction can have this epoch."""


class MarkersToWrite(NamedTuple):
    marker: EndTransactionMarker
    partitions: Sequence[TopicPartition]


MarkerErrors = dict[TopicPartition, MoldauError | None]

AppendMarker = Callable[[Partition, EndTransactionMarker], Awaitable[None]]
"""Appends a marker to a partition that this broker leads, and returns when it is committed.

Raises NotLeaderOrFollowerError, NotEnoughReplicasError, NotEnoughReplicasAfterAppendError, RequestTimedOutError or
StorageError, after which the coordinator tries again, and InvalidProducerEpochError or
TransactionCoordinatorFencedError, after which it stops.
"""


class MarkerWriter:
    def __init__(
        self,
        partitions: ReplicaManager,
        append_marker: AppendMarker,
        append_marker_by_topic: Mapping[str, AppendMarker] | None = None,
    ) -> None:
        """`append_marker_by_topic` has the topics whose partitions are written by a coordinator on this node."""
        self._partitions = partitions
        self._append_marker = append_marker
        self._append_marker_by_topic = append_marker_by_topic or {}

    async def write(self, markers: Sequence[MarkersToWrite]) -> list[MarkerErrors]:
        """Writes all markers and waits until they are committed. Returns the error of each partition by marker."""
        pending = [(each.marker, partition) for each in markers for partition in each.partitions]
        outcomes = iter(await gather_eagerly(self._write(marker, *partition) for marker, partition in pending))
        return [{partition: next(outcomes) for partition in each.partitions} for each in markers]

    async def _write(self, marker: EndTransactionMarker, topic: str, index: int) -> MoldauError | None:
        try:
            partition = self._partitions.get(topic, index)
            if partition is None:
                raise UnknownTopicOrPartitionError(f"this broker has no replica of {topic}-{index}")
            await self._append_marker_by_topic.get(topic, self._append_marker)(partition, marker)
        except MoldauError as error:
            return error
        return None


async def append_marker(partition: Partition, marker: EndTransactionMarker) -> None:
    """Appends a marker to a partition that this broker leads, and returns when it is committed; see `AppendMarker`."""
    appended = await partition.append_marker(
        marker.producer_id,
        marker.producer_epoch,
        EndTransaction(marker.commit, marker.coordinator_epoch),
        marker.transaction_version,
    )
    committed = partition.commit_future(appended.next_offset, appended.leader_epoch, acks_all=True)
    if committed is None:
        return

    def fail_on_timeout() -> None:
        if not committed.done():
            error = RequestTimedOutError(f"the marker of {partition.name} is not yet on every in-sync replica")
            committed.set_exception(error)

    timer = asyncio.get_running_loop().call_later(COMMIT_TIMEOUT_S, fail_on_timeout)
    try:
        await committed
    finally:
        timer.cancel()
