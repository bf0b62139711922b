"""A leader of the quorum: what it calls committed, and when it resigns."""

from moldau.raft.epoch_state import Role
from moldau.raft.events import (
    AppendFailed,
    BatchesAppended,
    HighWatermarkAdvanced,
    LeaderChanged,
    LogFlushed,
    ServeFetch,
    SnapshotCreated,
    TimerExpired,
)
from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochEndOffset,
    QuorumFetchResponse,
    SnapshotId,
)
from moldau.raft.raft_log_state import BatchSummary
from support.quorum_states import (
    elected_leader,
    fetch,
    follower,
    key,
    log,
    node,
    of_kind,
    respond_to_fetch,
    respond_to_vote,
    response_in,
    sends,
)


def test_a_leader_of_three_commits_what_two_have_on_disk() -> None:
    state = elected_leader()
    state.step(1000, LogFlushed(1))
    assert state.high_watermark == 0
    effects = fetch(state, 3, EpochEndOffset(1, 1))
    assert effects[0] == HighWatermarkAdvanced(1)
    assert isinstance(effects[-1], ServeFetch)


def test_a_leader_announces_nothing_before_it_has_committed_in_its_own_epoch() -> None:
    """Until then more may be agreed on than it knows, and whoever starts would act on outdated metadata."""
    state = elected_leader(1, 2)
    assert state.quorum.require_leader().announced_high_watermark == -1
    reply = response_in(fetch(state, 2, EpochEndOffset(1, 9)))
    assert isinstance(reply, QuorumFetchResponse)
    assert reply.high_watermark == -1
    state.step(1000, LogFlushed(3))
    assert not state.quorum.is_caught_up
    fetch(state, 2, EpochEndOffset(3, 3))
    assert state.quorum.require_leader().announced_high_watermark == 3
    assert state.quorum.is_caught_up


def test_a_follower_is_current_when_it_has_reached_what_the_leader_first_told() -> None:
    state = follower(log(1, 2))
    respond_to_fetch(state, high_watermark=-1)
    assert not state.quorum.is_caught_up
    respond_to_fetch(state, records=b"records", high_watermark=4)
    state.step(201, BatchesAppended((BatchSummary(2, 3, 5),)))
    state.step(202, LogFlushed(3))
    assert state.high_watermark == 3
    assert not state.quorum.is_caught_up
    respond_to_fetch(state, records=b"records", high_watermark=9)
    state.step(203, BatchesAppended((BatchSummary(3, 4, 5),)))
    state.step(204, LogFlushed(4))
    assert state.quorum.is_caught_up


def test_a_leader_counts_itself_only_when_its_own_disk_has_it() -> None:
    state = elected_leader()
    fetch(state, 3, EpochEndOffset(1, 1))
    assert state.high_watermark == 0
    assert of_kind(state.step(1001, LogFlushed(1)), HighWatermarkAdvanced) == [HighWatermarkAdvanced(1)]


def test_records_of_earlier_epochs_are_committed_only_behind_one_of_this_epoch() -> None:
    state = elected_leader(1, 2)
    state.step(1000, LogFlushed(3))
    assert of_kind(fetch(state, 2, EpochEndOffset(2, 2)), HighWatermarkAdvanced) == []
    assert of_kind(fetch(state, 2, EpochEndOffset(3, 3)), HighWatermarkAdvanced) == [HighWatermarkAdvanced(3)]


def test_a_fetch_that_was_held_back_takes_nothing_back() -> None:
    state = elected_leader()
    state.step(1000, BatchesAppended((BatchSummary(1, 5, 1),)))
    state.step(1000, LogFlushed(5))
    fetch(state, 2, EpochEndOffset(1, 5), leader_sent_ms=900)
    fetch(state, 2, EpochEndOffset(1, 1), leader_sent_ms=800)
    assert state.high_watermark == 5
    assert state.quorum.leader_state is not None
    assert state.quorum.leader_state.replicas[key(2)].end_offset == 5


def test_a_replica_whose_log_parts_from_the_leaders_is_told_where_and_not_counted() -> None:
    state = elected_leader(1, 1, 3)
    state.step(1000, LogFlushed(4))
    reply = response_in(fetch(state, 2, EpochEndOffset(2, 7)))
    assert isinstance(reply, QuorumFetchResponse)
    assert reply.diverging_epoch == EpochEndOffset(1, 2)
    reply = response_in(fetch(state, 2, EpochEndOffset(1, 3)))
    assert isinstance(reply, QuorumFetchResponse)
    assert reply.diverging_epoch == EpochEndOffset(1, 2)
    reply = response_in(fetch(state, 2, EpochEndOffset(9, 3)))
    assert isinstance(reply, QuorumFetchResponse)
    assert reply.diverging_epoch == EpochEndOffset(4, 4)
    assert state.high_watermark == 0
    assert isinstance(fetch(state, 2, EpochEndOffset(1, 2))[-1], ServeFetch)
    assert isinstance(fetch(state, 2, EpochEndOffset(-1, 0))[-1], ServeFetch)


def test_a_replica_behind_the_logs_start_is_told_of_the_snapshot() -> None:
    state = elected_leader(1, 1, 3)
    state.step(1000, LogFlushed(4))
    fetch(state, 2, EpochEndOffset(4, 4))
    state.step(1001, SnapshotCreated(SnapshotId(3, 3), 3))
    for log_end in (EpochEndOffset(-1, 0), EpochEndOffset(1, 2), EpochEndOffset(2, 3)):
        reply = response_in(fetch(state, 3, log_end))
        assert isinstance(reply, QuorumFetchResponse)
        assert reply.snapshot == SnapshotId(3, 3), log_end
    assert isinstance(fetch(state, 3, EpochEndOffset(3, 3))[-1], ServeFetch)


def test_a_leader_that_no_majority_has_heard_of_resigns() -> None:
    state = elected_leader()
    fetch(state, 2, EpochEndOffset(-1, 0), now_ms=2100, leader_sent_ms=2000)
    assert state.quorum.require_leader().majority_confirmed_ms(3000) == 2000
    state.step(4249, TimerExpired())
    assert state.is_leader
    effects = state.step(4250, TimerExpired())
    assert state.quorum.role is Role.RESIGNED
    assert sends(effects, EndQuorumEpochRequest) == [2, 3]
    assert effects[-1] == LeaderChanged(-1, 1)


def test_an_epoch_is_announced_again_to_those_who_do_not_fetch() -> None:
    state = elected_leader()
    fetch(state, 2, EpochEndOffset(-1, 0), now_ms=1400)
    assert state.deadline_ms == 1500
    assert sends(state.step(1500, TimerExpired()), BeginQuorumEpochRequest) == [3]
    fetch(state, 2, EpochEndOffset(-1, 0), now_ms=1900)
    assert sends(state.step(2000, TimerExpired()), BeginQuorumEpochRequest) == [3]


def test_a_leader_that_cannot_even_begin_its_epoch_resigns() -> None:
    state = node()
    state.step(1000, TimerExpired())
    respond_to_vote(state, 2, is_pre_vote=True)
    respond_to_vote(state, 2)
    assert state.is_leader
    state.step(1000, AppendFailed())
    assert state.quorum.role is Role.RESIGNED
