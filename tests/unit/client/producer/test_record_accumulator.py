"""The record accumulator: what is sent when, and what failures mean. A model of a broker checks random runs."""

import random
import re
import sys
from typing import Any

import pytest

from moldau.client.errors import ConnectionLostError, ErrorCode, KafkaError
from moldau.client.producer.producer_batch import ProducerBatch, ProduceResult, ProducerIdAndEpoch, estimate_record_size
from moldau.client.producer.record_accumulator import EPOCH_MAX, RecordAccumulator
from moldau.client.record import TopicPartition
from moldau.records.batch import SEQUENCE_LIMIT, Batch
from moldau.records.batch_builder import Section, build_batch
from moldau.records.record import Record, iterate_records

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 0)
LOST = ConnectionLostError("gone")
OUT_OF_ORDER = KafkaError(ErrorCode.out_of_order_sequence_number)
TOO_LARGE = KafkaError(ErrorCode.message_too_large)
DELIVERY_MS = 1_000


def accumulator(**settings: Any) -> RecordAccumulator:
    made = RecordAccumulator(
        **{
            "linger_ms": 0,
            "batch_size": 200,
            "buffer_memory": 10_000,
            "delivery_timeout_ms": DELIVERY_MS,
            "in_flight_max": 5,
            "idempotent": True,
            **settings,
        }
    )
    made.set_producer_id(1, 0)
    return made


def put(to: RecordAccumulator, *values: str, partition: TopicPartition = ORDERS, now_ms: int = 0) -> None:
    for value in values:
        record = Record(timestamp=now_ms, value=value.encode())
        to.append(partition, record, estimate_record_size(record), value, now_ms)


def put_section(to: RecordAccumulator, *values: str, now_ms: int = 0) -> None:
    """The values joined are the section's one ticket."""
    records = [Record(timestamp=now_ms, value=value.encode()) for value in values]
    section = Section(Batch(build_batch(records)).section, len(values), now_ms, now_ms)
    to.append_section(ORDERS, section, " ".join(values), now_ms)


def batches(to: RecordAccumulator, *values: str, partition: TopicPartition = ORDERS) -> None:
    """Each value in a batch of its own."""
    for value in values:
        put(to, value, partition=partition)
        to.close_batches()


def values(batch: ProducerBatch) -> list[str]:
    return [record.value.decode() for record in iterate_records(Batch(batch.data)) if record.value is not None]


def known(to: RecordAccumulator, partition: TopicPartition = ORDERS) -> None:
    """Acknowledges a first batch, so that several may be in flight."""
    batches(to, "first", partition=partition)
    to.complete_batch(to.drain_next(partition), 0)


def take_all(to: RecordAccumulator, partition: TopicPartition = ORDERS, now_ms: int = 10_000) -> list[ProducerBatch]:
    taken = []
    while partition in to.ready_partitions(now_ms):
        taken.append(to.drain_next(partition))
    return taken


def sequences(*taken: ProducerBatch) -> list[tuple[int, int]]:
    return [(Batch(each.data).producer_epoch, Batch(each.data).base_sequence) for each in taken]


def test_a_batch_that_cannot_be_encoded_leaves_no_sequence_gap() -> None:
    to = accumulator()
    known(to)
    broken = Record(value=b"x", headers=(("\ud800", b""),))
    to.append(ORDERS, broken, estimate_record_size(broken), "broken", 0)
    to.close_batches()
    batches(to, "next")
    for _ in range(2):
        with pytest.raises(UnicodeEncodeError):
            to.drain_next(ORDERS)
    assert not to.is_complete(to.close_batches())
    error = KafkaError(ErrorCode.invalid_record)
    assert [(each.batch.payload.handles, each.error) for each in to.fail_next(ORDERS, error)] == [(["broken"], error)]
    (following,) = take_all(to)
    assert sequences(following) == [(0, 1)]
    to.complete_batch(following, 1)
    assert to.is_complete(sys.maxsize)
    assert to.has_memory(10_000)


# Batching


