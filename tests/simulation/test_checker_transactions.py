"""Every anomaly of transactions is found in a small history, and a correct history has none."""

from collections.abc import Sequence

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
from moldau.testing.simulation.checkers.transactions import check_transactions

ONE, OTHER = ("orders", 0), ("orders", 1)
COMMITTED, ABORTED, UNKNOWN = TransactionOutcome.COMMITTED, TransactionOutcome.ABORTED, TransactionOutcome.UNKNOWN


def log(*entries: bytes | bool) -> TransactionalLog:
    """Returns a log of one producer: records, and markers that commit or abort."""
    return [
        LoggedMarker(offset, 7, entry) if isinstance(entry, bool) else LoggedRecord(offset, entry, 7, True)
        for offset, entry in enumerate(entries)
    ]


def add(
    history: TransactionHistory, outcome: TransactionOutcome, *records: tuple[Partition, bytes], commits: bool = True
) -> TransactionOperation:
    operation = history.begin(f"transaction-{len(history.transactions)}")
    operation.records += records
    if commits:
        operation.commit_invoked_at = history.next_event()
    operation.outcome = outcome
    return operation


def read(history: TransactionHistory, partition: Partition, *records: tuple[int, bytes]) -> None:
    reads = history.committed_reads.setdefault(("reader", partition), [])
    reads += [TransactionalRead(history.next_event(), offset, value) for offset, value in records]


def anomalies(history: TransactionHistory) -> Sequence[str]:
    return [violation.anomaly for violation in check_transactions(history)]


def correct_history() -> TransactionHistory:
    history = TransactionHistory()
    add(history, COMMITTED, (ONE, b"a"), (OTHER, b"b"))
    add(history, ABORTED, (ONE, b"c"), commits=False)
    add(history, UNKNOWN, (ONE, b"d"))
    history.logs = {ONE: log(b"a", True, b"c", False, b"d", True), OTHER: log(b"b", True)}
    history.replicas = {ONE: {1: history.logs[ONE], 2: history.logs[ONE]}}
    read(history, ONE, (0, b"a"), (4, b"d"))
    read(history, OTHER, (0, b"b"))
    return history


def test_a_correct_history_has_no_anomaly() -> None:
    assert anomalies(correct_history()) == []


def test_an_unknown_outcome_may_be_an_abort() -> None:
    history = TransactionHistory()
    add(history, UNKNOWN, (ONE, b"a"))
    add(history, UNKNOWN, (ONE, b"b"))
    history.logs = {ONE: log(b"a", False)}
    assert anomalies(history) == []


def test_outcomes() -> None:
    for outcome, commits, entries, expected in (
        (COMMITTED, True, (b"a", False), "lost commit"),
        (COMMITTED, True, (), "lost commit"),
        (ABORTED, True, (b"a", True), "aborted transaction is committed"),
        (UNKNOWN, False, (b"a", True), "aborted transaction is committed"),
        (UNKNOWN, True, (b"a",), "open transaction"),
        (COMMITTED, True, (b"a", True, b"a", True), "duplicate"),
    ):
        history = TransactionHistory()
        add(history, outcome, (ONE, b"a"), commits=commits)
        history.logs = {ONE: log(*entries)}
        assert anomalies(history) == [expected], entries


def test_torn_transactions() -> None:
    for other in (log(b"b", False), log()):
        history = TransactionHistory()
        add(history, COMMITTED, (ONE, b"a"), (OTHER, b"b"))
        history.logs = {ONE: log(b"a", True), OTHER: other}
        assert anomalies(history) == ["torn transaction"]


def test_a_record_that_was_never_sent() -> None:
    history = correct_history()
    history.logs[OTHER] = log(b"b", True, b"x", False)
    assert anomalies(history) == ["never sent"]


def test_reads() -> None:
    for reads, expected in (
        ([(0, b"a"), (2, b"c"), (4, b"d")], ["aborted read", "read before commit"]),
        ([(0, b"a"), (4, b"d"), (9, b"d")], ["dirty read"]),
        ([(0, b"a")], ["lost read"]),
        ([(4, b"d")], ["lost read"]),
        ([(0, b"a"), (0, b"a"), (4, b"d")], ["read twice"]),
        ([(0, b"a"), (4, b"d"), (4, b"d")], ["read twice"]),
    ):
        history = correct_history()
        history.committed_reads["reader", ONE].clear()
        read(history, ONE, *reads)
        assert anomalies(history) == expected, reads


def test_a_read_before_the_commit() -> None:
    history = TransactionHistory()
    operation = add(history, COMMITTED, (ONE, b"a"), commits=False)
    read(history, ONE, (0, b"a"))
    operation.commit_invoked_at = history.next_event()
    history.logs = {ONE: log(b"a", True)}
    assert anomalies(history) == ["read before commit"]


def test_a_lost_read_of_an_aborted_record() -> None:
    history = correct_history()
    history.uncommitted_reads["reader", ONE] = [TransactionalRead(99, 0, b"a"), TransactionalRead(99, 4, b"d")]
    assert anomalies(history) == ["lost read"]


def test_replicas_differ() -> None:
    history = correct_history()
    history.replicas[ONE] = {1: history.logs[ONE], 2: history.logs[ONE][:-1]}
    assert anomalies(history) == ["replicas differ"]


def test_copies() -> None:
    copies = ("copies", 0)

    def history_of(copied: Sequence[int], committed_offset: int) -> TransactionHistory:
        history = TransactionHistory(copied_topic="orders", copier_offsets={ONE: committed_offset})
        add(history, COMMITTED, (ONE, b"a"))
        add(history, ABORTED, (ONE, b"b"))
        history.logs = {ONE: log(b"a", True, b"b", False)}
        values = [b"copy-%d" % number for number in range(len(copied))]
        for value, offset in zip(values, copied, strict=True):
            add(history, COMMITTED, (copies, value)).sources.append((ONE, offset))
        history.logs[copies] = log(*values, True)
        return history

    assert anomalies(history_of([0], 4)) == []
    assert anomalies(history_of([], 4)) == ["lost copy"]
    assert anomalies(history_of([0, 0], 4)) == ["copied twice"]
    assert anomalies(history_of([0, 2], 4)) == ["aborted record copied"]
    assert anomalies(history_of([0], 0)) == ["offsets disagree with output"]


def test_an_unexpected_error() -> None:
    history = correct_history()
    history.unexpected_errors.append("offset out of range")
    assert anomalies(history) == ["unexpected error"]
