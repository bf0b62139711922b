"""Writes of transactions to `__consumer_offsets`: offset commits of a producer, and markers."""

from collections.abc import Sequence
from dataclasses import dataclass

from moldau.coordinator.state_partition import PartitionWriter
from moldau.groups.records import GroupRecord
from moldau.groups.shard import GroupCoordinatorShard
from moldau.logs.producer_state import VerificationGuard
from moldau.partitions.partition import Partition
from moldau.records.control_records import EndTransaction
from moldau.transactions.marker_writer import EndTransactionMarker


@dataclass(frozen=True, slots=True)
class TransactionalWrite:
    """Writes offset commits as a batch of a producer's transaction. They are pending until its marker is applied."""

    writer: PartitionWriter[GroupRecord]
    producer_id: int
    producer_epoch: int
    verification: VerificationGuard | None
    """None if the transaction is open in this partition already."""

    async def append(self, records: Sequence[GroupRecord]) -> int:
        return await self.writer.append_transactional(records, self.producer_id, self.producer_epoch, self.verification)

    def apply(self, state: GroupCoordinatorShard, records: Sequence[GroupRecord], end_offset: int) -> None:
        state.apply_transactional(self.producer_id, records, end_offset)


@dataclass(frozen=True, slots=True)
class MarkerWrite:
    """Writes the marker of a transaction, which applies or drops its pending offsets."""

    partition: Partition
    leader_epoch: int

    async def append(self, records: Sequence[EndTransactionMarker]) -> int:
        (marker,) = records
        appended = await self.partition.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            EndTransaction(marker.commit, marker.coordinator_epoch),
            marker.transaction_version,
            current_leader_epoch=self.leader_epoch,
        )
        return appended.next_offset

    def apply(self, state: GroupCoordinatorShard, records: Sequence[EndTransactionMarker], end_offset: int) -> None:
        (marker,) = records
        state.end_transaction(marker.producer_id, commit=marker.commit)
