"""A connection of the HTTP port. It responds to health requests itself and hands the connection over to the HTTP API at
the first other request."""

import asyncio
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Protocol, cast

from moldau.http.health import PATHS, RETRY_AFTER_S, HealthResponse
from moldau.http.request_head import (
    HEAD_BYTES_MAX,
    HEAD_END,
    MalformedRequestError,
    RequestHead,
    check_start,
    parse_head,
)

HEAD_TIMEOUT_S = 10.0
"""How long a client may take to send the head of a request."""
IDLE_TIMEOUT_S = 60.0
"""How long a connection may be idle between two requests."""


class FrontServer(Protocol):
    """The server of a front connection."""

    def connection_opened(self, connection: "FrontConnection") -> bool:
        """Returns False if the connection must be rejected."""

    def connection_closed(self, connection: "FrontConnection") -> None: ...

    def health_response(self, path: str) -> HealthResponse: ...

    def hand_over(self, connection: "FrontConnection") -> None:
        """Lets the HTTP API take the connection over once it is loaded. Reading is paused until then."""


class FrontConnection(asyncio.Protocol):
    def __init__(self, server: FrontServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._is_write_paused = False
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
        self._received.clear()
        self._server.connection_closed(self)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._received:
            self._start_timer(HEAD_TIMEOUT_S, self._on_head_timeout)
        self._received += data
        self._handle_requests()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if not self.is_handed_over:
            self.transport.resume_reading()
            self._handle_requests()

    def _handle_requests(self) -> None:
        try:
            while self._received and not (self._is_write_paused or self.is_handed_over or self.transport.is_closing()):
                # Clients may send an empty line before a request.
                if self._received.startswith(b"\r\n"):
                    del self._received[:2]
                    continue
                check_start(self._received)
                end = self._received.find(HEAD_END)
                if end > HEAD_BYTES_MAX or (end < 0 and len(self._received) > HEAD_BYTES_MAX):
                    self.reject(431, f"the head of the request is larger than {HEAD_BYTES_MAX} bytes")
                elif end < 0:
                    return
                else:
                    self._handle_request(parse_head(bytes(self._received[:end])), end + len(HEAD_END))
        except MalformedRequestError as error:
            self.reject(400, str(error))
        if not (self._received or self.is_handed_over or self.transport.is_closing()):
            self._start_timer(IDLE_TIMEOUT_S, self.transport.close)

    def _handle_request(self, head: RequestHead, size: int) -> None:
        if head.path not in PATHS or head.has_body:
            self.is_handed_over = True
            self._stop_timer()
            self.transport.pause_reading()
            self._server.hand_over(self)
            return
        del self._received[:size]
        if head.method in ("GET", "HEAD"):
            status, body = self._server.health_response(head.path)
        else:
            status, body = 405, {"detail": f"{head.path} supports only GET and HEAD"}
        self._respond(status, body, keep_alive=head.keeps_alive, with_body=head.method != "HEAD")
        if self._received and not self.transport.is_closing():
            self._start_timer(HEAD_TIMEOUT_S, self._on_head_timeout)

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
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(content)}",
        ]
        if status == 503:
            lines.append(f"retry-after: {RETRY_AFTER_S}")
        if status == 405:
            lines.append("allow: GET, HEAD")
        lines.append(f"connection: {'keep-alive' if keep_alive else 'close'}")
        head = "\r\n".join([*lines, "\r\n"]).encode()
        self.transport.write(head + content if with_body else head)
        if not keep_alive:
            self._received.clear()
            self.transport.close()

    def _on_head_timeout(self) -> None:
        self.reject(408, f"the head of the request did not arrive within {HEAD_TIMEOUT_S:.0f} s")

    def _start_timer(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(delay_s, callback)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
