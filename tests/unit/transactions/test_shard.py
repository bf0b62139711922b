"""TransactionCoordinatorShard: all rules for the requests of producers, timeouts, expiration and descriptions."""

import pytest

from moldau.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTransactionStateError,
    MoldauError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
)
from moldau.transactions.requests import ListedTransaction, LongTransaction, ProducerIdAndEpoch, TransactionFilter
from moldau.transactions.timeouts import REPORTED_TIMEOUT_MIN_MS
from moldau.transactions.transaction_metadata import (
    PRODUCER_EPOCH_MAX,
    TV0,
    TV1,
    TV2,
    UNKNOWN_CLIENT,
    ProducerClient,
    TransactionMetadata,
    TransactionState,
)
from support.transactions import DAY_MS, TIMEOUT_MS, ShardHarness

P0, P1, P2 = ("orders", 0), ("orders", 1), ("payments", 0)
STATES = TransactionState
IDLE = (STATES.EMPTY, STATES.COMPLETE_COMMIT, STATES.COMPLETE_ABORT)
PREPARED = (STATES.PREPARE_COMMIT, STATES.PREPARE_ABORT)
LAST_EPOCH = PRODUCER_EPOCH_MAX - 1
"""The last epoch that producers can use."""


@pytest.fixture
def harness() -> ShardHarness:
    return ShardHarness()


@pytest.fixture
def tv1() -> ShardHarness:
    return ShardHarness(TV1)


def in_state(
    state: TransactionState, *, producer_id: int = 7, epoch: int = 5, last_epoch: int = -1, **more: int
) -> TransactionMetadata:
    is_open = state not in IDLE
    return TransactionMetadata(
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=TIMEOUT_MS,
        state=state,
        partitions=frozenset({P0}) if is_open else frozenset(),
        start_ms=-1 if state is STATES.EMPTY else 1_700_000_000_000,
        last_update_ms=1_700_000_000_000,
        previous_producer_id=more.pop("previous", producer_id),
        client_version=TV2,
        last_producer_epoch=last_epoch,
        **more,
    )


# InitProducerId


def test_a_new_id_starts_with_epoch_0(harness: ShardHarness) -> None:
    assert harness.init() == (1001, 0)
    metadata = harness.get()
    assert (metadata.state, metadata.timeout_ms, metadata.start_ms) == (STATES.EMPTY, TIMEOUT_MS, -1)
    assert (metadata.previous_producer_id, metadata.client_version) == (1001, TV0)


def test_a_new_id_ignores_the_epoch_of_a_forgotten_producer(harness: ShardHarness) -> None:
    assert harness.init(expected=(77, 3)) == (1001, 0)


def test_the_client_of_a_producer_is_known_to_the_next_coordinator(harness: ShardHarness) -> None:
    billing, audit = ProducerClient("billing", "/10.0.0.7"), ProducerClient("audit", "/10.0.0.8")
    producer = harness.init(client=billing)
    harness.add(producer, P0)
    harness.reload()
    assert harness.apply(harness.shard.describe("t")).client == billing
    with pytest.raises(ConcurrentTransactionsError):
        harness.init(client=audit)
    assert harness.get().client == billing, "the transaction that is being aborted"
    harness.complete()
    harness.init(client=audit)
    assert harness.get().client == audit
    harness.put("t", harness.get()._replace(producer_epoch=LAST_EPOCH))
    harness.init(client=billing)
    assert harness.get().client == billing


@pytest.mark.parametrize("state", IDLE)
def test_each_new_producer_gets_the_next_epoch(harness: ShardHarness, state: TransactionState) -> None:
    harness.put("t", in_state(state, last_epoch=4))
    assert harness.init(timeout_ms=5) == (7, 6)
    metadata = harness.get()
    assert (metadata.state, metadata.timeout_ms, metadata.last_producer_epoch) == (STATES.EMPTY, 5, -1)
    assert (metadata.start_ms, metadata.partitions) == (-1, frozenset())


@pytest.mark.parametrize("state", IDLE)
def test_a_producer_continues_with_the_next_epoch_and_repeats_the_request(
    harness: ShardHarness, state: TransactionState
) -> None:
    harness.put("t", in_state(state))
    for _ in range(3):
        assert harness.init(expected=(7, 5)) == (7, 6)
    assert harness.init(expected=(7, 6)) == (7, 7)
    with pytest.raises(ProducerFencedError):
        harness.init(expected=(7, 5))


