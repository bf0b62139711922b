"""The checker of transactions finds each anomaly that it names, and nothing in a correct history."""

import pytest

from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_transactions import (
    LoggedMarker,
    LoggedRecord,
    TransactionalRead,
    TransactionHistory,
    TransactionOperation,
    TransactionOutcome,
)
from moldau.testing.simulation.checkers.transactions import check_transactions

ORDERS: Partition = ("orders", 0)
BILLS: Partition = ("bills", 0)
READER = "reader"


def record(offset: int, value: bytes, producer_id: int = 1) -> LoggedRecord:
    return LoggedRecord(offset, value, producer_id, is_transactional=True)


def plain(offset: int, value: bytes) -> LoggedRecord:
    return LoggedRecord(offset, value, -1, is_transactional=False)


def begin(
    history: TransactionHistory, name: str, outcome: TransactionOutcome, *records: tuple[Partition, bytes]
) -> TransactionOperation:
    transaction = history.begin(name)
    transaction.records += records
    transaction.outcome = outcome
    if outcome is not TransactionOutcome.ABORTED:
        transaction.commit_invoked_at = history.next_event()
    return transaction


def read(history: TransactionHistory, partition: Partition, offset: int, value: bytes) -> None:
    history.committed_reads.setdefault((READER, partition), []).append(
        TransactionalRead(history.next_event(), offset, value)
    )


def sound() -> TransactionHistory:
    """Returns a history with a committed transaction in two partitions, an aborted one, and a plain record."""
    history = TransactionHistory()
    begin(history, "committed", TransactionOutcome.COMMITTED, (ORDERS, b"a"), (BILLS, b"b"))
    begin(history, "aborted", TransactionOutcome.ABORTED, (ORDERS, b"c"))
    begin(history, "plain", TransactionOutcome.COMMITTED, (ORDERS, b"d"))
    history.logs[ORDERS] = [
        record(0, b"a", 1),
        record(1, b"c", 2),
        LoggedMarker(2, 1, is_commit=True),
        plain(3, b"d"),
        LoggedMarker(4, 2, is_commit=False),
    ]
    history.logs[BILLS] = [record(0, b"b", 1), LoggedMarker(1, 1, is_commit=True)]
    for partition, log in history.logs.items():
        history.replicas[partition] = {1: list(log), 2: list(log)}
    read(history, ORDERS, 0, b"a")
    read(history, ORDERS, 3, b"d")
    read(history, BILLS, 0, b"b")
    history.uncommitted_reads[READER, BILLS] = [TransactionalRead(9, 0, b"b")]
    return history


def anomalies(history: TransactionHistory) -> list[str]:
    history.replicas = {partition: {1: log} for partition, log in history.logs.items()} | {
        partition: replicas for partition, replicas in history.replicas.items() if partition not in history.logs
    }
    return [violation.anomaly for violation in check_transactions(history)]


def test_a_sound_history_has_no_violations() -> None:
    assert check_transactions(sound()) == []


def test_a_committed_transaction_must_be_in_all_partitions() -> None:
    history = sound()
    history.logs[BILLS] = []
    history.committed_reads[READER, BILLS] = []
    history.uncommitted_reads.clear()
    assert anomalies(history) == ["torn transaction"]


def test_one_transaction_has_one_outcome_in_all_partitions() -> None:
    history = sound()
    history.logs[BILLS] = [record(0, b"b", 1), LoggedMarker(1, 1, is_commit=False)]
    history.committed_reads[READER, BILLS] = []
    assert anomalies(history) == ["torn transaction"]


@pytest.mark.parametrize("outcome", [TransactionOutcome.COMMITTED, TransactionOutcome.UNKNOWN])
def test_a_committed_transaction_must_not_be_aborted_but_an_unknown_one_may(outcome: TransactionOutcome) -> None:
    history = TransactionHistory()
    begin(history, "t", outcome, (ORDERS, b"a"))
    history.logs[ORDERS] = [record(0, b"a"), LoggedMarker(1, 1, is_commit=False)]
    assert anomalies(history) == (["lost commit"] if outcome is TransactionOutcome.COMMITTED else [])


def test_an_unknown_transaction_may_be_committed_if_its_commit_was_sent() -> None:
    history = TransactionHistory()
    transaction = begin(history, "t", TransactionOutcome.UNKNOWN, (ORDERS, b"a"))
    history.logs[ORDERS] = [record(0, b"a"), LoggedMarker(1, 1, is_commit=True)]
    assert anomalies(history) == []
    transaction.commit_invoked_at = None
    assert anomalies(history) == ["aborted transaction is committed"]


def test_an_unknown_transaction_must_not_be_torn() -> None:
    history = TransactionHistory()
    begin(history, "t", TransactionOutcome.UNKNOWN, (ORDERS, b"a"), (ORDERS, b"b"))
    history.logs[ORDERS] = [record(0, b"a"), LoggedMarker(1, 1, is_commit=True)]
    assert anomalies(history) == ["torn transaction"]


def test_an_aborted_transaction_must_not_be_committed() -> None:
    history = TransactionHistory()
    begin(history, "t", TransactionOutcome.ABORTED, (ORDERS, b"a"))
    history.logs[ORDERS] = [record(0, b"a"), LoggedMarker(1, 1, is_commit=True)]
    assert anomalies(history) == ["aborted transaction is committed"]


