"""The metadata log as the Raft state machine sees it: offsets, epochs, voters, high watermark. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.raft.messages import NO_EPOCH, EpochEndOffset, SnapshotId, VoterNode
from moldau.raft.voter_set import VoterSetHistory


class BatchSummary(NamedTuple):
    """The part of a batch that the state machine needs."""

    base_offset: int
    next_offset: int
    epoch: int
    voters: tuple[VoterNode, ...] | None = None
    """The voters in the last voters record of the batch; None if the batch has no such record."""


@dataclass(slots=True)
class RaftLogState:
    # Invariant: start_offset <= high_watermark <= end_offset, durable_offset <= end_offset.
    voters: VoterSetHistory
    start_offset: int = 0
    end_offset: int = 0
    durable_offset: int = 0
    """All records below this offset are on this node's disk."""
    base_epoch: int = NO_EPOCH
    """The epoch of the last record before the start offset."""
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)
    snapshot: SnapshotId | None = None
    """The latest snapshot. None is possible only if the log starts at offset 0."""
    high_watermark: int = 0
    """The end of the committed records. It never decreases."""

    @property
    def log_end(self) -> EpochEndOffset:
        return EpochEndOffset(self.epochs.latest if len(self.epochs) else self.base_epoch, self.end_offset)

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset | None:
        """Returns the largest epoch that is not above `epoch`, with its end; None if it ended before `start_offset`."""
        if epoch < self.base_epoch:
            return None
        if not len(self.epochs):
            return EpochEndOffset(self.base_epoch, self.end_offset)
        if epoch >= self.epochs.latest:
            return EpochEndOffset(self.epochs.latest, self.end_offset)
        oldest, oldest_start_offset = next(iter(self.epochs))
        if epoch < oldest:
            return EpochEndOffset(self.base_epoch, oldest_start_offset)
        return EpochEndOffset(*self.epochs.end_offset_for(epoch, self.end_offset))

    def append(self, batches: Iterable[BatchSummary]) -> None:
        for batch in batches:
            assert batch.base_offset == self.end_offset, "offsets are contiguous"
            assert batch.epoch >= self.log_end.epoch, "epochs never decrease"
            self.epochs.assign(batch.epoch, batch.base_offset)
            self.end_offset = batch.next_offset
            if batch.voters is not None:
                self.voters.add(batch.next_offset - 1, batch.voters)

    def truncate(self, end_offset: int) -> None:
        assert self.start_offset <= end_offset <= self.end_offset
        self.end_offset = end_offset
        self.durable_offset = min(self.durable_offset, end_offset)
        self.epochs.truncate_from_end(end_offset)
        self.voters.truncate(end_offset)

    def advance_start_offset(self, start_offset: int, snapshot: SnapshotId) -> None:
        # Take the maximum, because the leader's newer snapshot may have been installed while this node wrote one.
        self.snapshot = snapshot if self.snapshot is None else max(self.snapshot, snapshot)
        if start_offset > self.start_offset:
            epoch = self.epochs.epoch_for_offset(start_offset - 1)
            self.base_epoch = self.base_epoch if epoch == NO_EPOCH else epoch
            self.start_offset = start_offset
            self.epochs.truncate_from_start(start_offset)
            self.epochs.truncate_from_end(self.end_offset)
            self.voters.advance_start_offset(start_offset)

    def reset_to_snapshot(self, snapshot: SnapshotId, voters: tuple[VoterNode, ...]) -> None:
        """Resets the state to an empty log that starts at the end of the snapshot."""
        self.snapshot = snapshot
        self.start_offset = self.end_offset = self.durable_offset = snapshot.end_offset
        self.base_epoch = snapshot.epoch
        self.epochs.clear()
        self.voters.reset_to_snapshot(snapshot.end_offset, voters)
