"""Voters that restart with fewer records than they had confirmed."""

from uuid import UUID

import pytest

from moldau.raft.effects import Effect, HighWatermarkAdvanced, ReplicaOffsetRegressed, SendResponse
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.events import (
    BatchesAppended,
    LogFlushed,
    NodeStarted,
    RequestReceived,
    ResponseReceived,
    SnapshotCreated,
    TimerExpired,
)
from moldau.raft.messages import (
    EpochEndOffset,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    SnapshotId,
    VoteRequest,
    VoteResponse,
    VoterNode,
)
from moldau.raft.quorum_state import QuorumState
from moldau.raft.raft_log_state import BatchSummary, RaftLogState
from moldau.raft.state_machine import RaftStateMachine
from moldau.raft.voter_set import VoterSetHistory

VOTERS = tuple(VoterNode(node_id, UUID(int=node_id)) for node_id in (1, 2, 3, 4, 5))


def leader() -> RaftStateMachine:
    """Returns node 1 of five as leader at time 1000, with a durable log up to offset 10."""
    state = RaftStateMachine(QuorumState(VOTERS[0].key, ElectionState()))
    state.step(0, NodeStarted(RaftLogState(VoterSetHistory(VOTERS))))
    state.step(1000, TimerExpired())
    for is_pre_vote in (True, False):
        for by in (1, 2):
            request = VoteRequest(state.key, state.epoch, state.log.log_end, is_pre_vote, VOTERS[by].key)
            state.step(1000, ResponseReceived(VOTERS[by].node_id, request, VoteResponse(state.epoch, -1, True)))
    assert state.is_leader
    state.step(1000, BatchesAppended((BatchSummary(0, 1, state.epoch, VOTERS), BatchSummary(1, 10, state.epoch))))
    state.step(1000, LogFlushed(10))
    return state


def fetch(
    state: RaftStateMachine, by: ReplicaKey, offset: int, *, leader_sent_ms: int = -1, epoch: int = 1
) -> list[Effect]:
    request = QuorumFetchRequest(by, state.epoch, EpochEndOffset(epoch, offset), 0, leader_sent_ms=leader_sent_ms)
    return state.step(1000, RequestReceived(request))


def regressions(effects: list[Effect]) -> list[ReplicaOffsetRegressed]:
    return [each for each in effects if isinstance(each, ReplicaOffsetRegressed)]


def committed(effects: list[Effect]) -> list[int]:
    return [each.offset for each in effects if isinstance(each, HighWatermarkAdvanced)]


def test_records_that_a_restarted_voter_lost_no_longer_count() -> None:
    state = leader()
    two, three = VOTERS[1].key, VOTERS[2].key
    assert committed(fetch(state, two, 10)) == []
    assert regressions(fetch(state, two, 4)) == [ReplicaOffsetRegressed(two, 10, 4)]
    # Node 1 and node 3 are two of five.
    assert committed(fetch(state, three, 10)) == [4]
    effects = fetch(state, two, 10, leader_sent_ms=1000)
    assert (committed(effects), regressions(effects)) == ([10], [])


def test_committed_records_stay_committed_after_a_regression() -> None:
    state = leader()
    two, three = VOTERS[1].key, VOTERS[2].key
    fetch(state, two, 10)
    assert committed(fetch(state, three, 10)) == [10]
    effects = fetch(state, two, 4)
    assert (len(regressions(effects)), committed(effects), state.log.high_watermark) == (1, [], 10)
    assert regressions(fetch(state, two, 4)) == []


def test_a_restarted_voter_with_its_whole_log_has_not_regressed() -> None:
    state = leader()
    fetch(state, VOTERS[1].key, 10, leader_sent_ms=900)
    assert regressions(fetch(state, VOTERS[1].key, 10)) == []
    assert committed(fetch(state, VOTERS[2].key, 10)) == [10]


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_voter_with_a_diverging_old_log_confirms_nothing(epoch: int) -> None:
    state = leader()
    two, three, four = (VOTERS[place].key for place in (1, 2, 3))
    for by in (two, three, four):
        fetch(state, by, 8)
    state.step(1000, SnapshotCreated(SnapshotId(6, 1), 6))
    fetch(state, two, 10)
    effects = fetch(state, two, 3, epoch=epoch)
    [response] = [each.response for each in effects if isinstance(each, SendResponse)]
    assert isinstance(response, QuorumFetchResponse)
    assert response.snapshot == SnapshotId(6, 1)
    assert regressions(effects) == [ReplicaOffsetRegressed(two, 10, 3)]
    assert committed(fetch(state, three, 10)) == []
    assert committed(fetch(state, four, 10)) == [10]


def test_an_observer_may_restart_with_an_empty_log() -> None:
    state = leader()
    observer = ReplicaKey(6, UUID(int=6))
    fetch(state, observer, 10)
    assert regressions(fetch(state, observer, 0, epoch=-1)) == []
