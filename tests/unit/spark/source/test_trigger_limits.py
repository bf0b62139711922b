"""Limits on the size and delay of a micro-batch."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.client.record import TopicPartition
from moldau.spark.source.offset_ranges import TriggerLimits, cap_offsets, is_delayed, pending_offsets

A, B, C = (TopicPartition("t", index) for index in range(3))
MINUTE_MS = 60_000


def test_pending_offsets_are_counted_for_known_partitions() -> None:
    assert pending_offsets({A: 10, B: 0}, {A: 15, B: 3, C: 100}) == 8


def test_a_truncated_partition_has_no_pending_offsets() -> None:
    assert pending_offsets({A: 10, B: 0}, {A: 4, B: 3}) == 3


def test_a_batch_below_the_limit_is_whole() -> None:
    assert cap_offsets({A: 0, B: 0}, {A: 5, B: 5}, 10) == {A: 5, B: 5}


def test_each_partition_has_its_share_in_proportion() -> None:
    assert cap_offsets({A: 0, B: 100, C: 7}, {A: 60, B: 130, C: 17}, 50) == {A: 30, B: 115, C: 12}


def test_a_small_partition_is_not_starved_by_a_large_one() -> None:
    assert cap_offsets({A: 0, B: 0}, {A: 1_000_000, B: 1}, 10) == {A: 9, B: 1}


def test_a_partition_with_nothing_to_read_stays_where_it_ends() -> None:
    assert cap_offsets({A: 0, B: 8}, {A: 100, B: 8}, 10) == {A: 10, B: 8}
    assert cap_offsets({A: 0, B: 8}, {A: 100, B: 3}, 10) == {A: 10, B: 3}


def test_shares_of_offsets_that_no_float_holds_are_exact() -> None:
    far = 2**62
    assert cap_offsets({A: far}, {A: far + 10**6}, 1) == {A: far + 1}


@given(
    st.lists(st.tuples(st.integers(0, 2**60), st.integers(0, 2**40)), min_size=1, max_size=20), st.integers(1, 2**45)
)
def test_a_capped_batch_advances_within_its_ends_and_the_limit(partitions: list[tuple[int, int]], limit: int) -> None:
    start = {TopicPartition("t", index): begin for index, (begin, _) in enumerate(partitions)}
    end = {TopicPartition("t", index): begin + size for index, (begin, size) in enumerate(partitions)}
    batch = cap_offsets(start, end, limit)
    for partition, offset in batch.items():
        assert start[partition] <= offset <= end[partition]
        assert offset > start[partition] or end[partition] == start[partition]
    # Each partition that is rounded up to 1 may exceed the limit by 1.
    assert pending_offsets(start, batch) <= limit + len(partitions)


def test_a_batch_waits_for_the_minimum() -> None:
    limits = TriggerLimits(offsets_min=100, delay_max_ms=MINUTE_MS)
    assert is_delayed(limits, 99, since_last_ms=10)
    assert not is_delayed(limits, 100, since_last_ms=10)


def test_no_batch_waits_longer_than_the_delay() -> None:
    limits = TriggerLimits(offsets_min=100, delay_max_ms=MINUTE_MS)
    assert is_delayed(limits, 1, since_last_ms=MINUTE_MS - 1)
    assert not is_delayed(limits, 1, since_last_ms=MINUTE_MS)


def test_the_first_batch_and_those_without_a_limit_never_wait() -> None:
    assert not is_delayed(TriggerLimits(offsets_min=100), 1, since_last_ms=None)
    assert not is_delayed(TriggerLimits(), 1, since_last_ms=10)


def test_the_default_maximum_delay_is_15_minutes() -> None:
    assert TriggerLimits().delay_max_ms == 15 * MINUTE_MS
