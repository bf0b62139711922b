"""Checker of transaction histories. Pure.

A transaction has one outcome in all partitions, the one that its producer was told. Readers with read_committed get
every committed record once and in order, not before the commit, and nothing else.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_transactions import (
    LoggedMarker,
    LoggedRecord,
    TransactionalLog,
    TransactionalRead,
    TransactionHistory,
    TransactionOperation,
    TransactionOutcome,
)
from moldau.testing.simulation.checkers.records import Anomalies, Violation, violations


class RecordStatus(Enum):
    """What the markers in a log say about a record."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


class _Location(NamedTuple):
    partition: Partition
    offset: int
    status: RecordStatus

    def __str__(self) -> str:
        return f"{self.status.value} at {self.offset} of {_partition_name(self.partition)}"


Locations = Mapping[bytes, Sequence[_Location]]
Statuses = Mapping[Partition, Mapping[int, RecordStatus]]


def check_transactions(history: TransactionHistory) -> list[Violation]:
    statuses = {partition: record_statuses(log) for partition, log in history.logs.items()}
    locations: defaultdict[bytes, list[_Location]] = defaultdict(list)
    for partition, log in sorted(history.logs.items()):
        for record in _records(log):
            location = _Location(partition, record.offset, statuses[partition][record.offset])
            locations[record.value].append(location)
    return violations(
        (("unexpected error", error) for error in history.unexpected_errors),
        _check_outcomes(history, locations),
        _check_never_sent(history, locations),
        _check_committed_reads(history, statuses),
        _check_uncommitted_reads(history),
        _check_reads_before_commit(history),
        _check_copies(history, locations, statuses),
        _check_replicas_agree(history),
    )


def record_statuses(log: TransactionalLog) -> dict[int, RecordStatus]:
    """Returns the status of each record by its offset."""
    statuses: dict[int, RecordStatus] = {}
    open_offsets: defaultdict[int, list[int]] = defaultdict(list)
    for entry in log:
        if isinstance(entry, LoggedMarker):
            status = RecordStatus.COMMITTED if entry.is_commit else RecordStatus.ABORTED
            for offset in open_offsets.pop(entry.producer_id, ()):
                statuses[offset] = status
        elif entry.is_transactional:
            statuses[entry.offset] = RecordStatus.OPEN
            open_offsets[entry.producer_id].append(entry.offset)
        else:
            statuses[entry.offset] = RecordStatus.COMMITTED
    return statuses


# Outcomes


def _check_outcomes(history: TransactionHistory, locations: Locations) -> Anomalies:
    for transaction in history.transactions:
        records = [each for each in transaction.records if each[0] in history.logs]
        for partition, value in records:
            found = locations.get(value, ())
            if len(found) > 1:
                where = ", ".join(map(str, found))
                yield "duplicate", f"{_format_value(value)} of {transaction.name} is {where}"
            elif found and found[0].partition != partition:
                yield "wrong partition", f"{_format_value(value)} for {_partition_name(partition)} is {found[0]}"
        yield from _check_outcome(transaction, [(value, locations.get(value, ())) for _, value in records])


def _check_outcome(transaction: TransactionOperation, found: Sequence[tuple[bytes, Sequence[_Location]]]) -> Anomalies:
    where = "; ".join(f"{_format_value(value)} {', '.join(map(str, each)) or 'missing'}" for value, each in found)
    detail = f"{transaction.name} ({transaction.outcome.value}): {where}"
    present = [location for _, each in found for location in each]
    committed = [each for each in present if each.status is RecordStatus.COMMITTED]
    aborted = [each for each in present if each.status is RecordStatus.ABORTED]
    if len(committed) + len(aborted) < len(present):
        yield "open transaction", detail
    is_torn = bool(committed) and (bool(aborted) or not all(each for _, each in found))
    if is_torn:
        yield "torn transaction", detail
    if transaction.outcome is TransactionOutcome.COMMITTED:
        if not is_torn and found and not committed:
            yield "lost commit", detail
    elif committed and (transaction.outcome is TransactionOutcome.ABORTED or transaction.commit_invoked_at is None):
        yield "aborted transaction is committed", detail


def _check_never_sent(history: TransactionHistory, locations: Locations) -> Anomalies:
    sent = {value for transaction in history.transactions for _, value in transaction.records}
    for value, found in locations.items():
        if value not in sent:
            yield "never sent", f"{_format_value(value)} is {found[0]}"


# Reads


