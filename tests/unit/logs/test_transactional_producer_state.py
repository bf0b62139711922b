"""Producer state with transactions: what is open, which batches and markers are refused, and guards of verification."""

import random

import pytest

from moldau.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    MoldauError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from moldau.logs.producer_state import UNKNOWN_OWNER, ProducerStateManager, TransactionOwner, VerificationGuard
from moldau.logs.transaction_index import AbortedTransaction
from moldau.records.batch import Batch
from support.logs import batch_at
from support.transactional_logs import data, marker

PRODUCER = 7
HIGH = 2**62


def begin(states: ProducerStateManager, epoch: int = 0, sequence: int = 0, *, bump: bool = True) -> VerificationGuard:
    guard = states.begin_verification(PRODUCER, epoch, sequence, supports_epoch_bump=bump)
    assert guard is not None
    return guard


def states_after(*batches: Batch) -> ProducerStateManager:
    states = ProducerStateManager()
    for batch in batches:
        states.update(batch)
    return states


# Open transactions


def test_a_transaction_is_open_from_its_first_batch_to_its_marker() -> None:
    states = states_after(data(10), data(11, sequence=1), data(12, producer=8))
    assert states.unstable.first_offset(HIGH) == 10
    assert states.update(marker(13, commit=True)) is None
    assert states.unstable.first_offset(13) == 10, "the marker is not below the high watermark"
    assert states.unstable.first_offset(14) == 12
    assert states.update(marker(14, commit=True, producer=8)) is None
    assert states.unstable.first_offset(14) == 12
    assert states.unstable.first_offset(15) is None


def test_the_owner_of_an_open_transaction_is_that_of_its_verification() -> None:
    billing, audit = TransactionOwner("billing-1", "billing", "/10.0.0.7"), TransactionOwner("audit-1")
    states = ProducerStateManager()

    def owner() -> TransactionOwner:
        state = states.get(PRODUCER)
        assert state is not None
        return state.transaction_owner

    states.begin_verification(PRODUCER, 0, 0, supports_epoch_bump=True, owner=billing)
    states.update(data(10))
    assert owner() == billing
    states.update(data(11, sequence=1))
    assert owner() == billing, "the next batch needs no verification"
    states.begin_verification(PRODUCER, 1, 0, supports_epoch_bump=True, owner=audit)
    states.update(marker(12, epoch=1))
    states.update(data(13, epoch=1))
    assert owner() == audit
    states.update(marker(14, epoch=2))
    assert owner() == UNKNOWN_OWNER
    states.update(data(15, epoch=2))
    assert owner() == UNKNOWN_OWNER, "followers and recovery do not verify"


def test_an_abort_returns_the_transaction_for_the_index() -> None:
    states = states_after(data(10), data(11, producer=8), data(12, producer=9))
    assert states.update(marker(13, producer=8)) == AbortedTransaction(8, 11, 13, 10)
    assert states.update(marker(14)) == AbortedTransaction(7, 10, 14, 12)
    assert states.update(marker(15, producer=9)) == AbortedTransaction(9, 12, 15, 16)


def test_a_marker_without_records_ends_nothing() -> None:
    states = states_after(data(10))
    assert states.update(marker(11, producer=8)) is None
    assert states.unstable.first_offset(HIGH) == 10


def test_an_emptied_marker_keeps_the_epoch_and_ends_nothing() -> None:
    states = states_after(data(10))
    empty = marker(11, epoch=4)
    empty.count = 0
    assert states.update(empty) is None
    state = states.get(PRODUCER)
    assert state is not None
    assert state.epoch == 4


def test_open_transactions_survive_a_snapshot_and_do_not_expire() -> None:
    states = states_after(data(20, producer=8), data(21), marker(22, producer=8, coordinator_epoch=5))
    states.update(data(23, producer=8, sequence=1))
    reopened = ProducerStateManager()
    reopened.restore(states.snapshot())
    reopened.expire(0, 10)
    reopened.expire(1_000, 10)
    assert reopened.unstable.first_offset(HIGH) == 21
    assert reopened.update(marker(24)) == AbortedTransaction(7, 21, 24, 23)
    state = reopened.get(8)
    assert state is not None
    assert (state.coordinator_epoch, state.transaction_first_offset) == (5, 23)


