"""A connection of the HTTP port. It responds to health requests itself and hands the connection over to the HTTP API at
the first other request."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Protocol, cast

from moldau.http.health import PATHS, RETRY_AFTER_S, HealthResponse
from moldau.http.node_metrics import METRICS_PATH
from moldau.http.request_head import (
    HEAD_BYTES_MAX,
    HEAD_END,
    MalformedRequestError,
    RequestHead,
    check_start,
    parse_head,
)
from moldau.metrics.exposition import CONTENT_TYPE

HEAD_TIMEOUT_S = 10.0
"""How long a client may take to send the head of a request."""
STALL_TIMEOUT_S = 30.0
"""How long a client may receive no bytes of a response."""
IDLE_TIMEOUT_S = 60.0
"""How long a connection may be idle between two requests."""


class FrontServer(Protocol):
    """The server of a front connection."""

    def connection_opened(self, connection: "FrontConnection") -> bool:
        """Returns False if the connection must be rejected."""

    def connection_closed(self, connection: "FrontConnection") -> None: ...

    def health_response(self, path: str) -> HealthResponse: ...

    def find_refusal(self, head: RequestHead) -> str | None:
        """Returns why metrics are refused, for example to a web page of another site; None if they are not."""

    async def render_metrics(self) -> list[bytes]: ...

    def hand_over(self, connection: "FrontConnection") -> None:
        """Lets the HTTP API take the connection over once it is loaded. Reading is paused until then."""


class FrontConnection(asyncio.Protocol):
    def __init__(self, server: FrontServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._is_write_paused = False
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_eof = False
        self._metrics_task: asyncio.Task[None] | None = None
        """Writes metrics. Later requests wait until they are sent."""
        self.is_handed_over = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self._server.connection_opened(self):
            self.reject(503, "too many connections are open")
            return
        self._start_timer(IDLE_TIMEOUT_S, self.transport.close)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._stop_write_timer()
        self._received.clear()
        if self._metrics_task is not None:
            self._metrics_task.cancel()
        self._server.connection_closed(self)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._received:
            self._start_timer(HEAD_TIMEOUT_S, self._on_head_timeout)
        self._received += data
        self._handle_requests()

    def eof_received(self) -> bool:
        # A client that has closed its sending side still gets its metrics.
        self._is_eof = True
        return self._metrics_task is not None

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self.transport.pause_reading()
        self._stop_write_timer()
        self._write_timer = self._loop.call_later(STALL_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._stop_write_timer()
        if not self.is_handed_over:
            self.transport.resume_reading()
            self._handle_requests()

    def _handle_requests(self) -> None:
        try:
            while self._received and not self._is_busy:
                # Clients may send an empty line before a request.
                if self._received.startswith(b"\r\n"):
                    del self._received[:2]
                    continue
                check_start(self._received)
                end = self._received.find(HEAD_END)
                if end > HEAD_BYTES_MAX or (end < 0 and len(self._received) > HEAD_BYTES_MAX):
                    self.reject(431, f"the head of the request is larger than {HEAD_BYTES_MAX} bytes")
                elif end < 0:
                    if self._timer is None:
                        # The bytes arrived while the response before them was written.
                        self._start_timer(HEAD_TIMEOUT_S, self._on_head_timeout)
                    return
                else:
                    self._handle_request(parse_head(bytes(self._received[:end])), end + len(HEAD_END))
        except MalformedRequestError as error:
            self.reject(400, str(error))
        if not (self._received or self._is_busy):
            self._start_timer(IDLE_TIMEOUT_S, self.transport.close)

    @property
    def _is_busy(self) -> bool:
        """Whether the next request must wait, or is not for this object."""
        is_responding = self._is_write_paused or self._metrics_task is not None
        return is_responding or self.is_handed_over or self.transport.is_closing()

    def _handle_request(self, head: RequestHead, size: int) -> None:
        if (head.path not in PATHS and head.path != METRICS_PATH) or head.has_body:
            self.is_handed_over = True
            self._stop_timer()
            self.transport.pause_reading()
            self._server.hand_over(self)
            return
        del self._received[:size]
        body: Mapping[str, object]
        refusal = self._server.find_refusal(head) if head.path == METRICS_PATH else None
        if refusal is not None:
            status, body = 403, {"detail": refusal}
        elif head.method in ("GET", "HEAD"):
            if head.path == METRICS_PATH:
                self._stop_timer()
                self.transport.pause_reading()
                self._metrics_task = self._loop.create_task(self._send_metrics(head))
                return
            status, body = self._server.health_response(head.path)
        else:
            status, body = 405, {"detail": f"{head.path} supports only GET and HEAD"}
        self._respond(status, body, keep_alive=head.keeps_alive, with_body=head.method != "HEAD")
        if self._received and not self.transport.is_closing():
            self._start_timer(HEAD_TIMEOUT_S, self._on_head_timeout)

    async def _send_metrics(self, head: RequestHead) -> None:
        try:
            blocks = await self._server.render_metrics()
        except Exception:
            # The server has logged the error.
            self.reject(500, "the metrics cannot be written: see the log of the node")
            return
        finally:
            self._metrics_task = None
        size = sum(map(len, blocks))
        keeps_alive = head.keeps_alive and not self._is_eof
        self._send(200, CONTENT_TYPE, size, () if head.method == "HEAD" else blocks, keep_alive=keeps_alive)
        if not self._is_write_paused and not self.transport.is_closing():
            self.transport.resume_reading()
        self._handle_requests()

    def take_received(self) -> bytes:
        """Returns the bytes that were received for the HTTP API."""
        data = bytes(self._received)
        self._received.clear()
        return data

    def reject(self, status: int, detail: str) -> None:
        """Sends an error and closes the connection."""
        self._respond(status, {"detail": detail}, keep_alive=False, with_body=True)

    def _respond(self, status: int, body: Mapping[str, object], *, keep_alive: bool, with_body: bool) -> None:
        content = json.dumps(body, separators=(",", ":")).encode()
        self._send(status, "application/json", len(content), [content] if with_body else (), keep_alive=keep_alive)

    def _send(self, status: int, content_type: str, size: int, blocks: Iterable[bytes], *, keep_alive: bool) -> None:
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            f"content-type: {content_type}",
            f"content-length: {size}",
        ]
        if status == 503:
            lines.append(f"retry-after: {RETRY_AFTER_S}")
        if status == 405:
            lines.append("allow: GET, HEAD")
        lines.append(f"connection: {'keep-alive' if keep_alive else 'close'}")
        head = "\r\n".join([*lines, "\r\n"]).encode()
        self.transport.writelines([head, *blocks])
        if not keep_alive:
            self._received.clear()
            self.transport.close()

    def _on_head_timeout(self) -> None:
        self.reject(408, f"the head of the request did not arrive within {HEAD_TIMEOUT_S:.0f} s")

    def _start_timer(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(delay_s, callback)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
