"""What the quorum does not believe: epochs that cannot be, voters without their directory, news that came late."""

import pytest

from moldau.errors import (
    InvalidRequestError,
)
from moldau.raft.events import (
    Appended,
    AppendFailed,
    Durable,
    Election,
    Received,
    Role,
    SnapshotMade,
    SnapshotTaken,
)
from moldau.raft.log_view import Span
from moldau.raft.messages import (
    BeginEpochRequest,
    EndEpochRequest,
    EpochReply,
    LogEnd,
    QuorumFetch,
    ReplicaKey,
    SnapshotId,
    VoteReply,
    VoteRequest,
)
from support.quorum_states import answer, elected, fetch, fetched, following, key, log, node, sends, voters


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