def test_a_transaction_without_marker_is_open() -> None:
    history = TransactionHistory()
    begin(history, "t", TransactionOutcome.UNKNOWN, (ORDERS, b"a"))
    history.logs[ORDERS] = [record(0, b"a")]
    assert anomalies(history) == ["open transaction"]


def test_a_record_at_two_offsets_is_a_duplicate() -> None:
    history = TransactionHistory()
    begin(history, "t", TransactionOutcome.COMMITTED, (ORDERS, b"a"))
    history.logs[ORDERS] = [record(0, b"a"), record(1, b"a"), LoggedMarker(2, 1, is_commit=True)]
    assert anomalies(history) == ["duplicate"]


def test_a_record_that_nobody_sent() -> None:
    history = TransactionHistory()
    history.logs[ORDERS] = [plain(0, b"a")]
    assert anomalies(history) == ["never sent"]


def test_a_read_of_an_aborted_record() -> None:
    history = sound()
    read(history, ORDERS, 1, b"c")
    assert anomalies(history) == ["aborted read", "read before commit"]


def test_a_read_of_a_record_that_is_missing_in_the_end() -> None:
    history = sound()
    read(history, ORDERS, 9, b"d")
    assert anomalies(history) == ["dirty read"]


def test_a_read_before_the_commit_was_sent() -> None:
    history = sound()
    history.transactions[0].commit_invoked_at = history.next_event()
    assert anomalies(history) == ["read before commit"] * 2


def test_a_reader_misses_a_record() -> None:
    history = sound()
    del history.committed_reads[READER, ORDERS][0]
    assert anomalies(history) == ["lost read"]


def test_a_reader_gets_a_record_twice() -> None:
    history = sound()
    read(history, ORDERS, 3, b"d")
    assert anomalies(history) == ["read twice"]


def test_a_reader_of_uncommitted_records_gets_all_of_them() -> None:
    history = sound()
    history.uncommitted_reads[READER, ORDERS] = [TransactionalRead(9, 0, b"a"), TransactionalRead(9, 3, b"d")]
    assert anomalies(history) == ["lost read"]


def test_replicas_must_be_equal() -> None:
    history = sound()
    history.replicas[BILLS] = {1: history.logs[BILLS], 2: []}
    assert [each.anomaly for each in check_transactions(history)] == ["replicas differ"]


def test_an_unexpected_error_is_a_violation() -> None:
    history = sound()
    history.unexpected_errors.append("offset out of range")
    assert anomalies(history) == ["unexpected error"]


def copies() -> TransactionHistory:
    """Returns a history in which the two committed records of `orders` were copied to `bills`."""
    history = TransactionHistory(copied_topic="orders", copier_offsets={ORDERS: 4})
    begin(history, "input", TransactionOutcome.COMMITTED, (ORDERS, b"a"), (ORDERS, b"b"))
    begin(history, "aborted", TransactionOutcome.ABORTED, (ORDERS, b"c"))
    copier = begin(history, "copier", TransactionOutcome.UNKNOWN, (BILLS, b"copy of a"), (BILLS, b"copy of b"))
    copier.sources = [(ORDERS, 0), (ORDERS, 1)]
    history.logs[ORDERS] = [
        record(0, b"a"),
        record(1, b"b"),
        LoggedMarker(2, 1, is_commit=True),
        record(3, b"c"),
        LoggedMarker(4, 1, is_commit=False),
    ]
    history.logs[BILLS] = [record(0, b"copy of a"), record(1, b"copy of b"), LoggedMarker(2, 1, is_commit=True)]
    return history


def test_sound_copies_have_no_violations() -> None:
    assert anomalies(copies()) == []


def test_a_record_is_copied_twice() -> None:
    history = copies()
    other = begin(history, "other copier", TransactionOutcome.UNKNOWN, (BILLS, b"again"))
    other.sources = [(ORDERS, 1)]
    history.logs[BILLS] = [*history.logs[BILLS], record(3, b"again"), LoggedMarker(4, 1, is_commit=True)]
    assert anomalies(history) == ["copied twice"]


def test_the_offset_of_a_record_is_committed_without_its_copy() -> None:
    history = copies()
    history.logs[BILLS] = [record(0, b"copy of a"), record(1, b"copy of b"), LoggedMarker(2, 1, is_commit=False)]
    assert anomalies(history) == ["lost copy", "lost copy"]


def test_a_copy_is_committed_without_the_offset() -> None:
    history = copies()
    history.copier_offsets = {ORDERS: 1}
    assert anomalies(history) == ["offsets disagree with output"]


def test_an_aborted_record_is_copied() -> None:
    history = copies()
    history.transactions[-1].records.append((BILLS, b"copy of c"))
    history.transactions[-1].sources.append((ORDERS, 3))
    history.logs[BILLS] = [
        record(0, b"copy of a"),
        record(1, b"copy of b"),
        record(2, b"copy of c"),
        LoggedMarker(3, 1, is_commit=True),
    ]
    assert anomalies(history) == ["aborted record copied"]
