"""Elections of the state machine: pre-votes, candidates, and one vote per epoch."""

import pytest

from moldau.raft.effects import (
    AppendLeaderChange,
    HighWatermarkAdvanced,
    LeaderChanged,
    PersistElection,
    SendRequest,
    SendResponse,
    VotersChanged,
)
from moldau.raft.epoch_roles import CandidateState, ElectionState, FollowerState, ProspectiveState
from moldau.raft.events import (
    BatchesAppended,
    LogFlushed,
    NodeStarted,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    TimerExpired,
)
from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    EpochEndOffset,
    QuorumFetchRequest,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
    VoterNode,
)
from moldau.raft.quorum_state import QuorumState
from moldau.raft.raft_log_state import BatchSummary
from moldau.raft.state_machine import RaftStateMachine
from support.quorum_states import (
    CONFIG,
    directory,
    elected_leader,
    follower,
    key,
    log,
    node,
    of_kind,
    respond_to_vote,
    response_in,
    sends,
    voters,
)

# A single voter


def test_one_voter_elects_itself_and_its_vote_is_persisted_before_anything_else() -> None:
    state = RaftStateMachine(QuorumState(key(1), ElectionState(), CONFIG))
    assert state.step(0, NodeStarted(log(of=(VoterNode(1),)))) == [
        PersistElection(ElectionState(1, 1, 1, directory(1))),
        AppendLeaderChange(1, 1, voters(1), (1,), includes_voters=True),
        LeaderChanged(1, 1),
        VotersChanged((VoterNode(1),)),
    ]
    assert state.is_leader
    assert state.deadline_ms is None


def test_every_start_of_a_single_voter_starts_a_new_epoch() -> None:
    state = node(1, ElectionState(7, 1, 1), log(7, 7, of=voters(1)))
    assert state.epoch == 8
    assert state.is_leader


def test_durable_records_of_a_single_voter_are_committed() -> None:
    state = node(1, None, log(of=voters(1)))
    assert state.step(0, BatchesAppended((BatchSummary(0, 3, 1, voters(1)),)))[:1] == []
    assert state.step(0, LogFlushed(3)) == [HighWatermarkAdvanced(3)]
    state.step(0, BatchesAppended((BatchSummary(3, 7, 1),)))
    assert state.step(0, LogFlushed(5)) == [HighWatermarkAdvanced(5)]
    assert state.step(0, LogFlushed(5)) == []
    assert state.step(0, LogFlushed(7)) == [HighWatermarkAdvanced(7)]


def test_a_flush_beyond_the_end_offset_is_a_bug() -> None:
    state = node(1, None, log(of=voters(1)))
    with pytest.raises(AssertionError):
        state.step(0, LogFlushed(1))


# Elections


def test_a_node_becomes_prospective_candidate_and_leader_and_persists_each_step() -> None:
    state = node()
    effects = state.step(1000, TimerExpired())
    assert sends(effects, VoteRequest) == [2, 3]
    assert of_kind(effects, PersistElection) == [], "asking costs nothing and is remembered by nobody"
    assert state.epoch == 0
    effects = respond_to_vote(state, 3, is_pre_vote=True)
    assert effects[0] == PersistElection(ElectionState(1, -1, 1, directory(1)))
    assert sends(effects, VoteRequest) == [2, 3]
    effects = respond_to_vote(state, 3)
    assert effects[0] == PersistElection(ElectionState(1, 1, 1, directory(1)))
    assert isinstance(effects[1], AppendLeaderChange)
    assert effects[1].granting_voters == (1, 3)
    assert sends(effects, BeginQuorumEpochRequest) == [2, 3]
    assert effects[-1] == LeaderChanged(1, 1)


def test_in_a_new_cluster_the_lowest_id_starts_at_once_and_the_others_wait() -> None:
    first, second = node(1), node(2)
    assert first.quorum.election_deadline_ms == 1
    margin_ms = CONFIG.first_election_margin_ms
    assert second.quorum.election_deadline_ms == margin_ms + CONFIG.election_timeout_ms // 2
    assert sends(first.step(1, TimerExpired()), VoteRequest) == [2, 3]
    assert sends(second.step(margin_ms, TimerExpired()), VoteRequest) == []
    assert second.quorum.election_deadline_ms is not None
    assert sends(second.step(second.quorum.election_deadline_ms, TimerExpired()), VoteRequest) == [1, 3]


@pytest.mark.parametrize("node_id", [1, 2])
@pytest.mark.parametrize(("election", "epochs"), [(ElectionState(1), ()), (ElectionState(1), (1,))])
def test_after_the_first_epoch_no_voter_waits_longer(
    node_id: int, election: ElectionState, epochs: tuple[int, ...]
) -> None:
    state = node(node_id, election, log(*epochs))
    assert state.quorum.election_deadline_ms == CONFIG.election_timeout_ms // 2


