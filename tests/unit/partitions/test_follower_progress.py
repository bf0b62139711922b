"""How a leader decides whether a follower keeps up: by time, not by the number of records."""

from moldau.partitions.follower_progress import FollowerProgress

LAG_MS = 1_000


def fetch(progress: FollowerProgress, offset: int, leader_end_offset: int, now_ms: int) -> None:
    progress.on_fetch(offset, 0, 1, leader_end_offset, now_ms)


def test_a_follower_with_everything_is_caught_up() -> None:
    progress = FollowerProgress()
    fetch(progress, 10, 10, 0)
    assert progress.is_keeping_up
    assert progress.is_caught_up(10, 1_000, LAG_MS)
    assert not progress.is_caught_up(10, 1_001, LAG_MS), "it has to keep fetching"


def test_a_follower_always_one_fetch_behind_keeps_up() -> None:
    progress = FollowerProgress()
    for number in range(100):
        fetch(progress, 10 * number, 10 * (number + 1), 100 * number)
    assert progress.is_keeping_up
    assert progress.caught_up_ms == 9_800
    assert progress.is_caught_up(2_000, 10_000, LAG_MS)


def test_a_follower_several_fetches_behind_but_as_fast_as_the_leader_does_not_lag() -> None:
    progress = FollowerProgress()
    for number in range(100):
        fetch(progress, 10 * number, 10 * (number + 5), 100 * number)
        assert progress.is_caught_up(10 * (number + 5), 100 * number, LAG_MS) or number < 5
    assert not progress.is_keeping_up, "it is not close to the end of the log"


def test_a_follower_that_falls_further_behind_lags() -> None:
    progress = FollowerProgress()
    fetch(progress, 0, 0, 0)
    for number in range(1, 200):
        fetch(progress, 5 * number, 10 * number, 100 * number)
    assert not progress.is_caught_up(2_000, 20_000, LAG_MS)


def test_a_follower_that_makes_no_progress_lags_even_if_it_fetches() -> None:
    progress = FollowerProgress()
    fetch(progress, 10, 10, 0)
    for number in range(1, 20):
        fetch(progress, 10, 20, 100 * number)
    assert not progress.is_caught_up(20, 2_000, LAG_MS)


def test_a_follower_removed_from_the_isr_has_to_keep_up_again() -> None:
    progress = FollowerProgress()
    fetch(progress, 0, 10, 0)
    progress.on_removed_from_isr()
    fetch(progress, 10, 30, 5_000)
    assert progress.caught_up_ms < 0, "its progress since then is not known"
    fetch(progress, 30, 40, 5_100)
    assert progress.caught_up_ms == 5_000
