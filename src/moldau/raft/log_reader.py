"""Reading of the metadata log: validation of all batches at startup, and delivery of committed batches."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from moldau.errors import CorruptRecordError, StorageError
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.store import Log
from moldau.raft.batches import CommittedBatch, read_committed_batch, summarize_batch, verify_checksum
from moldau.raft.messages import NO_EPOCH, SnapshotId, VoterNode
from moldau.raft.raft_log_state import RaftLogState
from moldau.raft.snapshot_format import SnapshotContents
from moldau.raft.snapshot_store import SnapshotStore
from moldau.raft.voter_set import VoterSetHistory
from moldau.records.batch import Batch, split

SnapshotListener = Callable[[Sequence[bytes], SnapshotId, int], None]
"""Receives the records of a snapshot, its id, and the leader of its epoch."""

READ_BYTES_MAX = 8 * 1024 * 1024
REPLACE_VOTER_HINT = (
    "If the other voters are intact, remove this node from the voters (`moldau cluster remove-voter`), empty its "
    "data directory, and add it again (`moldau cluster add-voter`)"
)


async def load_log_state(
    log: Log, snapshots: SnapshotStore, contents: SnapshotContents | None, initial_voters: Iterable[VoterNode]
) -> RaftLogState:
    """Validates the log after the loaded snapshot and returns its state. Raises StorageError if the log is damaged."""
    voters = VoterSetHistory(initial_voters)
    offset = log.start_offset
    if contents is not None:
        offset = contents.id.end_offset
        voters.reset_to_snapshot(offset, contents.voters)
    first_offset = offset
    try:
        async for batch in read_batches(log, offset, log.end_offset):
            _check_position(verify_checksum(batch), offset, first_offset, log.epochs)
            batch_voters = summarize_batch(batch).voters
            if batch_voters is not None:
                voters.add(batch.last_offset, batch_voters)
            offset = batch.next_offset
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
    """Checks base offset and epoch, which the checksum does not cover. A batch must start at `offset`. Only the batch
    at `first_offset`, where reading starts, may start earlier, because that offset can be inside a batch."""
    if batch.base_offset > offset or (batch.base_offset < offset and offset != first_offset):
        raise CorruptRecordError(f"a batch has base offset {batch.base_offset} instead of {offset}")
    epoch = epochs.epoch_for_offset(offset)
    if batch.leader_epoch != epoch:
        raise CorruptRecordError(
            f"the batch at offset {offset} has leader epoch {batch.leader_epoch}, the epoch cache has {epoch}"
        )


def _base_epoch(log: Log, snapshots: SnapshotStore, contents: SnapshotContents | None) -> int:
    """Returns the epoch of the last record before the log's start. If no snapshot ends there, returns the log's first
    epoch instead."""
    if log.start_offset == 0:
        return NO_EPOCH
    for snapshot in (snapshots.oldest(), None if contents is None else contents.id):
        if snapshot is not None and snapshot.end_offset == log.start_offset:
            return snapshot.epoch
    return log.epochs.epoch_for_offset(log.start_offset)


class CommitDelivery:
    """Delivers committed batches and snapshots to the metadata loader, each once and in order."""

    def __init__(
        self, log: Log, on_commit: Callable[[Sequence[CommittedBatch]], None], on_load_snapshot: SnapshotListener
    ) -> None:
        self._log = log
        self._on_commit = on_commit
        self._on_load_snapshot = on_load_snapshot
        self._pending_snapshot: SnapshotContents | None = None
        self.next_offset = log.start_offset

    def start_at(self, offset: int, snapshot: SnapshotContents | None) -> None:
        """Continues at `offset`. If there is a snapshot, it ends at `offset` and is delivered first."""
        self.next_offset = offset
        self._pending_snapshot = snapshot

    async def deliver(self, end_offset: int) -> None:
        """Delivers everything below `end_offset` that was not delivered before."""
        if end_offset < self.next_offset:
            return
        if self._pending_snapshot is not None:
            contents, self._pending_snapshot = self._pending_snapshot, None
            self._on_load_snapshot(contents.values, contents.id, contents.leader_id)
        committed: list[CommittedBatch] = []
        async for batch in read_batches(self._log, self.next_offset, end_offset):
            committed.append(read_committed_batch(batch))
            self.next_offset = batch.next_offset
        if committed:
            self._on_commit(committed)


async def read_batches(log: Log, offset: int, end_offset: int) -> AsyncIterator[Batch]:
    """Yields the batches of the log from `offset` to `end_offset`. Raises CorruptRecordError if there is a gap."""
    while offset < end_offset:
        slices = await log.read(offset, READ_BYTES_MAX, end_offset)
        from_offset = offset
        for batch in split(slices.read()):
            if batch.next_offset > offset:
                yield batch
                offset = batch.next_offset
        if offset == from_offset:
            raise CorruptRecordError(f"there is no batch at offset {offset}, below the end offset {end_offset}")
