"""A follower of the quorum: what it fetches, cuts and takes over, and when it stands itself."""

from moldau.raft.epoch_state import ElectionState, Role
from moldau.raft.events import (
    AppendFetchedRecords,
    BatchesAppended,
    FatalError,
    FetchSnapshot,
    HighWatermarkAdvanced,
    LeaderChanged,
    LogFlushed,
    LogTruncated,
    NodeStarted,
    PersistElection,
    RequestFailed,
    RequestReceived,
    ResignRequested,
    ResponseReceived,
    SendRequest,
    SnapshotFetchFailed,
    SnapshotInstalled,
    TimerExpired,
    TruncateLog,
)
from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochEndOffset,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumEpochResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    SnapshotId,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.quorum_state import QuorumState
from moldau.raft.raft_log_state import BatchSummary
from moldau.raft.state import RaftStateMachine
from support.quorum_states import (
    CONFIG,
    directory,
    elected_leader,
    fetch,
    follower,
    key,
    log,
    of_kind,
    respond_to_fetch,
    response_in,
    sends,
    voters,
)

# Following


def test_a_node_that_starts_asks_the_voters_in_turn_for_the_leader() -> None:
    state = RaftStateMachine(QuorumState(key(1), ElectionState(4), CONFIG))
    effects = state.step(0, NodeStarted(log()))
    asked = sends(effects, QuorumFetchRequest)
    for now_ms in (60, 120, 180):
        assert state.fetcher.pending is not None
        by, request = state.fetcher.pending
        state.step(now_ms, ResponseReceived(by, request, QuorumFetchResponse(4, -1, False)))
        asked += sends(state.step(now_ms + 51, TimerExpired()), QuorumFetchRequest)
    assert asked == [2, 3, 2, 3]
    assert state.fetcher.pending is not None
    by, request = state.fetcher.pending
    effects = state.step(240, ResponseReceived(by, request, QuorumFetchResponse(7, 2, False)))
    assert effects[0] == PersistElection(ElectionState(7, 2))
    assert sends(effects, QuorumFetchRequest) == [2]


def test_a_node_that_was_leader_before_a_crash_does_not_lead_on() -> None:
    state = RaftStateMachine(QuorumState(key(1), ElectionState(4, 1, 1, directory(1)), CONFIG))
    effects = state.step(0, NodeStarted(log(4, 4)))
    assert state.quorum.role is Role.RESIGNED
    assert sends(effects, EndQuorumEpochRequest) == [2, 3]
    assert response_in(fetch(state, 2, EpochEndOffset(4, 2), epoch=4)) == QuorumFetchResponse(4, -1, False)


def test_a_node_that_knows_its_leader_goes_on_fetching_from_it_after_a_restart() -> None:
    state = RaftStateMachine(QuorumState(key(1), ElectionState(4, 3), CONFIG))
    assert sends(state.step(0, NodeStarted(log(4))), QuorumFetchRequest) == [3]
    assert state.leader_id == 3


def test_fetched_records_are_durable_before_the_next_fetch() -> None:
    state = follower(log(1, 2))
    effects = respond_to_fetch(state, records=b"records", high_watermark=3)
    assert effects == [AppendFetchedRecords(b"records")]
    assert of_kind(state.step(201, BatchesAppended((BatchSummary(2, 4, 5),))), SendRequest) == []
    effects = state.step(202, LogFlushed(4))
    assert effects[0] == HighWatermarkAdvanced(3)
    [send] = of_kind(effects, SendRequest)
    assert isinstance(send, SendRequest)
    assert send.request == QuorumFetchRequest(key(1), 5, EpochEndOffset(5, 4), 3, 500)


def test_a_follower_hands_on_no_more_than_it_has() -> None:
    state = follower(log(1, 2))
    assert of_kind(respond_to_fetch(state, high_watermark=99), HighWatermarkAdvanced) == [
        HighWatermarkAdvanced(2)
    ]