def test_a_repetition_is_fenced_after_a_failover(harness: ShardHarness) -> None:
    harness.put("t", in_state(STATES.EMPTY))
    assert harness.init(expected=(7, 5)) == (7, 6)
    harness.reload()
    with pytest.raises(ProducerFencedError):
        harness.init(expected=(7, 5))


@pytest.mark.parametrize("state", [*IDLE, STATES.ONGOING])
@pytest.mark.parametrize("expected", [(7, 4), (7, 6), (8, 5), (6, LAST_EPOCH)])
def test_a_fenced_producer_cannot_continue(
    harness: ShardHarness, state: TransactionState, expected: tuple[int, int]
) -> None:
    harness.put("t", in_state(state))
    with pytest.raises(ProducerFencedError):
        harness.init(expected=expected)
    assert harness.get() == in_state(state)


@pytest.mark.parametrize("state", PREPARED)
@pytest.mark.parametrize("expected", [None, (7, 5), (7, 4), (8, 0)])
def test_a_producer_waits_for_the_completion(
    harness: ShardHarness, state: TransactionState, expected: tuple[int, int] | None
) -> None:
    harness.put("t", in_state(state))
    with pytest.raises(ConcurrentTransactionsError):
        harness.init(expected=expected)
    assert harness.get() == in_state(state)


@pytest.mark.parametrize("expected", [None, (7, 5), (7, 4)])
def test_a_new_producer_aborts_the_ongoing_transaction_once(
    harness: ShardHarness, expected: tuple[int, int] | None
) -> None:
    harness.put("t", in_state(STATES.ONGOING, last_epoch=4))
    with pytest.raises(ConcurrentTransactionsError):
        harness.init(expected=expected)
    metadata = harness.get()
    assert (metadata.state, metadata.producer_epoch, metadata.last_producer_epoch) == (STATES.PREPARE_ABORT, 6, 5)
    assert (metadata.client_version, metadata.next_producer_id) == (TV2, -1)
    with pytest.raises(ConcurrentTransactionsError):
        harness.init(expected=expected)
    assert harness.get() == metadata
    (markers,) = harness.complete()
    assert (markers.producer_epoch, markers.commit, markers.transaction_version) == (6, False, TV2)
    assert harness.init() == (7, 7)


def test_fencing_without_tv2_keeps_no_last_epoch(tv1: ShardHarness) -> None:
    tv1.put("t", in_state(STATES.ONGOING, last_epoch=4))
    with pytest.raises(ConcurrentTransactionsError):
        tv1.init()
    metadata = tv1.get()
    assert (metadata.producer_epoch, metadata.last_producer_epoch, metadata.client_version) == (6, -1, TV0)
    tv1.complete()
    with pytest.raises(ProducerFencedError):
        tv1.init(expected=(7, 5))
    assert tv1.init() == (7, 7)


@pytest.mark.parametrize("expected", [None, (7, LAST_EPOCH)])
def test_an_exhausted_producer_id_is_replaced(harness: ShardHarness, expected: tuple[int, int] | None) -> None:
    harness.put("t", in_state(STATES.EMPTY, epoch=LAST_EPOCH))
    assert harness.init(expected=expected) == (1001, 0)
    if expected is not None:
        assert harness.init(expected=expected) == (1001, 0)
        assert harness.next_producer_id == 1001
    with pytest.raises(ProducerFencedError):
        harness.init(expected=(7, LAST_EPOCH - 1))


def test_the_last_epoch_of_a_producer_id_can_be_used(harness: ShardHarness) -> None:
    harness.put("t", in_state(STATES.EMPTY, epoch=LAST_EPOCH - 1))
    assert harness.init() == (7, LAST_EPOCH)
    assert harness.init() == (1001, 0)


def test_a_repetition_of_the_last_epoch_is_no_new_producer_id(harness: ShardHarness) -> None:
    harness.put("t", in_state(STATES.EMPTY, epoch=LAST_EPOCH - 1))
    for _ in range(2):
        assert harness.init(expected=(7, LAST_EPOCH - 1)) == (7, LAST_EPOCH)


def test_fencing_replaces_an_exhausted_producer_id(harness: ShardHarness) -> None:
    harness.put("t", in_state(STATES.ONGOING, epoch=LAST_EPOCH))
    with pytest.raises(ConcurrentTransactionsError):
        harness.init()
    metadata = harness.get()
    assert (metadata.producer_id, metadata.producer_epoch) == (7, PRODUCER_EPOCH_MAX)
    assert metadata.next_producer_id == 1001
    (markers,) = harness.complete()
    assert (markers.producer_id, markers.producer_epoch) == (7, PRODUCER_EPOCH_MAX)
    assert (harness.get().producer_id, harness.get().producer_epoch) == (1001, 0)
    assert harness.init() == (1001, 1)


