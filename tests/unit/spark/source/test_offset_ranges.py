"""Division of offset ranges into tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.spark.source.offset_ranges import OffsetRange, split_ranges


def offsets(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


def test_without_limits_a_partition_is_a_task() -> None:
    assert split_ranges([offsets(1, 5, 9), offsets(0, 0, 100)]) == [offsets(0, 0, 100), offsets(1, 5, 9)]


def test_empty_ranges_have_no_task() -> None:
    assert split_ranges([offsets(0, 5, 5), offsets(1, 7, 3)], partitions_min=4) == []


def test_a_large_partition_is_divided_evenly() -> None:
    assert split_ranges([offsets(0, 10, 20)], records_max=4) == [
        offsets(0, 10, 13),
        offsets(0, 13, 16),
        offsets(0, 16, 20),
    ]
    assert split_ranges([offsets(0, 10, 20)], records_max=10) == [offsets(0, 10, 20)]


def test_enough_partitions_are_not_divided() -> None:
    ranges = [offsets(0, 0, 1000), offsets(1, 0, 1)]
    assert split_ranges(ranges, partitions_min=2) == ranges


def test_large_partitions_are_divided_until_there_are_enough() -> None:
    assert split_ranges([offsets(0, 0, 100)], partitions_min=4) == [offsets(0, at, at + 25) for at in (0, 25, 50, 75)]


def test_small_partitions_do_not_limit_the_division_of_large_ones() -> None:
    tasks = split_ranges([offsets(0, 0, 1000), offsets(1, 0, 1), offsets(2, 0, 1)], partitions_min=6)
    assert len(tasks) == 6
    assert [each.size for each in tasks if each.partition == 0] == [250] * 4


def test_both_limits_together_satisfy_each() -> None:
    assert len(split_ranges([offsets(0, 0, 100)], partitions_min=3, records_max=10)) == 10
    assert len(split_ranges([offsets(0, 0, 100)], partitions_min=20, records_max=50)) == 20


def test_a_range_is_never_divided_below_one_offset() -> None:
    assert split_ranges([offsets(0, 0, 2)], partitions_min=8) == [offsets(0, 0, 1), offsets(0, 1, 2)]


@given(
    st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 5000)), min_size=1, max_size=8),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(100, 10_000),
)
def test_tasks_cover_every_offset_once(
    partitions: list[tuple[int, int]], partitions_min: int | None, records_max: int | None
) -> None:
    ranges = [offsets(index, start, start + size) for index, (start, size) in enumerate(partitions)]
    tasks = split_ranges(ranges, partitions_min=partitions_min, records_max=records_max)
    assert all(each.size > 0 for each in tasks)
    assert records_max is None or all(each.size <= records_max for each in tasks)
    for whole in ranges:
        parts = [each for each in tasks if each.partition == whole.partition]
        bounds = [whole.start, *(each.end for each in parts)]
        assert [each.start for each in parts] == bounds[:-1]
        assert bounds[-1] == whole.end


@pytest.mark.parametrize(("start", "end", "text"), [(3, 9, "t-0 from 3 to 9")])
def test_a_range_is_shown_with_partition_and_offsets(start: int, end: int, text: str) -> None:
    assert str(offsets(0, start, end)) == text
