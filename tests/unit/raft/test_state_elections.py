"""Who is elected to lead the quorum: asking first, standing, votes that are given once."""

import pytest

from moldau.raft.events import (
    Answer,
    Answered,
    Appended,
    BeginEpoch,
    Committed,
    Durable,
    Election,
    LeaderIs,
    Persist,
    Received,
    Role,
    Send,
    Started,
    Tick,
    Unanswered,
    VotersAre,
)
from moldau.raft.log_view import Span
from moldau.raft.messages import (
    BeginEpochRequest,
    LogEnd,
    QuorumFetch,
    ReplicaKey,
    Voter,
    VoteReply,
    VoteRequest,
)
from moldau.raft.state import QuorumState
from support.quorum_states import (
    SETTINGS,
    answer,
    ask,
    directory,
    elected,
    following,
    key,
    log,
    node,
    of_kind,
    sends,
    voters,
)

# A quorum of one


def test_one_voter_elects_itself_and_its_vote_is_persisted_before_anything_else() -> None:
    state = QuorumState(key(1), Election(), SETTINGS)
    assert state.step(0, Started(log(of=(Voter(1),)))) == [
        Persist(Election(1, 1, 1, directory(1))),
        BeginEpoch(1, 1, voters(1), (1,), names_voters=True),
        LeaderIs(1, 1),
        VotersAre((Voter(1),)),
    ]
    assert state.is_leader
    assert state.deadline_ms is None


def test_every_start_of_a_quorum_of_one_begins_a_new_epoch() -> None:
    state = node(1, Election(7, 1, 1), log(7, 7, of=voters(1)))
    assert state.epoch == 8
    assert state.is_leader


def test_what_is_durable_on_a_majority_of_one_is_committed() -> None:
    state = node(1, None, log(of=voters(1)))
    assert state.step(0, Appended((Span(0, 3, 1, voters(1)),)))[:1] == []
    assert state.step(0, Durable(3)) == [Committed(3)]
    state.step(0, Appended((Span(3, 7, 1),)))
    assert state.step(0, Durable(5)) == [Committed(5)]
    assert state.step(0, Durable(5)) == []
    assert state.step(0, Durable(7)) == [Committed(7)]


def test_more_durable_than_appended_cannot_be() -> None:
    state = node(1, None, log(of=voters(1)))
    with pytest.raises(AssertionError):
        state.step(0, Durable(1))


# Elections


def test_a_node_asks_first_then_stands_then_leads_and_persists_before_each_step() -> None:
    state = node()
    effects = state.step(1000, Tick())
    assert sends(effects, VoteRequest) == [2, 3]
    assert of_kind(effects, Persist) == [], "asking costs nothing and is remembered by nobody"
    assert state.epoch == 0
    effects = ask(state, 3, pre=True)
    assert effects[0] == Persist(Election(1, -1, 1, directory(1)))
    assert sends(effects, VoteRequest) == [2, 3]
    effects = ask(state, 3)
    assert effects[0] == Persist(Election(1, 1, 1, directory(1)))
    assert isinstance(effects[1], BeginEpoch)
    assert effects[1].granting == (1, 3)
    assert sends(effects, BeginEpochRequest) == [2, 3]
    assert effects[-1] == LeaderIs(1, 1)


def test_one_vote_of_three_elects_nobody_and_the_next_round_asks_again() -> None:
    state = node()
    state.step(1000, Tick())
    ask(state, 2, pre=True, granted=False)
    effects = ask(state, 3, pre=True, granted=False)
    assert effects == []
    assert state.role is Role.PROSPECTIVE
    assert state.deadline_ms is not None
    assert 1000 < state.deadline_ms <= 1000 + 50 + 500
    effects = state.step(state.deadline_ms, Tick())
    assert sends(effects, VoteRequest) == [2, 3]
    assert state.epoch == 0


def test_nodes_that_cannot_be_asked_end_the_round_sooner_than_its_timeout() -> None:
    state = node()
    effects = state.step(1000, Tick())
    before = state.deadline_ms
    for each in of_kind(effects, Send):
        assert isinstance(each, Send)
        state.step(1001, Unanswered(each.to, each.request, is_gone=True))
    assert before is not None
    assert state.deadline_ms is not None
    assert state.deadline_ms < before


def test_a_candidate_that_lost_asks_first_again_instead_of_beginning_another_epoch() -> None:
    state = node()
    state.step(1000, Tick())
    ask(state, 2, pre=True)
    assert state.epoch == 1
    deadline_ms = state.deadline_ms
    assert deadline_ms is not None
    effects = state.step(deadline_ms, Tick())
    assert state.role is Role.PROSPECTIVE
    assert state.epoch == 1
    assert of_kind(effects, Persist) == []


def test_an_answer_of_an_earlier_round_counts_for_nothing() -> None:
    state = node()
    state.step(1000, Tick())
    request = VoteRequest(state.key, 0, state.log.last, True, key(2))
    ask(state, 3, pre=True)
    assert state.role is Role.CANDIDATE
    assert state.step(1000, Answered(2, request, VoteReply(0, -1, True))) == []
    assert state.role is Role.CANDIDATE


