"""A listening socket and its connections, with quotas, idle timeouts and shutdown."""

import asyncio
from collections.abc import Callable, Collection

from moldau.network.buffer_pool import BufferPool
from moldau.network.connection import STALL_TIMEOUT_S, Connection, RequestProcessor
from moldau.network.frame_reader import SHARED_BUFFER_SIZE
from moldau.network.limits import ConnectionQuotas, MemoryPool, PartialFrameLimiter
from moldau.observe.logging import get_logger
from moldau.settings.broker import BrokerSettings

log = get_logger(__name__)


class SocketServer:
    def __init__(
        self,
        name: str,
        settings: Callable[[], BrokerSettings],
        memory_pool: MemoryPool,
        partial_frames: PartialFrameLimiter,
        quotas: ConnectionQuotas,
        pipelined_api_keys: Collection[int],
        on_opened: Callable[[Connection, str], RequestProcessor],
    ) -> None:
        """`on_opened` returns the request processor of a new connection on the named listener.

        `memory_pool`, `partial_frames` and `quotas` may be shared with other socket servers.
        """
        self.name = name
        self._settings = settings
        self._quotas = quotas
        self.memory_pool = memory_pool
        self.partial_frames = partial_frames
        self._pipelined_api_keys = pipelined_api_keys
        self._on_opened = on_opened
        self._shared_buffer = memoryview(bytearray(SHARED_BUFFER_SIZE))
        self._buffers = BufferPool()
        self._server: asyncio.Server | None = None
        self.connections: dict[Connection, None] = {}
        self.opened_count = 0
        """The number of connections that were opened, including those that are closed."""
        self.rejected_count = 0
        """The number of connections that were rejected because too many were open."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Future[None] | None = None
        self._is_closing = False

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Binds the address without accepting connections. Returns the bound host and port (chosen if `port` is 0)."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make_connection, host, port, start_serving=False, backlog=1024)
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def serve(self) -> None:
        assert self._server is not None
        await self._server.start_serving()
        self._close_idle_connections()

    def _make_connection(self) -> Connection:
        return Connection(
            shared_buffer=self._shared_buffer,
            buffers=self._buffers,
            frame_bytes_max=self._settings().socket_request_max_bytes,
            memory_pool=self.memory_pool,
            partial_frames=self.partial_frames,
            pipelined_api_keys=self._pipelined_api_keys,
            on_opened=self._connection_opened,
            on_closed=self._connection_closed,
        )

    def _connection_opened(self, connection: Connection) -> RequestProcessor | None:
        if self._is_closing:
            return None
        if not self._quotas.acquire(connection.peer[0]):
            self.rejected_count += 1
            log.warning(
                "rejected a connection: too many are open", peer=connection.peer[0], open=self._quotas.connection_count
            )
            return None
        self.connections[connection] = None
        self.opened_count += 1
        return self._on_opened(connection, self.name)

    def _connection_closed(self, connection: Connection) -> None:
        if connection not in self.connections:
            return
        del self.connections[connection]
        self._quotas.release(connection.peer[0])
        if not self.connections and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)

    def _close_idle_connections(self) -> None:
        loop = asyncio.get_running_loop()
        idle_s = self._settings().connections_max_idle_ms / 1000
        for connection in list(self.connections):
            if connection.is_expired(loop.time(), idle_s):
                # `close` would wait until the client has read the pending responses, so abort the connection instead.
                connection.abort()
        self._idle_timer = loop.call_later(max(1.0, min(idle_s, STALL_TIMEOUT_S) / 4), self._close_idle_connections)

    def stop(self) -> None:
        """Stops accepting connections and reading requests. Each connection closes after its last response."""
        self._close_socket()
        for connection in list(self.connections):
            connection.drain()

    def _close_socket(self) -> None:
        self._is_closing = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._server is not None:
            self._server.close()

    async def close(self, grace_s: float) -> None:
        """Calls `stop` and waits until all connections are closed. Aborts remaining connections after `grace_s`."""
        self.stop()
        if self.connections:
            loop = asyncio.get_running_loop()
            self._all_closed = loop.create_future()
            timer = loop.call_later(grace_s, self._abort_all)
            await self._all_closed
            timer.cancel()

    def abort(self) -> None:
        """Closes the socket and all connections immediately, as if the process was killed."""
        self._close_socket()
        self._abort_all()

    def _abort_all(self) -> None:
        for connection in list(self.connections):
            connection.abort()
