"""The lookup of the leader, at all known nodes in turn."""

from uuid import UUID

from moldau.raft.effects import Effect, SendRequest
from moldau.raft.epoch_roles import CandidateState, ElectionState, FollowerState, ProspectiveState
from moldau.raft.events import NodeStarted, RequestFailed, ResponseReceived, TimerExpired
from moldau.raft.messages import (
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
    VoterNode,
)
from moldau.raft.quorum_config import QuorumConfig
from moldau.raft.quorum_state import QuorumState
from moldau.raft.raft_log_state import RaftLogState
from moldau.raft.state_machine import RaftStateMachine
from moldau.raft.voter_set import VoterSetHistory

CONFIG = QuorumConfig(fetch_timeout_ms=1500, election_timeout_ms=500, request_timeout_ms=1000)
BOOTSTRAP = -2


def started(election: ElectionState, *, bootstrap: tuple[int, ...] = ()) -> tuple[RaftStateMachine, list[Effect]]:
    """Starts node 3 of the voters 1, 2 and 3."""
    voters = tuple(VoterNode(node_id, UUID(int=node_id)) for node_id in (1, 2, 3))
    quorum = QuorumState(ReplicaKey(3, UUID(int=3)), election, CONFIG)
    state = RaftStateMachine(quorum, bootstrap)
    return state, state.step(0, NodeStarted(RaftLogState(VoterSetHistory(voters))))


def sent(effects: list[Effect], kind: type) -> list[SendRequest]:
    return [each for each in effects if isinstance(each, SendRequest) and isinstance(each.request, kind)]


def fail_requests(state: RaftStateMachine, effects: list[Effect], now_ms: int) -> list[Effect]:
    """Fails all requests."""
    found = []
    for each in effects:
        if isinstance(each, SendRequest):
            found += state.step(now_ms, RequestFailed(each.node_id, each.request))
    return found


def expire_timer(state: RaftStateMachine) -> tuple[int, list[Effect]]:
    now_ms = state.deadline_ms
    assert now_ms is not None
    return now_ms, state.step(now_ms, TimerExpired())


def test_an_unconfirmed_leader_that_does_not_respond_is_looked_up_at_other_nodes() -> None:
    state, effects = started(ElectionState(5, leader_id=4))
    looked_up = []
    for _ in range(4):
        [fetch] = sent(effects, QuorumFetchRequest)
        looked_up.append(fetch.node_id)
        fail_requests(state, effects, 10)
        state.quorum.election_deadline_ms = None
        _, effects = expire_timer(state)
    assert looked_up == [4, 1, 4, 2]


def test_a_leader_named_by_another_voter_does_not_count_as_contact() -> None:
    state, effects = started(ElectionState(5, leader_id=4))
    fail_requests(state, effects, 10)
    now_ms, effects = expire_timer(state)
    [fetch] = sent(effects, QuorumFetchRequest)
    state.step(now_ms, ResponseReceived(fetch.node_id, fetch.request, QuorumFetchResponse(5, 4, is_leader=False)))
    assert (type(state.quorum.epoch_state), state.leader_id) == (FollowerState, 4)
    assert not state.quorum.has_live_leader(now_ms)
    _, effects = expire_timer(state)
    assert [each.node_id for each in sent(effects, QuorumFetchRequest)] == [4]


def test_a_known_leader_is_retried_after_one_lost_response() -> None:
    state, effects = started(ElectionState(5, leader_id=2))
    [fetch] = sent(effects, QuorumFetchRequest)
    effects = state.step(10, ResponseReceived(2, fetch.request, QuorumFetchResponse(5, 2, is_leader=True)))
    fail_requests(state, effects, 20)
    _, effects = expire_timer(state)
    assert [each.node_id for each in sent(effects, QuorumFetchRequest)] == [2]


def test_a_node_without_reachable_voters_uses_the_bootstrap_servers() -> None:
    state, effects = started(ElectionState(5), bootstrap=(BOOTSTRAP,))
    fail_requests(state, effects, 1)
    looked_up = []
    now_ms = 1
    while BOOTSTRAP not in looked_up:
        now_ms, effects = expire_timer(state)
        assert now_ms < 20_000, "no request to the bootstrap servers"
        if isinstance(state.quorum.epoch_state, ProspectiveState):
            looked_up += [each.node_id for each in sent(effects, QuorumFetchRequest)]
        if BOOTSTRAP not in looked_up:
            fail_requests(state, effects, now_ms)
    assert isinstance(state.quorum.epoch_state, ProspectiveState)
    [fetch] = sent(effects, QuorumFetchRequest)
    effects = state.step(now_ms, ResponseReceived(BOOTSTRAP, fetch.request, QuorumFetchResponse(8, 7, is_leader=False)))
    assert (type(state.quorum.epoch_state), state.epoch, state.leader_id) == (FollowerState, 8, 7)
    assert [each.node_id for each in sent(effects, QuorumFetchRequest)] == [7]


def test_an_election_won_at_once_needs_no_leader_lookup() -> None:
    state, effects = started(ElectionState(5))
    fail_requests(state, effects, 1)
    state.fetcher.next_fetch_ms = None
    now_ms, effects = expire_timer(state)
    assert sent(effects, QuorumFetchRequest) == []
    [to_1, _] = sent(effects, VoteRequest)
    effects = state.step(now_ms, ResponseReceived(1, to_1.request, VoteResponse(5, -1, is_granted=True)))
    assert isinstance(state.quorum.epoch_state, CandidateState)
    assert sent(effects, QuorumFetchRequest) == []


def test_a_response_of_an_earlier_round_does_not_change_a_candidate() -> None:
    state, effects = started(ElectionState(5))
    fail_requests(state, effects, 1)
    while not (isinstance(state.quorum.epoch_state, ProspectiveState) and sent(effects, QuorumFetchRequest)):
        now_ms, effects = expire_timer(state)
        if not (isinstance(state.quorum.epoch_state, ProspectiveState) and sent(effects, QuorumFetchRequest)):
            fail_requests(state, effects, now_ms)
    [fetch] = sent(effects, QuorumFetchRequest)
    [to_1, _] = sent(effects, VoteRequest)
    state.step(now_ms, ResponseReceived(1, to_1.request, VoteResponse(5, -1, is_granted=True)))
    state.step(now_ms, ResponseReceived(fetch.node_id, fetch.request, QuorumFetchResponse(5, 4, is_leader=False)))
    assert (type(state.quorum.epoch_state), state.epoch) == (CandidateState, 6)