def test_fencing_without_tv2_replaces_the_producer_id_later(tv1: ShardHarness) -> None:
    tv1.put("t", in_state(STATES.ONGOING, epoch=LAST_EPOCH))
    with pytest.raises(ConcurrentTransactionsError):
        tv1.init()
    tv1.complete()
    assert (tv1.get().producer_id, tv1.get().producer_epoch) == (7, PRODUCER_EPOCH_MAX)
    assert tv1.init() == (1001, 0)


# AddPartitionsToTxn


@pytest.mark.parametrize("state", IDLE)
def test_the_first_partition_starts_a_transaction(harness: ShardHarness, state: TransactionState) -> None:
    harness.put("t", in_state(state))
    harness.now_ms += 50
    harness.add((7, 5), P0, P2, client_version=TV2)
    started = harness.now_ms
    harness.now_ms += 50
    harness.add((7, 5), P1, client_version=TV2)
    metadata = harness.get()
    assert (metadata.state, metadata.start_ms, metadata.client_version) == (STATES.ONGOING, started, TV2)
    assert metadata.partitions == {P0, P1, P2}
    assert metadata.last_update_ms == harness.now_ms


def test_partitions_of_the_transaction_are_not_written_again(harness: ShardHarness) -> None:
    producer = harness.init()
    harness.add(producer, P0, P1)
    written = len(harness.log)
    harness.add(producer, P1)
    assert len(harness.log) == written


def test_without_tv2_known_partitions_are_confirmed_by_a_commit(harness: ShardHarness) -> None:
    """They could belong to a later transaction than the one that a replaced coordinator knows."""
    producer = harness.init()
    harness.add(producer, P0, P1, client_version=TV0)
    before = harness.shard.get("t")
    written = len(harness.log)
    harness.add(producer, P1, client_version=TV0)
    assert [[record.metadata for record in records] for records in harness.log[written:]] == [[before]]


def test_a_rejection_in_a_prepared_state_sends_no_markers_again(harness: ShardHarness) -> None:
    producer = harness.init()
    harness.add(producer, P0)
    harness.end(producer)
    assert len(harness.take_markers()) == 1
    with pytest.raises(ProducerFencedError):
        harness.end((producer[0], producer[1] + 7), client_version=TV0)
    assert harness.take_markers() == []


@pytest.mark.parametrize("state", [*IDLE, STATES.ONGOING])
def test_partitions_of_another_producer_are_rejected(harness: ShardHarness, state: TransactionState) -> None:
    harness.put("t", in_state(state))
    with pytest.raises(InvalidProducerIdMappingError):
        harness.add((8, 5), P0)
    for epoch in (4, 6):
        with pytest.raises(ProducerFencedError):
            harness.add((7, epoch), P0)
    with pytest.raises(InvalidProducerIdMappingError):
        harness.add((7, 5), P0, transactional_id="other")
    assert harness.get() == in_state(state)


@pytest.mark.parametrize("state", PREPARED)
@pytest.mark.parametrize("producer", [(7, 5), (7, 4), (9, 0)])
def test_no_partition_is_added_before_the_completion(
    harness: ShardHarness, state: TransactionState, producer: tuple[int, int]
) -> None:
    harness.put("t", in_state(state))
    with pytest.raises(ConcurrentTransactionsError):
        harness.add(producer, P1)


def test_partitions_are_verified(harness: ShardHarness) -> None:
    harness.put("t", in_state(STATES.ONGOING))
    errors = harness.verify((7, 5), P0, P1)
    assert errors[P0] is None
    assert isinstance(errors[P1], TransactionAbortableError)
    harness.put("t", in_state(STATES.COMPLETE_COMMIT))
    assert isinstance(harness.verify((7, 5), P0)[P0], TransactionAbortableError)
    with pytest.raises(InvalidProducerIdMappingError):
        harness.verify((8, 5), P0)
    with pytest.raises(InvalidProducerIdMappingError):
        harness.verify((7, 5), P0, transactional_id="other")
    with pytest.raises(ProducerFencedError):
        harness.verify((7, 4), P0)
    harness.put("t", in_state(STATES.PREPARE_COMMIT))
    with pytest.raises(ConcurrentTransactionsError):
        harness.verify((7, 5), P0)
    assert all(len(records) == 1 for records in harness.log)


