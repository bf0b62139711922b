"""Followers of the state machine: fetching, truncation, snapshots, and the start of elections."""

from moldau.raft.effects import (
    AppendFetchedRecords,
    FatalError,
    FetchSnapshot,
    HighWatermarkAdvanced,
    LeaderChanged,
    PersistElection,
    SendRequest,
    TruncateLog,
)
from moldau.raft.epoch_roles import ElectionState, ProspectiveState, ResignedState, UnattachedState
from moldau.raft.events import (
    BatchesAppended,
    LogFlushed,
    LogTruncated,
    NodeStarted,
    RequestFailed,
    RequestReceived,
    ResignRequested,
    ResponseReceived,
    SnapshotFetchFailed,
    SnapshotInstalled,
    TimerExpired,
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
from moldau.raft.state_machine import RaftStateMachine
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

# Fetching


def test_a_starting_node_looks_up_the_leader_at_the_voters_in_turn() -> None:
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


def test_a_leader_that_restarts_resigns() -> None:
    state = RaftStateMachine(QuorumState(key(1), ElectionState(4, 1, 1, directory(1)), CONFIG))
    effects = state.step(0, NodeStarted(log(4, 4)))
    assert isinstance(state.quorum.epoch_state, ResignedState)
    assert sends(effects, EndQuorumEpochRequest) == [2, 3]
    assert response_in(fetch(state, 2, EpochEndOffset(4, 2), epoch=4)) == QuorumFetchResponse(4, -1, False)


def test_a_restarted_node_fetches_from_its_persisted_leader() -> None:
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


def test_a_follower_commits_no_more_than_it_has() -> None:
    state = follower(log(1, 2))
    assert of_kind(respond_to_fetch(state, high_watermark=99), HighWatermarkAdvanced) == [HighWatermarkAdvanced(2)]


def test_a_lower_high_watermark_of_a_new_leader_is_ignored() -> None:
    state = follower(log(1, 2))
    respond_to_fetch(state, high_watermark=2)
    assert of_kind(respond_to_fetch(state, high_watermark=1), HighWatermarkAdvanced) == []
    assert state.log.high_watermark == 2


def test_a_response_to_an_old_fetch_is_ignored() -> None:
    state = follower(log(1, 2))
    assert state.fetcher.pending is not None
    _, request = state.fetcher.pending
    respond_to_fetch(state, high_watermark=1)
    late = QuorumFetchResponse(5, 2, True, b"records", 2)
    assert state.step(210, ResponseReceived(2, request, late)) == []
    state.step(220, RequestReceived(BeginQuorumEpochRequest(3, 6, key(1))))
    assert state.fetcher.pending is not None
    assert state.step(230, ResponseReceived(2, request, late)) == []


def test_a_follower_truncates_its_log_where_it_diverges() -> None:
    # This log has the epochs 1 1 3 3 3, the leader's 1 1 1 4: they diverge at offset 2.
    state = follower(log(1, 1, 3, 3, 3))
    assert respond_to_fetch(state, diverging_epoch=EpochEndOffset(1, 3)) == [TruncateLog(2)]
    effects = state.step(201, LogTruncated(2))
    [send] = of_kind(effects, SendRequest)
    assert isinstance(send, SendRequest)
    assert isinstance(send.request, QuorumFetchRequest)
    assert send.request.log_end == EpochEndOffset(1, 2)


def test_a_follower_truncates_to_the_leaders_end_of_the_epoch() -> None:
    state = follower(log(1, 1, 1, 1))
    assert respond_to_fetch(state, diverging_epoch=EpochEndOffset(1, 2)) == [TruncateLog(2)]


def test_committed_records_are_never_truncated() -> None:
    state = follower(log(1, 1, 1, 1))
    respond_to_fetch(state, high_watermark=3)
    [effect] = respond_to_fetch(state, diverging_epoch=EpochEndOffset(1, 2))
    assert isinstance(effect, FatalError)
    assert "committed up to offset 3" in effect.reason


def test_a_follower_without_leader_contact_starts_an_election() -> None:
    state = follower()
    assert state.deadline_ms is not None
    assert 1600 <= state.deadline_ms <= 1850
    effects = state.step(state.deadline_ms, TimerExpired())
    assert isinstance(state.quorum.epoch_state, ProspectiveState)
    assert sends(effects, VoteRequest) == [2, 3]


def test_a_follower_starts_an_election_soon_after_the_leaders_process_ends() -> None:
    state = follower()
    effects = state.step(200, connection_refused(state))
    assert effects[-1] == LeaderChanged(-1, 5)
    assert state.deadline_ms is not None
    assert state.deadline_ms <= 300
    assert response_in(
        state.step(201, RequestReceived(VoteRequest(key(3), 5, EpochEndOffset(9, 9), True, key(1))))
    ) == VoteResponse(5, -1, True)
    request = VoteRequest(state.key, 5, state.log.log_end, True, key(3))
    state.step(300, TimerExpired())
    assert isinstance(state.quorum.epoch_state, ProspectiveState)
    state.step(301, ResponseReceived(3, request, VoteResponse(5, 2, False)))
    assert isinstance(state.quorum.epoch_state, ProspectiveState), (
        "a node with outdated information does not make it follow again"
    )


def connection_refused(state: RaftStateMachine) -> RequestFailed:
    """Returns the failure of the fetch in flight, with a refused connection."""
    assert state.fetcher.pending is not None
    return RequestFailed(*state.fetcher.pending, is_connection_refused=True)


def test_a_fetch_without_a_response_is_retried() -> None:
    silent = follower()
    assert silent.fetcher.pending is not None
    by, request = silent.fetcher.pending
    silent.step(200, RequestFailed(by, request))
    assert silent.leader_id == 2
    assert sends(silent.step(250, TimerExpired()), QuorumFetchRequest) == [2]


def test_the_first_preferred_candidate_starts_its_election_first() -> None:
    first, second, third = (follower(), follower(node_id=3), follower(node_id=4, log_state=log(of=voters(1, 2, 3, 4))))
    request = EndQuorumEpochRequest(2, 5, (key(1), key(3)))
    for state in (first, second, third):
        assert response_in(state.step(200, RequestReceived(request))) == QuorumEpochResponse(5, -1)
    deadlines = [state.quorum.election_deadline_ms for state in (first, second, third)]
    assert deadlines == [225, 475, 950]


def test_a_second_leader_of_an_epoch_is_ignored() -> None:
    state = follower()
    effects = state.step(200, RequestReceived(BeginQuorumEpochRequest(3, 5, key(1))))
    assert response_in(effects) == QuorumEpochResponse(5, 2)
    assert of_kind(effects, PersistElection) == []


def test_an_observer_never_becomes_candidate_and_looks_up_the_leader() -> None:
    state = follower(node_id=7)
    assert not state.quorum.is_voter
    assert state.deadline_ms is not None
    effects = state.step(state.deadline_ms, TimerExpired())
    assert isinstance(state.quorum.epoch_state, UnattachedState)
    assert sends(effects, VoteRequest) == []
    assert len(sends(effects, QuorumFetchRequest)) == 1


def test_a_node_that_resigns_on_shutdown_starts_no_election() -> None:
    state = elected_leader()
    effects = state.step(1001, ResignRequested())
    assert sends(effects, EndQuorumEpochRequest) == [2, 3]
    assert state.deadline_ms is None
    left = follower()
    left.step(200, ResignRequested())
    left.step(300, connection_refused(left))
    assert left.quorum.election_deadline_ms is None


# Snapshots


def test_a_follower_fetches_the_snapshot_and_continues_at_its_end() -> None:
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


def test_a_failed_snapshot_fetch_is_retried() -> None:
    state = follower(log(1, 1))
    respond_to_fetch(state, snapshot=SnapshotId(40, 4))
    assert state.step(300, SnapshotFetchFailed()) == []
    assert sends(state.step(799, TimerExpired()), QuorumFetchRequest) == [], (
        "the snapshot is large, and the error may last"
    )
    assert sends(state.step(800, TimerExpired()), QuorumFetchRequest) == [2]


def test_a_leaders_snapshot_below_the_high_watermark_is_fatal() -> None:
    state = follower(log(1, 1, 1))
    respond_to_fetch(state, high_watermark=3)
    [effect] = respond_to_fetch(state, snapshot=SnapshotId(2, 1))
    assert isinstance(effect, FatalError)
