"""BatchVerification: one question for all partitions of a Produce request, retries, and errors that keep the order."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from moldau.error_codes import error_code
from moldau.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    MoldauError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    ProducerFencedError,
    TransactionAbortableError,
)
from moldau.logs.producer_state import ProducerStateManager, TransactionOwner, VerificationGuard
from moldau.logs.store import LogName
from moldau.platform.clock import Clock
from moldau.records.batch import Batch
from moldau.server import transaction_verification
from moldau.server.transaction_verification import BatchVerification, TransactionalBatch
from moldau.transactions.requests import AddPartitionsRequest, PartitionErrors
from moldau.transactions.transaction_metadata import TV0, TV2
from support.transaction_wire import transactional_batch

PRODUCER = (7, 3)
TV1_VERSION, TV2_VERSION = 11, 12
CONCURRENT = ConcurrentTransactionsError("markers are missing")


OWNER = TransactionOwner("t", "billing", "/10.0.0.7")


class FakePartition:
    """A partition in which the transaction is open or not."""

    def __init__(self, index: int, *, is_open: bool = False, error: MoldauError | None = None) -> None:
        self.name = LogName("orders", index)
        self.is_open = is_open
        self.error = error
        self.guards: list[VerificationGuard] = []
        self.ended: list[VerificationGuard] = []
        self.begun: list[tuple[int, int, int, bool]] = []
        self.producers = ProducerStateManager()

    @property
    def log(self) -> "FakePartition":
        return self

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        *,
        supports_epoch_bump: bool,
        owner: TransactionOwner,
    ) -> VerificationGuard | None:
        self.begun.append((producer_id, producer_epoch, sequence, supports_epoch_bump))
        if self.error is not None:
            raise self.error
        if self.is_open:
            return None
        guard = self.producers.begin_verification(
            producer_id, producer_epoch, sequence, supports_epoch_bump=supports_epoch_bump, owner=owner
        )
        assert guard is not None
        self.guards.append(guard)
        return guard

    def end_verification(self, guard: VerificationGuard, rejected: Batch, error: MoldauError | None) -> None:
        self.ended.append(guard)
        if error is not None:
            self.producers.note_rejected(rejected, error)
        self.producers.end_verification(guard)


class Questions:
    """A verifier with prepared responses, and a clock that each response advances."""

    def __init__(self, *responses: MoldauError | Mapping[int, MoldauError] | None, response_ms: int = 20) -> None:
        self.responses = list(responses)
        self.requests: list[AddPartitionsRequest] = []
        self.response_ms = response_ms
        self.now_ms = 5_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    async def verify(self, request: AddPartitionsRequest) -> PartitionErrors:
        self.requests.append(request)
        self.now_ms += self.response_ms
        response = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
        if isinstance(response, Mapping):
            return {partition: response.get(partition[1]) for partition in request.partitions}
        return dict.fromkeys(request.partitions, response)

    def ask(
        self,
        *partitions: FakePartition,
        version: int = TV2_VERSION,
        producers: Mapping[int, tuple[int, int]] | None = None,
    ) -> BatchVerification:
        batches = {
            each.name: TransactionalBatch(
                cast(Any, each),
                Batch(transactional_batch((producers or {}).get(each.name.partition, PRODUCER), b"v", sequence=0)),
            )
            for each in partitions
        }
        verification = BatchVerification(batches, OWNER)
        asyncio.run(verification.run(self, cast(Clock, self), version))
        return verification


def data(sequence: int) -> Batch:
    return Batch(transactional_batch(PRODUCER, b"v", sequence=sequence))


def code(verification: BatchVerification, partition: FakePartition) -> int:
    """Returns the error code of the verification."""
    try:
        verification.guard(cast(Any, partition))
    except MoldauError as error:
        return error_code(error)
    return 0


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_verification, "RETRY_BACKOFF_MS", 0)


@pytest.mark.parametrize(("version", "client_version"), [(TV1_VERSION, TV0), (TV2_VERSION, TV2)])
def test_one_question_for_all_partitions_without_an_open_transaction(version: int, client_version: int) -> None:
    first, open_, last = FakePartition(0), FakePartition(1, is_open=True), FakePartition(2)
    questions = Questions(None)
    verification = questions.ask(first, open_, last, version=version)
    assert questions.requests == [
        AddPartitionsRequest(
            transactional_id="t",
            producer_id=7,
            producer_epoch=3,
            partitions=frozenset({("orders", 0), ("orders", 2)}),
            client_version=client_version,
        )
    ]
    for partition in (first, last):
        assert verification.guard(cast(Any, partition)) is partition.guards[0]
    assert verification.guard(cast(Any, open_)) is None
    assert first.begun == [(7, 3, 0, version == TV2_VERSION)]


def test_no_question_if_the_transaction_is_open_everywhere() -> None:
    questions = Questions(None)
    partition = FakePartition(0, is_open=True)
    assert questions.ask(partition, FakePartition(1, is_open=True)).guard(cast(Any, partition)) is None
    assert questions.requests == []


def test_a_partition_that_cannot_be_verified_does_not_prevent_the_others() -> None:
    moved, error = FakePartition(0, error=NotLeaderOrFollowerError("moved")), ProducerFencedError("old")
    ok, fenced = FakePartition(1), FakePartition(2)
    questions = Questions({2: error})
    verification = questions.ask(moved, ok, fenced)
    assert questions.requests[0].partitions == {ok.name, fenced.name}
    assert [code(verification, each) for each in (moved, ok, fenced)] == [6, 0, 47]


@pytest.mark.parametrize("producers", [{1: (8, 3)}, {1: (7, 4)}])
def test_batches_of_several_producers(producers: Mapping[int, tuple[int, int]]) -> None:
    first, second = FakePartition(0), FakePartition(1)
    questions = Questions(None)
    with pytest.raises(InvalidProducerIdMappingError):
        questions.ask(first, second, producers=producers)
    assert (questions.requests, first.begun, second.begun) == ([], [], [])


# Retries


def test_concurrent_transactions_are_retried_with_tv2() -> None:
    partitions = [FakePartition(0), FakePartition(1)]
    questions = Questions({1: CONCURRENT}, CONCURRENT, None)
    verification = questions.ask(*partitions)
    assert [code(verification, each) for each in partitions] == [0, 0]
    assert [request.partitions for request in questions.requests] == [{each.name for each in partitions}] * 3
    for partition in partitions:
        # Each attempt has its own guard, because a marker may have ended the transaction before.
        assert len(partition.begun) == 3
        assert partition.ended == partition.guards[:2]
        assert verification.guard(cast(Any, partition)) is partition.guards[2]


def test_the_retries_end_after_100_ms() -> None:
    questions = Questions(CONCURRENT)
    partition = FakePartition(0)
    assert code(questions.ask(partition), partition) == 51
    assert questions.now_ms == 5_100
    assert len(questions.requests) == 5


def test_a_slow_response_is_not_retried() -> None:
    questions = Questions(CONCURRENT, None, response_ms=100)
    partition = FakePartition(0)
    assert code(questions.ask(partition), partition) == 51


def test_concurrent_transactions_are_not_retried_without_tv2() -> None:
    questions = Questions(CONCURRENT, None)
    partition = FakePartition(0)
    assert code(questions.ask(partition, version=TV1_VERSION), partition) == 19
    assert len(questions.requests) == 1


def test_other_errors_are_not_retried() -> None:
    questions = Questions(NotCoordinatorError("moved"), None)
    partition = FakePartition(0)
    assert code(questions.ask(partition), partition) == 19
    assert len(questions.requests) == 1


# Guards and errors of the append


@pytest.mark.parametrize("error", [None, TransactionAbortableError("not in it"), CONCURRENT])
def test_every_guard_ends(error: MoldauError | None) -> None:
    partitions = [FakePartition(0), FakePartition(1)]
    verification = Questions({1: error} if error is not None else None).ask(*partitions)
    verification.end()
    verification.end()
    for partition in partitions:
        assert partition.ended == partition.guards


@pytest.mark.parametrize(
    ("error", "expected"),
    [(CONCURRENT, 51), (NotCoordinatorError("moved"), 19), (TransactionAbortableError("not in it"), 120)],
)
def test_later_batches_do_not_overtake_a_rejected_batch(error: MoldauError, expected: int) -> None:
    partition = FakePartition(0)
    verification = Questions(error, response_ms=100).ask(partition)
    assert code(verification, partition) == expected
    verification.end()
    guard = partition.producers.begin_verification(*PRODUCER, 1, supports_epoch_bump=True)
    with pytest.raises(MoldauError) as overtaking:
        partition.producers.check(data(1), guard)
    assert error_code(overtaking.value) == expected
    guard = partition.producers.begin_verification(*PRODUCER, 0, supports_epoch_bump=True)
    assert partition.producers.check(data(0), guard) is None


def test_retries_do_not_reject_a_batch() -> None:
    partition = FakePartition(0)
    verification = Questions(CONCURRENT, None).ask(partition)
    verification.end()
    assert not partition.producers._rejected_batches


def test_a_damaged_batch_does_not_hold_others_back() -> None:
    partition = FakePartition(0)
    raw = bytearray(transactional_batch(PRODUCER, b"v", sequence=0))
    raw[-1] ^= 1
    verification = BatchVerification(
        {partition.name: TransactionalBatch(cast(Any, partition), Batch(bytes(raw)))}, OWNER
    )
    questions = Questions(CONCURRENT, response_ms=100)
    asyncio.run(verification.run(questions, cast(Clock, questions), TV2_VERSION))
    assert code(verification, partition) == 51
    verification.end()
    assert partition.ended == partition.guards
    assert not partition.producers._rejected_batches
