"""The HTTP API as uvicorn serves it. This module imports FastAPI and uvicorn, so `http/server.py` imports it in a
thread at the first request for the API."""

import asyncio
import gc
from collections.abc import Callable

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from moldau.error_statuses import FORBIDDEN, UNAVAILABLE
from moldau.http.app import create_app
from moldau.http.app_connection import AppConnection
from moldau.http.body import counting_bodies
from moldau.http.browser_guard import find_refusal
from moldau.http.context import HttpContext
from moldau.http.errors import RETRY_HEADERS
from moldau.http.front_connection import IDLE_TIMEOUT_S, FrontConnection
from moldau.http.health import PATHS
from moldau.http.turn_queue import TurnQueue

CONCURRENCY_MAX = 1_000
"""The maximum number of requests in progress, and of connections to the API. Further requests get status 503."""


CANCEL_DELAY_S = 0.5


class LoadedApp:
    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self.state = ServerState()
        """The open connections and the requests in progress."""
        self._turns = TurnQueue(lambda: context.broker.client_request_count)
        guarded = _guarded(counting_bodies(create_app(context), context), context.broker.settings.broker.http_host)
        self._config = Config(
            _without_cancellation(_limited(guarded, self.state)),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=int(IDLE_TIMEOUT_S),
            server_header=False,
            proxy_headers=False,
        )
        self._config.load()
        if gc.get_freeze_count():
            # The node does not scan the objects that it has at startup. The API's objects live as long.
            gc.collect()
            gc.freeze()

    def take_over(self, front: FrontConnection, on_closed: Callable[[], None]) -> None:
        """Replaces the protocol of a connection and handles the bytes that were received so far."""
        transport = front.transport
        connection = AppConnection(self._config, self.state, self._turns, self._context.request_bytes_max, on_closed)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        transport.resume_reading()
        connection.data_received(front.take_received())

    def stop(self) -> None:
        """Closes idle connections. The others close after their response."""
        for connection in list(self.state.connections):
            connection.shutdown()

    async def wait_for_requests(self) -> None:
        """Waits until the requests whose connections are closed have ended. Cancels those that do not end."""
        if self.state.tasks:
            await asyncio.wait(self.state.tasks, timeout=CANCEL_DELAY_S)
        remaining = list(self.state.tasks)
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)

    def abort(self) -> None:
        for connection in list(self.state.connections):
            assert isinstance(connection, AppConnection)
            connection.transport.abort()


def _guarded(app: ASGIApp, http_host: str) -> ASGIApp:
    """Returns an application that responds with status 403 to requests of other sites' web pages."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = None if scope["path"] in PATHS else find_refusal(scope["method"], headers, http_host)
        if refusal is None:
            await app(scope, receive, send)
        else:
            await JSONResponse({"detail": refusal}, FORBIDDEN)(scope, receive, send)

    return run


def _limited(app: ASGIApp, state: ServerState) -> ASGIApp:
    """Returns an application that rejects requests over CONCURRENCY_MAX. uvicorn's own limit sends no Retry-After."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        if max(len(state.connections), len(state.tasks)) <= CONCURRENCY_MAX:
            await app(scope, receive, send)
        else:
            detail = "too many requests are in progress, or too many connections are open"
            await JSONResponse({"detail": detail}, UNAVAILABLE, RETRY_HEADERS | {"connection": "close"})(
                scope, receive, send
            )

    return run


def _without_cancellation(app: ASGIApp) -> ASGIApp:
    """Returns an application that ends when it is cancelled. uvicorn would log the cancellation as an error."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            return

    return run
