"""The follower's decisions: what it counts as committed, and where it cuts its log: by epoch, not by high watermark."""

import pytest

from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.metadata.image import PartitionRegistration
from moldau.partitions.follower_state import FollowerState, truncation_offset
from moldau.raft.messages import EpochEndOffset


def follower(high_watermark: int = 0) -> FollowerState:
    return FollowerState(PartitionRegistration(0, (1, 2), (1, 2), 2, 5, 9), high_watermark)


def epochs(*began: tuple[int, int]) -> LeaderEpochCache:
    history = LeaderEpochCache()
    for epoch, offset in began:
        history.assign(epoch, offset)
    return history


def test_what_is_committed_is_what_the_leader_says_as_far_as_it_is_here() -> None:
    state = follower()
    assert state.on_leader_high_watermark(10, end_offset=4)
    assert (state.high_watermark, state.leader_high_watermark) == (4, 10)
    assert state.on_leader_high_watermark(10, end_offset=12)
    assert state.high_watermark == 10
    assert not state.on_leader_high_watermark(8, end_offset=12), "a new leader may know less for a while"
    assert state.high_watermark == 10


def test_a_cut_that_takes_committed_records_is_noticed() -> None:
    state = follower(5)
    assert not state.on_truncated(5)
    assert state.on_truncated(3)
    assert state.high_watermark == 3


@pytest.mark.parametrize(
    ("began", "end", "diverging", "cut"),
    [
        # The same epoch, which ended earlier at the leader: what is behind that end was never committed.
        ([(0, 0)], 10, EpochEndOffset(0, 7), 7),
        # The same epoch, which goes on at the leader: nothing of it is cut, only what came after it here.
        ([(0, 0), (1, 5)], 9, EpochEndOffset(0, 8), 5),
        # The leader knows nothing of epoch 1, which ended epoch 0 here at 5; there it ended at 3 already.
        ([(0, 0), (1, 5)], 9, EpochEndOffset(0, 3), 3),
        # An epoch that is not here: first behind the one before, then the next fetch tells more.
        ([(0, 0), (3, 5)], 9, EpochEndOffset(2, 7), 5),
        # A leader of an epoch in which it wrote nothing: it ends where it began.
        ([(0, 0), (4, 6)], 6, EpochEndOffset(0, 6), 6),
        # All of this log is newer than anything that the leader has.
        ([(3, 4)], 9, EpochEndOffset(1, 2), 2),
        # No epochs at all: the leader's end is all there is to go by.
        ([], 9, EpochEndOffset(0, 4), 4),
    ],
)
def test_a_log_is_cut_where_epochs_say_that_it_parts_from_its_leaders(
    began: list[tuple[int, int]], end: int, diverging: EpochEndOffset, cut: int
) -> None:
    assert truncation_offset(epochs(*began), end, diverging) == cut
