"""The history of transactions in a run: what producers sent, what readers saw, and the final logs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from moldau.testing.simulation.checkers.history import Partition


class TransactionOutcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The producer got no definite response to its commit, or gave up."""


@dataclass(slots=True, eq=False)
class TransactionOperation:
    """A transaction of a producer. A plain record of a producer without transactions counts as one, too."""

    name: str
    records: list[tuple[Partition, bytes]] = field(default_factory=list)
    """The partition and value of each record. Values are unique in the history."""
    sources: list[tuple[Partition, int]] = field(default_factory=list)
    """The partition and offset of the record that each record is a copy of; empty if the records are no copies."""
    commit_invoked_at: int | None = None
    """None if the producer never tried to commit, so that the transaction must not become visible."""
    outcome: TransactionOutcome = TransactionOutcome.UNKNOWN


class TransactionalRead(NamedTuple):
    """A record that a reader got."""

    at: int
    offset: int
    value: bytes


class LoggedRecord(NamedTuple):
    offset: int
    value: bytes
    producer_id: int
    is_transactional: bool


class LoggedMarker(NamedTuple):
    offset: int
    producer_id: int
    is_commit: bool


TransactionalLog = Sequence[LoggedRecord | LoggedMarker]


@dataclass(slots=True)
class TransactionHistory:
    transactions: list[TransactionOperation] = field(default_factory=list)
    committed_reads: dict[tuple[str, Partition], list[TransactionalRead]] = field(default_factory=dict)
    """What each reader with read_committed got, by its name and the partition."""
    uncommitted_reads: dict[tuple[str, Partition], list[TransactionalRead]] = field(default_factory=dict)
    """What each reader with read_uncommitted got."""
    unexpected_errors: list[str] = field(default_factory=list)
    """Errors that no fault explains, such as an offset out of range."""
    logs: dict[Partition, TransactionalLog] = field(default_factory=dict)
    """The final log of each partition's leader."""
    replicas: dict[Partition, Mapping[int, TransactionalLog]] = field(default_factory=dict)
    """The final log of each replica, by partition and node id."""
    copied_topic: str | None = None
    """The topic whose committed records are copied; None if no topic is."""
    copier_offsets: dict[Partition, int] = field(default_factory=dict)
    """The final committed offsets of the group that copies records."""
    _events: int = 0

    def next_event(self) -> int:
        self._events += 1
        return self._events

    def begin(self, name: str) -> TransactionOperation:
        transaction = TransactionOperation(name)
        self.transactions.append(transaction)
        return transaction
