"""VerificationQueue: one verification per transactional id waits, and newer epochs win."""

from typing import NamedTuple

import pytest

from moldau.error_codes import error_code
from moldau.transactions import verification_queue
from moldau.transactions.requests import AddPartitionsRequest
from moldau.transactions.transaction_metadata import TV2
from moldau.transactions.verification_queue import VerificationQueue

NETWORK_EXCEPTION, INVALID_EPOCH = 13, 47


class Waiting(NamedTuple):
    request: AddPartitionsRequest


def waiting(id_: str = "t", *, producer_id: int = 7, epoch: int = 0, partitions: int = 1) -> Waiting:
    return Waiting(
        AddPartitionsRequest(
            transactional_id=id_,
            producer_id=producer_id,
            producer_epoch=epoch,
            partitions=frozenset(("orders", index) for index in range(partitions)),
            client_version=TV2,
        )
    )


@pytest.fixture
def queue() -> VerificationQueue[Waiting]:
    return VerificationQueue()


def test_all_transactional_ids_share_the_next_request(queue: VerificationQueue[Waiting]) -> None:
    added = [waiting(id_) for id_ in ("b", "a", "c")]
    assert [queue.add(each) for each in added] == [None] * 3
    assert queue
    assert queue.take() == added
    assert not queue
    assert queue.take() == []


def test_a_verification_that_was_taken_does_not_collide(queue: VerificationQueue[Waiting]) -> None:
    first, second = waiting(epoch=5), waiting(epoch=4)
    queue.add(first)
    queue.take()
    assert queue.add(second) is None
    assert queue.take() == [second]


def test_a_newer_epoch_replaces_an_older_one(queue: VerificationQueue[Waiting]) -> None:
    old, new = waiting(epoch=4), waiting(epoch=5)
    queue.add(old)
    rejected = queue.add(new)
    assert rejected is not None
    assert rejected.verification is old
    assert error_code(rejected.error) == INVALID_EPOCH
    assert queue.take() == [new]


def test_an_older_epoch_does_not_replace_a_newer_one(queue: VerificationQueue[Waiting]) -> None:
    new, old = waiting(epoch=5), waiting(epoch=4)
    queue.add(new)
    rejected = queue.add(old)
    assert rejected is not None
    assert rejected.verification is old
    assert error_code(rejected.error) == INVALID_EPOCH
    assert queue.take() == [new]


def test_a_repeated_request_replaces_the_first(queue: VerificationQueue[Waiting]) -> None:
    first, again = waiting(epoch=5), waiting(epoch=5)
    queue.add(first)
    rejected = queue.add(again)
    assert rejected is not None
    assert rejected.verification is first
    assert error_code(rejected.error) == NETWORK_EXCEPTION
    taken = queue.take()
    assert len(taken) == 1
    assert taken[0] is again


@pytest.mark.parametrize(("first", "second"), [((7, 32_767), (8, 0)), ((8, 0), (7, 32_767))])
def test_epochs_of_different_producer_ids_are_not_compared(
    queue: VerificationQueue[Waiting], first: tuple[int, int], second: tuple[int, int]
) -> None:
    earlier, later = (waiting(producer_id=producer_id, epoch=epoch) for producer_id, epoch in (first, second))
    queue.add(earlier)
    rejected = queue.add(later)
    assert rejected is not None
    assert rejected.verification is earlier
    assert error_code(rejected.error) == NETWORK_EXCEPTION
    assert queue.take() == [later]


def test_a_request_has_a_limited_number_of_partitions(
    queue: VerificationQueue[Waiting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification_queue, "PARTITIONS_PER_REQUEST_MAX", 10)
    added = [waiting(id_, partitions=count) for id_, count in (("a", 4), ("b", 6), ("c", 1), ("d", 11), ("e", 1))]
    for each in added:
        queue.add(each)
    assert [queue.take() for _ in range(5)] == [added[:2], added[2:3], added[3:4], added[4:], []]