def test_the_high_watermark_of_a_new_leader_may_be_lower_and_nothing_is_taken_back() -> None:
    state = follower(log(1, 2))
    respond_to_fetch(state, high_watermark=2)
    assert of_kind(respond_to_fetch(state, high_watermark=1), HighWatermarkAdvanced) == []
    assert state.high_watermark == 2


def test_an_answer_to_another_fetch_than_the_one_under_way_is_ignored() -> None:
    state = follower(log(1, 2))
    assert state.fetcher.pending is not None
    _, request = state.fetcher.pending
    respond_to_fetch(state, high_watermark=1)
    late = QuorumFetchResponse(5, 2, True, b"records", 2)
    assert state.step(210, ResponseReceived(2, request, late)) == []
    state.step(220, RequestReceived(BeginQuorumEpochRequest(3, 6, key(1))))
    assert state.fetcher.pending is not None
    assert state.step(230, ResponseReceived(2, request, late)) == []


def test_a_follower_cuts_its_log_where_the_leaders_parts_from_it() -> None:
    # Its own log: epochs 1 1 3 3 3. The leader has 1 1 1 4: their logs part behind offset 2.
    state = follower(log(1, 1, 3, 3, 3))
    assert respond_to_fetch(state, diverging_epoch=EpochEndOffset(1, 3)) == [TruncateLog(2)]
    effects = state.step(201, LogTruncated(2))
    [send] = of_kind(effects, SendRequest)
    assert isinstance(send, SendRequest)
    assert isinstance(send.request, QuorumFetchRequest)
    assert send.request.log_end == EpochEndOffset(1, 2)


def test_a_follower_with_more_of_an_epoch_cuts_to_the_leaders_end_of_it() -> None:
    state = follower(log(1, 1, 1, 1))
    assert respond_to_fetch(state, diverging_epoch=EpochEndOffset(1, 2)) == [TruncateLog(2)]


def test_what_is_committed_is_never_truncated() -> None:
    state = follower(log(1, 1, 1, 1))
    respond_to_fetch(state, high_watermark=3)
    [effect] = respond_to_fetch(state, diverging_epoch=EpochEndOffset(1, 2))
    assert isinstance(effect, FatalError)
    assert "committed up to offset 3" in effect.reason


def test_without_news_of_its_leader_a_follower_asks_to_be_elected() -> None:
    state = follower()
    assert state.deadline_ms is not None
    assert 1600 <= state.deadline_ms <= 1850
    effects = state.step(state.deadline_ms, TimerExpired())
    assert state.quorum.role is Role.PROSPECTIVE
    assert sends(effects, VoteRequest) == [2, 3]


def test_when_the_leader_is_gone_a_follower_stands_after_a_moment() -> None:
    state = follower()
    effects = state.step(200, gone(state))
    assert effects[-1] == LeaderChanged(-1, 5)
    assert state.deadline_ms is not None
    assert state.deadline_ms <= 300
    assert response_in(
        state.step(201, RequestReceived(VoteRequest(key(3), 5, EpochEndOffset(9, 9), True, key(1))))
    ) == VoteResponse(5, -1, True)
    request = VoteRequest(state.key, 5, state.log.log_end, True, key(3))
    state.step(300, TimerExpired())
    assert state.quorum.role is Role.PROSPECTIVE
    state.step(301, ResponseReceived(3, request, VoteResponse(5, 2, False)))
    assert state.quorum.role is Role.PROSPECTIVE, (
        "who has not heard yet does not talk it into following again"
    )


def gone(state: RaftStateMachine) -> RequestFailed:
    """Nobody takes the fetch that is under way."""
    assert state.fetcher.pending is not None
    return RequestFailed(*state.fetcher.pending, is_connection_refused=True)


