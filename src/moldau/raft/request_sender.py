"""Calls to the other nodes of the quorum, each in a task of its own: a peer that hangs holds up nobody."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from moldau.errors import MoldauError, PeerUnreachableError
from moldau.observe.logging import get_logger
from moldau.raft.events import RaftRequest, RaftResponse, RequestFailed, ResponseReceived
from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    QuorumFetchRequest,
    VoteRequest,
)
from moldau.raft.network_channel import NetworkChannel, QuorumConfig

log = get_logger("quorum.calls")


class RequestSender:
    def __init__(
        self,
        peers: NetworkChannel,
        settings: QuorumConfig,
        on_completed: Callable[[ResponseReceived | RequestFailed], object],
    ) -> None:
        self._peers = peers
        self._settings = settings
        self._on_completed = on_completed
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._resign_tasks: dict[int, asyncio.Task[None]] = {}
        """Of the above, those by which a leader resigns."""
        self._last_task_id = 0

    def send(self, to: int, request: RaftRequest) -> None:
        task = self.run(self._send(to, request))
        if isinstance(request, EndQuorumEpochRequest):
            number = self._last_task_id
            self._resign_tasks[number] = task
            task.add_done_callback(lambda _: self._resign_tasks.pop(number, None))

    def run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that ends with the calls."""
        self._last_task_id += 1
        number = self._last_task_id
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))
        return task

    async def call(self, to: int, request: RaftRequest) -> RaftResponse:
        """Raises PeerUnreachableError where no answer comes in time."""
        limit_ms = self._settings.request_timeout_ms
        if isinstance(request, QuorumFetchRequest):
            limit_ms += request.max_wait_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await self._call_peer(to, request)
        except TimeoutError:
            raise PeerUnreachableError(f"node {to} has not answered for {limit_ms} ms") from None

    def _call_peer(self, to: int, request: RaftRequest) -> Awaitable[RaftResponse]:
        match request:
            case VoteRequest():
                return self._peers.vote(to, request)
            case BeginQuorumEpochRequest():
                return self._peers.begin_quorum_epoch(to, request)
            case EndQuorumEpochRequest():
                return self._peers.end_quorum_epoch(to, request)
            case QuorumFetchRequest():
                return self._peers.fetch(to, request)
            case FetchSnapshotRequest():
                return self._peers.fetch_snapshot(to, request)

    async def _send(self, to: int, request: RaftRequest) -> None:
        try:
            reply = await self.call(to, request)
        except PeerUnreachableError as error:
            self._on_completed(RequestFailed(to, request, error.is_connection_refused))
        except MoldauError as error:
            log.warning("a node of the quorum refuses", node=to, why=str(error) or type(error).__name__)
            self._on_completed(RequestFailed(to, request))
        except Exception:
            # A peer must not be able to stop this node, whatever it answers.
            log.exception("a call to a node of the quorum failed", node=to)
            self._on_completed(RequestFailed(to, request))
        else:
            self._on_completed(ResponseReceived(to, request, reply))

    async def wait_for_resign_requests(self) -> None:
        """Returns when every node that was told of a resignation has answered, or had its time to."""
        await asyncio.gather(*self._resign_tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
