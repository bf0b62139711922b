"""Raft state machines in a given state, and selections of their effects."""

from uuid import UUID

from moldau.raft.effects import Effect, SendRequest, SendResponse
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.events import BatchesAppended, NodeStarted, RequestReceived, ResponseReceived, TimerExpired
from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    EpochEndOffset,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
    VoterNode,
)
from moldau.raft.quorum_config import QuorumConfig
from moldau.raft.quorum_state import QuorumState
from moldau.raft.raft_log_state import BatchSummary, RaftLogState
from moldau.raft.state_machine import RaftStateMachine
from moldau.raft.voter_set import VoterSetHistory

CONFIG = QuorumConfig(fetch_timeout_ms=1500, election_timeout_ms=500, request_timeout_ms=1000)


def directory(node_id: int) -> UUID:
    return UUID(int=0xD0 + node_id)


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, directory(node_id))


def voters(*node_ids: int) -> tuple[VoterNode, ...]:
    return tuple(VoterNode(node_id, directory(node_id)) for node_id in node_ids)


def log(*epochs: int, of: tuple[VoterNode, ...] = voters(1, 2, 3)) -> RaftLogState:
    """Returns a durable log with one record of each of these epochs."""
    log_state = RaftLogState(VoterSetHistory(of))
    log_state.append(BatchSummary(offset, offset + 1, epoch) for offset, epoch in enumerate(epochs))
    log_state.durable_offset = log_state.end_offset
    return log_state


def node(
    node_id: int = 1, election: ElectionState | None = None, log_state: RaftLogState | None = None
) -> RaftStateMachine:
    state = RaftStateMachine(QuorumState(key(node_id), election or ElectionState(), CONFIG))
    state.step(0, NodeStarted(log_state or log()))
    return state


def sends(effects: list[Effect], kind: type) -> list[int]:
    return [
        effect.node_id for effect in effects if isinstance(effect, SendRequest) and isinstance(effect.request, kind)
    ]


def response_in(effects: list[Effect]) -> object:
    [response] = [effect.response for effect in effects if isinstance(effect, SendResponse)]
    return response


def of_kind(effects: list[Effect], kind: type) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def elected_leader(*epochs: int) -> RaftStateMachine:
    """Returns node 1 of three, elected at time 1000; its log has records of these epochs before its own."""
    last_epoch = epochs[-1] if epochs else 0
    state = node(1, ElectionState(last_epoch, -1, -1) if last_epoch else None, log(*epochs))
    state.step(1000, TimerExpired())
    respond_to_vote(state, 2, is_pre_vote=True)
    respond_to_vote(state, 2)
    assert state.is_leader
    end = state.log.end_offset
    state.step(1000, BatchesAppended((BatchSummary(end, end + 1, state.epoch, voters(1, 2, 3)),)))
    return state


def respond_to_vote(
    state: RaftStateMachine, node_id: int, *, is_pre_vote: bool = False, is_granted: bool = True, now_ms: int = 1000
) -> list[Effect]:
    request = VoteRequest(state.key, state.epoch, state.log.log_end, is_pre_vote, key(node_id))
    response = VoteResponse(state.epoch, -1, is_granted)
    return state.step(now_ms, ResponseReceived(node_id, request, response))


def fetch(
    state: RaftStateMachine,
    node_id: int,
    log_end: EpochEndOffset,
    *,
    now_ms: int = 1000,
    epoch: int | None = None,
    leader_sent_ms: int = -1,
) -> list[Effect]:
    request = QuorumFetchRequest(
        key(node_id),
        state.epoch if epoch is None else epoch,
        log_end,
        state.log.high_watermark,
        leader_sent_ms=leader_sent_ms,
    )
    return state.step(now_ms, RequestReceived(request))


def follower(
    log_state: RaftLogState | None = None, *, leader_id: int = 2, epoch: int = 5, node_id: int = 1
) -> RaftStateMachine:
    """Returns a follower that had contact with its leader at time 100."""
    state = node(node_id, ElectionState(epoch - 1), log_state)
    state.step(100, RequestReceived(BeginQuorumEpochRequest(leader_id, epoch, state.key)))
    assert state.leader_id == leader_id
    return state


def respond_to_fetch(state: RaftStateMachine, now_ms: int = 200, **fields: object) -> list[Effect]:
    """Passes the leader's response to the fetch in flight."""
    assert state.fetcher.pending is not None
    node_id, request = state.fetcher.pending
    response = QuorumFetchResponse(state.epoch, node_id, True, **fields)  # type: ignore[arg-type]
    return state.step(now_ms, ResponseReceived(node_id, request, response))