def test_a_leader_that_does_not_answer_is_asked_again() -> None:
    silent = follower()
    assert silent.fetcher.pending is not None
    by, request = silent.fetcher.pending
    silent.step(200, RequestFailed(by, request))
    assert silent.leader_id == 2
    assert sends(silent.step(250, TimerExpired()), QuorumFetchRequest) == [2]


def test_the_first_successor_of_a_leader_that_resigns_stands_first() -> None:
    first, second, third = (
        follower(),
        follower(node_id=3),
        follower(node_id=4, log_state=log(of=voters(1, 2, 3, 4))),
    )
    request = EndQuorumEpochRequest(2, 5, (key(1), key(3)))
    for state in (first, second, third):
        assert response_in(state.step(200, RequestReceived(request))) == QuorumEpochResponse(5, -1)
    deadlines = [state.quorum.election_deadline_ms for state in (first, second, third)]
    assert deadlines == [225, 475, 950]


def test_an_epoch_has_one_leader_whoever_says_otherwise() -> None:
    state = follower()
    effects = state.step(200, RequestReceived(BeginQuorumEpochRequest(3, 5, key(1))))
    assert response_in(effects) == QuorumEpochResponse(5, 2)
    assert of_kind(effects, PersistElection) == []


def test_an_observer_never_stands_and_looks_for_another_leader() -> None:
    state = follower(node_id=7)
    assert not state.quorum.is_voter
    assert state.deadline_ms is not None
    effects = state.step(state.deadline_ms, TimerExpired())
    assert state.quorum.role is Role.UNATTACHED
    assert sends(effects, VoteRequest) == []
    assert len(sends(effects, QuorumFetchRequest)) == 1


def test_a_node_that_leaves_hands_over_and_does_not_stand_again() -> None:
    state = elected_leader()
    effects = state.step(1001, ResignRequested())
    assert sends(effects, EndQuorumEpochRequest) == [2, 3]
    assert state.deadline_ms is None
    left = follower()
    left.step(200, ResignRequested())
    left.step(300, gone(left))
    assert left.quorum.election_deadline_ms is None


# Snapshots


def test_a_follower_fetches_the_snapshot_and_goes_on_behind_it() -> None:
    state = follower(log(1, 1))
    assert respond_to_fetch(state, snapshot=SnapshotId(40, 4)) == [FetchSnapshot(2, 5, SnapshotId(40, 4))]
    request = FetchSnapshotRequest(key(1), 5, SnapshotId(40, 4), 0)
    state.step(900, ResponseReceived(2, request, FetchSnapshotResponse(5, 2, True, 10, 0, b"12345")))
    assert state.quorum.has_live_leader(900 + CONFIG.fetch_timeout_ms - 1), "a snapshot response is contact"
    effects = state.step(950, SnapshotInstalled(SnapshotId(40, 4), voters(1, 2, 7)))
    assert effects[0] == HighWatermarkAdvanced(40)
    [send] = of_kind(effects, SendRequest)
    assert isinstance(send, SendRequest)
    assert isinstance(send.request, QuorumFetchRequest)
    assert send.request.log_end == EpochEndOffset(4, 40)
    assert state.quorum.voters == voters(1, 2, 7)


def test_a_snapshot_that_could_not_be_had_is_asked_for_again() -> None:
    state = follower(log(1, 1))
    respond_to_fetch(state, snapshot=SnapshotId(40, 4))
    assert state.step(300, SnapshotFetchFailed()) == []
    assert sends(state.step(799, TimerExpired()), QuorumFetchRequest) == [], (
        "it is large, and whatever kept it may last"
    )
    assert sends(state.step(800, TimerExpired()), QuorumFetchRequest) == [2]


def test_a_snapshot_of_less_than_is_committed_means_that_data_was_lost() -> None:
    state = follower(log(1, 1, 1))
    respond_to_fetch(state, high_watermark=3)
    [effect] = respond_to_fetch(state, snapshot=SnapshotId(2, 1))
    assert isinstance(effect, FatalError)
