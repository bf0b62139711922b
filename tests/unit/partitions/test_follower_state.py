"""The follower's high watermark and truncation offset."""

import pytest

from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.metadata.image import PartitionRegistration
from moldau.partitions.follower_state import PartitionFollowerState, truncation_offset
from moldau.raft.messages import EpochEndOffset


def follower(high_watermark: int = 0) -> PartitionFollowerState:
    return PartitionFollowerState(PartitionRegistration(0, (1, 2), (1, 2), 2, 5, 9), high_watermark)


def epochs(*began: tuple[int, int]) -> LeaderEpochCache:
    history = LeaderEpochCache()
    for epoch, offset in began:
        history.assign(epoch, offset)
    return history


def test_the_high_watermark_is_the_leaders_limited_by_the_end_of_the_log() -> None:
    state = follower()
    assert state.on_leader_high_watermark(10, end_offset=4)
    assert (state.high_watermark, state.leader_high_watermark) == (4, 10)
    assert state.on_leader_high_watermark(10, end_offset=12)
    assert state.high_watermark == 10
    assert not state.on_leader_high_watermark(8, end_offset=12), "a new leader may lag for a while"
    assert state.high_watermark == 10


def test_truncation_lowers_the_high_watermark() -> None:
    state = follower(5)
    state.on_truncated(7)
    assert state.high_watermark == 5
    state.on_truncated(3)
    assert state.high_watermark == 3


@pytest.mark.parametrize(
    ("began", "end", "diverging", "truncated_to"),
    [
        # The epoch ended earlier on the leader: later records were never committed.
        ([(0, 0)], 10, EpochEndOffset(0, 7), 7),
        # The epoch is longer on the leader: only later epochs are truncated.
        ([(0, 0), (1, 5)], 9, EpochEndOffset(0, 8), 5),
        # The leader lacks epoch 1. Epoch 0 ends at 5 here and at 3 on the leader.
        ([(0, 0), (1, 5)], 9, EpochEndOffset(0, 3), 3),
        # An epoch that this log lacks: truncate to the end of the previous one, then the next fetch checks again.
        ([(0, 0), (3, 5)], 9, EpochEndOffset(2, 7), 5),
        # An epoch without records ends where it starts.
        ([(0, 0), (4, 6)], 6, EpochEndOffset(0, 6), 6),
        # Every epoch of this log is newer than the leader's.
        ([(3, 4)], 9, EpochEndOffset(1, 2), 2),
        # No epochs: only the leader's end offset counts.
        ([], 9, EpochEndOffset(0, 4), 4),
    ],
)
def test_the_truncation_offset_depends_on_epochs(
    began: list[tuple[int, int]], end: int, diverging: EpochEndOffset, truncated_to: int
) -> None:
    assert truncation_offset(epochs(*began), end, diverging) == truncated_to