def _check_committed_reads(history: TransactionHistory, statuses: Statuses) -> Anomalies:
    for (reader, partition), reads in sorted(history.committed_reads.items()):
        if partition not in history.logs:
            continue
        who = f"{reader} of {_partition_name(partition)}"
        for read in reads:
            status = statuses[partition].get(read.offset)
            if status is not RecordStatus.COMMITTED:
                name = "aborted read" if status is RecordStatus.ABORTED else "dirty read"
                found = "missing in the final log" if status is None else status.value
                yield name, f"{who} got {_format_value(read.value)} at {read.offset}, which is {found}"
        committed = {offset for offset, status in statuses[partition].items() if status is RecordStatus.COMMITTED}
        yield from _compare_reads(
            who,
            [each for each in reads if each.offset in committed],
            [each for each in _records(history.logs[partition]) if each.offset in committed],
        )


def _check_uncommitted_reads(history: TransactionHistory) -> Anomalies:
    for (reader, partition), reads in sorted(history.uncommitted_reads.items()):
        if partition in history.logs:
            yield from _compare_reads(
                f"{reader} of {_partition_name(partition)}", reads, _records(history.logs[partition])
            )


def _compare_reads(who: str, reads: Sequence[TransactionalRead], expected: Sequence[LoggedRecord]) -> Anomalies:
    """Checks that a reader got exactly these records, in order."""
    for read, record in zip(reads, expected, strict=False):
        if (read.offset, read.value) != (record.offset, record.value):
            got = f"{_format_value(read.value)} at {read.offset}"
            name = "read twice" if read.offset < record.offset else "lost read"
            yield name, f"{who} got {got} where {_format_value(record.value)} at {record.offset} was next"
            return
    if len(reads) > len(expected):
        read = reads[len(expected)]
        yield "read twice", f"{who} got {_format_value(read.value)} at {read.offset} after the end"
    elif len(reads) < len(expected):
        record = expected[len(reads)]
        yield "lost read", f"{who} never got {_format_value(record.value)} at {record.offset}"


def _check_reads_before_commit(history: TransactionHistory) -> Anomalies:
    invoked_at = {value: each.commit_invoked_at for each in history.transactions for _, value in each.records}
    for (reader, partition), reads in sorted(history.committed_reads.items()):
        for read in reads:
            commit_invoked_at = invoked_at.get(read.value)
            if commit_invoked_at is None or commit_invoked_at > read.at:
                what = f"{_format_value(read.value)} at {read.offset} of {_partition_name(partition)}"
                yield "read before commit", f"{reader} got {what} before its commit was sent"


# Copies


def _check_copies(history: TransactionHistory, locations: Locations, statuses: Statuses) -> Anomalies:
    """Checks that every committed record of the input below the group's offset was copied exactly once."""
    copies: defaultdict[tuple[Partition, int], list[str]] = defaultdict(list)
    for transaction in history.transactions:
        for (_, value), source in zip(transaction.records, transaction.sources, strict=False):
            if any(each.status is RecordStatus.COMMITTED for each in locations.get(value, ())):
                copies[source].append(transaction.name)
    for (partition, offset), names in sorted(copies.items()):
        position = f"{offset} of {_partition_name(partition)}"
        if len(names) > 1:
            yield "copied twice", f"{position} by {' and '.join(names)}"
        if statuses.get(partition, {}).get(offset) is not RecordStatus.COMMITTED:
            yield "aborted record copied", f"{position} by {names[0]}"
        if offset >= history.copier_offsets.get(partition, 0):
            yield (
                "offsets disagree with output",
                f"{position} was copied by {names[0]}, but its offset is not committed",
            )
    for partition, found in sorted(statuses.items()):
        if partition[0] != history.copied_topic:
            continue
        for offset, status in sorted(found.items()):
            if status is not RecordStatus.COMMITTED or (partition, offset) in copies:
                continue
            if offset < history.copier_offsets.get(partition, 0):
                yield "lost copy", f"{offset} of {_partition_name(partition)}, whose offset is committed"


def _check_replicas_agree(history: TransactionHistory) -> Anomalies:
    for partition, replicas in sorted(history.replicas.items()):
        first, *others = sorted(replicas)
        for other in others:
            if list(replicas[first]) != list(replicas[other]):
                yield "replicas differ", f"{_partition_name(partition)} on nodes {first} and {other}"


def _records(log: TransactionalLog) -> list[LoggedRecord]:
    return [entry for entry in log if isinstance(entry, LoggedRecord)]


def _partition_name(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _format_value(value: bytes) -> str:
    return repr(value[:60])