def test_a_node_that_waits_for_the_lowest_id_still_votes() -> None:
    state = node(2)
    effects = state.step(5, RequestReceived(VoteRequest(key(3), 0, EpochEndOffset(-1, 0), True, key(2))))
    assert response_in(effects) == VoteResponse(0, -1, is_granted=True)
    effects = state.step(6, RequestReceived(VoteRequest(key(3), 1, EpochEndOffset(-1, 0), False, key(2))))
    assert response_in(effects) == VoteResponse(1, -1, is_granted=True)
    assert state.quorum.election_deadline_ms is not None
    assert state.quorum.election_deadline_ms < CONFIG.first_election_margin_ms


def test_the_first_start_persists_the_default_state() -> None:
    for election, persisted in ((ElectionState(), [PersistElection(ElectionState())]), (ElectionState(1), [])):
        state = RaftStateMachine(QuorumState(key(1), election, CONFIG))
        assert of_kind(state.step(0, NodeStarted(log())), PersistElection) == persisted


def test_one_vote_of_three_is_no_majority_and_the_election_is_repeated() -> None:
    state = node()
    state.step(1000, TimerExpired())
    respond_to_vote(state, 2, is_pre_vote=True, is_granted=False)
    effects = respond_to_vote(state, 3, is_pre_vote=True, is_granted=False)
    assert effects == []
    assert isinstance(state.quorum.epoch_state, ProspectiveState)
    assert state.deadline_ms is not None
    assert 1000 < state.deadline_ms <= 1000 + 50 + 500
    effects = state.step(state.deadline_ms, TimerExpired())
    assert sends(effects, VoteRequest) == [2, 3]
    assert state.epoch == 0


def test_unreachable_voters_end_the_round_before_its_timeout() -> None:
    state = node()
    effects = state.step(1000, TimerExpired())
    before = state.deadline_ms
    for each in of_kind(effects, SendRequest):
        assert isinstance(each, SendRequest)
        state.step(1001, RequestFailed(each.node_id, each.request, is_connection_refused=True))
    assert before is not None
    assert state.deadline_ms is not None
    assert state.deadline_ms < before


def test_a_candidate_that_lost_requests_pre_votes_before_another_epoch() -> None:
    state = node()
    state.step(1000, TimerExpired())
    respond_to_vote(state, 2, is_pre_vote=True)
    assert state.epoch == 1
    deadline_ms = state.deadline_ms
    assert deadline_ms is not None
    effects = state.step(deadline_ms, TimerExpired())
    assert isinstance(state.quorum.epoch_state, ProspectiveState)
    assert state.epoch == 1
    assert of_kind(effects, PersistElection) == []


def test_elections_after_a_split_vote_follow_soon_but_less_soon_each_time() -> None:
    state = node()
    state.step(1000, TimerExpired())
    now_ms, delays = 1000, []
    for _ in range(6):
        for other in (2, 3):
            request = VoteRequest(state.key, state.epoch, state.log.log_end, True, key(other))
            state.step(now_ms, ResponseReceived(other, request, VoteResponse(state.epoch, -1, False)), 0.5)
        assert state.deadline_ms is not None
        delays.append(state.deadline_ms - now_ms)
        now_ms = state.deadline_ms
        state.step(now_ms, TimerExpired(), 0.5)
    timeout_ms = state.quorum.config.election_timeout_ms
    longest_ms = timeout_ms // 20 + timeout_ms // 2
    assert delays[0] == timeout_ms // 20 + timeout_ms // 10
    assert delays == sorted(delays)
    assert delays[-2:] == [longest_ms, longest_ms]


def test_a_vote_of_an_earlier_round_is_ignored() -> None:
    state = node()
    state.step(1000, TimerExpired())
    request = VoteRequest(state.key, 0, state.log.log_end, True, key(2))
    respond_to_vote(state, 3, is_pre_vote=True)
    assert isinstance(state.quorum.epoch_state, CandidateState)
    assert state.step(1000, ResponseReceived(2, request, VoteResponse(0, -1, True))) == []
    assert isinstance(state.quorum.epoch_state, CandidateState)


def test_a_vote_is_granted_once_per_epoch_and_persisted_before_the_response() -> None:
    state = node()
    request = VoteRequest(key(2), 4, EpochEndOffset(-1, 0), False, key(1))
    effects = state.step(10, RequestReceived(request))
    kept = [index for index, each in enumerate(effects) if isinstance(each, PersistElection)]
    said = [index for index, each in enumerate(effects) if isinstance(each, SendResponse)]
    assert effects[kept[-1]] == PersistElection(ElectionState(4, -1, 2, directory(2)))
    assert kept[-1] < said[0]
    assert response_in(effects) == VoteResponse(4, -1, True)
    other = VoteRequest(key(3), 4, EpochEndOffset(3, 9), False, key(1))
    assert response_in(state.step(11, RequestReceived(other))) == VoteResponse(4, -1, False)
    again = state.step(12, RequestReceived(request))
    assert response_in(again) == VoteResponse(4, -1, True, leader_silence_ms=2)
    assert of_kind(again, PersistElection) == []


