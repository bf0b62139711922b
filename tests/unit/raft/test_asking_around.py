"""Whom a node asks that cannot reach its leader: all that it knows, one after the other. The state machine alone."""

from uuid import UUID

from moldau.raft.epoch_state import ElectionState, Role
from moldau.raft.events import (
    Effect,
    NodeStarted,
    RequestFailed,
    ResponseReceived,
    SendRequest,
    TimerExpired,
)
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
from moldau.raft.state import RaftStateMachine
from moldau.raft.voter_set import VoterSetHistory

CONFIG = QuorumConfig(fetch_timeout_ms=1500, election_timeout_ms=500, request_timeout_ms=1000)
BOOTSTRAP = -2


def started(
    election: ElectionState, *, bootstrap: tuple[int, ...] = ()
) -> tuple[RaftStateMachine, list[Effect]]:
    """Node 3, whose log names the voters 1, 2 and 3."""
    voters = tuple(VoterNode(node_id, UUID(int=node_id)) for node_id in (1, 2, 3))
    quorum = QuorumState(ReplicaKey(3, UUID(int=3)), election, CONFIG)
    state = RaftStateMachine(quorum, bootstrap)
    return state, state.step(0, NodeStarted(RaftLogState(VoterSetHistory(voters))))


def sent(effects: list[Effect], kind: type) -> list[SendRequest]:
    return [each for each in effects if isinstance(each, SendRequest) and isinstance(each.request, kind)]


def lose(state: RaftStateMachine, effects: list[Effect], now_ms: int) -> list[Effect]:
    """Nobody answers."""
    found = []
    for each in effects:
        if isinstance(each, SendRequest):
            found += state.step(now_ms, RequestFailed(each.node_id, each.request))
    return found


def wake(state: RaftStateMachine) -> tuple[int, list[Effect]]:
    now_ms = state.deadline_ms
    assert now_ms is not None
    return now_ms, state.step(now_ms, TimerExpired())


def test_a_leader_of_hearsay_that_does_not_answer_is_asked_for_elsewhere_and_then_asked_again() -> None:
    state, effects = started(ElectionState(5, leader_id=4))
    asked = []
    for _ in range(4):
        [fetch] = sent(effects, QuorumFetchRequest)
        asked.append(fetch.node_id)
        lose(state, effects, 10)
        state.quorum.election_deadline_ms = None
        _, effects = wake(state)
    assert asked == [4, 1, 4, 2]


def test_a_voter_that_says_who_leads_leaves_a_follower_with_its_leader_and_does_not_count_as_heard() -> None:
    state, effects = started(ElectionState(5, leader_id=4))
    lose(state, effects, 10)
    now_ms, effects = wake(state)
    [fetch] = sent(effects, QuorumFetchRequest)
    state.step(
        now_ms, ResponseReceived(fetch.node_id, fetch.request, QuorumFetchResponse(5, 4, is_leader=False))
    )
    assert (state.quorum.role, state.leader_id) == (Role.FOLLOWER, 4)
    assert not state.quorum.has_live_leader(now_ms)
    _, effects = wake(state)
    assert [each.node_id for each in sent(effects, QuorumFetchRequest)] == [4]


def test_a_leader_that_was_heard_of_is_not_given_up_for_one_lost_answer() -> None:
    state, effects = started(ElectionState(5, leader_id=2))
    [fetch] = sent(effects, QuorumFetchRequest)
    effects = state.step(10, ResponseReceived(2, fetch.request, QuorumFetchResponse(5, 2, is_leader=True)))
    lose(state, effects, 20)
    _, effects = wake(state)
    assert [each.node_id for each in sent(effects, QuorumFetchRequest)] == [2]


def test_a_node_whose_voters_are_all_gone_asks_the_bootstrap_servers_too() -> None:
    state, effects = started(ElectionState(5), bootstrap=(BOOTSTRAP,))
    lose(state, effects, 1)
    asked = []
    now_ms = 1
    while BOOTSTRAP not in asked:
        now_ms, effects = wake(state)
        assert now_ms < 20_000, "it never asks them"
        if state.quorum.role is Role.PROSPECTIVE:
            asked += [each.node_id for each in sent(effects, QuorumFetchRequest)]
        if BOOTSTRAP not in asked:
            lose(state, effects, now_ms)
    assert state.quorum.role is Role.PROSPECTIVE
    [fetch] = sent(effects, QuorumFetchRequest)
    effects = state.step(
        now_ms, ResponseReceived(BOOTSTRAP, fetch.request, QuorumFetchResponse(8, 7, is_leader=False))
    )
    assert (state.quorum.role, state.epoch, state.leader_id) == (Role.FOLLOWER, 8, 7)
    assert [each.node_id for each in sent(effects, QuorumFetchRequest)] == [7]


def test_an_election_that_is_won_at_once_asks_nobody_for_a_leader() -> None:
    state, effects = started(ElectionState(5))
    lose(state, effects, 1)
    state.fetcher.next_fetch_ms = None
    now_ms, effects = wake(state)
    assert sent(effects, QuorumFetchRequest) == []
    [to_1, _] = sent(effects, VoteRequest)
    effects = state.step(now_ms, ResponseReceived(1, to_1.request, VoteResponse(5, -1, is_granted=True)))
    assert state.quorum.role is Role.CANDIDATE
    assert sent(effects, QuorumFetchRequest) == []


def test_an_answer_to_a_former_round_does_not_disturb_a_candidate() -> None:
    state, effects = started(ElectionState(5))
    lose(state, effects, 1)
    while not (state.quorum.role is Role.PROSPECTIVE and sent(effects, QuorumFetchRequest)):
        now_ms, effects = wake(state)
        if not (state.quorum.role is Role.PROSPECTIVE and sent(effects, QuorumFetchRequest)):
            lose(state, effects, now_ms)
    [fetch] = sent(effects, QuorumFetchRequest)
    [to_1, _] = sent(effects, VoteRequest)
    state.step(now_ms, ResponseReceived(1, to_1.request, VoteResponse(5, -1, is_granted=True)))
    state.step(
        now_ms, ResponseReceived(fetch.node_id, fetch.request, QuorumFetchResponse(5, 4, is_leader=False))
    )
    assert (state.quorum.role, state.epoch) == (Role.CANDIDATE, 6)
