"""What the quorum hands on once it is committed: the batches of the metadata log, in order, each once."""

from dataclasses import dataclass


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
