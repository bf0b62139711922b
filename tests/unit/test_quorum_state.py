"""The quorum's state machine: what it asks for, in which order, and what it calls committed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.quorum.state import (
    Appended,
    AppendLeaderChange,
    BecameLeader,
    Committed,
    Durable,
    Election,
    Persist,
    QuorumState,
    Role,
    Started,
    durable_on_majority,
    majority_of,
)


def test_one_voter_elects_itself_and_its_vote_is_persisted_before_anything_else() -> None:
    state = QuorumState(1, (1,), Election())
    assert state.step(0, Started(end_offset=0)) == [
        Persist(Election(epoch=1, leader_id=-1, voted_for=1)),
        Persist(Election(epoch=1, leader_id=1, voted_for=1)),
        BecameLeader(1),
        AppendLeaderChange(leader_id=1, epoch=1, voters=(1,), granting=(1,)),
    ]
    assert state.is_leader


def test_every_start_begins_a_new_epoch() -> None:
    state = QuorumState(1, (1,), Election(epoch=7, leader_id=1, voted_for=1))
    effects = state.step(0, Started(end_offset=20))
    assert effects[0] == Persist(Election(epoch=8, leader_id=-1, voted_for=1))
    assert state.epoch == 8


def test_what_is_durable_on_a_majority_of_one_is_committed() -> None:
    state = QuorumState(1, (1,), Election())
    state.step(0, Started(0))
    assert state.step(0, Appended(1)) == []
    assert state.step(0, Durable(1, 1)) == [Committed(1)]
    assert state.step(0, Appended(5)) == []
    assert state.step(0, Durable(1, 3)) == [Committed(3)]
    assert state.step(0, Durable(1, 3)) == []
    assert state.step(0, Durable(1, 5)) == [Committed(5)]


def test_records_of_earlier_epochs_are_committed_only_behind_one_of_this_epoch() -> None:
    state = QuorumState(1, (1,), Election(epoch=1, leader_id=1, voted_for=1))
    state.step(0, Started(end_offset=10))
    assert state.step(0, Durable(1, 10)) == []
    state.step(0, Appended(11))
    assert state.step(0, Durable(1, 11)) == [Committed(11)]


def test_one_vote_of_three_elects_nobody() -> None:
    state = QuorumState(1, (1, 2, 3), Election())
    assert state.step(0, Started(0)) == [Persist(Election(1, -1, 1))]
    assert state.role is Role.CANDIDATE


def test_a_leader_of_three_commits_what_two_have_on_disk() -> None:
    state = QuorumState(1, (1, 2, 3), Election(1, 1, 1), role=Role.LEADER, durable={1: 0, 2: 0, 3: 0})
    state.step(0, Appended(10))
    assert state.step(0, Durable(1, 10)) == []
    assert state.step(0, Durable(3, 4)) == [Committed(4)]
    assert state.step(0, Durable(2, 7)) == [Committed(7)]


def test_more_durable_than_appended_cannot_be() -> None:
    state = QuorumState(1, (1,), Election())
    state.step(0, Started(0))
    with pytest.raises(AssertionError):
        state.step(0, Durable(1, 1))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=7))
def test_the_majority_offset_is_the_largest_that_a_majority_has(offsets: list[int]) -> None:
    reached = durable_on_majority(dict(enumerate(offsets)))
    have = [sum(offset >= candidate for offset in offsets) for candidate in range(52)]
    majority = majority_of(len(offsets))
    assert reached == max(candidate for candidate in range(52) if have[candidate] >= majority)
