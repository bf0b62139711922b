"""The sender of requests to other nodes of the quorum.

Each request has its own task, so that a node that does not respond delays no other request.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from moldau.errors import MoldauError, PeerUnreachableError
from moldau.observe.logging import get_logger
from moldau.raft.events import RequestFailed, ResponseReceived
from moldau.raft.messages import EndQuorumEpochRequest, QuorumFetchRequest, RaftRequest, RaftResponse, VoterEndpoint

log = get_logger("quorum.requests")


class NetworkChannel(Protocol):
    """The network interface for Raft requests."""

    def update_endpoint(self, node_id: int, endpoints: Sequence[VoterEndpoint]) -> None:
        """Sets the endpoints of a node, which come from the voter set or from a leader's BeginQuorumEpoch."""

    async def send(self, node_id: int, request: RaftRequest) -> RaftResponse:
        """Returns the response. Raises PeerUnreachableError if no usable response arrives. Can be cancelled."""


class RequestSender:
    def __init__(
        self,
        channel: NetworkChannel,
        request_timeout_ms: int,
        on_completed: Callable[[ResponseReceived | RequestFailed], object],
    ) -> None:
        self._channel = channel
        self._request_timeout_ms = request_timeout_ms
        self._on_completed = on_completed
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._resign_tasks: dict[asyncio.Task[None], None] = {}
        """The tasks among `_tasks` that send EndQuorumEpoch."""

    def send(self, node_id: int, request: RaftRequest) -> None:
        task = self.start_task(self._send(node_id, request))
        if isinstance(request, EndQuorumEpochRequest):
            self._resign_tasks[task] = None
            task.add_done_callback(self._resign_tasks.pop)

    def start_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that `close` cancels."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def call(self, node_id: int, request: RaftRequest) -> RaftResponse:
        """Sends a request and returns the response. Raises PeerUnreachableError if no response arrives in time."""
        timeout_ms = self._request_timeout_ms
        if isinstance(request, QuorumFetchRequest):
            timeout_ms += request.max_wait_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._channel.send(node_id, request)
        except TimeoutError:
            raise PeerUnreachableError(f"node {node_id} did not respond within {timeout_ms} ms") from None

    async def _send(self, node_id: int, request: RaftRequest) -> None:
        try:
            response = await self.call(node_id, request)
        except PeerUnreachableError as error:
            self._on_completed(RequestFailed(node_id, request, error.is_connection_refused))
        except MoldauError as error:
            log.warning("request rejected", node=node_id, reason=str(error) or type(error).__name__)
            self._on_completed(RequestFailed(node_id, request))
        except Exception:
            # An unexpected response from a peer must not stop this node.
            log.exception("request failed", node=node_id)
            self._on_completed(RequestFailed(node_id, request))
        else:
            self._on_completed(ResponseReceived(node_id, request, response))

    async def wait_for_resign_requests(self) -> None:
        """Waits until every EndQuorumEpoch has a response or has timed out."""
        await asyncio.gather(*self._resign_tasks, return_exceptions=True)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
