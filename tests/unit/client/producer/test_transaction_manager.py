"""The transaction state machine: what may be called in each state, and what each error means."""

import pytest

from moldau.client.errors import (
    ConnectionLostError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
)
from moldau.client.producer.producer_batch import ProducerIdAndEpoch
from moldau.client.producer.transaction_manager import TransactionManager, TransactionRequest, TransactionState
from moldau.client.record import TopicPartition

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 0)
FIRST, NEXT = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(7, 1)
ADD, PRODUCE, COMMIT, ABORT = (
    TransactionRequest.ADD,
    TransactionRequest.PRODUCE,
    TransactionRequest.COMMIT,
    TransactionRequest.ABORT,
)


def ready(*, is_v2: bool = True) -> TransactionManager:
    manager = TransactionManager("billing-1")
    manager.handle_producer_id(FIRST, is_v2=is_v2)
    return manager


def begun(*, is_v2: bool = True) -> TransactionManager:
    manager = ready(is_v2=is_v2)
    manager.begin()
    manager.add_partition(ORDERS)
    manager.start()
    return manager


def committing(*, is_v2: bool = True) -> TransactionManager:
    manager = begun(is_v2=is_v2)
    manager.begin_commit(1)
    manager.handle_end_sent()
    return manager


def test_a_transaction_of_tv2_ends_with_the_next_epoch() -> None:
    manager = committing()
    manager.handle_ended(NEXT)
    assert manager.state is TransactionState.READY
    assert manager.producer == NEXT
    assert manager.begin() == 2


def test_tv1_adds_each_partition_once_per_transaction() -> None:
    manager = ready(is_v2=False)
    manager.begin()
    assert [manager.add_partition(each) for each in (ORDERS, PAYMENTS, ORDERS)] == [True, True, False]
    assert manager.take_new_partitions() == [ORDERS, PAYMENTS]
    assert manager.take_new_partitions() == []
    manager.begin_commit(1)
    manager.handle_ended(FIRST)
    manager.begin()
    assert manager.add_partition(ORDERS)


def test_tv2_adds_no_partitions() -> None:
    manager = begun()
    assert manager.take_new_partitions() == []
    assert manager.must_send_end


def test_the_versions_of_produce_tell_the_broker_the_generation() -> None:
    assert begun(is_v2=True).produce_versions == (12, None)
    assert begun(is_v2=False).produce_versions == (None, 11)


@pytest.mark.parametrize("is_v2", [True, False])
def test_the_coordinator_is_not_told_the_end_of_an_empty_transaction(is_v2: bool) -> None:
    manager = ready(is_v2=is_v2)
    manager.begin()
    manager.begin_commit(1)
    assert not manager.must_send_end
    manager.handle_ended(FIRST)
    assert manager.state is TransactionState.READY


def test_a_gap_in_a_sequence_needs_a_new_epoch_only_with_tv1() -> None:
    for is_v2, producer, expected in (
        (False, FIRST, TransactionState.UNINITIALIZED),
        (True, NEXT, TransactionState.READY),
    ):
        manager = begun(is_v2=is_v2)
        manager.begin_abort(1)
        manager.handle_ended(producer, has_sequence_gap=True)
        assert manager.state is expected


@pytest.mark.parametrize("code", [47, 48, 120, 45, 59, 10, 29, 7])
def test_a_failed_batch_fails_only_its_transaction(code: int) -> None:
    manager = begun()
    manager.handle_error(PRODUCE, KafkaError(code, "orders-0"))
    assert manager.state is TransactionState.ABORTABLE_ERROR
    with pytest.raises(TransactionAbortableError, match="orders-0") as raised:
        manager.check_in_transaction()
    assert raised.value.code == code
    with pytest.raises(TransactionAbortableError):
        manager.begin_commit(1)
    manager.begin_abort(1)
    manager.handle_ended(NEXT)
    assert manager.begin() == 2


@pytest.mark.parametrize("request_", [ADD, COMMIT, ABORT, TransactionRequest.INIT])
@pytest.mark.parametrize("code", [47, 90])
def test_a_coordinator_fences(request_: TransactionRequest, code: int) -> None:
    manager = begun()
    manager.handle_error(request_, KafkaError(code))
    for _ in range(2):
        with pytest.raises(ProducerFencedError, match=r"billing-1.*close this producer"):
            manager.check_in_transaction()
    with pytest.raises(ProducerFencedError):
        manager.check_can_begin()
    with pytest.raises(ProducerFencedError):
        manager.begin_abort(1)
    assert isinstance(manager.batch_error(), ProducerFencedError)


