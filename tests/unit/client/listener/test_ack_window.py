"""AckWindow: the committed offset is the first one that is not acknowledged, in any order of acknowledgements."""

import random

from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.listener.ack_window import AckWindow
from moldau.client.record import ConsumerRecord, TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


def record(offset: int, partition: TopicPartition = FIRST, value: bytes = b"value") -> ConsumerRecord:
    return ConsumerRecord(*partition, offset, 0, False, None, value, [("name", b"x")], leader_epoch=7)


def window(*offsets: int, records_max: int = 100, bytes_max: int = 1_000) -> AckWindow:
    created = AckWindow(records_max, bytes_max)
    for offset in offsets:
        created.add(record(offset))
    return created


def to_commit(created: AckWindow) -> dict[TopicPartition, int]:
    return {partition: each.offset for partition, each in created.offsets_to_commit().items()}


def test_the_offset_after_the_last_acknowledged_record_is_committed() -> None:
    created = window(3, 4, 5)
    assert created.offsets_to_commit() == {}
    created.acknowledge(FIRST, 3)
    assert created.offsets_to_commit() == {FIRST: OffsetAndMetadata(4, leader_epoch=7)}
    created.acknowledge(FIRST, 4)
    assert to_commit(created) == {FIRST: 5}


def test_a_record_that_is_not_acknowledged_holds_back_later_ones() -> None:
    created = window(3, 4, 5)
    created.acknowledge(FIRST, 5)
    created.acknowledge(FIRST, 4)
    assert to_commit(created) == {}
    assert created.records == 3, "the window starts at the first record that is not acknowledged"
    created.acknowledge(FIRST, 3)
    assert to_commit(created) == {FIRST: 6}
    assert (created.records, created.bytes) == (0, 0)


def test_offsets_may_have_gaps() -> None:
    created = window(3, 10, 20)
    created.acknowledge(FIRST, 3)
    created.acknowledge(FIRST, 10)
    assert to_commit(created) == {FIRST: 11}


def test_partitions_are_independent() -> None:
    created = window(3)
    created.add(record(8, SECOND))
    created.acknowledge(SECOND, 8)
    assert to_commit(created) == {SECOND: 9}


def test_an_offset_is_committed_once() -> None:
    created = window(3, 4)
    created.acknowledge(FIRST, 3)
    committed = created.offsets_to_commit()
    created.acknowledge(FIRST, 4)
    created.on_committed(committed)
    assert to_commit(created) == {FIRST: 5}, "acknowledged during the commit"
    created.on_committed(created.offsets_to_commit())
    assert to_commit(created) == {}


def test_acknowledging_twice_changes_nothing() -> None:
    created = window(3, 4)
    for offset in (4, 4, 3, 3):
        created.acknowledge(FIRST, offset)
    assert to_commit(created) == {FIRST: 5}
    assert created.records == 0


def test_revoked_partitions_cannot_be_acknowledged() -> None:
    created = window(3, 4)
    created.acknowledge(FIRST, 3)
    created.remove([FIRST, SECOND])
    created.acknowledge(FIRST, 4)
    assert not created.contains(FIRST, 4)
    assert to_commit(created) == {}
    assert (created.records, created.bytes) == (0, 0)


def test_records_that_are_received_again_are_acknowledged_again() -> None:
    created = window(3, 4, 5)
    created.acknowledge(FIRST, 5)
    before = created.assignment_of(FIRST)
    created.add(record(3))
    assert created.assignment_of(FIRST) is not before
    assert created.records == 1
    created.acknowledge(FIRST, 3)
    assert to_commit(created) == {FIRST: 4}


def test_the_window_is_limited_by_records_and_bytes() -> None:
    assert not window(1, records_max=2).is_full
    full = window(1, 2, records_max=2)
    assert full.is_full
    full.acknowledge(FIRST, 2)
    assert full.is_full, "the first record holds it back"
    full.acknowledge(FIRST, 1)
    assert not full.is_full
    # A value of 5 bytes, and a header with a name of 4 and a value of 1.
    assert not window(1, bytes_max=11).is_full
    assert window(1, bytes_max=10).is_full


def test_any_order_of_acknowledgements_commits_the_first_open_record() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        offsets = sorted(chance.sample(range(100), 20))
        created = window(*offsets)
        remaining = list(offsets)
        for offset in chance.sample(offsets, 20):
            created.acknowledge(FIRST, offset)
            remaining.remove(offset)
            before = [each for each in offsets if not remaining or each < remaining[0]]
            assert to_commit(created) == ({FIRST: before[-1] + 1} if before else {})
        assert (created.records, created.bytes) == (0, 0)