# EndTxn with TV1

OK = None
FENCED, WRONG_STATE, CONCURRENT = ProducerFencedError, InvalidTransactionStateError, ConcurrentTransactionsError


@pytest.mark.parametrize(
    ("state", "commit_error", "abort_error"),
    [
        (STATES.EMPTY, WRONG_STATE, WRONG_STATE),
        (STATES.ONGOING, OK, OK),
        (STATES.PREPARE_COMMIT, CONCURRENT, CONCURRENT),
        (STATES.PREPARE_ABORT, CONCURRENT, CONCURRENT),
        (STATES.COMPLETE_COMMIT, OK, WRONG_STATE),
        (STATES.COMPLETE_ABORT, WRONG_STATE, OK),
    ],
)
def test_ends_with_tv1(
    state: TransactionState, commit_error: type[MoldauError] | None, abort_error: type[MoldauError] | None
) -> None:
    for commit, error in ((True, commit_error), (False, abort_error)):
        harness = ShardHarness()
        before = in_state(state)
        harness.put("t", before)
        if error is not None:
            with pytest.raises(error):
                harness.end((7, 5), commit=commit, client_version=TV0)
        else:
            assert harness.end((7, 5), commit=commit, client_version=TV0) == (-1, -1)
        if state is STATES.ONGOING:
            after = harness.get()
            assert after.state is (STATES.PREPARE_COMMIT if commit else STATES.PREPARE_ABORT)
            assert (after.producer_epoch, after.client_version, after.partitions) == (5, TV0, {P0})
            harness.complete()
            assert harness.get().state is (STATES.COMPLETE_COMMIT if commit else STATES.COMPLETE_ABORT)
            assert (harness.get().producer_epoch, harness.get().partitions) == (5, frozenset())
        else:
            assert harness.get() == before


@pytest.mark.parametrize("state", [each for each in STATES if each not in (STATES.DEAD, STATES.PREPARE_EPOCH_FENCE)])
def test_tv1_compares_the_producer_first(harness: ShardHarness, state: TransactionState) -> None:
    harness.put("t", in_state(state))
    with pytest.raises(InvalidProducerIdMappingError):
        harness.end((8, 5), client_version=TV0)
    for epoch in (4, 6):
        with pytest.raises(ProducerFencedError):
            harness.end((7, epoch), client_version=TV0)
    with pytest.raises(InvalidProducerIdMappingError):
        harness.end((7, 5), client_version=TV0, transactional_id="other")


# EndTxn with TV2


@pytest.mark.parametrize(
    ("state", "epoch", "commit", "outcome"),
    [
        # The current epoch is 5.
        (STATES.EMPTY, 4, True, FENCED),
        (STATES.EMPTY, 4, False, FENCED),
        (STATES.EMPTY, 5, True, WRONG_STATE),
        (STATES.EMPTY, 5, False, 6),
        (STATES.EMPTY, 6, False, FENCED),
        (STATES.ONGOING, 4, True, FENCED),
        (STATES.ONGOING, 4, False, FENCED),
        (STATES.ONGOING, 5, True, 6),
        (STATES.ONGOING, 5, False, 6),
        (STATES.ONGOING, 6, True, FENCED),
        (STATES.COMPLETE_COMMIT, 4, True, 5),
        (STATES.COMPLETE_COMMIT, 4, False, WRONG_STATE),
        (STATES.COMPLETE_COMMIT, 5, True, WRONG_STATE),
        (STATES.COMPLETE_COMMIT, 5, False, 6),
        (STATES.COMPLETE_COMMIT, 3, True, FENCED),
        (STATES.COMPLETE_COMMIT, 6, True, FENCED),
        (STATES.COMPLETE_ABORT, 4, True, WRONG_STATE),
        (STATES.COMPLETE_ABORT, 4, False, 5),
        (STATES.COMPLETE_ABORT, 5, True, WRONG_STATE),
        (STATES.COMPLETE_ABORT, 5, False, 6),
        (STATES.COMPLETE_ABORT, 3, False, FENCED),
        (STATES.COMPLETE_ABORT, 6, False, FENCED),
        (STATES.PREPARE_COMMIT, 4, True, CONCURRENT),
        (STATES.PREPARE_COMMIT, 4, False, CONCURRENT),
        (STATES.PREPARE_COMMIT, 5, False, CONCURRENT),
        (STATES.PREPARE_ABORT, 4, False, CONCURRENT),
        (STATES.PREPARE_ABORT, 9, True, CONCURRENT),
    ],
)
def test_ends_with_tv2(
    harness: ShardHarness, state: TransactionState, epoch: int, commit: bool, outcome: int | type[MoldauError]
) -> None:
    before = in_state(state)
    harness.put("t", before)
    if not isinstance(outcome, int):
        with pytest.raises(outcome):
            harness.end((7, epoch), commit=commit)
        assert harness.get() == before
        return
    assert harness.end((7, epoch), commit=commit) == (7, outcome)
    if outcome == 5:
        assert harness.get() == before
        return
    prepared = harness.get()
    assert prepared.state is (STATES.PREPARE_COMMIT if commit else STATES.PREPARE_ABORT)
    assert (prepared.producer_epoch, prepared.last_producer_epoch, prepared.client_version) == (6, 5, TV2)
    (markers,) = harness.complete()
    assert (markers.producer_id, markers.producer_epoch, markers.transaction_version) == (7, 6, TV2)
    assert markers.partitions == ({P0} if state is STATES.ONGOING else frozenset())
    complete = harness.get()
    assert complete.state is (STATES.COMPLETE_COMMIT if commit else STATES.COMPLETE_ABORT)
    assert (complete.producer_epoch, complete.partitions) == (6, frozenset())


