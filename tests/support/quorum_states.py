"""States of the quorum to begin stories with, and what to look for in their effects."""

from uuid import UUID

from moldau.raft.events import (
    Answer,
    Answered,
    Appended,
    Effect,
    Election,
    Received,
    Send,
    Started,
    Tick,
)
from moldau.raft.log_view import LogView, Span
from moldau.raft.messages import (
    BeginEpochRequest,
    LogEnd,
    QuorumFetch,
    QuorumFetched,
    ReplicaKey,
    Voter,
    VoteReply,
    VoteRequest,
)
from moldau.raft.ports import QuorumSettings
from moldau.raft.state import QuorumState
from moldau.raft.voters import VoterHistory

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