def test_records_share_a_batch_until_it_is_full() -> None:
    mine = accumulator(batch_size=61 + 3 * (12 + 10))
    put(mine, *(f"{number:010d}" for number in range(7)))
    first = mine.drain_next(ORDERS)
    assert first.payload.count == 3
    mine.complete_batch(first, 0)
    assert [each.payload.count for each in take_all(mine)] == [3, 1]


def test_a_batch_lingers_unless_it_is_full_or_followed_by_another() -> None:
    mine = accumulator(linger_ms=5)
    put(mine, "a", now_ms=100)
    assert mine.ready_partitions(104) == []
    assert mine.next_wakeup_ms(104) == 105
    assert mine.ready_partitions(105) == [ORDERS]
    put(mine, "b" * 200, now_ms=101)
    assert mine.ready_partitions(101) == [ORDERS]


def test_a_sealed_batch_does_not_linger_and_takes_no_more() -> None:
    mine = accumulator(linger_ms=1_000_000)
    put(mine, "a")
    number = mine.close_batches()
    put(mine, "b")
    first = mine.drain_next(ORDERS)
    assert values(first) == ["a"]
    assert not mine.is_complete(number)
    mine.complete_batch(first, 0)
    assert mine.is_complete(number)
    assert not mine.is_complete(sys.maxsize)
    assert mine.ready_partitions(0) == []


def test_the_partition_with_the_oldest_batch_is_first() -> None:
    mine = accumulator()
    batches(mine, "a", partition=PAYMENTS)
    batches(mine, "b")
    assert mine.ready_partitions(0) == [PAYMENTS, ORDERS]


def test_memory_is_taken_and_given_back() -> None:
    mine = accumulator(buffer_memory=100)
    assert mine.has_memory(1_000)
    batches(mine, "x" * 50)
    assert mine.has_memory(38)
    assert not mine.has_memory(39)
    mine.complete_batch(mine.drain_next(ORDERS), 0)
    assert mine.has_memory(100)


def test_fits_open_batch_is_false_if_a_record_starts_a_batch() -> None:
    mine = accumulator(batch_size=100)
    assert not mine.fits_open_batch(ORDERS, 10)
    put(mine, "a")
    assert mine.fits_open_batch(ORDERS, 20)
    assert not mine.fits_open_batch(ORDERS, 50)
    mine.close_batches()
    assert not mine.fits_open_batch(ORDERS, 1)


# Sequences


def test_nothing_is_sent_without_a_producer_id() -> None:
    mine = RecordAccumulator(
        linger_ms=0,
        batch_size=100,
        buffer_memory=100,
        delivery_timeout_ms=DELIVERY_MS,
        in_flight_max=5,
        idempotent=True,
    )
    put(mine, "a")
    assert mine.needs_producer_id
    assert mine.ready_partitions(0) == []
    mine.set_producer_id(77, 3)
    assert not mine.needs_producer_id
    batch = Batch(mine.drain_next(ORDERS).data)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 3, 0)


def test_a_producer_that_is_not_idempotent_has_no_sequences() -> None:
    mine = accumulator(idempotent=False)
    batches(mine, "a", "b")
    assert not mine.needs_producer_id
    for taken in take_all(mine):
        batch = Batch(taken.data)
        assert (batch.producer_id, batch.base_sequence) == (-1, -1)


def test_sequences_count_records_per_partition() -> None:
    mine = accumulator()
    put(mine, "a", "b", "c")
    put(mine, "x", partition=PAYMENTS)
    first = mine.drain_next(ORDERS)
    assert sequences(first, mine.drain_next(PAYMENTS)) == [(0, 0), (0, 0)]
    mine.complete_batch(first, 0)
    put(mine, "d")
    assert sequences(mine.drain_next(ORDERS)) == [(0, 3)]


def test_sequences_wrap() -> None:
    mine = accumulator()
    known(mine)
    mine._queues[ORDERS].next_sequence = SEQUENCE_LIMIT - 1
    batches(mine, "a", "b")
    assert sequences(*take_all(mine)) == [(0, SEQUENCE_LIMIT - 1), (0, 0)]


def test_one_batch_is_in_flight_until_the_first_acknowledgement() -> None:
    mine = accumulator()
    batches(mine, *"abcdefgh")
    (first,) = take_all(mine)
    mine.complete_batch(first, 0)
    assert len(take_all(mine)) == 5