@pytest.mark.parametrize("state", [*IDLE, STATES.ONGOING])
def test_tv2_compares_the_producer_id(harness: ShardHarness, state: TransactionState) -> None:
    harness.put("t", in_state(state))
    for epoch in (4, 5):
        with pytest.raises(InvalidProducerIdMappingError):
            harness.end((8, epoch))
    with pytest.raises(InvalidProducerIdMappingError):
        harness.end((7, 5), transactional_id="other")


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_replaces_an_exhausted_producer_id(harness: ShardHarness, commit: bool) -> None:
    harness.put("t", in_state(STATES.ONGOING, epoch=LAST_EPOCH))
    assert harness.end((7, LAST_EPOCH), commit=commit) == (1001, 0)
    prepared = harness.get()
    assert (prepared.producer_id, prepared.producer_epoch) == (7, PRODUCER_EPOCH_MAX)
    assert prepared.next_producer_id == 1001
    # The producer uses its new id already.
    with pytest.raises(ConcurrentTransactionsError):
        harness.add((1001, 0), P0)
    with pytest.raises(ConcurrentTransactionsError):
        harness.end((1001, 0), commit=False)
    (markers,) = harness.complete()
    assert (markers.producer_id, markers.producer_epoch) == (7, PRODUCER_EPOCH_MAX)
    complete = harness.get()
    assert (complete.producer_id, complete.producer_epoch, complete.next_producer_id) == (1001, 0, -1)
    assert (complete.previous_producer_id, complete.last_producer_epoch) == (7, LAST_EPOCH)
    # Repetitions of both requests.
    assert harness.end((7, LAST_EPOCH), commit=commit) == (1001, 0)
    with pytest.raises(InvalidTransactionStateError):
        harness.end((7, LAST_EPOCH), commit=not commit)
    assert harness.init(expected=(7, LAST_EPOCH)) == (1001, 0)
    assert harness.next_producer_id == 1001


def test_a_repeated_end_with_another_producer_id_succeeds_after_a_failover(harness: ShardHarness) -> None:
    harness.put("t", in_state(STATES.ONGOING, epoch=LAST_EPOCH))
    harness.end((7, LAST_EPOCH))
    harness.reload()
    harness.complete()
    harness.reload()
    assert harness.end((7, LAST_EPOCH)) == (1001, 0)


def test_an_old_producer_cannot_end_after_a_new_one_replaced_the_producer_id(harness: ShardHarness) -> None:
    harness.put("t", in_state(STATES.EMPTY, producer_id=8, epoch=0, previous=7))
    for commit in (True, False):
        with pytest.raises(ProducerFencedError):
            harness.end((7, LAST_EPOCH), commit=commit)


def test_an_abort_at_the_maximum_epoch_recovers(harness: ShardHarness) -> None:
    harness.put("t", in_state(STATES.ONGOING, epoch=PRODUCER_EPOCH_MAX))
    assert harness.end((7, PRODUCER_EPOCH_MAX), commit=False) == (1001, 0)
    harness.complete()
    assert (harness.get().producer_id, harness.get().producer_epoch) == (1001, 0)


def test_a_producer_id_of_zero_is_a_producer_id(harness: ShardHarness) -> None:
    harness.next_producer_id = -1
    harness.put("t", in_state(STATES.ONGOING, epoch=LAST_EPOCH))
    assert harness.end((7, LAST_EPOCH)) == (0, 0)
    harness.complete()
    assert harness.get().producer_id == 0


