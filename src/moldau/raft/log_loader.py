"""Loading of the metadata log at startup: every batch is validated before the node joins the quorum."""

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
    "If the other voters are intact, remove this node from the voters (`moldau cluster remove-voter`), empty its "
    "data directory, and add it again (`moldau cluster add-voter`)"
)


async def load_log_state(
    log: Log, snapshots: SnapshotStore | None, contents: SnapshotContents | None, initial_voters: Iterable[VoterNode]
) -> RaftLogState:
    """Validates the log after the loaded snapshot and returns its state. Raises StorageError if the log is damaged."""
    voters = VoterSetHistory(initial_voters)
    offset = log.start_offset
    if contents is not None:
        offset = contents.id.end_offset
        voters.reset_to_snapshot(offset, contents.voters)
    first_offset = offset
    try:
        while offset < log.end_offset:
            slices = await log.read(offset, READ_BYTES_MAX, log.end_offset)
            from_offset = offset
            for batch in iterate_batches(slices.read()):
                if batch.next_offset <= offset:
                    # Skip a batch that ends before the offset.
                    continue
                _check_position(verify_checksum(batch), offset, first_offset, log.epochs)
                batch_voters = summarize_batch(batch).voters
                if batch_voters is not None:
                    voters.add(batch.last_offset, batch_voters)
                offset = batch.next_offset
            if offset == from_offset:
                raise CorruptRecordError(f"there is no batch at offset {offset}, below the end offset {log.end_offset}")
    except StorageError as error:
        raise StorageError(f"{error}. {REPLACE_VOTER_HINT}") from error
    except CorruptRecordError as error:
        raise StorageError(f"{log.name} is damaged: {error}. Restore it from a backup. {REPLACE_VOTER_HINT}") from error
    epochs = LeaderEpochCache()
    for epoch, start_offset in log.epochs:
        epochs.assign(epoch, start_offset)
    return RaftLogState(
        voters,
        log.start_offset,
        log.end_offset,
        log.end_offset,
        _base_epoch(log, snapshots, contents),
        epochs,
        None if contents is None else contents.id,
    )


def _check_position(batch: Batch, offset: int, first_offset: int, epochs: LeaderEpochCache) -> None:
    """Checks base offset and epoch, which the checksum does not cover.

    The log has no gaps. Only the first batch may start before `offset`.
    """
    if batch.base_offset > offset or (batch.base_offset < offset and offset != first_offset):
        raise CorruptRecordError(f"a batch has base offset {batch.base_offset} instead of {offset}")
    epoch = epochs.epoch_for_offset(offset)
    if batch.leader_epoch != epoch:
        raise CorruptRecordError(
            f"the batch at offset {offset} has leader epoch {batch.leader_epoch}, the epoch cache has {epoch}"
        )


def _base_epoch(log: Log, snapshots: SnapshotStore | None, contents: SnapshotContents | None) -> int:
    """Returns the epoch of the last record before the start of the log; NO_EPOCH if the log starts at offset 0.

    If no snapshot ends at the start of the log, returns the first epoch in the log instead.
    """
    if log.start_offset == 0:
        return NO_EPOCH
    oldest = None if snapshots is None else snapshots.oldest()
    for snapshot in (oldest, None if contents is None else contents.id):
        if snapshot is not None and snapshot.end_offset == log.start_offset:
            return snapshot.epoch
    return log.epochs.epoch_for_offset(log.start_offset)
