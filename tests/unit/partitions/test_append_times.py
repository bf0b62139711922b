"""Append times: exact for recent records, within bounds for older ones, in bounded memory."""

import random

import pytest

from moldau.partitions.append_times import AGE_DIVISOR, NOTE_INTERVAL_MS, NOTES_MAX, AppendTimes


def noted(appends: list[int]) -> AppendTimes:
    """Returns what a leader notes that appends one record at each of these times. The offset of a record is its
    number."""
    times = AppendTimes()
    next_ms = 0
    for offset, now_ms in enumerate(appends):
        if now_ms >= next_ms:
            times.note(offset, now_ms)
            next_ms = now_ms + NOTE_INTERVAL_MS
    return times


def test_recent_records_are_known_to_within_a_second() -> None:
    appends = [1_000_000 + 100 * number for number in range(300)]
    times = noted(appends)
    for offset, appended_ms in enumerate(appends):
        found = times.find(offset, appends[-1])
        assert found.earliest_ms <= appended_ms <= found.latest_ms <= found.earliest_ms + NOTE_INTERVAL_MS


def test_an_idle_time_is_not_part_of_the_range() -> None:
    times = noted([1_000_000, 1_000_400, 1_900_000])
    assert times.find(1, 1_900_000) == (1_000_000, 1_001_000)
    assert times.find(2, 1_900_100) == (1_900_000, 1_900_100)


@pytest.mark.parametrize("seed", range(5))
def test_every_record_of_a_long_history_is_within_its_range(seed: int) -> None:
    random_ = random.Random(seed)
    now_ms = 1_700_000_000_000
    appends = []
    for _ in range(20_000):
        now_ms += random_.choice([10, 200, 900, 3_000, 60_000 if random_.random() < 0.05 else 1])
        appends.append(now_ms)
    times = noted(appends)
    assert len(times) <= NOTES_MAX
    exact = 0
    for offset, appended_ms in enumerate(appends):
        found = times.find(offset, now_ms)
        assert found.earliest_ms <= appended_ms <= found.latest_ms
        if found.earliest_ms:
            age_ms = now_ms - found.latest_ms
            assert found.latest_ms - found.earliest_ms <= max(NOTE_INTERVAL_MS, age_ms // AGE_DIVISOR)
        exact += found.latest_ms - found.earliest_ms <= NOTE_INTERVAL_MS
    assert exact > 10


def test_busy_partitions_know_at_least_the_last_minutes() -> None:
    appends = [1_000_000 + 250 * number for number in range(100_000)]
    times = noted(appends)
    now_ms = appends[-1]
    covered_ms = now_ms - next(each for offset, each in enumerate(appends) if times.find(offset, now_ms).earliest_ms)
    assert covered_ms > 5 * 60_000


def test_records_before_all_notes_have_only_a_latest_time() -> None:
    times = AppendTimes()
    times.note(100, 5_000)
    assert times.find(99, 9_000) == (0, 5_000)
    assert times.find(100, 5_300) == (5_000, 5_300)


def test_a_wall_clock_that_is_set_back_gives_no_inverted_range() -> None:
    times = AppendTimes()
    times.note(0, 10_000)
    times.note(5, 4_000)
    assert times.find(3, 4_500) == (10_000, 10_000)
    assert times.find(5, 4_500) == (4_000, 4_500)
    for number in range(2 * NOTES_MAX):
        times.note(6 + number, 4_000 + 1_000 * number)
    assert len(times) <= NOTES_MAX