# Failures


def test_in_flight_batches_are_resent_in_order_after_all_responses() -> None:
    mine = accumulator()
    known(mine)
    batches(mine, "a", "b", "c")
    one, two, three = take_all(mine)
    sent = sequences(one, two, three)
    mine.fail_batch(one, LOST, 0, 50)
    assert mine.ready_partitions(60) == []
    mine.fail_batch(three, LOST, 0, 50)
    mine.fail_batch(two, LOST, 0, 50)
    assert mine.ready_partitions(49) == []
    assert mine.next_wakeup_ms(10) == 50
    again = take_all(mine, now_ms=50)
    assert again == [one, two, three]
    assert sequences(*again) == sent


def test_new_records_do_not_overtake_those_that_are_sent_again() -> None:
    mine = accumulator()
    known(mine)
    batches(mine, "a")
    (one,) = take_all(mine)
    batches(mine, "b")
    mine.fail_batch(one, LOST, 0, 0)
    assert [values(each) for each in take_all(mine)] == [["a"], ["b"]]


def test_a_gap_behind_a_failed_batch_is_only_a_reason_to_send_again() -> None:
    mine = accumulator()
    known(mine)
    batches(mine, "a", "b")
    one, two = take_all(mine)
    assert mine.fail_batch(one, KafkaError(ErrorCode.not_enough_replicas), 0, 0) == []
    assert mine.fail_batch(two, OUT_OF_ORDER, 0, 0) == []
    assert sequences(*take_all(mine)) == [(0, 1), (0, 2)]


def test_a_lost_sequence_restarts_in_the_next_epoch() -> None:
    mine = accumulator()
    known(mine)
    batches(mine, "a", "b")
    one, two = take_all(mine)
    assert mine.fail_batch(one, OUT_OF_ORDER, 0, 0) == []
    assert mine.fail_batch(two, OUT_OF_ORDER, 0, 0) == []
    (again,) = take_all(mine)
    assert values(again) == ["a"]
    assert sequences(again) == [(1, 0)]
    mine.complete_batch(again, 7)
    assert sequences(*take_all(mine)) == [(1, 1)]


def test_other_partitions_keep_their_sequences() -> None:
    mine = accumulator()
    known(mine)
    known(mine, PAYMENTS)
    batches(mine, "a")
    mine.fail_batch(mine.drain_next(ORDERS), OUT_OF_ORDER, 0, 0)
    batches(mine, "x", partition=PAYMENTS)
    assert sequences(mine.drain_next(PAYMENTS), mine.drain_next(ORDERS)) == [(0, 1), (1, 0)]


def test_a_possibly_written_batch_is_not_resent_in_a_new_epoch() -> None:
    mine = accumulator()
    known(mine)
    batches(mine, "a", "b")
    one, two = take_all(mine)
    mine.fail_batch(one, LOST, 0, 0)
    mine.fail_batch(two, LOST, 0, 0)
    again = mine.drain_next(ORDERS)
    outcomes = mine.fail_batch(again, OUT_OF_ORDER, 0, 0)
    assert [(values(each.batch), each.error is not None) for each in outcomes] == [(["a"], True), (["b"], True)]
    batches(mine, "c")
    assert sequences(*take_all(mine)) == [(1, 0)]


def test_a_batch_given_up_leaves_no_gap_for_those_behind_it() -> None:
    mine = accumulator()
    known(mine)
    batches(mine, "bad", "good")
    bad, good = take_all(mine)
    (outcome,) = mine.fail_batch(bad, KafkaError(ErrorCode.invalid_record, "no"), 0, 0)
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.invalid_record
    assert mine.fail_batch(good, OUT_OF_ORDER, 0, 0) == []
    assert sequences(*take_all(mine)) == [(1, 0)]


def test_a_duplicate_was_written() -> None:
    mine = accumulator()
    batches(mine, "a")
    (outcome,) = mine.fail_batch(mine.drain_next(ORDERS), KafkaError(ErrorCode.duplicate_sequence_number), 0, 0)
    assert outcome.error is None
    assert outcome.base_offset == -1


