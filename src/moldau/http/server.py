"""The HTTP server: the listening socket, its connections, and the HTTP API, which it loads at the first request.

Loading the API takes half a second and 23 MB, so a node that only responds to health requests never loads it. It is
loaded in a thread, because half a second without the event loop could cost the node its lease.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from moldau.http.browser_guard import find_refusal
from moldau.http.context import HttpContext
from moldau.http.front_connection import FrontConnection
from moldau.http.health import HealthResponse, health_response
from moldau.http.request_head import RequestHead
from moldau.observe.logging import get_logger
from moldau.platform.cpu import thread_cpu_s

if TYPE_CHECKING:
    from moldau.http.app_loader import LoadedApp

CONNECTIONS_MAX = 2_000

log = get_logger("http")


class HttpListenError(OSError):
    """The HTTP server cannot listen on its address."""


class HttpServer:
    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._context: HttpContext | None = None
        self._front: dict[FrontConnection, None] = {}
        """The connections that the HTTP API has not taken over."""
        self._connection_count = 0
        self._app: LoadedApp | None = None
        self._loading: asyncio.Task[None] | None = None
        self._waiting: list[FrontConnection] = []
        """The connections that the API takes over when it is loaded."""
        self._all_closed: asyncio.Event = asyncio.Event()
        self._is_closing = False

    @property
    def unexpected_errors(self) -> int:
        return 0 if self._context is None else self._context.unexpected_errors

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Binds the address without accepting connections. Returns the bound host and port (chosen if `port` is 0).

        Raises HttpListenError.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(partial(FrontConnection, self), host, port, start_serving=False)
        except OSError as error:
            raise HttpListenError(error.errno, error.strerror) from error
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def serve(self, context: HttpContext) -> None:
        assert self._server is not None
        self._context = context
        context.broker.loop_cpu.update(context.broker.platform.clock.monotonic_us(), thread_cpu_s())
        await self._server.start_serving()

    # Called by connections

    def connection_opened(self, connection: FrontConnection) -> bool:
        self._connection_count += 1
        self._front[connection] = None
        if self._connection_count > CONNECTIONS_MAX:
            log.warning("rejected an HTTP connection: too many are open", open=self._connection_count)
            return False
        return not self._is_closing

    def connection_closed(self, connection: FrontConnection) -> None:
        del self._front[connection]
        self._release()

    def _release(self) -> None:
        self._connection_count -= 1
        if not self._connection_count:
            self._all_closed.set()

    def health_response(self, path: str) -> HealthResponse:
        assert self._context is not None
        return health_response(path, self._context.broker)

    def find_refusal(self, head: RequestHead) -> str | None:
        assert self._context is not None
        return find_refusal(head.method, head.headers, self._context.broker.settings.broker.http_host)

    async def render_metrics(self) -> list[bytes]:
        assert self._context is not None
        try:
            return await self._context.render_metrics()
        except Exception:
            self._context.unexpected_errors += 1
            log.exception("the metrics cannot be written")
            raise

    def hand_over(self, connection: FrontConnection) -> None:
        if self._app is not None:
            self._take_over(connection, self._app)
            return
        self._waiting.append(connection)
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())

    async def _load(self) -> None:
        assert self._context is not None
        loop, started_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        executor = ThreadPoolExecutor(1, "moldau http")
        try:
            self._app = await loop.run_in_executor(executor, _load_app, self._context)
        except Exception:
            log.exception("the HTTP API cannot be loaded")
            self._context.unexpected_errors += 1
            for connection in self._take_waiting():
                connection.reject(500, "the HTTP API cannot be loaded: see the log of the node")
            return
        finally:
            executor.shutdown(wait=False)
            self._loading = None
        log.info("the HTTP API is loaded", duration_ms=round((loop.time() - started_s) * 1000))
        for connection in self._take_waiting():
            self._take_over(connection, self._app)

    def _take_waiting(self) -> list[FrontConnection]:
        waiting, self._waiting = self._waiting, []
        return [connection for connection in waiting if not connection.transport.is_closing()]

    def _take_over(self, connection: FrontConnection, app: "LoadedApp") -> None:
        if self._is_closing:
            connection.reject(503, "the node is shutting down")
            return
        del self._front[connection]
        app.take_over(connection, self._release)

    # Shutdown

    def stop(self) -> None:
        """Stops accepting connections and closes idle ones. The others close after their response."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        if self._context is not None:
            self._context.stopping.set()
        for connection in list(self._front):
            if connection not in self._waiting:
                connection.transport.close()
        if self._app is not None:
            self._app.stop()

    async def close(self, grace_s: float) -> None:
        """Calls `stop` and waits until all connections are closed. Aborts remaining connections after `grace_s`."""
        self.stop()
        if self._loading is not None:
            for connection in self._take_waiting():
                connection.reject(503, "the node is shutting down")
            # The thread cannot be stopped. Its result is not used.
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        if self._connection_count:
            self._all_closed.clear()
            timer = asyncio.get_running_loop().call_later(grace_s, self._abort_all)
            await self._all_closed.wait()
            timer.cancel()
        if self._app is not None:
            await self._app.wait_for_requests()
        if self._context is not None:
            callbacks, self._context.close_callbacks = self._context.close_callbacks, []
            for callback in callbacks:
                await callback()

    def abort(self) -> None:
        """Closes the socket and all connections immediately, as if the process was killed."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        self._abort_all()

    def _abort_all(self) -> None:
        for connection in list(self._front):
            connection.transport.abort()
        if self._app is not None:
            self._app.abort()


def _load_app(context: HttpContext) -> "LoadedApp":
    from moldau.http.app_loader import LoadedApp

    return LoadedApp(context)
