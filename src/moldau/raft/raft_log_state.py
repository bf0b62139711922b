"""What the quorum's state machine knows of its log: where it begins and ends, where each epoch began, which voters
it names. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.raft.messages import NO_EPOCH, EpochEndOffset, SnapshotId, VoterNode
from moldau.raft.voter_set import VoterSetHistory


class BatchSummary(NamedTuple):
    """One batch of the log, as far as the quorum cares."""

    base_offset: int
    next_offset: int
    epoch: int
    voters: tuple[VoterNode, ...] | None = None
    """That it names, by its last record of that kind."""


@dataclass(slots=True)
class RaftLogState:
    voters: VoterSetHistory
    start_offset: int = 0
    end_offset: int = 0
    durable_offset: int = 0
    """Everything below it is on this node's disk."""
    base_epoch: int = NO_EPOCH
    """Of the last record before the log's start."""
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)
    snapshot: SnapshotId | None = None
    """The newest; there is one where the log does not begin at 0."""

    @property
    def log_end(self) -> EpochEndOffset:
        return EpochEndOffset(self.epochs.latest if len(self.epochs) else self.base_epoch, self.end_offset)

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset | None:
        """The largest epoch up to this one, and where it ends; None where that is below the log's start."""
        if epoch < self.base_epoch:
            return None
        if not len(self.epochs):
            return EpochEndOffset(self.base_epoch, self.end_offset)
        if epoch >= self.epochs.latest:
            return EpochEndOffset(self.epochs.latest, self.end_offset)
        oldest, began_at = next(iter(self.epochs))
        if epoch < oldest:
            return EpochEndOffset(self.base_epoch, began_at)
        return EpochEndOffset(*self.epochs.end_offset_for(epoch, self.end_offset))

    def append(self, batches: Iterable[BatchSummary]) -> None:
        for span in batches:
            assert span.base_offset == self.end_offset, "batches follow each other without a gap"
            assert span.epoch >= self.log_end.epoch, "epochs in a log never fall"
            self.epochs.assign(span.epoch, span.base_offset)
            self.end_offset = span.next_offset
            if span.voters is not None:
                self.voters.add(span.next_offset - 1, span.voters)

    def truncate(self, end_offset: int) -> None:
        assert self.start_offset <= end_offset <= self.end_offset
        self.end_offset = end_offset
        self.durable_offset = min(self.durable_offset, end_offset)
        self.epochs.truncate_from_end(end_offset)
        self.voters.truncate(end_offset)

    def advance_start_offset(self, start_offset: int, snapshot: SnapshotId) -> None:
        # One that was long in the making may be older than one that came from the leader meanwhile.
        self.snapshot = snapshot if self.snapshot is None else max(self.snapshot, snapshot)
        if start_offset > self.start_offset:
            found = self.epochs.epoch_for_offset(start_offset - 1)
            self.base_epoch = self.base_epoch if found == NO_EPOCH else found
            self.start_offset = start_offset
            self.epochs.truncate_from_start(start_offset)
            self.epochs.truncate_from_end(self.end_offset)
            self.voters.advance_start_offset(start_offset)

    def reset_to_snapshot(self, snapshot: SnapshotId, voters: tuple[VoterNode, ...]) -> None:
        """The log begins anew behind this snapshot, and holds nothing yet."""
        self.snapshot = snapshot
        self.start_offset = self.end_offset = self.durable_offset = snapshot.end_offset
        self.base_epoch = snapshot.epoch
        self.epochs.clear()
        self.voters.reset_to_snapshot(snapshot.end_offset, voters)