def test_when_epochs_are_used_up_a_new_producer_id_is_wanted() -> None:
    mine = accumulator()
    mine.set_producer_id(1, EPOCH_MAX)
    known(mine)
    batches(mine, "a")
    mine.fail_batch(mine.drain_next(ORDERS), OUT_OF_ORDER, 0, 0)
    assert mine.needs_producer_id
    assert mine.ready_partitions(0) == []
    mine.set_producer_id(2, 0)
    assert Batch(mine.drain_next(ORDERS).data).producer_id == 2


def test_too_large_a_batch_is_split_and_fills_the_same_sequences() -> None:
    mine = accumulator()
    known(mine)
    put(mine, "a", "b", "c")
    mine.close_batches()
    batches(mine, "d")
    large, behind = take_all(mine)
    assert mine.fail_batch(large, TOO_LARGE, 0, 0) == []
    mine.fail_batch(behind, OUT_OF_ORDER, 0, 0)
    again = take_all(mine)
    assert [values(each) for each in again] == [["a"], ["b", "c"], ["d"]]
    assert [each.payload.handles for each in again] == [["a"], ["b", "c"], ["d"]]
    assert sequences(*again) == [(0, 1), (0, 2), (0, 4)]
    mine.complete_batch(again[0], 10)
    assert mine.fail_batch(again[1], TOO_LARGE, 0, 0) == []
    mine.fail_batch(again[2], OUT_OF_ORDER, 0, 0)
    assert [values(each) for each in take_all(mine)] == [["b"], ["c"], ["d"]]


def test_too_large_a_record_fails() -> None:
    mine = accumulator()
    batches(mine, "a")
    (outcome,) = mine.fail_batch(mine.drain_next(ORDERS), TOO_LARGE, 0, 0)
    assert outcome.error is TOO_LARGE


def test_a_section_uses_one_sequence_number_per_record_in_order() -> None:
    mine = accumulator(linger_ms=1_000_000)
    known(mine)
    put(mine, "a")
    put_section(mine, "b", "c", "d")
    put(mine, "e")
    mine.close_batches()
    taken = take_all(mine)
    assert [values(each) for each in taken] == [["a"], ["b", "c", "d"], ["e"]]
    assert sequences(*taken) == [(0, 1), (0, 2), (0, 5)]


def test_a_section_that_is_too_large_is_not_split_and_leaves_no_gap() -> None:
    mine = accumulator()
    known(mine)
    put_section(mine, "a", "b")
    put_section(mine, "c")
    large, behind = take_all(mine)
    (outcome,) = mine.fail_batch(large, KafkaError(ErrorCode.message_too_large, "says the broker"), 0, 0)
    assert outcome.error is not None
    size = len(large.data)
    assert re.search(rf"2 records.*{size} bytes.*batch\.size.*says the broker", str(outcome.error))
    mine.fail_batch(behind, OUT_OF_ORDER, 0, 0)
    (again,) = take_all(mine)
    assert (values(again), sequences(again)) == (["c"], [(1, 0)])


def test_a_section_that_may_be_written_is_not_written_again_under_another_epoch() -> None:
    mine = accumulator()
    known(mine)
    batches(mine, "a")
    put_section(mine, "b", "c")
    refused, lost = take_all(mine)
    mine.fail_batch(refused, KafkaError(ErrorCode.invalid_record, "no"), 0, 0)
    (given_up,) = mine.fail_batch(lost, LOST, 0, 0)
    assert given_up.batch is lost
    assert given_up.error is LOST
    assert mine.has_memory(10_000)


def test_batches_expire_after_the_delivery_timeout() -> None:
    mine = accumulator()
    batches(mine, "a")
    batch = mine.drain_next(ORDERS)
    assert mine.expire_batches(DELIVERY_MS) == []
    mine.fail_batch(batch, LOST, DELIVERY_MS - 1, 0)
    assert mine.next_wakeup_ms(DELIVERY_MS - 1) == DELIVERY_MS
    (outcome,) = mine.expire_batches(DELIVERY_MS)
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.request_timed_out
    assert "gone" in str(outcome.error)
    assert mine.is_complete(sys.maxsize)


