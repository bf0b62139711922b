"""Changes of the voters, one at a time."""

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
from moldau.raft.effects import AppendLeaderChange, AppendVoters, HighWatermarkAdvanced, LeaderChanged
from moldau.raft.epoch_roles import ElectionState, UnattachedState
from moldau.raft.events import BatchesAppended, LogFlushed, LogTruncated, NodeStarted, TimerExpired
from moldau.raft.leader_state import LeaderState
from moldau.raft.messages import (
    EndQuorumEpochRequest,
    EpochEndOffset,
    ReplicaKey,
    VoterEndpoint,
    VoteRequest,
    VoterNode,
)
from moldau.raft.quorum_state import QuorumState
from moldau.raft.raft_log_state import BatchSummary, RaftLogState
from moldau.raft.state_machine import RaftStateMachine
from moldau.raft.voter_set import VoterSetHistory, majority_size
from support.quorum_states import (
    CONFIG,
    directory,
    elected_leader,
    fetch,
    follower,
    key,
    log,
    node,
    of_kind,
    respond_to_fetch,
    respond_to_vote,
    sends,
    voters,
)


def committed_leader() -> RaftStateMachine:
    state = elected_leader()
    state.step(1000, LogFlushed(1))
    fetch(state, 2, EpochEndOffset(1, 1))
    assert state.quorum.require_leader().has_committed_in_epoch
    return state


def append_voters(state: RaftStateMachine, changed: tuple[VoterNode, ...]) -> None:
    end = state.log.end_offset
    state.step(1100, BatchesAppended((BatchSummary(end, end + 1, state.epoch, changed),)))


def test_a_voter_is_added_once_it_has_caught_up() -> None:
    state = committed_leader()
    new = VoterNode(4, directory(4))
    with pytest.raises(RequestTimedOutError, match="caught up"):
        state.quorum.require_leader().with_voter(1100, new)
    fetch(state, 4, EpochEndOffset(-1, 0), now_ms=1100)
    with pytest.raises(RequestTimedOutError, match="caught up"):
        state.quorum.require_leader().with_voter(1100, new)
    fetch(state, 4, EpochEndOffset(1, 1), now_ms=1101)
    assert state.quorum.require_leader().with_voter(1102, new) == voters(1, 2, 3, 4)
    with pytest.raises(RequestTimedOutError, match="caught up"):
        state.quorum.require_leader().with_voter(9_999, new)
    with pytest.raises(DuplicateVoterError):
        state.quorum.require_leader().with_voter(1102, VoterNode(3, directory(9)))
    with pytest.raises(InvalidRequestError, match="directory"):
        state.quorum.require_leader().with_voter(1102, VoterNode(4))


def test_one_change_of_voters_at_a_time() -> None:
    state = committed_leader()
    append_voters(state, state.quorum.require_leader().without_voter(key(3)))
    assert state.quorum.voters == voters(1, 2), "a voters record counts as soon as it is appended"
    with pytest.raises(RequestTimedOutError, match="in progress"):
        state.quorum.require_leader().without_voter(key(2))
    state.step(1100, LogFlushed(2))
    fetch(state, 2, EpochEndOffset(1, 2))
    assert state.quorum.require_leader().without_voter(key(2)) == voters(1)


def test_voters_change_only_after_the_leader_has_committed_in_its_epoch() -> None:
    state = elected_leader()
    with pytest.raises(RequestTimedOutError, match="just elected"):
        state.quorum.require_leader().without_voter(key(3))
    with pytest.raises(NotControllerError):
        follower().quorum.require_leader().without_voter(key(3))


def test_only_voters_can_be_removed_or_updated_and_not_the_last_one() -> None:
    state = committed_leader()
    for wrong in (key(9), ReplicaKey(3, directory(9))):
        with pytest.raises(VoterNotFoundError):
            state.quorum.require_leader().without_voter(wrong)
        with pytest.raises(VoterNotFoundError):
            state.quorum.require_leader().with_updated_voter(VoterNode(*wrong))


def test_a_removed_leader_stays_leader_until_the_removal_commits_without_it() -> None:
    state = committed_leader()
    append_voters(state, state.quorum.require_leader().without_voter(key(1)))
    state.step(1100, LogFlushed(2))
    assert state.is_leader
    effects = fetch(state, 2, EpochEndOffset(1, 2), now_ms=1101)
    assert state.is_leader
    effects = fetch(state, 3, EpochEndOffset(1, 2), now_ms=1102)
    assert effects[0] == HighWatermarkAdvanced(2)
    assert sends(effects, EndQuorumEpochRequest) == [2, 3]
    assert effects[-1] == LeaderChanged(-1, 1)
    assert isinstance(state.quorum.epoch_state, UnattachedState), (
        "an observer from now on, that looks for the next leader"
    )


