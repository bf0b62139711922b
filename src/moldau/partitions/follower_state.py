"""What a follower of a partition decides: whom it follows, how much of its log is committed, and where to cut its log
when it is another one than its leader's; and which of its leader's batches it takes. Pure."""

from dataclasses import dataclass

from moldau.errors import CorruptRecordError
from moldau.logs.leader_epochs import NO_EPOCH, LeaderEpochCache
from moldau.logs.store import LogName
from moldau.metadata.image import NO_LEADER, PartitionRegistration
from moldau.partitions.leader_state import check_epoch
from moldau.platform.disk import Buffer
from moldau.raft.messages import EpochEndOffset
from moldau.records.batch import Batch, split, trim_partial_batch


@dataclass(slots=True)
class FollowerState:
    image: PartitionRegistration
    high_watermark: int = 0
    """What the leader has said is committed, as far as it is in this log. Falls only where the log is cut."""
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

    def check_epoch(self, current_leader_epoch: int) -> None:
        check_epoch(current_leader_epoch, self.image.leader_epoch)

    def on_leader_high_watermark(self, high_watermark: int, end_offset: int) -> bool:
        """The leader has said how far records are committed; True where that is news for readers here."""
        self.leader_high_watermark = high_watermark
        committed_here = min(high_watermark, end_offset)
        if committed_here <= self.high_watermark:
            return False
        self.high_watermark = committed_here
        return True

    def on_truncated(self, end_offset: int) -> bool:
        """The log now ends at `end_offset`; True where records went that were said to be committed."""
        if end_offset >= self.high_watermark:
            return False
        self.high_watermark = end_offset
        return True


def truncation_offset(epochs: LeaderEpochCache, end_offset: int, diverging: EpochEndOffset) -> int:
    """Where to cut a log that ends at `end_offset`, given the newest epoch that the leader's log can share with it, and
    where that ended there.

    The high watermark has no say in it: it lags behind what is committed. Where this log has not that epoch,
    it is cut behind the one before; the next fetch then finds out whether that was enough.
    """
    epoch, end_offset_for = epochs.end_offset_for(diverging.epoch, end_offset)
    if epoch == NO_EPOCH:
        return min(diverging.offset, end_offset)
    if epoch != diverging.epoch:
        return min(end_offset_for, end_offset)
    return min(end_offset_for, diverging.offset, end_offset)


def parse_batches(data: Buffer, name: LogName, leader_epoch: int) -> list[Batch]:
    """The whole batches of a leader's answer (its last one may be cut off), in order and with the right checksums."""
    batches = list(split(trim_partial_batch(data)))
    expected = 0
    for batch in batches:
        if batch.base_offset < expected or batch.last_offset_delta < 0:
            raise CorruptRecordError(
                f"the leader sent offset {batch.base_offset} of {name} behind {expected - 1}"
            )
        if batch.leader_epoch > leader_epoch:
            raise CorruptRecordError(
                f"the leader sent {batch!r} of {name}, which is of a later epoch than its own, {leader_epoch}"
            )
        if not batch.has_valid_checksum():
            raise CorruptRecordError(f"{batch!r} of {name} was damaged on its way: its checksum is wrong")
        expected = batch.next_offset
    return batches