def test_the_model_agrees_on_the_last_stable_offset() -> None:
    """Random histories against a list of all transactions."""
    for seed in range(300):
        rng = random.Random(seed)
        states = ProducerStateManager()
        transactions: list[list[int]] = []  # producer, first offset, marker or -1
        sequences = dict.fromkeys(range(4), 0)
        high_watermark = 0
        for offset in range(60):
            producer = rng.randrange(4)
            current = next((each for each in transactions if each[0] == producer and each[2] < 0), None)
            aborted = None
            if rng.random() < 0.4:
                commit = rng.random() < 0.5
                aborted = states.update(marker(offset, commit=commit, producer=producer))
                if current is not None:
                    current[2] = offset
                others = [first for _, first, last in transactions if last < 0]
                expected = (
                    AbortedTransaction(producer, current[1], offset, min(others, default=offset + 1))
                    if current is not None and not commit
                    else None
                )
                assert aborted == expected, seed
            else:
                states.update(data(offset, producer=producer, sequence=sequences[producer]))
                sequences[producer] += 1
                if current is None:
                    transactions.append([producer, offset, -1])
            if rng.random() < 0.5:
                high_watermark = rng.randint(high_watermark, offset + 1)
            if rng.random() < 0.1:
                rebuilt = ProducerStateManager()
                rebuilt.restore(states.snapshot())
                for other in (states, rebuilt):
                    opened = [first for _, first, last in transactions if last < 0]
                    assert other.unstable.first_offset(HIGH) == min(opened, default=None), seed
                high_watermark = offset + 1
            unstable = [first for _, first, last in transactions if last < 0 or last >= high_watermark]
            assert states.unstable.first_offset(high_watermark) == min(unstable, default=None), seed


# Batches


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    states = states_after(data(0))
    plain = batch_at(1, [b"v"], producer_id=PRODUCER, producer_epoch=0, base_sequence=1)
    with pytest.raises(InvalidTransactionStateError):
        states.check(plain)
    states.update(marker(1))
    assert states.check(plain) is None


def test_the_first_batch_of_a_transaction_needs_a_guard() -> None:
    states = ProducerStateManager()
    with pytest.raises(InvalidTransactionStateError):
        states.check(data(0))
    guard = begin(states)
    with pytest.raises(InvalidTransactionStateError):
        states.check(data(0))
    assert states.check(data(0), guard) is None
    states.update(data(0))
    assert states.begin_verification(PRODUCER, 0, 1, supports_epoch_bump=True) is None
    assert states.check(data(1, sequence=1)) is None


def test_a_guard_of_another_epoch_is_not_enough() -> None:
    states = ProducerStateManager()
    guard, later = begin(states, 3), begin(states, 4)
    assert guard is not later
    with pytest.raises(InvalidTransactionStateError):
        states.check(data(0, epoch=4), guard)
    assert states.check(data(0, epoch=3), guard) is None
    assert states.check(data(0, epoch=4), later) is None


def test_an_old_epoch_is_fenced_before_anything_else() -> None:
    states = states_after(marker(0, epoch=5))
    with pytest.raises(InvalidProducerEpochError):
        states.begin_verification(PRODUCER, 4, 0, supports_epoch_bump=True)
    with pytest.raises(InvalidProducerEpochError):
        states.check(data(1, epoch=4))


def test_a_coordinators_batch_without_a_sequence_is_fenced_too() -> None:
    states = states_after(marker(0, epoch=5))
    offsets = data(1, epoch=5, sequence=-1)
    assert states.check(offsets, begin(states, 5, -1)) is None
    with pytest.raises(InvalidProducerEpochError):
        states.check(data(1, epoch=4, sequence=-1))


def test_a_repeated_batch_of_a_completed_transaction_is_a_duplicate() -> None:
    states = states_after(data(5), marker(6))
    repeated = states.check(data(0))
    assert repeated is not None
    assert repeated.base_offset == 5


@pytest.mark.parametrize("bump", [True, False])
def test_an_unknown_producer_starts_at_zero_only_if_its_epoch_is_new(bump: bool) -> None:
    """In transaction version 2 every transaction has a new epoch. Before, the state may have expired."""
    states = ProducerStateManager()
    guard = begin(states, 3, 10, bump=bump)
    if bump:
        with pytest.raises(OutOfOrderSequenceError):
            states.check(data(0, epoch=3, sequence=10), guard)
    else:
        assert states.check(data(0, epoch=3, sequence=10), guard) is None


