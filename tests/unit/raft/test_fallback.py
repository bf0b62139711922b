"""A voter that comes back with less on disk than it had confirmed. The state machine alone."""

from uuid import UUID

import pytest

from moldau.raft.events import (
    Answer,
    Answered,
    Appended,
    Committed,
    Durable,
    Effect,
    Election,
    FellBack,
    Received,
    SnapshotMade,
    Started,
    Tick,
)
from moldau.raft.log_view import LogView, Span
from moldau.raft.messages import (
    LogEnd,
    QuorumFetch,
    QuorumFetched,
    ReplicaKey,
    SnapshotId,
    Voter,
    VoteReply,
    VoteRequest,
)
from moldau.raft.state import QuorumState
from moldau.raft.voters import VoterHistory

VOTERS = tuple(Voter(node_id, UUID(int=node_id)) for node_id in (1, 2, 3, 4, 5))


def leading() -> QuorumState:
    """Node 1 of five, at time 1000; what it has appended, up to offset 10, is on its own disk."""
    state = QuorumState(VOTERS[0].key, Election())
    state.step(0, Started(LogView(VoterHistory(VOTERS))))
    state.step(1000, Tick())
    for is_pre_vote in (True, False):
        for by in (1, 2):
            request = VoteRequest(state.key, state.epoch, state.log.last, is_pre_vote, VOTERS[by].key)
            state.step(1000, Answered(VOTERS[by].node_id, request, VoteReply(state.epoch, -1, True)))
    assert state.is_leader
    state.step(1000, Appended((Span(0, 1, state.epoch, VOTERS), Span(1, 10, state.epoch))))
    state.step(1000, Durable(10))
    return state


def fetch(
    state: QuorumState, by: ReplicaKey, offset: int, *, heard_ms: int = -1, epoch: int = 1
) -> list[Effect]:
    request = QuorumFetch(by, state.epoch, LogEnd(epoch, offset), 0, heard_ms=heard_ms)
    return state.step(1000, Received(request))


def told(effects: list[Effect]) -> list[FellBack]:
    return [each for each in effects if isinstance(each, FellBack)]


def committed(effects: list[Effect]) -> list[int]:
    return [each.offset for each in effects if isinstance(each, Committed)]


def test_what_a_voter_had_confirmed_and_has_lost_counts_no_more() -> None:
    state = leading()
    two, three = VOTERS[1].key, VOTERS[2].key
    assert committed(fetch(state, two, 10)) == []
    assert told(fetch(state, two, 4)) == [FellBack(two, 10, 4)]
    # Node 1 and node 3 are two of five.
    assert committed(fetch(state, three, 10)) == [4]
    effects = fetch(state, two, 10, heard_ms=1000)
    assert (committed(effects), told(effects)) == ([10], [])


def test_what_was_committed_stays_committed() -> None:
    state = leading()
    two, three = VOTERS[1].key, VOTERS[2].key
    fetch(state, two, 10)
    assert committed(fetch(state, three, 10)) == [10]
    effects = fetch(state, two, 4)
    assert (len(told(effects)), committed(effects), state.high_watermark) == (1, [], 10)
    assert told(fetch(state, two, 4)) == []


def test_a_voter_that_was_merely_started_again_has_lost_nothing() -> None:
    state = leading()
    fetch(state, VOTERS[1].key, 10, heard_ms=900)
    assert told(fetch(state, VOTERS[1].key, 10)) == []
    assert committed(fetch(state, VOTERS[2].key, 10)) == [10]


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_voter_whose_old_log_is_not_the_leaders_any_more_confirms_nothing(epoch: int) -> None:
    state = leading()
    two, three, four = (VOTERS[place].key for place in (1, 2, 3))
    for by in (two, three, four):
        fetch(state, by, 8)
    state.step(1000, SnapshotMade(SnapshotId(6, 1), 6))
    fetch(state, two, 10)
    effects = fetch(state, two, 3, epoch=epoch)
    [reply] = [each.reply for each in effects if isinstance(each, Answer)]
    assert isinstance(reply, QuorumFetched)
    assert reply.snapshot == SnapshotId(6, 1)
    assert told(effects) == [FellBack(two, 10, 3)]
    assert committed(fetch(state, three, 10)) == []
    assert committed(fetch(state, four, 10)) == [10]


def test_an_observer_may_begin_anew() -> None:
    state = leading()
    observer = ReplicaKey(6, UUID(int=6))
    fetch(state, observer, 10)
    assert told(fetch(state, observer, 0, epoch=-1)) == []
