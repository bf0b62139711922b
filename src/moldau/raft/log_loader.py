"""What a node finds of the metadata log when it starts: every batch is looked at before the node takes part."""

from collections.abc import Iterable

from moldau.errors import CorruptRecordError, StorageError
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.store import Log
from moldau.raft.batches import iterate_batches, summarize_batch, verify_checksum
from moldau.raft.messages import NO_EPOCH, VoterNode
from moldau.raft.raft_log_state import RaftLogState
from moldau.raft.snapshot_format import SnapshotContents
from moldau.raft.snapshot_store import SnapshotStore
from moldau.raft.voter_set import VoterSetHistory
from moldau.records.batch import Batch

READ_BYTES_MAX = 8 * 1024 * 1024
REPLACE_VOTER_HINT = (
    "Where other voters are whole, remove this node from the voters (`moldau cluster remove-voter`), empty its data "
    "directory, and add it anew (`moldau cluster add-voter`)"
)


async def load_log_state(
    of: Log,
    snapshots: SnapshotStore | None,
    contents: SnapshotContents | None,
    initial_voters: Iterable[VoterNode],
) -> RaftLogState:
    """The log behind the snapshot that the node begins with. Raises StorageError where a bit of it has changed."""
    voters = VoterSetHistory(initial_voters)
    offset = of.start_offset
    if contents is not None:
        offset = contents.id.end_offset
        voters.reset_to_snapshot(offset, contents.voters)
    first_offset = offset
    try:
        while offset < of.end_offset:
            slices = await of.read(offset, READ_BYTES_MAX, of.end_offset)
            from_offset = offset
            for batch in iterate_batches(slices.read()):
                if batch.next_offset <= offset:
                    # The batch that the log's start lies in.
                    continue
                named = summarize_batch(
                    _checked_position(verify_checksum(batch), offset, first_offset, of.epochs)
                ).voters
                if named is not None:
                    voters.add(batch.last_offset, named)
                offset = batch.next_offset
            if offset == from_offset:
                raise CorruptRecordError(f"there is no batch at {offset}, below its end {of.end_offset}")
    except StorageError as error:
        raise StorageError(f"{error}. {REPLACE_VOTER_HINT}") from error
    except CorruptRecordError as error:
        raise StorageError(
            f"{of.name} is damaged: {error}. Restore it from a copy. {REPLACE_VOTER_HINT}"
        ) from error
    epochs = LeaderEpochCache()
    for epoch, start in of.epochs:
        epochs.assign(epoch, start)
    return RaftLogState(
        voters,
        of.start_offset,
        of.end_offset,
        of.end_offset,
        _base_epoch(of, snapshots, contents),
        epochs,
        None if contents is None else contents.id,
    )


def _checked_position(batch: Batch, offset: int, first_offset: int, epochs: LeaderEpochCache) -> Batch:
    """A batch's checksum does not cover where it stands and in which epoch. This log has no gaps; only the first batch
    may begin before what is looked at."""
    if batch.base_offset > offset or (batch.base_offset < offset and offset != first_offset):
        raise CorruptRecordError(f"a batch with offset {batch.base_offset} stands where {offset} should")
    epoch = epochs.epoch_for_offset(offset)
    if batch.leader_epoch != epoch:
        raise CorruptRecordError(
            f"the batch at offset {offset} has leader epoch {batch.leader_epoch}, and the history of epochs {epoch}"
        )
    return batch


def _base_epoch(of: Log, snapshots: SnapshotStore | None, contents: SnapshotContents | None) -> int:
    """Of the last record before the log's start; of the first one behind it where no snapshot tells."""
    if of.start_offset == 0:
        return NO_EPOCH
    oldest = None if snapshots is None else snapshots.oldest()
    for snapshot in (oldest, None if contents is None else contents.id):
        if snapshot is not None and snapshot.end_offset == of.start_offset:
            return snapshot.epoch
    return of.epochs.epoch_for_offset(of.start_offset)
