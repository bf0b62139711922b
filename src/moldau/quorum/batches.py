"""What the quorum hands on once it is committed: the batches of the metadata log, in order, each once."""

from dataclasses import dataclass

from moldau.errors import CorruptRecordError
from moldau.records import control
from moldau.records.batch import Batch
from moldau.records.record import iterate


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    base_offset: int
    last_offset: int
    epoch: int
    """Of the leader that appended it."""
    values: tuple[bytes, ...] = ()
    """The records as their writer encoded them; empty for a control batch."""
    leader_id: int | None = None
    """In the control batch by which a leader begins its epoch: that leader."""


def committed_batch(batch: Batch) -> CommittedBatch:
    """Reads a batch of the metadata log; CorruptRecordError if its checksum is wrong."""
    if not batch.checksum_is_right():
        raise CorruptRecordError(f"the checksum of {batch!r} in the metadata log is wrong")
    values: list[bytes] = []
    leader_id = None
    for record in iterate(batch):
        if batch.is_control:
            change = control.decode(record)
            if isinstance(change, control.LeaderChange):
                leader_id = change.leader_id
        elif record.value is not None:
            values.append(record.value)
    return CommittedBatch(batch.base_offset, batch.last_offset, batch.leader_epoch, tuple(values), leader_id)
