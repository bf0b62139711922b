"""The state of a partition follower: its high watermark, where to truncate, and which batches to accept. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from moldau.errors import CorruptRecordError
from moldau.logs.leader_epochs import NO_EPOCH, LeaderEpochCache
from moldau.logs.store import LogName
from moldau.metadata.image import NO_LEADER, PartitionRegistration
from moldau.platform.disk import Buffer
from moldau.raft.messages import EpochEndOffset
from moldau.records.batch import Batch, split


class FollowerFetchPosition(NamedTuple):
    """The fields of a follower's fetch request that describe its log."""

    offset: int
    """The fetch offset. All records below this offset are durable on the follower, and the leader relies on this."""
    last_epoch: int
    """The leader epoch of the record before `offset`. The leader uses this epoch to detect diverging logs."""
    leader_epoch: int
    start_offset: int


@dataclass(slots=True)
class PartitionFollowerState:
    image: PartitionRegistration
    high_watermark: int = 0
    """The leader's high watermark, or the end of this log if that is lower. Falls only when the log is truncated."""
    leader_high_watermark: int = 0

    @property
    def leader_id(self) -> int:
        return self.image.leader

    @property
    def leader_epoch(self) -> int:
        return self.image.leader_epoch

    @property
    def has_leader(self) -> bool:
        return self.image.leader != NO_LEADER

    def on_leader_high_watermark(self, high_watermark: int, end_offset: int) -> bool:
        """Stores the leader's high watermark. Returns whether consumers can read more records from this follower."""
        self.leader_high_watermark = high_watermark
        previous = self.high_watermark
        self.high_watermark = max(previous, min(high_watermark, end_offset))
        return self.high_watermark > previous

    def on_truncated(self, end_offset: int) -> None:
        self.high_watermark = min(self.high_watermark, end_offset)


def truncation_offset(epochs: LeaderEpochCache, end_offset: int, diverging: EpochEndOffset) -> int:
    """Returns the offset to which a follower truncates its log, which ends at `end_offset`.

    `diverging` is the latest epoch that both logs can have in common, with its end offset in the leader's log. If the
    follower's log lacks this epoch, it is truncated to the end of the epoch before, and the next fetch checks again.
    """
    epoch, epoch_end = epochs.end_offset_for(diverging.epoch, end_offset)
    if epoch == NO_EPOCH:
        return min(diverging.offset, end_offset)
    if epoch != diverging.epoch:
        return min(epoch_end, end_offset)
    return min(epoch_end, diverging.offset, end_offset)


def parse_batches(data: Buffer, name: LogName, leader_epoch: int) -> list[Batch]:
    """Returns the complete batches of a fetch response. Raises CorruptRecordError for a wrong checksum, offset or
    epoch."""
    batches = list(split(data, allow_partial=True))
    expected = 0
    for batch in batches:
        if batch.base_offset < expected or batch.last_offset_delta < 0:
            raise CorruptRecordError(f"the leader sent offset {batch.base_offset} of {name} after {expected - 1}")
        if batch.leader_epoch > leader_epoch:
            raise CorruptRecordError(
                f"the leader sent {batch!r} of {name} with a later epoch than its own, {leader_epoch}"
            )
        if not batch.has_valid_checksum():
            raise CorruptRecordError(f"{batch!r} of {name} has a wrong checksum: it was damaged in transit")
        expected = batch.next_offset
    return batches