def test_a_failure_past_the_time_is_the_last() -> None:
    mine = accumulator()
    batches(mine, "a")
    (outcome,) = mine.fail_batch(mine.drain_next(ORDERS), LOST, DELIVERY_MS, 0)
    assert outcome.error is LOST


def test_an_unsent_batch_is_reenqueued_in_order() -> None:
    mine = accumulator()
    known(mine)
    batches(mine, "a", "b")
    one, two = take_all(mine)
    mine.reenqueue(two, LOST)
    mine.reenqueue(one, LOST)
    assert take_all(mine) == [one, two]
    assert not one.is_possibly_written


def test_all_waiting_batches_can_be_aborted() -> None:
    mine = accumulator()
    batches(mine, "a", "b")
    mine.drain_next(ORDERS)
    assert [values_of(each) for each in mine.abort_undrained(LOST)] == [["b"]]


def values_of(outcome: ProduceResult) -> list[str]:
    return [value for handle, _, _ in outcome.batch.payload.record_results(0, 0) for value in handle.split()]


# The whole, against a broker that keeps Kafka's rules


class Partition:
    """A leader's log with the sequence of each producer epoch, as Kafka checks it: also its gap, that a producer it
    does not know may begin with any sequence."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.epoch = -1
        self.next_sequence = 0
        self.recent: dict[tuple[int, int], int] = {}

    def append(self, batch: Batch) -> int:
        key = (batch.producer_epoch, batch.base_sequence)
        if key in self.recent:
            return self.recent[key]
        if batch.producer_epoch < self.epoch:
            raise KafkaError(ErrorCode.invalid_producer_epoch)
        if batch.producer_epoch > self.epoch:
            if self.epoch >= 0 and batch.base_sequence != 0:
                raise OUT_OF_ORDER
        elif batch.base_sequence != self.next_sequence:
            raise OUT_OF_ORDER
        self.epoch = batch.producer_epoch
        self.next_sequence = batch.base_sequence + batch.count
        self.recent[key] = len(self.log)
        self.log += [record.value.decode() for record in iterate_records(batch) if record.value is not None]
        return self.recent[key]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_fails_records_are_in_the_log_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    mine = accumulator(batch_size=120, delivery_timeout_ms=400, linger_ms=3)
    leader = Partition()
    under_way: list[tuple[ProducerBatch, int | KafkaError]] = []
    """Batches with their responses in flight, in order."""
    outcomes: list[ProduceResult] = []
    now_ms, sent = 0, 0
    faults = seed % 3 + 1

    def deliver(batch: ProducerBatch) -> int | KafkaError:
        fate = chance.random() * (10 / faults)
        if fate < 0.4:
            return KafkaError(ErrorCode.not_enough_replicas)
        if fate < 0.5 and batch.payload.count > 1:
            return TOO_LARGE
        if fate < 0.55:
            return KafkaError(ErrorCode.invalid_record)
        if fate < 0.8:
            return LOST
        try:
            offset = leader.append(Batch(batch.data))
        except KafkaError as error:
            return error
        return LOST if fate < 1.2 else offset

    while now_ms < 3_000 or not mine.is_complete(sys.maxsize):
        now_ms += chance.randrange(1, 8)
        if sent < 300 and chance.random() < 0.7:
            add = put_section if chance.random() < 0.3 else put
            add(mine, *(f"{sent + number:05d}" for number in range(3)), now_ms=now_ms)
            sent += 3
        outcomes += mine.expire_batches(now_ms)
        while mine.ready_partitions(now_ms) and chance.random() < 0.8:
            batch = mine.drain_next(ORDERS)
            under_way.append((batch, deliver(batch)))
        while under_way and chance.random() < 0.6:
            batch, answer = under_way.pop(0)
            if isinstance(answer, int):
                outcomes += mine.complete_batch(batch, answer)
            else:
                outcomes += mine.fail_batch(batch, answer, now_ms, now_ms + 5)

    handles = [value for outcome in outcomes for value in values_of(outcome)]
    assert sorted(handles) == [f"{number:05d}" for number in range(sent)]
    assert len(leader.log) == len(dict.fromkeys(leader.log)), "a record was written twice"
    assert leader.log == sorted(leader.log), "records changed their order"
    for outcome in outcomes:
        if outcome.error is None:
            start = outcome.base_offset
            assert leader.log[start : start + outcome.batch.payload.count] == values_of(outcome)
        elif not outcome.batch.is_possibly_written:
            assert not set(values_of(outcome)) & set(leader.log), "a record said to be refused was written"
    assert mine.has_memory(10_000), "memory was not given back"
    assert len(leader.log) > sent // 4


# Leader changes


def test_a_new_leader_ends_the_backoff_of_a_failed_batch() -> None:
    to = accumulator()
    batches(to, "a")
    batch = to.drain_next(ORDERS, leader_epoch=3)
    to.fail_batch(batch, LOST, now_ms=0, retry_at_ms=100)
    to.end_backoffs(lambda partition, leader_epoch: leader_epoch < 3)
    assert to.ready_partitions(50) == [], "the leader is the same as before"
    to.end_backoffs(lambda partition, leader_epoch: (partition, leader_epoch) == (ORDERS, 3))
    assert to.ready_partitions(0) == [ORDERS]
    assert to.drain_next(ORDERS, leader_epoch=4) is batch
    to.fail_batch(batch, LOST, now_ms=0, retry_at_ms=100)
    to.end_backoffs(lambda partition, leader_epoch: leader_epoch < 4)
    assert to.ready_partitions(50) == [], "each leader is tried once without a backoff"


def test_a_new_leader_does_not_end_the_linger_of_a_new_batch() -> None:
    to = accumulator(linger_ms=10)
    put(to, "a")
    to.end_backoffs(lambda *_: True)
    assert to.ready_partitions(5) == []
    assert to.ready_partitions(10) == [ORDERS]


# Transactions


def test_batches_of_a_transactional_producer_say_so() -> None:
    to = accumulator(transactional=True)
    put(to, "a")
    put_section(to, "b")
    first = to.drain_next(ORDERS)
    assert Batch(first.data).is_transactional
    to.complete_batch(first, 0)
    assert Batch(to.drain_next(ORDERS).data).is_transactional


@pytest.mark.parametrize("code", [ErrorCode.out_of_order_sequence_number, ErrorCode.invalid_producer_epoch])
def test_a_gap_fails_the_transaction_and_stops_the_partition(code: ErrorCode) -> None:
    to = accumulator(transactional=True)
    known(to)
    batches(to, "a", "b", "c")
    first, second = to.drain_next(ORDERS), to.drain_next(ORDERS)
    (failed,) = to.fail_batch(first, KafkaError(code), 0, 0)
    assert failed.error is not None
    assert failed.error.code is code
    assert to.has_sequence_gap
    to.fail_batch(second, OUT_OF_ORDER, 0, 0)
    assert to.ready_partitions(10_000) == []
    to.abort_undrained(LOST)
    to.start_epoch(ProducerIdAndEpoch(1, 1))
    assert not to.has_sequence_gap
    batches(to, "d")
    again = Batch(to.drain_next(ORDERS).data)
    assert (again.producer_epoch, again.base_sequence) == (1, 0)


def test_a_later_batch_of_a_transaction_is_retried_in_order() -> None:
    to = accumulator(transactional=True)
    known(to)
    batches(to, "a", "b")
    first, second = to.drain_next(ORDERS), to.drain_next(ORDERS)
    assert to.fail_batch(first, LOST, 0, 0) == []
    assert to.fail_batch(second, OUT_OF_ORDER, 0, 0) == []
    assert not to.has_sequence_gap
    assert values(to.drain_next(ORDERS)) == ["a"]
    assert values(to.drain_next(ORDERS)) == ["b"]


def test_tv1_sends_to_a_partition_only_while_it_is_in_the_transaction() -> None:
    to = accumulator(transactional=True)
    producer = ProducerIdAndEpoch(1, 0)
    to.start_epoch(None)
    for number, value in enumerate(("a", "b")):
        batches(to, value)
        assert to.ready_partitions(0) == []
        assert not to.needs_producer_id
        to.resume_partitions([ORDERS], producer)
        batch = to.drain_next(ORDERS)
        assert Batch(batch.data).base_sequence == number
        to.complete_batch(batch, 0)
        to.suspend_partitions()
    assert not to.has_sequence_gap
