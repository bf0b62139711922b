"""Calls to the other nodes of the quorum, each in a task of its own: a peer that hangs holds up nobody."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from moldau.errors import MoldauError, PeerUnreachableError
from moldau.observe.logging import get_logger
from moldau.raft.events import Answered, Asked, Told, Unanswered
from moldau.raft.messages import (
    BeginEpochRequest,
    EndEpochRequest,
    QuorumFetch,
    SnapshotFetch,
    VoteRequest,
)
from moldau.raft.ports import QuorumPeers, QuorumSettings

log = get_logger("quorum.calls")


class Calls:
    def __init__(
        self,
        peers: QuorumPeers,
        settings: QuorumSettings,
        on_outcome: Callable[[Answered | Unanswered], object],
    ) -> None:
        self._peers = peers
        self._settings = settings
        self._on_outcome = on_outcome
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._farewells: dict[int, asyncio.Task[None]] = {}
        """Of the above, those by which a leader resigns."""
        self._number = 0

    def send(self, to: int, request: Asked) -> None:
        task = self.run(self._send(to, request))
        if isinstance(request, EndEpochRequest):
            number = self._number
            self._farewells[number] = task
            task.add_done_callback(lambda _: self._farewells.pop(number, None))

    def run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that ends with the calls."""
        self._number += 1
        number = self._number
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))
        return task

    async def ask(self, to: int, request: Asked) -> Told:
        """Raises PeerUnreachableError where no answer comes in time."""
        limit_ms = self._settings.request_timeout_ms
        if isinstance(request, QuorumFetch):
            limit_ms += request.wait_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await self._call(to, request)
        except TimeoutError:
            raise PeerUnreachableError(f"node {to} has not answered for {limit_ms} ms") from None

    def _call(self, to: int, request: Asked) -> Awaitable[Told]:
        match request:
            case VoteRequest():
                return self._peers.vote(to, request)
            case BeginEpochRequest():
                return self._peers.begin_epoch(to, request)
            case EndEpochRequest():
                return self._peers.end_epoch(to, request)
            case QuorumFetch():
                return self._peers.fetch(to, request)
            case SnapshotFetch():
                return self._peers.fetch_snapshot(to, request)

    async def _send(self, to: int, request: Asked) -> None:
        try:
            reply = await self.ask(to, request)
        except PeerUnreachableError as error:
            self._on_outcome(Unanswered(to, request, error.is_gone))
        except MoldauError as error:
            log.warning("a node of the quorum refuses", node=to, why=str(error) or type(error).__name__)
            self._on_outcome(Unanswered(to, request))
        except Exception:
            # A peer must not be able to stop this node, whatever it answers.
            log.exception("a call to a node of the quorum failed", node=to)
            self._on_outcome(Unanswered(to, request))
        else:
            self._on_outcome(Answered(to, request, reply))

    async def said_goodbye(self) -> None:
        """Returns when every node that was told of a resignation has answered, or had its time to."""
        await asyncio.gather(*self._farewells.values(), return_exceptions=True)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