@pytest.mark.parametrize("code", [49, 53])
@pytest.mark.parametrize("request_", [PRODUCE, ADD, COMMIT])
def test_a_lost_or_forbidden_id_is_fatal(request_: TransactionRequest, code: int) -> None:
    manager = begun()
    manager.handle_error(request_, KafkaError(code))
    assert manager.state is TransactionState.FATAL_ERROR
    with pytest.raises(KafkaError, match="start a new one"):
        manager.check_in_transaction()


@pytest.mark.parametrize("code", [22, 25, 82, 30, 120, 48])
def test_refused_offsets_fail_only_the_transaction(code: int) -> None:
    manager = begun()
    manager.handle_error(ADD, KafkaError(code))
    assert manager.state is TransactionState.ABORTABLE_ERROR


def test_a_commit_that_lost_to_the_timeout_can_be_aborted() -> None:
    manager = committing()
    manager.handle_error(COMMIT, KafkaError(48))
    with pytest.raises(TransactionAbortableError, match="transaction_timeout_ms"):
        manager.raise_error()
    assert not manager.is_outcome_unknown(1)
    manager.begin_abort(1)
    assert not manager.is_nothing_to_abort(KafkaError(48))
    manager.handle_ended(NEXT)
    assert manager.state is TransactionState.READY


def test_the_outcome_of_a_commit_without_a_response_is_unknown() -> None:
    manager = committing()
    manager.handle_error(COMMIT, ConnectionLostError("gone"))
    assert manager.is_outcome_unknown(1)
    assert not manager.is_open(1)
    with pytest.raises(IllegalStateError, match="call `commit` again"):
        manager.begin_abort(1)
    with pytest.raises(IllegalStateError, match="call `commit` again"):
        manager.check_can_begin()
    manager.begin_commit(1)
    manager.handle_ended(NEXT)
    assert not manager.is_outcome_unknown(1)
    assert manager.begin() == 2


def test_a_commit_that_was_not_sent_can_still_be_aborted() -> None:
    manager = begun()
    manager.begin_commit(1)
    assert manager.is_open(1)
    manager.begin_abort(1)
    assert manager.state is TransactionState.ABORTING


def test_the_outcome_stays_unknown_if_the_producer_is_fenced_meanwhile() -> None:
    manager = committing()
    manager.handle_error(COMMIT, KafkaError(90))
    assert manager.is_outcome_unknown(1)


def test_an_abort_without_a_response_is_repeated() -> None:
    manager = begun()
    manager.begin_abort(1)
    manager.handle_error(ABORT, ConnectionLostError("gone"))
    assert manager.state is TransactionState.ABORTING
    manager.check_can_begin()
    manager.begin_abort(1)
    with pytest.raises(IllegalStateError, match="being aborted"):
        manager.begin_commit(1)


def test_tv1_may_abort_a_transaction_that_the_coordinator_does_not_know() -> None:
    manager = begun(is_v2=False)
    manager.begin_abort(1)
    assert manager.is_nothing_to_abort(KafkaError(48))
    assert not manager.is_nothing_to_abort(KafkaError(90))
    assert not begun(is_v2=True).is_nothing_to_abort(KafkaError(48))


def test_failures_during_an_abort_change_nothing() -> None:
    manager = begun()
    manager.begin_abort(1)
    manager.handle_error(PRODUCE, KafkaError(48))
    assert manager.state is TransactionState.ABORTING
    assert manager.batch_error().code is ErrorCode.transaction_abortable


def test_calls_outside_a_transaction_are_refused() -> None:
    manager = ready()
    with pytest.raises(IllegalStateError, match="no open transaction"):
        manager.check_in_transaction()
    manager.begin()
    with pytest.raises(IllegalStateError, match="end the open transaction first"):
        manager.check_can_begin()
    manager.begin_commit(1)
    manager.handle_ended(FIRST)
    for call in (manager.begin_commit, manager.begin_abort):
        with pytest.raises(IllegalStateError, match="has ended"):
            call(1)
    manager.begin()
    assert manager.check_in_transaction(2) == 2
    with pytest.raises(IllegalStateError, match="no open transaction"):
        manager.check_in_transaction(1)


def test_a_failed_start_can_be_repeated() -> None:
    manager = TransactionManager("billing-1")
    manager.handle_error(TransactionRequest.INIT, KafkaError(50))
    assert manager.state is TransactionState.UNINITIALIZED
    manager.handle_producer_id(FIRST, is_v2=True)
    assert manager.begin() == 1
