"""Confirmation of the leader by a majority, and requests that must not count."""

import pytest

from moldau.errors import InvalidRequestError
from moldau.raft.epoch_roles import ElectionState, ResignedState
from moldau.raft.events import (
    AppendFailed,
    BatchesAppended,
    LogFlushed,
    RequestReceived,
    SnapshotCreated,
    SnapshotInstalled,
)
from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochEndOffset,
    QuorumEpochResponse,
    QuorumFetchRequest,
    ReplicaKey,
    SnapshotId,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.raft_log_state import BatchSummary
from support.quorum_states import (
    elected_leader,
    fetch,
    follower,
    key,
    log,
    node,
    respond_to_fetch,
    response_in,
    sends,
    voters,
)


@pytest.mark.parametrize("epoch", [5 + 2**20 + 1, 2**31 - 2, 2**31 - 1])
@pytest.mark.parametrize("kind", ["vote", "begin", "end"])
def test_an_epoch_out_of_range_is_rejected(kind: str, epoch: int) -> None:
    state = follower()
    request = {
        "vote": VoteRequest(key(3), epoch, EpochEndOffset(5, 9), False, key(1)),
        "begin": BeginQuorumEpochRequest(3, epoch, key(1)),
        "end": EndQuorumEpochRequest(3, epoch, (key(1),)),
    }[kind]
    effects = state.step(200, RequestReceived(request))
    assert isinstance(response_in(effects), InvalidRequestError)
    assert len(effects) == 1
    assert (state.epoch, state.leader_id) == (5, 2)


def test_a_node_that_missed_many_epochs_learns_the_latest() -> None:
    state = follower()
    assert response_in(
        state.step(200, RequestReceived(BeginQuorumEpochRequest(3, 5 + 2**20, key(1))))
    ) == QuorumEpochResponse(5 + 2**20, 3)


def test_a_replica_without_a_directory_is_not_a_voter() -> None:
    state = elected_leader()
    state.step(1000, LogFlushed(1))
    for node_id in (2, 3):
        nameless = QuorumFetchRequest(ReplicaKey(node_id), state.epoch, EpochEndOffset(1, 1), leader_sent_ms=1500)
        state.step(1500, RequestReceived(nameless))
    assert state.log.high_watermark == 0
    assert state.quorum.require_leader().majority_confirmed_ms(1500) == 1000


def test_an_own_snapshot_does_not_replace_a_newer_one() -> None:
    state = follower(log(*[3] * 10))
    state.fetcher.fetching_snapshot = SnapshotId(50, 3)
    state.step(200, SnapshotInstalled(SnapshotId(50, 3), voters(1, 2, 3)))
    state.step(201, SnapshotCreated(SnapshotId(9, 3), 50))
    assert state.log.snapshot == SnapshotId(50, 3)


def test_a_leader_is_confirmed_by_echoed_responses_not_by_the_arrival_of_fetches() -> None:
    state = elected_leader()
    fetch(state, 2, EpochEndOffset(1, 1), now_ms=1200)
    assert state.quorum.require_leader().majority_confirmed_ms(1200) == 1000
    fetch(state, 2, EpochEndOffset(1, 1), now_ms=3100, leader_sent_ms=1205)
    assert state.quorum.require_leader().majority_confirmed_ms(3100) == 1205
    fetch(state, 2, EpochEndOffset(1, 1), now_ms=3101, leader_sent_ms=1100)
    fetch(state, 3, EpochEndOffset(1, 1), now_ms=3101, leader_sent_ms=10**9)
    assert state.quorum.require_leader().majority_confirmed_ms(3102) == 3101, "a time in the future is limited to now"


def test_a_follower_echoes_the_sent_time_of_its_leaders_last_response() -> None:
    state = follower()
    respond_to_fetch(state, sent_ms=777)
    assert state.fetcher.pending is not None
    assert state.fetcher.pending[1].leader_sent_ms == 777
    state.step(300, RequestReceived(BeginQuorumEpochRequest(3, 6, key(1))))
    assert state.fetcher.pending[1].leader_sent_ms == -1, "another leader has another clock"


def test_a_leader_with_a_full_disk_resigns_only_if_there_are_other_voters() -> None:
    state = elected_leader()
    effects = state.step(1500, AppendFailed())
    assert isinstance(state.quorum.epoch_state, ResignedState)
    assert sends(effects, EndQuorumEpochRequest) == [2, 3]
    alone = node(log_state=log(of=voters(1)))
    alone.step(0, BatchesAppended((BatchSummary(0, 1, 1),)))
    alone.step(1500, AppendFailed())
    assert alone.is_leader


def test_a_vote_response_has_the_time_without_a_leader() -> None:
    request = VoteRequest(key(3), 6, EpochEndOffset(9, 9), False, key(1))
    state = follower()
    respond_to_fetch(state)
    at_ms = state.quorum.last_leader_activity_ms
    assert at_ms is not None
    response = response_in(state.step(at_ms + 1600, RequestReceived(request)))
    assert isinstance(response, VoteResponse)
    assert (response.is_granted, response.leader_silence_ms) == (True, 1600)
    restarted = node(1, ElectionState(5, 2))
    response = response_in(restarted.step(9000, RequestReceived(request)))
    assert isinstance(response, VoteResponse)
    assert (response.is_granted, response.leader_silence_ms) == (True, 0), (
        "a restarted node does not know when it had a leader"
    )
