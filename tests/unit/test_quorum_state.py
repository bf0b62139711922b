"""The quorum's state machine: what it asks for, in which order, and what it calls committed."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import (
    DuplicateVoterError,
    InvalidRequestError,
    NotControllerError,
    RequestTimedOutError,
    VoterNotFoundError,
)
from moldau.quorum.events import (
    Answer,
    Answered,
    Appended,
    AppendFailed,
    AppendRecords,
    AppendVoters,
    BeginEpoch,
    Committed,
    Durable,
    Effect,
    Election,
    Fatal,
    FetchSnapshot,
    LeaderIs,
    Leaving,
    Persist,
    Received,
    Role,
    Send,
    Serve,
    SnapshotFailed,
    SnapshotMade,
    SnapshotTaken,
    Started,
    Tick,
    Truncate,
    Truncated,
    Unanswered,
    VotersAre,
)
from moldau.quorum.log_view import LogView, Span
from moldau.quorum.messages import (
    BeginEpochRequest,
    EndEpochRequest,
    EpochReply,
    LogEnd,
    QuorumFetch,
    QuorumFetched,
    ReplicaKey,
    SnapshotFetch,
    SnapshotFetched,
    SnapshotId,
    Voter,
    VoterEndpoint,
    VoteReply,
    VoteRequest,
)
from moldau.quorum.ports import QuorumSettings
from moldau.quorum.replicas import Leadership
from moldau.quorum.state import QuorumState
from moldau.quorum.voters import VoterHistory, majority_of

SETTINGS = QuorumSettings(fetch_timeout_ms=1500, election_timeout_ms=500, request_timeout_ms=1000)


def directory(node_id: int) -> UUID:
    return UUID(int=0xD0 + node_id)


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, directory(node_id))


def voters(*node_ids: int) -> tuple[Voter, ...]:
    return tuple(Voter(node_id, directory(node_id)) for node_id in node_ids)


def log(*epochs: int, of: tuple[Voter, ...] = voters(1, 2, 3)) -> LogView:
    """A durable log with a record of each of these epochs."""
    view = LogView(VoterHistory(of))
    view.append(Span(offset, offset + 1, epoch) for offset, epoch in enumerate(epochs))
    view.durable_offset = view.end_offset
    return view


def node(
    node_id: int = 1,
    election: Election | None = None,
    view: LogView | None = None,
) -> QuorumState:
    state = QuorumState(key(node_id), election or Election(), SETTINGS)
    state.step(0, Started(view or log()))
    return state


def sends(effects: list[Effect], kind: type) -> list[int]:
    return [each.to for each in effects if isinstance(each, Send) and isinstance(each.request, kind)]


def answer(effects: list[Effect]) -> object:
    [found] = [each.reply for each in effects if isinstance(each, Answer)]
    return found


def of_kind(effects: list[Effect], kind: type) -> list[Effect]:
    return [each for each in effects if isinstance(each, kind)]


def elected(*epochs: int) -> QuorumState:
    """Node 1 of three, elected at time 1000; its epoch begins behind records of these epochs."""
    last = epochs[-1] if epochs else 0
    state = node(1, Election(last, -1, -1) if last else None, log(*epochs))
    state.step(1000, Tick())
    ask(state, 2, pre=True)
    ask(state, 2)
    assert state.is_leader
    end = state.log.end_offset
    state.step(1000, Appended((Span(end, end + 1, state.epoch, voters(1, 2, 3)),)))
    return state


def ask(
    state: QuorumState, by: int, *, pre: bool = False, granted: bool = True, now_ms: int = 1000
) -> list[Effect]:
    request = VoteRequest(state.key, state.epoch, state.log.last, pre, key(by))
    return state.step(now_ms, Answered(by, request, VoteReply(state.epoch, -1, granted)))


def fetch(
    state: QuorumState,
    by: int,
    last: LogEnd,
    *,
    now_ms: int = 1000,
    epoch: int | None = None,
    heard_ms: int = -1,
) -> list[Effect]:
    known = state.epoch if epoch is None else epoch
    request = QuorumFetch(key(by), known, last, state.high_watermark, heard_ms=heard_ms)
    return state.step(now_ms, Received(request))


def following(
    view: LogView | None = None, *, leader_id: int = 2, epoch: int = 5, node_id: int = 1
) -> QuorumState:
    """A node that hears of its leader at time 100."""
    state = node(node_id, Election(epoch - 1), view)
    state.step(100, Received(BeginEpochRequest(leader_id, epoch, state.key)))
    assert state.leader_id == leader_id
    return state


def fetched(state: QuorumState, now_ms: int = 200, **reply: object) -> list[Effect]:
    """The leader answers the fetch that is under way."""
    assert state.fetching is not None
    by, request = state.fetching
    told = QuorumFetched(state.epoch, by, True, **reply)  # type: ignore[arg-type]
    return state.step(now_ms, Answered(by, request, told))


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
    assert effects[0] == Persist(Election(2, -1, 3, directory(3)))
    assert answer(effects) == VoteReply(2, -1, True)
    assert effects[-1] == LeaderIs(-1, 2)
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


# Following


def test_a_node_that_starts_asks_the_voters_in_turn_for_the_leader() -> None:
    state = QuorumState(key(1), Election(4), SETTINGS)
    effects = state.step(0, Started(log()))
    asked = sends(effects, QuorumFetch)
    for now_ms in (60, 120, 180):
        assert state.fetching is not None
        by, request = state.fetching
        state.step(now_ms, Answered(by, request, QuorumFetched(4, -1, False)))
        asked += sends(state.step(now_ms + 51, Tick()), QuorumFetch)
    assert asked == [2, 3, 2, 3]
    assert state.fetching is not None
    by, request = state.fetching
    effects = state.step(240, Answered(by, request, QuorumFetched(7, 2, False)))
    assert effects[0] == Persist(Election(7, 2))
    assert sends(effects, QuorumFetch) == [2]


def test_a_node_that_was_leader_before_a_crash_does_not_lead_on() -> None:
    state = QuorumState(key(1), Election(4, 1, 1, directory(1)), SETTINGS)
    effects = state.step(0, Started(log(4, 4)))
    assert state.role is Role.RESIGNED
    assert sends(effects, EndEpochRequest) == [2, 3]
    assert answer(fetch(state, 2, LogEnd(4, 2), epoch=4)) == QuorumFetched(4, -1, False)


def test_a_node_that_knows_its_leader_goes_on_fetching_from_it_after_a_restart() -> None:
    state = QuorumState(key(1), Election(4, 3), SETTINGS)
    assert sends(state.step(0, Started(log(4))), QuorumFetch) == [3]
    assert state.leader_id == 3


def test_fetched_records_are_durable_before_the_next_fetch() -> None:
    state = following(log(1, 2))
    effects = fetched(state, records=b"records", high_watermark=3)
    assert effects == [AppendRecords(b"records")]
    assert of_kind(state.step(201, Appended((Span(2, 4, 5),))), Send) == []
    effects = state.step(202, Durable(4))
    assert effects[0] == Committed(3)
    [send] = of_kind(effects, Send)
    assert isinstance(send, Send)
    assert send.request == QuorumFetch(key(1), 5, LogEnd(5, 4), 3, 500)


def test_a_follower_hands_on_no_more_than_it_has() -> None:
    state = following(log(1, 2))
    assert of_kind(fetched(state, high_watermark=99), Committed) == [Committed(2)]


def test_the_high_watermark_of_a_new_leader_may_be_lower_and_nothing_is_taken_back() -> None:
    state = following(log(1, 2))
    fetched(state, high_watermark=2)
    assert of_kind(fetched(state, high_watermark=1), Committed) == []
    assert state.high_watermark == 2


def test_an_answer_to_another_fetch_than_the_one_under_way_is_ignored() -> None:
    state = following(log(1, 2))
    assert state.fetching is not None
    _, request = state.fetching
    fetched(state, high_watermark=1)
    late = QuorumFetched(5, 2, True, b"records", 2)
    assert state.step(210, Answered(2, request, late)) == []
    state.step(220, Received(BeginEpochRequest(3, 6, key(1))))
    assert state.fetching is not None
    assert state.step(230, Answered(2, request, late)) == []


def test_a_follower_cuts_its_log_where_the_leaders_parts_from_it() -> None:
    # Its own log: epochs 1 1 3 3 3. The leader has 1 1 1 4: their logs part behind offset 2.
    state = following(log(1, 1, 3, 3, 3))
    assert fetched(state, diverging=LogEnd(1, 3)) == [Truncate(2)]
    effects = state.step(201, Truncated(2))
    [send] = of_kind(effects, Send)
    assert isinstance(send, Send)
    assert isinstance(send.request, QuorumFetch)
    assert send.request.last == LogEnd(1, 2)


def test_a_follower_with_more_of_an_epoch_cuts_to_the_leaders_end_of_it() -> None:
    state = following(log(1, 1, 1, 1))
    assert fetched(state, diverging=LogEnd(1, 2)) == [Truncate(2)]


def test_what_is_committed_is_never_truncated() -> None:
    state = following(log(1, 1, 1, 1))
    fetched(state, high_watermark=3)
    [effect] = fetched(state, diverging=LogEnd(1, 2))
    assert isinstance(effect, Fatal)
    assert "committed up to offset 3" in effect.reason


def test_without_news_of_its_leader_a_follower_asks_to_be_elected() -> None:
    state = following()
    assert state.deadline_ms is not None
    assert 1600 <= state.deadline_ms <= 1850
    effects = state.step(state.deadline_ms, Tick())
    assert state.role is Role.PROSPECTIVE
    assert sends(effects, VoteRequest) == [2, 3]


def test_when_the_leader_is_gone_a_follower_stands_after_a_moment() -> None:
    state = following()
    effects = state.step(200, gone(state))
    assert effects[-1] == LeaderIs(-1, 5)
    assert state.deadline_ms is not None
    assert state.deadline_ms <= 300
    assert answer(state.step(201, Received(VoteRequest(key(3), 5, LogEnd(9, 9), True, key(1))))) == VoteReply(
        5, -1, True
    )
    request = VoteRequest(state.key, 5, state.log.last, True, key(3))
    state.step(300, Tick())
    assert state.role is Role.PROSPECTIVE
    state.step(301, Answered(3, request, VoteReply(5, 2, False)))
    assert state.role is Role.PROSPECTIVE, "who has not heard yet does not talk it into following again"


def gone(state: QuorumState) -> Unanswered:
    """Nobody takes the fetch that is under way."""
    assert state.fetching is not None
    return Unanswered(*state.fetching, is_gone=True)


def test_a_leader_that_does_not_answer_is_asked_again() -> None:
    silent = following()
    assert silent.fetching is not None
    by, request = silent.fetching
    silent.step(200, Unanswered(by, request))
    assert silent.leader_id == 2
    assert sends(silent.step(250, Tick()), QuorumFetch) == [2]


def test_the_first_successor_of_a_leader_that_resigns_stands_first() -> None:
    first, second, third = (
        following(),
        following(node_id=3),
        following(node_id=4, view=log(of=voters(1, 2, 3, 4))),
    )
    request = EndEpochRequest(2, 5, (key(1), key(3)))
    for state in (first, second, third):
        assert answer(state.step(200, Received(request))) == EpochReply(5, -1)
    deadlines = [state.election_ms for state in (first, second, third)]
    assert deadlines == [225, 475, 950]


def test_an_epoch_has_one_leader_whoever_says_otherwise() -> None:
    state = following()
    effects = state.step(200, Received(BeginEpochRequest(3, 5, key(1))))
    assert answer(effects) == EpochReply(5, 2)
    assert of_kind(effects, Persist) == []


def test_an_observer_never_stands_and_looks_for_another_leader() -> None:
    state = following(node_id=7)
    assert not state.is_voter
    assert state.deadline_ms is not None
    effects = state.step(state.deadline_ms, Tick())
    assert state.role is Role.UNATTACHED
    assert sends(effects, VoteRequest) == []
    assert len(sends(effects, QuorumFetch)) == 1


def test_a_node_that_leaves_hands_over_and_does_not_stand_again() -> None:
    state = elected()
    effects = state.step(1001, Leaving())
    assert sends(effects, EndEpochRequest) == [2, 3]
    assert state.deadline_ms is None
    left = following()
    left.step(200, Leaving())
    left.step(300, gone(left))
    assert left.election_ms is None


# Leading


def test_a_leader_of_three_commits_what_two_have_on_disk() -> None:
    state = elected()
    state.step(1000, Durable(1))
    assert state.high_watermark == 0
    effects = fetch(state, 3, LogEnd(1, 1))
    assert effects[0] == Committed(1)
    assert isinstance(effects[-1], Serve)


def test_a_leader_announces_nothing_before_it_has_committed_in_its_own_epoch() -> None:
    """Until then more may be agreed on than it knows, and whoever starts would act on outdated metadata."""
    state = elected(1, 2)
    assert state.announced_high_watermark == -1
    reply = answer(fetch(state, 2, LogEnd(1, 9)))
    assert isinstance(reply, QuorumFetched)
    assert reply.high_watermark == -1
    state.step(1000, Durable(3))
    assert not state.is_current
    fetch(state, 2, LogEnd(3, 3))
    assert state.announced_high_watermark == 3
    assert state.is_current


def test_a_follower_is_current_when_it_has_reached_what_the_leader_first_told() -> None:
    state = following(log(1, 2))
    fetched(state, high_watermark=-1)
    assert not state.is_current
    fetched(state, records=b"records", high_watermark=4)
    state.step(201, Appended((Span(2, 3, 5),)))
    state.step(202, Durable(3))
    assert state.high_watermark == 3
    assert not state.is_current
    fetched(state, records=b"records", high_watermark=9)
    state.step(203, Appended((Span(3, 4, 5),)))
    state.step(204, Durable(4))
    assert state.is_current


def test_a_leader_counts_itself_only_when_its_own_disk_has_it() -> None:
    state = elected()
    fetch(state, 3, LogEnd(1, 1))
    assert state.high_watermark == 0
    assert of_kind(state.step(1001, Durable(1)), Committed) == [Committed(1)]


def test_records_of_earlier_epochs_are_committed_only_behind_one_of_this_epoch() -> None:
    state = elected(1, 2)
    state.step(1000, Durable(3))
    assert of_kind(fetch(state, 2, LogEnd(2, 2)), Committed) == []
    assert of_kind(fetch(state, 2, LogEnd(3, 3)), Committed) == [Committed(3)]


def test_a_fetch_that_was_held_back_takes_nothing_back() -> None:
    state = elected()
    state.step(1000, Appended((Span(1, 5, 1),)))
    state.step(1000, Durable(5))
    fetch(state, 2, LogEnd(1, 5), heard_ms=900)
    fetch(state, 2, LogEnd(1, 1), heard_ms=800)
    assert state.high_watermark == 5
    assert state.leadership is not None
    assert state.leadership.replicas[key(2)].end_offset == 5


def test_a_replica_whose_log_parts_from_the_leaders_is_told_where_and_not_counted() -> None:
    state = elected(1, 1, 3)
    state.step(1000, Durable(4))
    reply = answer(fetch(state, 2, LogEnd(2, 7)))
    assert isinstance(reply, QuorumFetched)
    assert reply.diverging == LogEnd(1, 2)
    reply = answer(fetch(state, 2, LogEnd(1, 3)))
    assert isinstance(reply, QuorumFetched)
    assert reply.diverging == LogEnd(1, 2)
    reply = answer(fetch(state, 2, LogEnd(9, 3)))
    assert isinstance(reply, QuorumFetched)
    assert reply.diverging == LogEnd(4, 4)
    assert state.high_watermark == 0
    assert isinstance(fetch(state, 2, LogEnd(1, 2))[-1], Serve)
    assert isinstance(fetch(state, 2, LogEnd(-1, 0))[-1], Serve)


def test_a_replica_behind_the_logs_start_is_told_of_the_snapshot() -> None:
    state = elected(1, 1, 3)
    state.step(1000, Durable(4))
    fetch(state, 2, LogEnd(4, 4))
    state.step(1001, SnapshotMade(SnapshotId(3, 3), 3))
    for last in (LogEnd(-1, 0), LogEnd(1, 2), LogEnd(2, 3)):
        reply = answer(fetch(state, 3, last))
        assert isinstance(reply, QuorumFetched)
        assert reply.snapshot == SnapshotId(3, 3), last
    assert isinstance(fetch(state, 3, LogEnd(3, 3))[-1], Serve)


def test_a_leader_that_no_majority_has_heard_of_resigns() -> None:
    state = elected()
    fetch(state, 2, LogEnd(-1, 0), now_ms=2100, heard_ms=2000)
    assert state.confirmed_ms(3000) == 2000
    state.step(4249, Tick())
    assert state.is_leader
    effects = state.step(4250, Tick())
    assert state.role is Role.RESIGNED
    assert sends(effects, EndEpochRequest) == [2, 3]
    assert effects[-1] == LeaderIs(-1, 1)


def test_an_epoch_is_announced_again_to_those_who_do_not_fetch() -> None:
    state = elected()
    fetch(state, 2, LogEnd(-1, 0), now_ms=1400)
    assert state.deadline_ms == 1500
    assert sends(state.step(1500, Tick()), BeginEpochRequest) == [3]
    fetch(state, 2, LogEnd(-1, 0), now_ms=1900)
    assert sends(state.step(2000, Tick()), BeginEpochRequest) == [3]


def test_a_leader_that_cannot_even_begin_its_epoch_resigns() -> None:
    state = node()
    state.step(1000, Tick())
    ask(state, 2, pre=True)
    ask(state, 2)
    assert state.is_leader
    state.step(1000, AppendFailed())
    assert state.role is Role.RESIGNED


# Snapshots


def test_a_follower_fetches_the_snapshot_and_goes_on_behind_it() -> None:
    state = following(log(1, 1))
    assert fetched(state, snapshot=SnapshotId(40, 4)) == [FetchSnapshot(2, 5, SnapshotId(40, 4))]
    piece = SnapshotFetch(key(1), 5, SnapshotId(40, 4), 0)
    state.step(900, Answered(2, piece, SnapshotFetched(5, 2, True, 10, 0, b"12345")))
    assert state.heard_ms == 900, "a leader that sends a long snapshot is alive"
    effects = state.step(950, SnapshotTaken(SnapshotId(40, 4), voters(1, 2, 7)))
    assert effects[0] == Committed(40)
    [send] = of_kind(effects, Send)
    assert isinstance(send, Send)
    assert isinstance(send.request, QuorumFetch)
    assert send.request.last == LogEnd(4, 40)
    assert state.voters == voters(1, 2, 7)


def test_a_snapshot_that_could_not_be_had_is_asked_for_again() -> None:
    state = following(log(1, 1))
    fetched(state, snapshot=SnapshotId(40, 4))
    assert state.step(300, SnapshotFailed()) == []
    assert sends(state.step(350, Tick()), QuorumFetch) == [2]


def test_a_snapshot_of_less_than_is_committed_means_that_data_was_lost() -> None:
    state = following(log(1, 1, 1))
    fetched(state, high_watermark=3)
    [effect] = fetched(state, snapshot=SnapshotId(2, 1))
    assert isinstance(effect, Fatal)


# Voters


def committed_leader() -> QuorumState:
    state = elected()
    state.step(1000, Durable(1))
    fetch(state, 2, LogEnd(1, 1))
    assert state.has_committed_in_epoch
    return state


def append_voters(state: QuorumState, changed: tuple[Voter, ...]) -> None:
    end = state.log.end_offset
    state.step(1100, Appended((Span(end, end + 1, state.epoch, changed),)))


def test_a_voter_is_added_once_it_has_caught_up() -> None:
    state = committed_leader()
    new = Voter(4, directory(4))
    with pytest.raises(RequestTimedOutError, match="caught up"):
        state.with_voter(1100, new)
    fetch(state, 4, LogEnd(-1, 0), now_ms=1100)
    with pytest.raises(RequestTimedOutError, match="caught up"):
        state.with_voter(1100, new)
    fetch(state, 4, LogEnd(1, 1), now_ms=1101)
    assert state.with_voter(1102, new) == voters(1, 2, 3, 4)
    with pytest.raises(RequestTimedOutError, match="caught up"):
        state.with_voter(9_999, new)
    with pytest.raises(DuplicateVoterError):
        state.with_voter(1102, Voter(3, directory(9)))
    with pytest.raises(InvalidRequestError, match="directory"):
        state.with_voter(1102, Voter(4))


def test_one_change_of_voters_at_a_time() -> None:
    state = committed_leader()
    append_voters(state, state.without_voter(key(3)))
    assert state.voters == voters(1, 2), "it counts from the moment it is in the log"
    with pytest.raises(RequestTimedOutError, match="under way"):
        state.without_voter(key(2))
    state.step(1100, Durable(2))
    fetch(state, 2, LogEnd(1, 2))
    assert state.without_voter(key(2)) == voters(1)


def test_voters_change_only_after_the_leader_has_committed_in_its_epoch() -> None:
    state = elected()
    with pytest.raises(RequestTimedOutError, match="just begun"):
        state.without_voter(key(3))
    with pytest.raises(NotControllerError):
        following().without_voter(key(3))


def test_what_is_no_voter_cannot_be_removed_or_changed_and_the_last_one_stays() -> None:
    state = committed_leader()
    for wrong in (key(9), ReplicaKey(3, directory(9))):
        with pytest.raises(VoterNotFoundError):
            state.without_voter(wrong)
        with pytest.raises(VoterNotFoundError):
            state.with_updated_voter(Voter(*wrong))


def test_a_leader_that_is_removed_leads_until_that_is_committed_without_its_own_vote() -> None:
    state = committed_leader()
    append_voters(state, state.without_voter(key(1)))
    state.step(1100, Durable(2))
    assert state.is_leader
    effects = fetch(state, 2, LogEnd(1, 2), now_ms=1101)
    assert state.is_leader
    effects = fetch(state, 3, LogEnd(1, 2), now_ms=1102)
    assert effects[0] == Committed(2)
    assert sends(effects, EndEpochRequest) == [2, 3]
    assert effects[-1] == LeaderIs(-1, 1)
    assert state.role is Role.UNATTACHED, "an observer from now on, that looks for the next leader"


def test_who_was_removed_by_a_record_that_may_be_lost_still_stands() -> None:
    """Else nobody could win: the others have shorter logs, and need its vote or its log."""
    view = log(1, 1)
    view.append([Span(2, 3, 1, voters(2))])
    view.durable_offset = 3
    state = node(1, Election(1), view)
    assert not state.is_voter
    assert state.deadline_ms is not None
    effects = state.step(1000, Tick())
    assert sends(effects, VoteRequest) == [2]
    ask(state, 2, pre=True)
    effects = ask(state, 2)
    assert state.is_leader
    begun = of_kind(effects, BeginEpoch)
    assert begun == [BeginEpoch(1, 2, voters(2), (1, 2), names_voters=False)]


def test_truncation_gives_the_word_back_to_the_voters_before() -> None:
    view = log(1, 1)
    view.append([Span(2, 3, 3, voters(1, 2, 3, 4))])
    view.durable_offset = 3
    state = following(view)
    assert state.voters == voters(1, 2, 3, 4)
    fetched(state, diverging=LogEnd(1, 2))
    state.step(201, Truncated(2))
    assert state.voters == voters(1, 2, 3)


def test_directories_that_the_settings_did_not_know_are_learned_one_record_at_a_time() -> None:
    state = node(1, None, log(of=(Voter(1), Voter(2), Voter(3))))
    state.step(1000, Tick())
    ask(state, 2, pre=True)
    [begin] = of_kind(ask(state, 2), BeginEpoch)
    assert isinstance(begin, BeginEpoch)
    assert begin.voters == (Voter(1, directory(1)), Voter(2), Voter(3))
    state.step(1000, Appended((Span(0, 3, 1, begin.voters),)))
    state.step(1000, Durable(3))
    fetch(state, 2, LogEnd(-1, 0))
    [learned] = of_kind(fetch(state, 2, LogEnd(1, 3)), AppendVoters)
    assert learned == AppendVoters((Voter(1, directory(1)), Voter(2, directory(2)), Voter(3)))
    assert isinstance(learned, AppendVoters)
    append_voters(state, learned.voters)
    assert of_kind(fetch(state, 3, LogEnd(1, 3)), AppendVoters) == []
    state.step(1101, Durable(4))
    [learned] = of_kind(fetch(state, 3, LogEnd(1, 4)), AppendVoters)
    assert learned == AppendVoters(voters(1, 2, 3))


def test_a_leader_that_has_moved_says_where_it_is_now() -> None:
    view = LogView(VoterHistory(()))
    before, now = VoterEndpoint("PLAINTEXT", "old", 1), VoterEndpoint("PLAINTEXT", "new", 2)
    view.append([Span(0, 1, 1, (Voter(1, directory(1), (before,)),))])
    view.durable_offset = 1
    state = QuorumState(key(1), Election(1, 1, 1), SETTINGS, endpoints=(now,))
    state.step(0, Started(view))
    state.step(0, Appended((Span(1, 2, 2),)))
    moved = AppendVoters((Voter(1, directory(1), (now,)),))
    assert state.step(0, Durable(2)) == [Committed(2), moved]
    append_voters(state, moved.voters)
    assert state.step(0, Durable(3)) == [Committed(3)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=7))
def test_the_majority_offset_is_the_largest_that_a_majority_has(offsets: list[int]) -> None:
    own, *of_others = offsets
    leadership = Leadership(key(1), since_ms=0, epoch_start_offset=0, begin_ms=0)
    for number, offset in enumerate(of_others, 2):
        leadership.fetched(leadership.heard(key(number), 1, -1), offset, 50, 1)
    everybody = voters(*range(1, len(offsets) + 1))
    have = [sum(offset >= candidate for offset in offsets) for candidate in range(52)]
    most = max(candidate for candidate in range(52) if have[candidate] >= majority_of(len(offsets)))
    assert leadership.durable_on_majority(everybody, own) == most


# What must not be believed


@pytest.mark.parametrize("epoch", [5 + 2**20 + 1, 2**31 - 2, 2**31 - 1])
@pytest.mark.parametrize("kind", ["vote", "begin", "end"])
def test_an_epoch_that_cannot_be_is_refused(kind: str, epoch: int) -> None:
    state = following()
    request = {
        "vote": VoteRequest(key(3), epoch, LogEnd(5, 9), False, key(1)),
        "begin": BeginEpochRequest(3, epoch, key(1)),
        "end": EndEpochRequest(3, epoch, (key(1),)),
    }[kind]
    effects = state.step(200, Received(request))
    assert isinstance(answer(effects), InvalidRequestError)
    assert len(effects) == 1
    assert (state.epoch, state.leader_id) == (5, 2)


def test_a_node_that_was_away_for_many_epochs_still_hears_of_the_newest() -> None:
    state = following()
    assert answer(state.step(200, Received(BeginEpochRequest(3, 5 + 2**20, key(1))))) == EpochReply(
        5 + 2**20, 3
    )


def test_who_does_not_name_its_directory_is_not_taken_for_a_voter() -> None:
    state = elected()
    state.step(1000, Durable(1))
    for node_id in (2, 3):
        nameless = QuorumFetch(ReplicaKey(node_id), state.epoch, LogEnd(1, 1), heard_ms=1500)
        state.step(1500, Received(nameless))
    assert state.high_watermark == 0
    assert state.confirmed_ms(1500) == 1000


def test_a_snapshot_of_ones_own_that_comes_late_does_not_take_the_place_of_a_newer_one() -> None:
    state = following(log(*[3] * 10))
    state.fetching_snapshot = SnapshotId(50, 3)
    state.step(200, SnapshotTaken(SnapshotId(50, 3), voters(1, 2, 3)))
    state.step(201, SnapshotMade(SnapshotId(9, 3), 50))
    assert state.log.snapshot == SnapshotId(50, 3)


def test_a_leader_is_confirmed_by_what_was_heard_of_it_and_not_by_when_a_fetch_came() -> None:
    state = elected()
    fetch(state, 2, LogEnd(1, 1), now_ms=1200)
    assert state.confirmed_ms(1200) == 1000
    fetch(state, 2, LogEnd(1, 1), now_ms=3100, heard_ms=1205)
    assert state.confirmed_ms(3100) == 1205
    fetch(state, 2, LogEnd(1, 1), now_ms=3101, heard_ms=1100)
    fetch(state, 3, LogEnd(1, 1), now_ms=3101, heard_ms=10**9)
    assert state.confirmed_ms(3102) == 3101, "what cannot have been heard yet is not believed"


def test_a_follower_says_back_what_it_last_heard_of_the_leader_of_its_epoch() -> None:
    state = following()
    fetched(state, sent_ms=777)
    assert state.fetching is not None
    assert state.fetching[1].heard_ms == 777
    state.step(300, Received(BeginEpochRequest(3, 6, key(1))))
    assert state.fetching[1].heard_ms == -1, "another leader has another clock"


def test_a_leader_whose_disk_is_full_hands_over_where_there_are_others() -> None:
    state = elected()
    effects = state.step(1500, AppendFailed())
    assert state.role is Role.RESIGNED
    assert sends(effects, EndEpochRequest) == [2, 3]
    alone = node(view=log(of=voters(1)))
    alone.step(0, Appended((Span(0, 1, 1),)))
    alone.step(1500, AppendFailed())
    assert alone.is_leader


def test_a_vote_says_for_how_long_nobody_was_heard_of() -> None:
    request = VoteRequest(key(3), 6, LogEnd(9, 9), False, key(1))
    heard = following()
    fetched(heard)
    at_ms = heard.last_heard_ms
    assert at_ms is not None
    reply = answer(heard.step(at_ms + 1600, Received(request)))
    assert isinstance(reply, VoteReply)
    assert (reply.is_granted, reply.silent_ms) == (True, 1600)
    restarted = node(1, Election(5, 2))
    reply = answer(restarted.step(9000, Received(request)))
    assert isinstance(reply, VoteReply)
    assert (reply.is_granted, reply.silent_ms) == (True, 0), "what it heard in a former life it does not know"
