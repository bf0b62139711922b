"""Lag, rates and states of groups that behave in known ways."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from moldau.lag.state import (
    NO_RECORD,
    SAMPLES_MIN,
    WINDOW,
    LagState,
    Observation,
    PartitionLag,
    PartitionLagTracker,
    is_read_committed,
    unknown_lag,
)

START_MS = 1_700_000_000_000
INTERVAL_MS = 1_000


def found(second: int, committed: int, end: int, **more: Any) -> Observation:
    """A sample. Record number n is appended at second n, ten offsets a second, unless `unread_ms` says otherwise."""
    values = {
        "now_ms": second * 1_000,
        "wall_ms": START_MS + second * 1_000,
        "committed_offset": committed,
        "commit_timestamp_ms": START_MS + second * 1_000,
        "high_watermark": end,
        "last_stable_offset": end,
        "log_start_offset": 0,
        "unread_offset": committed if committed < end else NO_RECORD,
        "unread_ms": START_MS + committed * 100 if committed < end else -1,
    }
    return Observation(**{**values, **more})


def sample(observe: Callable[[int], Observation], count: int = 2 * WINDOW) -> list[PartitionLag]:
    tracker = PartitionLagTracker()
    return [tracker.observe(observe(second), INTERVAL_MS) for second in range(1, count + 1)]


def states(lags: list[PartitionLag]) -> list[str]:
    """Returns the states without repetitions."""
    return [str(each.state) for n, each in enumerate(lags) if n == 0 or each.state != lags[n - 1].state]


def test_a_consumer_that_keeps_up() -> None:
    lags = sample(lambda second: found(second, 10 * second, 10 * second))
    assert states(lags) == ["ok"]
    last = lags[-1]
    assert (last.lag_records, last.lag_ms, last.catch_up_s) == (0, 0, 0)
    assert last.commit_rate == last.produce_rate == 10


def test_a_slow_consumer_falls_behind_and_never_catches_up() -> None:
    lags = sample(lambda second: found(second, 4 * second, 10 * second))
    assert states(lags) == ["ok", "falling_behind"]
    assert lags[SAMPLES_MIN - 1].state is LagState.FALLING_BEHIND
    last = lags[-1]
    assert (last.lag_records, last.lag_ms) == (120, 12_000)
    assert (last.commit_rate, last.produce_rate, last.catch_up_s) == (4, 10, inf)


def test_a_fast_consumer_catches_up() -> None:
    lags = sample(lambda second: found(second, 30 * second, 10 * second + 1_000))
    assert states(lags) == ["ok"]
    assert lags[-1].lag_records == 600
    assert lags[-1].catch_up_s == 30


def test_a_lag_that_goes_up_and_down_is_fine() -> None:
    lags = sample(lambda second: found(second, 10 * second + 50 - 10 * (second % 4), 10 * second + 60))
    assert states(lags) == ["ok"]


def test_a_consumer_that_commits_the_same_offset_is_stalled() -> None:
    lags = sample(lambda second: found(second, 10, 10 * second + 50))
    assert states(lags) == ["ok", "stalled"]
    assert lags[-1].lag_ms == 19_000
    assert (lags[-1].commit_rate, lags[-1].catch_up_s) == (0, inf)


def test_a_consumer_without_commits_is_stopped_once_the_window_has_passed() -> None:
    lags = sample(lambda second: found(second, 10, 10 * second + 10, commit_timestamp_ms=START_MS + 1_000))
    stopped = [n for n, each in enumerate(lags, 1) if each.state is LagState.STOPPED]
    assert stopped == list(range(WINDOW + 1, 2 * WINDOW + 1))


def test_the_first_sample_of_a_new_coordinator_knows_that_a_consumer_has_stopped() -> None:
    (lag,) = sample(
        lambda second: found(second, 0, 100, commit_timestamp_ms=START_MS - 60_000, unread_ms=START_MS - 50_000), 1
    )
    assert lag.state is LagState.STOPPED
    assert (lag.lag_ms, lag.commit_rate, lag.catch_up_s) == (51_000, None, None)


def test_an_idle_consumer_of_an_idle_topic_has_not_stopped_when_a_record_arrives() -> None:
    (lag,) = sample(
        lambda second: found(second, 99, 100, commit_timestamp_ms=START_MS - 60_000, unread_ms=START_MS + 900), 1
    )
    assert (lag.state, lag.lag_ms) == (LagState.OK, 100)


def test_a_reset_to_lower_offsets_is_seen_until_it_leaves_the_window() -> None:
    lags = sample(lambda second: found(second, 10 * second if second < 5 else second, 10 * second), 4 + WINDOW)
    assert [each.state for each in lags[4 : 3 + WINDOW]] == [LagState.REWOUND] * (WINDOW - 1)
    assert lags[-1].state is not LagState.REWOUND
    assert lags[-1].commit_rate == 1


def test_unread_records_that_were_deleted_are_lost() -> None:
    (lag,) = sample(lambda second: found(second, 10, 100, log_start_offset=50, unread_offset=50, unread_ms=START_MS), 1)
    assert (lag.state, lag.lag_records, lag.lag_ms) == (LagState.LOST_RECORDS, 90, 1_000)


def test_markers_count_as_records_but_not_as_time() -> None:
    (lag,) = sample(lambda second: found(second, 98, 100, unread_offset=NO_RECORD, unread_ms=-1), 1)
    assert (lag.lag_records, lag.lag_ms) == (2, 0)


def test_an_unknown_time_is_not_zero() -> None:
    (lag,) = sample(lambda second: found(second, 98, 100, unread_ms=-1), 1)
    assert (lag.lag_records, lag.lag_ms) == (2, None)


@pytest.mark.parametrize(
    ("committed", "unread_offset", "unread_ms", "commit_ms", "expected"),
    [
        (80, 80, 5_000, 5_001, True),
        (79, 80, 5_000, 5_001, True),
        (80, 80, 5_000, 4_999, None),
        (70, 70, 5_000, 5_001, None),
        (81, 81, 5_000, 5_001, False),
        (80, 80, -1, 5_001, None),
    ],
    ids=["at the LSO", "before a marker", "before the transaction", "not caught up", "above the LSO", "no time"],
)
def test_what_a_group_commits_shows_how_it_reads(
    committed: int, unread_offset: int, unread_ms: int, commit_ms: int, expected: bool | None
) -> None:
    observation = Observation(0, 0, committed, commit_ms, 100, 80, 0, unread_offset, unread_ms)
    for previously in (False, True):
        assert is_read_committed(observation, previously) is (previously if expected is None else expected)


@pytest.mark.parametrize(("keeps_samples", "commit_rate"), [(True, 4), (False, None)])
def test_only_the_commit_is_known_without_a_leader(keeps_samples: bool, commit_rate: float | None) -> None:
    tracker = PartitionLagTracker()
    tracker.observe(found(1, 4, 10), INTERVAL_MS)
    unknown = unknown_lag(LagState.NO_LEADER, START_MS + 2_000, 8, START_MS + 2_000)
    lag = tracker.set_unknown(2_000, unknown, keeps_samples=keeps_samples)
    assert (tracker.lag, tracker.is_known, tracker.sampled_ms) == (lag, False, 2_000)
    assert (lag.committed_offset, lag.state) == (8, "no_leader")
    assert lag.lag_records is lag.high_watermark is lag.lag_ms is lag.catch_up_s is lag.commit_rate is None
    assert tracker.observe(found(3, 12, 30), INTERVAL_MS).commit_rate == commit_rate
    assert tracker.is_known


def test_the_lag_of_a_read_committed_group_ends_at_the_last_stable_offset() -> None:
    tracker = PartitionLagTracker()
    unread = {"last_stable_offset": 80, "unread_offset": 80, "unread_ms": START_MS}
    lag = tracker.observe(found(60, 80, 100, **unread), INTERVAL_MS)
    assert (lag.is_read_committed, lag.lag_records, lag.lag_ms) == (True, 0, 0)
    later = {"last_stable_offset": 90, "unread_offset": 80, "unread_ms": START_MS}
    lag = tracker.observe(found(61, 80, 120, **later), INTERVAL_MS)
    assert (lag.is_read_committed, lag.lag_records, lag.lag_ms) == (True, 10, 61_000)
    lag = tracker.observe(found(62, 110, 120, last_stable_offset=100), INTERVAL_MS)
    assert (lag.is_read_committed, lag.lag_records) == (False, 10)