def test_a_fenced_producer_does_not_get_the_epoch_of_a_successor_without_tv2(harness: ShardHarness) -> None:
    old = harness.init()
    new = harness.init()
    harness.add(new, P0, client_version=TV0)
    harness.end(new, client_version=TV0)
    harness.complete()
    with pytest.raises(ProducerFencedError):
        harness.end(old)


# Markers


def test_no_marker_before_the_high_watermark(harness: ShardHarness) -> None:
    producer = harness.init()
    harness.add(producer, P0)
    before = harness.end_offset
    harness.end(producer)
    assert harness.take_markers(before) == []
    (markers,) = harness.take_markers(before + 1)
    assert markers.partitions == {P0}
    assert harness.take_markers() == []


def test_no_marker_before_the_high_watermark_after_a_load(harness: ShardHarness) -> None:
    first, second = harness.init("a"), harness.init("b")
    harness.add(first, P0, transactional_id="a")
    harness.add(second, P1, transactional_id="b")
    harness.end(first, transactional_id="a")
    middle = harness.end_offset
    harness.end(second, commit=False, transactional_id="b")
    harness.take_markers()
    harness.reload()
    assert [each.transactional_id for each in harness.take_markers(middle)] == ["a"]
    assert [(each.transactional_id, each.commit) for each in harness.take_markers()] == [("b", False)]


def test_complete_transactions_need_no_markers_after_a_load(harness: ShardHarness) -> None:
    producer = harness.init()
    for _ in range(3):
        harness.add(producer, P0)
        producer = harness.end(producer)
        harness.complete()
    harness.reload()
    assert harness.take_markers() == []


def test_a_late_completion_does_not_complete_another_transaction(harness: ShardHarness) -> None:
    producer = harness.init()
    harness.add(producer, P0)
    producer = harness.end(producer)
    (first,) = harness.complete()
    harness.add(producer, P0)
    harness.apply(harness.shard.complete_transaction(harness.now, first))
    assert harness.get().state is STATES.ONGOING
    harness.end(producer, commit=False)
    harness.apply(harness.shard.complete_transaction(harness.now, first))
    assert harness.get().state is STATES.PREPARE_ABORT


# Timeouts


def test_a_transaction_times_out_after_its_first_partition(harness: ShardHarness) -> None:
    producer = harness.init(timeout_ms=1_000)
    harness.now_ms += 5_000
    harness.tick()
    harness.add(producer, P0)
    started = harness.now_ms
    harness.now_ms += 900
    harness.add(producer, P1)
    harness.now_ms = started + 1_000
    harness.tick()
    assert harness.get().state is STATES.ONGOING
    assert harness.shard.next_deadline_ms(harness.now) == harness.now.monotonic_ms + 1
    harness.now_ms += 1
    harness.tick()
    metadata = harness.get()
    assert (metadata.state, metadata.producer_epoch) == (STATES.PREPARE_ABORT, producer.producer_epoch + 1)
    assert harness.shard.next_deadline_ms(harness.now) is None
    harness.complete()
    # A commit that lost to the timeout, with both versions; the producer can continue.
    with pytest.raises(InvalidTransactionStateError):
        harness.end(producer, commit=True)
    with pytest.raises(ProducerFencedError):
        harness.end(producer, commit=True, client_version=TV0)
    assert harness.end(producer, commit=False) == (producer.producer_id, producer.producer_epoch + 1)


