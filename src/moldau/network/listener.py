"""Listening sockets and the connections they give: who may come in, who has been idle too long, how all are
sent home."""

import asyncio
from collections.abc import Callable

from moldau.network.admission import Admission
from moldau.network.budget import Budget
from moldau.network.buffers import BufferPool
from moldau.network.connection import STALLED_AFTER_S, Answer, Connection
from moldau.network.frames import SHARED_BUFFER_SIZE
from moldau.network.large_frames import LargeFrames
from moldau.observe.logging import get_logger
from moldau.settings.broker import BrokerSettings

log = get_logger(__name__)

Opened = Callable[[Connection, str], Answer]
"""Gives the function that answers a new connection's requests; the text is the listener's name."""


class Listener:
    def __init__(
        self,
        name: str,
        settings: Callable[[], BrokerSettings],
        budget: Budget,
        large_frames: LargeFrames,
        admission: Admission,
        opened: Opened,
    ) -> None:
        """`budget`, `large_frames` and `admission` may be shared with other listeners."""
        self.name = name
        self._settings = settings
        self._admission = admission
        self._budget = budget
        self._large_frames = large_frames
        self._opened = opened
        self._shared_buffer = memoryview(bytearray(SHARED_BUFFER_SIZE))
        self._buffers = BufferPool()
        self._server: asyncio.Server | None = None
        self._connections: dict[Connection, None] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Future[None] | None = None
        self._is_closing = False

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Takes the address without accepting anybody yet; gives it with the port that a port 0 became."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._make_connection, host, port, start_serving=False, backlog=1024
        )
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def serve(self) -> None:
        assert self._server is not None
        await self._server.start_serving()
        self._close_idle()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def _make_connection(self) -> Connection:
        return Connection(
            shared_buffer=self._shared_buffer,
            buffers=self._buffers,
            frame_bytes_max=self._settings().socket_request_max_bytes,
            budget=self._budget,
            large_frames=self._large_frames,
            opened=self._connection_opened,
            closed=self._connection_closed,
        )

    def _connection_opened(self, connection: Connection) -> Answer | None:
        if self._is_closing:
            return None
        if not self._admission.admit(connection.peer[0]):
            log.warning("connection refused: too many", peer=connection.peer[0], open=self._admission.total)
            return None
        self._connections[connection] = None
        return self._opened(connection, self.name)

    def _connection_closed(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        del self._connections[connection]
        self._admission.leave(connection.peer[0])
        if not self._connections and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        idle_s = self._settings().connections_max_idle_ms / 1000
        for connection in list(self._connections):
            if connection.may_be_closed(loop.time(), idle_s):
                # Not `close`, which would wait until the client takes what it has not taken so far.
                connection.abort()
        self._idle_timer = loop.call_later(max(1.0, min(idle_s, STALLED_AFTER_S) / 4), self._close_idle)

    def stop(self) -> None:
        """Accepts nobody and reads no requests any more; connections close as their last answers leave."""
        self._is_closing = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.finish()

    async def close(self, grace_s: float) -> None:
        """Stops, and returns when every connection is closed: those that take too long, by force."""
        self.stop()
        if self._connections:
            loop = asyncio.get_running_loop()
            self._all_closed = loop.create_future()
            timer = loop.call_later(grace_s, self._abort_all)
            await self._all_closed
            timer.cancel()

    def abort(self) -> None:
        """Closes the door and every connection at once, as the end of a process does."""
        self._is_closing = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._server is not None:
            self._server.close()
        self._abort_all()

    def _abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()
