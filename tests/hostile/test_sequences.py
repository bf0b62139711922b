"""Sequence numbers of idempotent producers: duplicates, gaps, wraparound and fencing."""

import pytest

from support.topics import Topics
from support.wire import (
    PRODUCE,
    WireClient,
    batch,
    end_offset,
    init_producer_id,
    new_producer_id,
    produce,
    produce_tree,
)

OUT_OF_ORDER, STALE_EPOCH, INVALID_REQUEST = 45, 47, 42
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
LAST_SEQUENCE = 2**31 - 1


class Sending:
    """One producer's batches on one partition."""

    def __init__(self, wire: WireClient, topic: str) -> None:
        self.wire = wire
        self.topic = topic
        self.producer_id = new_producer_id(wire)

    def __call__(self, sequence: int, count: int = 1, epoch: int = 0) -> tuple[int, int]:
        values = [b"%d" % number for number in range(count)]
        data = batch(values, producer_id=self.producer_id, producer_epoch=epoch, base_sequence=sequence)
        return produce(self.wire, self.topic, data)


@pytest.fixture
def send(wire: WireClient, topics: Topics) -> Sending:
    return Sending(wire, topics.create())


def test_producer_ids_differ(wire: WireClient) -> None:
    responses = [init_producer_id(wire) for _ in range(20)]
    assert all(response["error_code"] == 0 and response["producer_epoch"] == 0 for response in responses)
    assert len({response["producer_id"] for response in responses}) == 20


def test_an_empty_transactional_id_is_rejected(wire: WireClient) -> None:
    assert init_producer_id(wire, transactional_id="")["error_code"] == INVALID_REQUEST


def test_sequences_follow_each_other(send: Sending) -> None:
    assert [send(0), send(1, 3), send(4)] == [(0, 0), (0, 1), (0, 4)]


def test_a_duplicate_batch_returns_its_first_offset(send: Sending) -> None:
    assert [send(0, 2), send(0, 2), send(2), send(2), send(0, 2)] == [(0, 0), (0, 0), (0, 2), (0, 2), (0, 0)]
    assert end_offset(send.wire, send.topic) == 3


def test_the_last_five_batches_are_deduplicated(send: Sending) -> None:
    for sequence in range(7):
        assert send(sequence) == (0, sequence)
    assert [send(sequence) for sequence in range(2, 7)] == [(0, sequence) for sequence in range(2, 7)]
    code, offset = send(1)
    assert code in (OUT_OF_ORDER, 46)
    assert offset == -1
    assert end_offset(send.wire, send.topic) == 7


def test_a_sequence_gap_is_rejected_and_can_be_filled(send: Sending) -> None:
    assert [send(0), send(2), send(1), send(2)] == [(0, 0), (OUT_OF_ORDER, -1), (0, 1), (0, 2)]


def test_overlapping_batches_are_rejected(send: Sending) -> None:
    assert [send(0, 3), send(1, 3), send(0, 2)] == [(0, 0), (OUT_OF_ORDER, -1), (OUT_OF_ORDER, -1)]
    assert end_offset(send.wire, send.topic) == 3


def test_an_unknown_producer_may_start_at_any_sequence(send: Sending) -> None:
    assert [send(5), send(6), send(8)] == [(0, 0), (0, 1), (OUT_OF_ORDER, -1)]


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one(send: Sending) -> None:
    assert [send(0), send(3, epoch=1), send(0, epoch=1)] == [(0, 0), (OUT_OF_ORDER, -1), (0, 1)]
    assert [send(1, epoch=0), send(1, epoch=1)] == [(STALE_EPOCH, -1), (0, 2)]


def test_sequences_wrap_to_zero(send: Sending) -> None:
    assert [send(LAST_SEQUENCE - 1, 2), send(0)] == [(0, 0), (0, 2)]
    assert [send(LAST_SEQUENCE - 1, 2), send(2)] == [(0, 0), (OUT_OF_ORDER, -1)]


def test_sequences_wrap_within_a_batch(send: Sending) -> None:
    assert [send(LAST_SEQUENCE - 1, 4), send(2)] == [(0, 0), (0, 4)]
    assert send(LAST_SEQUENCE - 1, 4) == (0, 0)


def test_each_partition_has_its_own_sequence(wire: WireClient, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    producer_id = new_producer_id(wire)
    data = batch(producer_id=producer_id, producer_epoch=0, base_sequence=0)
    assert produce(wire, topic, data, partition=0) == (0, 0)
    assert produce(wire, topic, data, partition=1) == (0, 0)
    assert produce(wire, topic, data, partition=1) == (0, 0)


def test_a_rejected_batch_does_not_advance_the_sequence(send: Sending, wire: WireClient) -> None:
    assert send(0) == (0, 0)
    spoiled = batch(producer_id=send.producer_id, producer_epoch=0, base_sequence=1, crc=1)
    assert produce(wire, send.topic, spoiled) == (2, -1)
    assert send(1) == (0, 1)


def test_pipelined_batches_of_one_producer_stay_in_order(send: Sending) -> None:
    wire = send.wire
    sent = []
    for sequence in range(50):
        data = batch(producer_id=send.producer_id, producer_epoch=0, base_sequence=sequence)
        sent.append(wire.send(PRODUCE, 9, produce_tree(send.topic, data)))
    for offset, expected in enumerate(sent):
        correlation_id, response = wire.receive(PRODUCE, 9)
        (partition,) = response["responses"][0]["partition_responses"]
        assert (correlation_id, partition["error_code"], partition["base_offset"]) == (expected, 0, offset)


def test_a_transactional_batch_without_a_transaction_is_rejected(wire: WireClient, topics: Topics) -> None:
    producer_id = new_producer_id(wire)
    topic = topics.create()
    data = batch(attributes=0x10, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    code, _ = produce(wire, topic, data, transactional_id="tx")
    assert code != 0
    assert end_offset(wire, topic) == 0