# Guards


@pytest.mark.parametrize("between", [marker(1, epoch=0), data(1, epoch=0), marker(1, epoch=1)])
def test_a_batch_or_marker_invalidates_the_guard(between: Batch) -> None:
    states = ProducerStateManager()
    guard = begin(states, bump=False)
    states.update(between)
    states.update(marker(2, epoch=between.producer_epoch))
    with pytest.raises(MoldauError) as error:
        states.check(data(3, epoch=between.producer_epoch, sequence=5), guard)
    assert isinstance(error.value, InvalidTransactionStateError)


def test_the_marker_of_the_previous_transaction_leaves_the_guard_of_the_next() -> None:
    states = states_after(data(0, epoch=3))
    guard = begin(states, 4)
    states.update(marker(1, epoch=4))
    assert states.check(data(2, epoch=4), guard) is None


def test_a_marker_of_the_waiting_epoch_invalidates_the_guard_without_epoch_bumps() -> None:
    """There the marker ends the very transaction that was verified."""
    states = ProducerStateManager()
    guard = begin(states, 4, bump=False)
    states.update(marker(1, epoch=4))
    with pytest.raises(InvalidTransactionStateError):
        states.check(data(2, epoch=4), guard)
    again = begin(states, 4, bump=False)
    with pytest.raises(InvalidTransactionStateError):
        states.check(data(2, epoch=4), guard)
    assert states.check(data(2, epoch=4), again) is None


def test_plain_batches_leave_the_guard() -> None:
    states = ProducerStateManager()
    guard = begin(states, sequence=1)
    states.update(batch_at(0, [b"v"], producer_id=PRODUCER, producer_epoch=0, base_sequence=0))
    assert states.check(data(1, sequence=1), guard) is None


def test_a_guard_ends_when_no_batch_waits_any_more() -> None:
    states = ProducerStateManager()
    guard = begin(states)
    assert begin(states, sequence=1) is guard
    states.end_verification(guard)
    assert states.check(data(0), guard) is None
    states.end_verification(guard)
    with pytest.raises(InvalidTransactionStateError):
        states.check(data(0), guard)


def test_a_later_batch_does_not_overtake_one_that_waits_or_was_rejected() -> None:
    states = ProducerStateManager()
    first, second = begin(states, bump=False), begin(states, sequence=1, bump=False)
    with pytest.raises(OutOfOrderSequenceError):
        states.check(data(0, sequence=1), second)
    states.note_rejected(data(0), NotEnoughReplicasError("no coordinator"))
    states.end_verification(first)
    with pytest.raises(NotEnoughReplicasError, match="has to come first: no coordinator"):
        states.check(data(0, sequence=1), second)
    assert states.check(data(0), begin(states, bump=False)) is None


# Markers


@pytest.mark.parametrize(
    ("version", "epoch", "is_open", "is_accepted"),
    [
        (1, 4, True, False),
        (1, 5, True, True),
        (1, 6, True, True),
        (1, 4, False, False),
        (1, 5, False, True),
        (2, 4, True, False),
        (2, 5, True, False),
        (2, 6, True, True),
        (2, 4, False, False),
        (2, 5, False, True),
        (2, 6, False, True),
    ],
)
def test_the_epoch_of_a_marker(version: int, epoch: int, is_open: bool, is_accepted: bool) -> None:
    states = states_after(data(0, epoch=5) if is_open else marker(0, epoch=5))
    if is_accepted:
        states.check_marker(PRODUCER, epoch, 0, version)
    else:
        with pytest.raises(InvalidProducerEpochError):
            states.check_marker(PRODUCER, epoch, 0, version)


def test_a_marker_of_an_earlier_coordinator_is_refused_and_replayed_all_the_same() -> None:
    states = states_after(data(0), marker(1, coordinator_epoch=9), data(2, sequence=1))
    with pytest.raises(TransactionCoordinatorFencedError):
        states.check_marker(PRODUCER, 0, 8, 1)
    states.check_marker(PRODUCER, 0, 9, 1)
    assert states.update(marker(3, coordinator_epoch=8)) == AbortedTransaction(7, 2, 3, 4)


def test_markers_of_unknown_producers_are_accepted() -> None:
    ProducerStateManager().check_marker(PRODUCER, 0, 0, 2)