def test_a_voter_with_an_uncommitted_removal_can_be_candidate() -> None:
    """Otherwise no node could win: the others have shorter logs, and need its vote."""
    view = log(1, 1)
    view.append([BatchSummary(2, 3, 1, voters(2))])
    view.durable_offset = 3
    state = node(1, ElectionState(1), view)
    assert not state.quorum.is_voter
    assert state.deadline_ms is not None
    effects = state.step(1000, TimerExpired())
    assert sends(effects, VoteRequest) == [2]
    respond_to_vote(state, 2, is_pre_vote=True)
    effects = respond_to_vote(state, 2)
    assert state.is_leader
    begun = of_kind(effects, AppendLeaderChange)
    assert begun == [AppendLeaderChange(1, 2, voters(2), (1, 2), includes_voters=False)]


def test_truncation_restores_the_previous_voters() -> None:
    view = log(1, 1)
    view.append([BatchSummary(2, 3, 3, voters(1, 2, 3, 4))])
    view.durable_offset = 3
    state = follower(view)
    assert state.quorum.voters == voters(1, 2, 3, 4)
    respond_to_fetch(state, diverging_epoch=EpochEndOffset(1, 2))
    state.step(201, LogTruncated(2))
    assert state.quorum.voters == voters(1, 2, 3)


def test_unknown_directories_are_learned_one_record_at_a_time() -> None:
    state = node(1, None, log(of=(VoterNode(1), VoterNode(2), VoterNode(3))))
    state.step(1000, TimerExpired())
    respond_to_vote(state, 2, is_pre_vote=True)
    [begin] = of_kind(respond_to_vote(state, 2), AppendLeaderChange)
    assert isinstance(begin, AppendLeaderChange)
    assert begin.voters == (VoterNode(1, directory(1)), VoterNode(2), VoterNode(3))
    state.step(1000, BatchesAppended((BatchSummary(0, 3, 1, begin.voters),)))
    state.step(1000, LogFlushed(3))
    fetch(state, 2, EpochEndOffset(-1, 0))
    [learned] = of_kind(fetch(state, 2, EpochEndOffset(1, 3)), AppendVoters)
    assert learned == AppendVoters((VoterNode(1, directory(1)), VoterNode(2, directory(2)), VoterNode(3)))
    assert isinstance(learned, AppendVoters)
    append_voters(state, learned.voters)
    assert of_kind(fetch(state, 3, EpochEndOffset(1, 3)), AppendVoters) == []
    state.step(1101, LogFlushed(4))
    [learned] = of_kind(fetch(state, 3, EpochEndOffset(1, 4)), AppendVoters)
    assert learned == AppendVoters(voters(1, 2, 3))


def test_a_leader_with_new_endpoints_appends_them() -> None:
    view = RaftLogState(VoterSetHistory(()))
    before, now = VoterEndpoint("PLAINTEXT", "old", 1), VoterEndpoint("PLAINTEXT", "new", 2)
    view.append([BatchSummary(0, 1, 1, (VoterNode(1, directory(1), (before,)),))])
    view.durable_offset = 1
    state = RaftStateMachine(QuorumState(key(1), ElectionState(1, 1, 1), CONFIG, endpoints=(now,)))
    state.step(0, NodeStarted(view))
    state.step(0, BatchesAppended((BatchSummary(1, 2, 2),)))
    moved = AppendVoters((VoterNode(1, directory(1), (now,)),))
    assert state.step(0, LogFlushed(2)) == [HighWatermarkAdvanced(2), moved]
    append_voters(state, moved.voters)
    assert state.step(0, LogFlushed(3)) == [HighWatermarkAdvanced(3)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=7))
def test_the_majority_end_offset_is_the_largest_that_a_majority_has(offsets: list[int]) -> None:
    own_offset, *replica_offsets = offsets
    everybody = voters(*range(1, len(offsets) + 1))
    log_state = log(*[1] * own_offset, of=everybody)
    leader = LeaderState(
        key(1), 1, log_state, CONFIG, (), elected_since_ms=0, epoch_start_offset=0, next_announcement_ms=0
    )
    for node_id, offset in enumerate(replica_offsets, 2):
        leader.record_contact(key(node_id), 1, -1).record_fetch(offset, 50, 1)
    counts = [sum(offset >= candidate for offset in offsets) for candidate in range(52)]
    most = max(candidate for candidate in range(52) if counts[candidate] >= majority_size(len(offsets)))
    assert leader.majority_end_offset() == most