def test_a_vote_is_given_once_an_epoch_and_persisted_before_it_is_answered() -> None:
    state = node()
    request = VoteRequest(key(2), 4, LogEnd(-1, 0), False, key(1))
    effects = state.step(10, Received(request))
    kept = [index for index, each in enumerate(effects) if isinstance(each, Persist)]
    said = [index for index, each in enumerate(effects) if isinstance(each, Answer)]
    assert effects[kept[-1]] == Persist(Election(4, -1, 2, directory(2)))
    assert kept[-1] < said[0]
    assert answer(effects) == VoteReply(4, -1, True)
    other = VoteRequest(key(3), 4, LogEnd(3, 9), False, key(1))
    assert answer(state.step(11, Received(other))) == VoteReply(4, -1, False)
    again = state.step(12, Received(request))
    assert answer(again) == VoteReply(4, -1, True, silent_ms=2)
    assert of_kind(again, Persist) == []


def test_a_vote_that_was_given_before_a_crash_is_not_given_again() -> None:
    state = node(1, Election(4, -1, 2, directory(2)))
    other = VoteRequest(key(3), 4, LogEnd(3, 9), False, key(1))
    assert answer(state.step(1, Received(other))) == VoteReply(4, -1, False)
    lost_its_disk = VoteRequest(ReplicaKey(2, directory(99)), 4, LogEnd(3, 9), False, key(1))
    assert answer(state.step(1, Received(lost_its_disk))) == VoteReply(4, -1, False)


@pytest.mark.parametrize(
    ("last", "granted"),
    [
        (LogEnd(2, 3), True),
        (LogEnd(2, 4), True),
        (LogEnd(3, 1), True),
        (LogEnd(2, 2), False),
        (LogEnd(1, 9), False),
        (LogEnd(-1, 0), False),
    ],
)
def test_a_vote_is_for_a_log_at_least_as_up_to_date(last: LogEnd, granted: bool) -> None:
    for pre in (True, False):
        state = node(1, Election(2), log(1, 2, 2))
        reply = answer(state.step(1, Received(VoteRequest(key(2), 3, last, pre, key(1)))))
        assert isinstance(reply, VoteReply)
        assert reply.is_granted is granted


def test_a_pre_vote_changes_nothing_and_may_be_given_to_many() -> None:
    state = node(1, Election(3))
    for candidate in (2, 3):
        effects = state.step(1, Received(VoteRequest(key(candidate), 3, LogEnd(-1, 0), True, key(1))))
        assert answer(effects) == VoteReply(3, -1, True)
        assert of_kind(effects, Persist) == []
    assert state.election == Election(3)


def test_who_hears_of_a_leader_gives_no_pre_vote_until_the_fetch_timeout() -> None:
    state = following()
    request = VoteRequest(key(3), 5, LogEnd(9, 9), True, key(1))
    assert answer(state.step(1599, Received(request))) == VoteReply(5, 2, False)
    assert answer(state.step(1600, Received(request))) == VoteReply(5, 2, True)


def test_a_leader_gives_no_pre_vote_and_goes_on() -> None:
    state = elected()
    request = VoteRequest(key(3), 1, LogEnd(9, 9), True, key(1))
    assert answer(state.step(1001, Received(request))) == VoteReply(1, 1, False)
    assert state.is_leader


def test_a_vote_of_a_later_epoch_deposes_a_leader() -> None:
    state = elected()
    effects = state.step(1001, Received(VoteRequest(key(3), 2, LogEnd(9, 9), False, key(1))))
    told, kept = effects[:2]
    assert told == LeaderIs(-1, 2), "its controller decides no more, however long the disk takes"
    assert kept == Persist(Election(2, -1, 3, directory(3)))
    assert answer(effects) == VoteReply(2, -1, True)
    assert not state.is_leader


def test_a_node_that_is_refused_because_there_is_a_leader_follows_it() -> None:
    state = node(1, Election(4))
    state.step(1000, Tick())
    request = VoteRequest(state.key, 4, state.log.last, True, key(2))
    effects = state.step(1001, Answered(2, request, VoteReply(6, 3, False)))
    assert effects[0] == Persist(Election(6, 3))
    assert sends(effects, QuorumFetch) == [3]
    assert state.role is Role.FOLLOWER


def test_one_that_stands_again_and_again_does_not_keep_others_from_standing() -> None:
    state = node(1, Election(1), log(1, 1, 1))
    stands_at_ms = state.election_ms
    assert stands_at_ms is not None
    for epoch in range(2, 6):
        request = VoteRequest(key(3), epoch, LogEnd(-1, 0), False, key(1))
        assert answer(state.step(10 * epoch, Received(request))) == VoteReply(epoch, -1, False)
    assert state.election_ms == stands_at_ms
