"""What a node finds of the metadata log when it starts: every batch is looked at before the node takes part."""

from collections.abc import Iterable

from moldau.errors import CorruptRecordError, StorageError
from moldau.logs.epochs import EpochHistory
from moldau.logs.store import Log
from moldau.raft.batches import checked, span_of, whole_batches
from moldau.raft.log_view import LogView
from moldau.raft.messages import NO_EPOCH, Voter
from moldau.raft.snapshot_format import SnapshotContents
from moldau.raft.snapshots import Snapshots
from moldau.raft.voters import VoterHistory
from moldau.records.batch import Batch

READ_BYTES_MAX = 8 * 1024 * 1024
MEND = (
    "Where other voters are whole, remove this node from the voters (`moldau cluster remove-voter`), empty its data "
    "directory, and add it anew (`moldau cluster add-voter`)"
)


async def look_at_log(
    of: Log, snapshots: Snapshots | None, contents: SnapshotContents | None, first_voters: Iterable[Voter]
) -> LogView:
    """The log behind the snapshot that the node begins with. Raises StorageError where a bit of it has changed."""
    voters = VoterHistory(first_voters)
    offset = of.start_offset
    if contents is not None:
        offset = contents.id.end_offset
        voters.restart(offset, contents.voters)
    first_offset = offset
    try:
        while offset < of.end_offset:
            slices = await of.read(offset, READ_BYTES_MAX, of.end_offset)
            from_offset = offset
            for batch in whole_batches(slices.read()):
                if batch.next_offset <= offset:
                    # The batch that the log's start lies in.
                    continue
                named = span_of(_in_its_place(checked(batch), offset, first_offset, of.epochs)).voters
                if named is not None:
                    voters.add(batch.last_offset, named)
                offset = batch.next_offset
            if offset == from_offset:
                raise CorruptRecordError(f"there is no batch at {offset}, below its end {of.end_offset}")
    except StorageError as error:
        raise StorageError(f"{error}. {MEND}") from error
    except CorruptRecordError as error:
        raise StorageError(f"{of.name} is damaged: {error}. Restore it from a copy. {MEND}") from error
    epochs = EpochHistory()
    for epoch, start in of.epochs:
        epochs.assign(epoch, start)
    return LogView(
        voters,
        of.start_offset,
        of.end_offset,
        of.end_offset,
        _base_epoch(of, snapshots, contents),
        epochs,
        None if contents is None else contents.id,
    )


def _in_its_place(batch: Batch, offset: int, first_offset: int, epochs: EpochHistory) -> Batch:
    """A batch's checksum does not cover where it stands and in which epoch. This log has no gaps; only the first batch
    may begin before what is looked at."""
    if batch.base_offset > offset or (batch.base_offset < offset and offset != first_offset):
        raise CorruptRecordError(f"a batch with offset {batch.base_offset} stands where {offset} should")
    epoch = epochs.epoch_at(offset)
    if batch.leader_epoch != epoch:
        raise CorruptRecordError(
            f"the batch at offset {offset} has leader epoch {batch.leader_epoch}, and the history of epochs {epoch}"
        )
    return batch


def _base_epoch(of: Log, snapshots: Snapshots | None, contents: SnapshotContents | None) -> int:
    """Of the last record before the log's start; of the first one behind it where no snapshot tells."""
    if of.start_offset == 0:
        return NO_EPOCH
    oldest = None if snapshots is None else snapshots.oldest()
    for snapshot in (oldest, None if contents is None else contents.id):
        if snapshot is not None and snapshot.end_offset == of.start_offset:
            return snapshot.epoch
    return of.epochs.epoch_at(of.start_offset)
