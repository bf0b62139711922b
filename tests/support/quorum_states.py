"""States of the quorum to begin stories with, and what to look for in their effects."""

from uuid import UUID

from moldau.raft.events import (
    BatchesAppended,
    Effect,
    ElectionState,
    NodeStarted,
    RequestReceived,
    ResponseReceived,
    SendRequest,
    SendResponse,
    TimerExpired,
)
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
from moldau.raft.network_channel import QuorumConfig
from moldau.raft.raft_log_state import BatchSummary, RaftLogState
from moldau.raft.state import QuorumState
from moldau.raft.voter_set import VoterSetHistory

SETTINGS = QuorumConfig(fetch_timeout_ms=1500, election_timeout_ms=500, request_timeout_ms=1000)


def directory(node_id: int) -> UUID:
    return UUID(int=0xD0 + node_id)


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, directory(node_id))


def voters(*node_ids: int) -> tuple[VoterNode, ...]:
    return tuple(VoterNode(node_id, directory(node_id)) for node_id in node_ids)


def log(*epochs: int, of: tuple[VoterNode, ...] = voters(1, 2, 3)) -> RaftLogState:
    """A durable log with a record of each of these epochs."""
    view = RaftLogState(VoterSetHistory(of))
    view.append(BatchSummary(offset, offset + 1, epoch) for offset, epoch in enumerate(epochs))
    view.durable_offset = view.end_offset
    return view


def node(
    node_id: int = 1,
    election: ElectionState | None = None,
    view: RaftLogState | None = None,
) -> QuorumState:
    state = QuorumState(key(node_id), election or ElectionState(), SETTINGS)
    state.step(0, NodeStarted(view or log()))
    return state


def sends(effects: list[Effect], kind: type) -> list[int]:
    return [each.to for each in effects if isinstance(each, SendRequest) and isinstance(each.request, kind)]


def answer(effects: list[Effect]) -> object:
    [found] = [each.reply for each in effects if isinstance(each, SendResponse)]
    return found


def of_kind(effects: list[Effect], kind: type) -> list[Effect]:
    return [each for each in effects if isinstance(each, kind)]


def elected(*epochs: int) -> QuorumState:
    """Node 1 of three, elected at time 1000; its epoch begins behind records of these epochs."""
    log_end = epochs[-1] if epochs else 0
    state = node(1, ElectionState(log_end, -1, -1) if log_end else None, log(*epochs))
    state.step(1000, TimerExpired())
    ask(state, 2, pre=True)
    ask(state, 2)
    assert state.is_leader
    end = state.log.end_offset
    state.step(1000, BatchesAppended((BatchSummary(end, end + 1, state.epoch, voters(1, 2, 3)),)))
    return state


def ask(
    state: QuorumState, by: int, *, pre: bool = False, is_granted: bool = True, now_ms: int = 1000
) -> list[Effect]:
    request = VoteRequest(state.key, state.epoch, state.log.log_end, pre, key(by))
    return state.step(now_ms, ResponseReceived(by, request, VoteResponse(state.epoch, -1, is_granted)))


def fetch(
    state: QuorumState,
    by: int,
    log_end: EpochEndOffset,
    *,
    now_ms: int = 1000,
    epoch: int | None = None,
    heard_ms: int = -1,
) -> list[Effect]:
    known = state.epoch if epoch is None else epoch
    request = QuorumFetchRequest(key(by), known, log_end, state.high_watermark, heard_ms=heard_ms)
    return state.step(now_ms, RequestReceived(request))


def following(
    view: RaftLogState | None = None, *, leader_id: int = 2, epoch: int = 5, node_id: int = 1
) -> QuorumState:
    """A node that hears of its leader at time 100."""
    state = node(node_id, ElectionState(epoch - 1), view)
    state.step(100, RequestReceived(BeginQuorumEpochRequest(leader_id, epoch, state.key)))
    assert state.leader_id == leader_id
    return state


def fetched(state: QuorumState, now_ms: int = 200, **reply: object) -> list[Effect]:
    """The leader answers the fetch that is under way."""
    assert state.pending_fetch is not None
    by, request = state.pending_fetch
    told = QuorumFetchResponse(state.epoch, by, True, **reply)  # type: ignore[arg-type]
    return state.step(now_ms, ResponseReceived(by, request, told))