def test_a_vote_granted_before_a_crash_is_not_granted_again() -> None:
    state = node(1, ElectionState(4, -1, 2, directory(2)))
    other = VoteRequest(key(3), 4, EpochEndOffset(3, 9), False, key(1))
    assert response_in(state.step(1, RequestReceived(other))) == VoteResponse(4, -1, False)
    lost_its_disk = VoteRequest(ReplicaKey(2, directory(99)), 4, EpochEndOffset(3, 9), False, key(1))
    assert response_in(state.step(1, RequestReceived(lost_its_disk))) == VoteResponse(4, -1, False)


@pytest.mark.parametrize(
    ("log_end", "is_granted"),
    [
        (EpochEndOffset(2, 3), True),
        (EpochEndOffset(2, 4), True),
        (EpochEndOffset(3, 1), True),
        (EpochEndOffset(2, 2), False),
        (EpochEndOffset(1, 9), False),
        (EpochEndOffset(-1, 0), False),
    ],
)
def test_a_vote_is_for_a_log_at_least_as_up_to_date(log_end: EpochEndOffset, is_granted: bool) -> None:
    for pre in (True, False):
        state = node(1, ElectionState(2), log(1, 2, 2))
        reply = response_in(state.step(1, RequestReceived(VoteRequest(key(2), 3, log_end, pre, key(1)))))
        assert isinstance(reply, VoteResponse)
        assert reply.is_granted is is_granted


def test_a_pre_vote_changes_no_state_and_can_be_granted_to_many() -> None:
    state = node(1, ElectionState(3))
    for candidate in (2, 3):
        effects = state.step(1, RequestReceived(VoteRequest(key(candidate), 3, EpochEndOffset(-1, 0), True, key(1))))
        assert response_in(effects) == VoteResponse(3, -1, True)
        assert of_kind(effects, PersistElection) == []
    assert state.quorum.election == ElectionState(3)


def test_a_node_with_a_live_leader_grants_no_pre_vote() -> None:
    state = follower()
    request = VoteRequest(key(3), 5, EpochEndOffset(9, 9), True, key(1))
    assert response_in(state.step(1599, RequestReceived(request))) == VoteResponse(5, 2, False)
    assert response_in(state.step(1600, RequestReceived(request))) == VoteResponse(5, 2, True)


def test_a_leader_grants_no_pre_vote_and_stays_leader() -> None:
    state = elected_leader()
    request = VoteRequest(key(3), 1, EpochEndOffset(9, 9), True, key(1))
    assert response_in(state.step(1001, RequestReceived(request))) == VoteResponse(1, 1, False)
    assert state.is_leader


def test_a_vote_of_a_later_epoch_deposes_a_leader() -> None:
    state = elected_leader()
    effects = state.step(1001, RequestReceived(VoteRequest(key(3), 2, EpochEndOffset(9, 9), False, key(1))))
    leader_changed, kept = effects[:2]
    assert leader_changed == LeaderChanged(-1, 2), "the controller stops before any write to the disk"
    assert kept == PersistElection(ElectionState(2, -1, 3, directory(3)))
    assert response_in(effects) == VoteResponse(2, -1, True)
    assert not state.is_leader


def test_a_rejected_candidate_follows_the_leader_named_in_the_response() -> None:
    state = node(1, ElectionState(4))
    state.step(1000, TimerExpired())
    request = VoteRequest(state.key, 4, state.log.log_end, True, key(2))
    effects = state.step(1001, ResponseReceived(2, request, VoteResponse(6, 3, False)))
    assert effects[0] == PersistElection(ElectionState(6, 3))
    assert sends(effects, QuorumFetchRequest) == [3]
    assert isinstance(state.quorum.epoch_state, FollowerState)


def test_a_repeated_candidate_does_not_delay_the_elections_of_others() -> None:
    state = node(1, ElectionState(1), log(1, 1, 1))
    stands_at_ms = state.quorum.election_deadline_ms
    assert stands_at_ms is not None
    for epoch in range(2, 6):
        request = VoteRequest(key(3), epoch, EpochEndOffset(-1, 0), False, key(1))
        assert response_in(state.step(10 * epoch, RequestReceived(request))) == VoteResponse(epoch, -1, False)
    assert state.quorum.election_deadline_ms == stands_at_ms
