"""When the ongoing transactions of a shard time out. Pure."""

from typing import NamedTuple

from moldau.coordinator.deadline_queue import DeadlineQueue
from moldau.coordinator.result import Now
from moldau.transactions.transaction_metadata import TransactionMetadata, TransactionState

REPORTED_TIMEOUT_MIN_MS = 10_000
"""A transaction with at least this timeout is reported before it times out, when 80 % of the time have passed."""


class _Timeout(NamedTuple):
    start_ms: int
    timeout_ms: int
    due_ms: int
    """The monotonic time at which the transaction has timed out."""


class DueTransaction(NamedTuple):
    transactional_id: str
    open_ms: int
    is_timed_out: bool
    """False if only 80 % of its timeout have passed."""


class TransactionTimeouts:
    """The monotonic times at which ongoing transactions are reported as long, and then time out.

    The start of a transaction is a time of the wall clock, maybe of another node. It is compared with the own wall
    clock only once, when this node first sees the transaction. From then on at most the whole timeout passes, although
    the clocks of two nodes may differ by hours, and a clock may be set back.
    """

    def __init__(self) -> None:
        self._deadlines = DeadlineQueue()
        self._timeouts: dict[str, _Timeout] = {}
        self._new: dict[str, TransactionMetadata] = {}
        """Ongoing transactions without a deadline, because a state is applied without knowing the time."""

    def update(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        """Sets the state of a transaction; None if the transactional id was deleted."""
        if metadata is not None and metadata.state is TransactionState.ONGOING:
            known = self._timeouts.get(transactional_id)
            if known is None or known[:2] != (metadata.start_ms, metadata.timeout_ms):
                self._new[transactional_id] = metadata
            return
        self._new.pop(transactional_id, None)
        if self._timeouts.pop(transactional_id, None) is not None:
            self._deadlines.set(transactional_id, None)

    def next_ms(self, now: Now) -> int | None:
        """Returns the monotonic time of the next deadline."""
        self._set_deadlines(now)
        return self._deadlines.next_ms

    def pop_due(self, now: Now) -> DueTransaction | None:
        """Returns the next transaction that is due, or None. One that has timed out has no deadline any more."""
        self._set_deadlines(now)
        transactional_id = self._deadlines.pop_due(now.monotonic_ms)
        if transactional_id is None:
            return None
        timeout = self._timeouts[transactional_id]
        open_ms = timeout.timeout_ms + 1 + now.monotonic_ms - timeout.due_ms
        is_timed_out = timeout.due_ms <= now.monotonic_ms
        if not is_timed_out:
            self._deadlines.set(transactional_id, timeout.due_ms)
        return DueTransaction(transactional_id, open_ms, is_timed_out)

    def keep(self, transactional_id: str) -> None:
        """Keeps the deadline of a timed out transaction until it is aborted."""
        self._deadlines.set(transactional_id, self._timeouts[transactional_id].due_ms)

    def is_timed_out(self, transactional_id: str, now: Now) -> bool:
        self._set_deadlines(now)
        timeout = self._timeouts.get(transactional_id)
        return timeout is not None and timeout.due_ms <= now.monotonic_ms

    def _set_deadlines(self, now: Now) -> None:
        for transactional_id, metadata in self._new.items():
            start_ms, timeout_ms = metadata.start_ms, metadata.timeout_ms
            remaining_ms = start_ms + timeout_ms + 1 - now.wall_ms
            due_ms = now.monotonic_ms + min(max(remaining_ms, 0), timeout_ms + 1)
            self._timeouts[transactional_id] = _Timeout(start_ms, timeout_ms, due_ms)
            if timeout_ms >= REPORTED_TIMEOUT_MIN_MS:
                due_ms += timeout_ms * 4 // 5 - timeout_ms - 1
            self._deadlines.set(transactional_id, due_ms)
        self._new.clear()
