"""Leaders of the state machine: commits and resignation."""

from moldau.raft.effects import HighWatermarkAdvanced, LeaderChanged, ServeFetch
from moldau.raft.epoch_roles import ResignedState
from moldau.raft.events import AppendFailed, BatchesAppended, LogFlushed, SnapshotCreated, TimerExpired
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


def test_a_leader_of_three_commits_records_that_two_have_on_disk() -> None:
    state = elected_leader()
    state.step(1000, LogFlushed(1))
    assert state.log.high_watermark == 0
    effects = fetch(state, 3, EpochEndOffset(1, 1))
    assert effects[0] == HighWatermarkAdvanced(1)
    assert isinstance(effects[-1], ServeFetch)


def test_a_leader_announces_no_high_watermark_before_it_commits_in_its_epoch() -> None:
    """More may be committed than it knows, and a starting node would act on outdated metadata."""
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


def test_a_follower_is_caught_up_at_the_leaders_first_high_watermark() -> None:
    state = follower(log(1, 2))
    respond_to_fetch(state, high_watermark=-1)
    assert not state.quorum.is_caught_up
    respond_to_fetch(state, records=b"records", high_watermark=4)
    state.step(201, BatchesAppended((BatchSummary(2, 3, 5),)))
    state.step(202, LogFlushed(3))
    assert state.log.high_watermark == 3
    assert not state.quorum.is_caught_up
    respond_to_fetch(state, records=b"records", high_watermark=9)
    state.step(203, BatchesAppended((BatchSummary(3, 4, 5),)))
    state.step(204, LogFlushed(4))
    assert state.quorum.is_caught_up


def test_a_leader_counts_itself_only_up_to_its_durable_offset() -> None:
    state = elected_leader()
    fetch(state, 3, EpochEndOffset(1, 1))
    assert state.log.high_watermark == 0
    assert of_kind(state.step(1001, LogFlushed(1)), HighWatermarkAdvanced) == [HighWatermarkAdvanced(1)]


def test_records_of_earlier_epochs_are_committed_only_with_one_of_this_epoch() -> None:
    state = elected_leader(1, 2)
    state.step(1000, LogFlushed(3))
    assert of_kind(fetch(state, 2, EpochEndOffset(2, 2)), HighWatermarkAdvanced) == []
    assert of_kind(fetch(state, 2, EpochEndOffset(3, 3)), HighWatermarkAdvanced) == [HighWatermarkAdvanced(3)]


def test_a_delayed_fetch_does_not_lower_the_end_offset() -> None:
    state = elected_leader()
    state.step(1000, BatchesAppended((BatchSummary(1, 5, 1),)))
    state.step(1000, LogFlushed(5))
    fetch(state, 2, EpochEndOffset(1, 5), leader_sent_ms=900)
    fetch(state, 2, EpochEndOffset(1, 1), leader_sent_ms=800)
    assert state.log.high_watermark == 5
    assert state.quorum.leader_state is not None
    assert state.quorum.leader_state.replicas[key(2)].end_offset == 5


def test_a_diverging_replica_gets_the_diverging_epoch_and_does_not_count() -> None:
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
    assert state.log.high_watermark == 0
    assert isinstance(fetch(state, 2, EpochEndOffset(1, 2))[-1], ServeFetch)
    assert isinstance(fetch(state, 2, EpochEndOffset(-1, 0))[-1], ServeFetch)


def test_a_replica_before_the_log_start_gets_the_snapshot_id() -> None:
    state = elected_leader(1, 1, 3)
    state.step(1000, LogFlushed(4))
    fetch(state, 2, EpochEndOffset(4, 4))
    state.step(1001, SnapshotCreated(SnapshotId(3, 3), 3))
    for log_end in (EpochEndOffset(-1, 0), EpochEndOffset(1, 2), EpochEndOffset(2, 3)):
        reply = response_in(fetch(state, 3, log_end))
        assert isinstance(reply, QuorumFetchResponse)
        assert reply.snapshot == SnapshotId(3, 3), log_end
    assert isinstance(fetch(state, 3, EpochEndOffset(3, 3))[-1], ServeFetch)


def test_a_leader_without_contact_to_a_majority_resigns() -> None:
    state = elected_leader()
    fetch(state, 2, EpochEndOffset(-1, 0), now_ms=2100, leader_sent_ms=2000)
    assert state.quorum.require_leader().majority_confirmed_ms(3000) == 2000
    state.step(4249, TimerExpired())
    assert state.is_leader
    effects = state.step(4250, TimerExpired())
    assert isinstance(state.quorum.epoch_state, ResignedState)
    assert sends(effects, EndQuorumEpochRequest) == [2, 3]
    assert effects[-1] == LeaderChanged(-1, 1)


def test_begin_quorum_epoch_is_repeated_for_voters_that_do_not_fetch() -> None:
    state = elected_leader()
    fetch(state, 2, EpochEndOffset(-1, 0), now_ms=1400)
    assert state.deadline_ms == 1500
    assert sends(state.step(1500, TimerExpired()), BeginQuorumEpochRequest) == [3]
    fetch(state, 2, EpochEndOffset(-1, 0), now_ms=1900)
    assert sends(state.step(2000, TimerExpired()), BeginQuorumEpochRequest) == [3]


def test_a_leader_that_cannot_append_its_first_record_resigns() -> None:
    state = node()
    state.step(1000, TimerExpired())
    respond_to_vote(state, 2, is_pre_vote=True)
    respond_to_vote(state, 2)
    assert state.is_leader
    state.step(1000, AppendFailed())
    assert isinstance(state.quorum.epoch_state, ResignedState)