def test_a_transaction_is_reported_before_and_when_it_times_out(harness: ShardHarness) -> None:
    client = ProducerClient("billing", "/10.0.0.7")
    producer = harness.init(client=client)
    harness.add(producer, P0)
    start_ms = harness.now_ms
    assert harness.shard.next_deadline_ms(harness.now) == harness.now.monotonic_ms + TIMEOUT_MS * 4 // 5
    harness.now_ms = start_ms + TIMEOUT_MS * 4 // 5
    harness.tick()
    harness.add(producer, P1)
    harness.tick()
    reported = LongTransaction("t", producer, client, 1, TIMEOUT_MS * 4 // 5, TIMEOUT_MS, False)
    assert harness.shard.take_long_transactions() == [reported]
    assert harness.get().state is STATES.ONGOING
    harness.now_ms = start_ms + TIMEOUT_MS + 1
    harness.tick()
    reported = LongTransaction("t", producer, client, 2, TIMEOUT_MS + 1, TIMEOUT_MS, True)
    assert harness.shard.take_long_transactions() == [reported]
    harness.complete()
    following = harness.init()
    harness.add(following, P0)
    harness.now_ms += TIMEOUT_MS - 1
    harness.tick()
    assert [each.producer for each in harness.shard.take_long_transactions()] == [following], "the next transaction"


def test_a_short_timeout_is_not_reported_before(harness: ShardHarness) -> None:
    harness.add(harness.init(timeout_ms=REPORTED_TIMEOUT_MIN_MS - 1), P0)
    harness.now_ms += REPORTED_TIMEOUT_MIN_MS - 1
    harness.tick()
    assert harness.shard.take_long_transactions() == []
    harness.now_ms += 1
    harness.tick()
    assert [each.is_timed_out for each in harness.shard.take_long_transactions()] == [True]


def test_only_ongoing_transactions_time_out(harness: ShardHarness) -> None:
    for state in (*IDLE, *PREPARED):
        harness.put(state.label, in_state(state))
    harness.now_ms += DAY_MS
    written = len(harness.log)
    harness.tick()
    assert len(harness.log) == written


def test_timeouts_are_found_after_a_load(harness: ShardHarness) -> None:
    producer = harness.init()
    harness.add(producer, P0)
    harness.reload()
    harness.now_ms += TIMEOUT_MS + 1
    harness.tick()
    assert harness.get().state is STATES.PREPARE_ABORT


def test_a_timeout_replaces_an_exhausted_producer_id(harness: ShardHarness) -> None:
    harness.put("t", in_state(STATES.ONGOING, epoch=LAST_EPOCH))
    harness.put("u", in_state(STATES.ONGOING, epoch=3))
    harness.now_ms += TIMEOUT_MS + 1
    harness.tick()
    assert (harness.get("t").producer_epoch, harness.get("t").next_producer_id) == (PRODUCER_EPOCH_MAX, 1001)
    assert (harness.get("u").producer_epoch, harness.get("u").next_producer_id) == (4, -1)
    assert harness.shard.take_timed_out_and_exhausted() == []


def test_a_transaction_that_ended_is_not_aborted_by_its_timeout(harness: ShardHarness) -> None:
    harness.put("t", in_state(STATES.ONGOING, epoch=LAST_EPOCH))
    harness.now_ms += TIMEOUT_MS + 1
    harness.apply(harness.shard.tick(harness.now))
    harness.end((7, LAST_EPOCH))
    assert harness.shard.take_timed_out_and_exhausted() == []
    prepared = harness.get()
    harness.apply(harness.shard.abort_timed_out(harness.now, "t", 5_000))
    harness.apply(harness.shard.abort_timed_out(harness.now, "other", 5_000))
    assert harness.get() == prepared


def test_a_timeout_stays_due_if_its_record_cannot_be_written(harness: ShardHarness) -> None:
    harness.put("t", in_state(STATES.ONGOING))
    harness.now_ms += TIMEOUT_MS + 1
    for _ in range(2):
        assert len(harness.shard.tick(harness.now).records) == 1
        due_ms = harness.shard.next_deadline_ms(harness.now)
        assert due_ms is not None
        assert due_ms <= harness.now.monotonic_ms


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_a_wall_clock_that_is_behind_does_not_delay_a_timeout(harness: ShardHarness, is_reloaded: bool) -> None:
    harness.add(harness.init(), P0)
    harness.tick()
    if is_reloaded:
        # The clock of the next coordinator is an hour behind.
        harness.reload()
    harness.wall_offset_ms = -3_600_000
    harness.tick()
    harness.now_ms += TIMEOUT_MS
    harness.tick()
    assert harness.get().state is STATES.ONGOING
    harness.now_ms += 1
    harness.tick()
    assert harness.get().state is STATES.PREPARE_ABORT
    assert [each.open_ms for each in harness.shard.take_long_transactions()] == [TIMEOUT_MS + 1]


def test_a_wall_clock_that_jumps_forward_does_not_time_out_a_transaction(harness: ShardHarness) -> None:
    harness.add(harness.init(), P0)
    harness.tick()
    harness.wall_offset_ms = 3_600_000
    harness.tick()
    assert harness.get().state is STATES.ONGOING


def test_the_next_transaction_has_its_own_timeout(harness: ShardHarness) -> None:
    producer = harness.init()
    harness.add(producer, P0)
    harness.now_ms += TIMEOUT_MS - 1
    harness.tick()
    following = harness.end(producer)
    harness.complete()
    harness.add(following, P0)
    harness.now_ms += TIMEOUT_MS
    harness.tick()
    assert harness.get().state is STATES.ONGOING
    harness.now_ms += 1
    harness.tick()
    assert harness.get().state is STATES.PREPARE_ABORT


def test_a_timeout_without_tv2_fences_the_producer(tv1: ShardHarness) -> None:
    producer = tv1.init()
    tv1.add(producer, P0, client_version=TV0)
    tv1.now_ms += TIMEOUT_MS + 1
    tv1.tick()
    metadata = tv1.get()
    assert (metadata.producer_epoch, metadata.client_version, metadata.last_producer_epoch) == (1, TV0, -1)
    tv1.complete()
    for commit in (True, False):
        with pytest.raises(ProducerFencedError):
            tv1.end(producer, commit=commit, client_version=TV0)


# Formats


@pytest.mark.parametrize(("transaction_version", "expected"), [(TV0, TV0), (TV1, TV1), (TV2, TV2)])
def test_records_have_the_version_of_the_cluster(transaction_version: int, expected: int) -> None:
    harness = ShardHarness(transaction_version)
    harness.init()
    assert harness.log[0][0].transaction_version == expected


# Expiration


def expire(harness: ShardHarness) -> int:
    """Returns the number of passes."""
    passes = 0
    while (result := harness.shard.expire_ids(harness.now)) is not None:
        harness.apply(result)
        passes += 1
    return passes


def test_unused_ids_expire() -> None:
    harness = ShardHarness(id_expiration_ms=DAY_MS)
    for state in (*IDLE, STATES.ONGOING, *PREPARED):
        harness.put(state.label, in_state(state))
    harness.now_ms += DAY_MS - 1
    expire(harness)
    assert harness.shard.get("Empty") is not None
    harness.now_ms += 1
    harness.put("recent", in_state(STATES.EMPTY)._replace(last_update_ms=harness.now_ms))
    expire(harness)
    assert [state.label for state in STATES if harness.shard.get(state.label)] == [
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
    ]
    assert harness.shard.get("recent") is not None
    with pytest.raises(InvalidProducerIdMappingError):
        harness.add((7, 5), P0, transactional_id="Empty")
    harness.reload()
    assert harness.shard.get("Empty") is None
    assert harness.init("Empty") == (1001, 0)


def test_many_ids_expire_in_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.transactions.shard.IDS_PER_EXPIRATION_PASS", 10)
    harness = ShardHarness(id_expiration_ms=DAY_MS)
    for number in range(35):
        harness.init(f"t{number}")
    harness.now_ms += DAY_MS
    assert expire(harness) == 4
    assert expire(harness) == 1
    assert all(harness.shard.get(f"t{number}") is None for number in range(35))


# Descriptions


def test_transactions_are_described(harness: ShardHarness) -> None:
    harness.put("t", in_state(STATES.ONGOING))
    description = harness.apply(harness.shard.describe("t"))
    assert description == (7, 5, STATES.ONGOING, TIMEOUT_MS, 1_700_000_000_000, frozenset({P0}), UNKNOWN_CLIENT)
    with pytest.raises(TransactionalIdNotFoundError):
        harness.shard.describe("other")


def test_transactions_are_listed_by_filters(harness: ShardHarness) -> None:
    harness.put("a", in_state(STATES.EMPTY, producer_id=1))
    harness.put("b", in_state(STATES.ONGOING, producer_id=2))
    harness.put("c", in_state(STATES.COMPLETE_COMMIT, producer_id=3))
    harness.now_ms += 100

    def listed(**filters: object) -> str:
        found = harness.apply(harness.shard.list_transactions(harness.now, TransactionFilter(**filters)))  # type: ignore[arg-type]
        assert all(isinstance(each, ListedTransaction) for each in found)
        return "".join(each.transactional_id for each in found)

    assert listed() == "abc"
    assert listed(states=frozenset({STATES.ONGOING, STATES.EMPTY})) == "ab"
    assert listed(states=frozenset()) == ""
    assert listed(producer_ids=frozenset({3, 1})) == "ac"
    assert listed(duration_ms=99) == "abc"
    assert listed(duration_ms=100) == "a"
    assert listed(duration_ms=0, producer_ids=frozenset({2})) == "b"


def test_states_are_spelled_as_in_kafka() -> None:
    assert [state.label for state in STATES] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]


def test_responses_have_no_producer_id_by_default() -> None:
    assert ProducerIdAndEpoch() == (-1, -1)
