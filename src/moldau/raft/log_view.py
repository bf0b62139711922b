"""What the quorum's state machine knows of its log: where it begins and ends, where each epoch began, which voters
it names. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.logs.epochs import EpochHistory
from moldau.raft.messages import NO_EPOCH, LogEnd, SnapshotId, Voter
from moldau.raft.voters import VoterHistory


class Span(NamedTuple):
    """One batch of the log, as far as the quorum cares."""

    base_offset: int
    next_offset: int
    epoch: int
    voters: tuple[Voter, ...] | None = None
    """That it names, by its last record of that kind."""


@dataclass(slots=True)
class LogView:
    voters: VoterHistory
    start_offset: int = 0
    end_offset: int = 0
    durable_offset: int = 0
    """Everything below it is on this node's disk."""
    base_epoch: int = NO_EPOCH
    """Of the last record before the log's start."""
    epochs: EpochHistory = field(default_factory=EpochHistory)
    snapshot: SnapshotId | None = None
    """The newest; there is one where the log does not begin at 0."""

    @property
    def last(self) -> LogEnd:
        return LogEnd(self.epochs.latest if len(self.epochs) else self.base_epoch, self.end_offset)

    def end_of(self, epoch: int) -> LogEnd | None:
        """The largest epoch up to this one, and where it ends; None where that is below the log's start."""
        if epoch < self.base_epoch:
            return None
        if not len(self.epochs):
            return LogEnd(self.base_epoch, self.end_offset)
        if epoch >= self.epochs.latest:
            return LogEnd(self.epochs.latest, self.end_offset)
        oldest, began_at = next(iter(self.epochs))
        if epoch < oldest:
            return LogEnd(self.base_epoch, began_at)
        return LogEnd(*self.epochs.epoch_end(epoch, self.end_offset))

    def append(self, spans: Iterable[Span]) -> None:
        for span in spans:
            assert span.base_offset == self.end_offset, "batches follow each other without a gap"
            assert span.epoch >= self.last.epoch, "epochs in a log never fall"
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

    def advance_start(self, start_offset: int, snapshot: SnapshotId) -> None:
        # One that was long in the making may be older than one that came from the leader meanwhile.
        self.snapshot = snapshot if self.snapshot is None else max(self.snapshot, snapshot)
        if start_offset > self.start_offset:
            found = self.epochs.epoch_at(start_offset - 1)
            self.base_epoch = self.base_epoch if found == NO_EPOCH else found
            self.start_offset = start_offset
            self.epochs.truncate_from_start(start_offset)
            self.epochs.truncate_from_end(self.end_offset)
            self.voters.advance_start(start_offset)

    def restart(self, snapshot: SnapshotId, voters: tuple[Voter, ...]) -> None:
        """The log begins anew behind this snapshot, and holds nothing yet."""
        self.snapshot = snapshot
        self.start_offset = self.end_offset = self.durable_offset = snapshot.end_offset
        self.base_epoch = snapshot.epoch
        self.epochs.clear()
        self.voters.restart(snapshot.end_offset, voters)
