"""A connection that the HTTP API has taken over: uvicorn's protocol, with limits and timeouts.

This module imports uvicorn. Only `http/app_loader.py` imports it, in a thread.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from moldau.http.front_connection import HEAD_TIMEOUT_S, STALL_TIMEOUT_S
from moldau.http.request_head import HEAD_BYTES_MAX
from moldau.http.turn_queue import TurnQueue
from moldau.observe.logging import ROOT

BODY_TIMEOUT_S = 300.0
"""How long a request body may take in all. A client that sends a few bytes from time to time does not stall."""
DISCARDED_BYTES_MAX = 64 * 1024 * 1024
"""How many bytes of a body may follow after the body was rejected as too large. A client that sends its whole body
before it reads receives the response only if the rest is read."""
_UPGRADE_HEADERS = (b"upgrade", b"http2-settings")


class AppConnection(HttpToolsProtocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        turns: TurnQueue,
        body_bytes_max: int,
        on_closed: Callable[[], None],
    ) -> None:
        super().__init__(config, server_state, {})
        self.logger = logging.getLogger(f"{ROOT}.http")
        self.access_log = False
        self._turns = turns
        self._body_bytes_max = body_bytes_max
        self._on_closed = on_closed
        self._is_in_head = False
        self._head_bytes = 0
        """The size of the head of the current request, without a first packet that also has other requests."""
        self._begun_in_packet = 0
        """The number of requests that start in the current packet."""
        self._body_bytes = 0
        self._body_begun_s = 0.0
        self._last_read_s = 0.0
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_without_upgrade = b""
        """The head of a request for another protocol, without the headers that ask for it."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_read_timer()
        self._cancel_write_timer()
        super().connection_lost(exc)
        self._on_closed()

    def data_received(self, data: bytes) -> None:
        # A connection whose bytes wait for their turn is not idle.
        self._unset_keepalive_if_required()
        # Nothing more is read until these bytes have had their turn, so that the queue stays small.
        self.transport.pause_reading()
        self._turns.add(partial(self._process, data))

    def _process(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._process_request(data)
        if not (self.flow.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def _process_request(self, data: bytes) -> None:
        self._last_read_s = self.loop.time()
        is_idle = self._is_idle
        if self._is_in_head:
            self._head_bytes += len(data)
        self._begun_in_packet = 0
        self._parse(data)
        if is_idle and self._is_in_head and self._begun_in_packet == 1:
            self._head_bytes = len(data)
        if self._is_in_head and self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._reject(b"431 Request Header Fields Too Large", b"the head of the request is too large")
        if self._is_idle and not self._is_in_head and self.timeout_keep_alive_task is None:
            # The bytes were only empty lines, which start no request.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _parse(self, data: bytes) -> None:
        """Parses bytes as the base class does, but ignores that a client offers another protocol.

        Some clients offer HTTP/2 with every request, and the parser would then skip the body.
        """
        try:
            while True:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    if not self._head_without_upgrade:
                        self._reject(b"400 Bad Request", b"this server is not a proxy")
                        return
                    # The parser reads nothing more after such a request.
                    self.parser = httptools.HttpRequestParser(self)
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                    data = self._head_without_upgrade + data[upgrade.args[0] :]
                    self._head_without_upgrade = b""
                    self._begun_in_packet -= 1
        except httptools.HttpParserError:
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._head_bytes, self._body_bytes = True, 0, 0
        self._begun_in_packet += 1
        self._cancel_read_timer()
        self._read_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_head_timeout)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._head_without_upgrade = self._write_head_without_upgrade()
            return
        self._is_in_head = False
        self._cancel_read_timer()
        self._body_begun_s = self.loop.time()
        self._read_timer = self.loop.call_later(STALL_TIMEOUT_S, self._check_read_stall)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._body_bytes_max + DISCARDED_BYTES_MAX:
            self.transport.abort()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._cancel_read_timer()
        super().on_message_complete()

    def _write_head_without_upgrade(self) -> bytes:
        """Returns nothing for CONNECT, which always asks for another protocol."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            return b""
        lines = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%s: %s" % (name, value) for name, value in self.headers if name not in _UPGRADE_HEADERS]
        return b"\r\n".join([*lines, b"", b""])

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel_write_timer()
        self._write_timer = self.loop.call_later(STALL_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_write_timer()
        super().resume_writing()

    def shutdown(self) -> None:
        """Closes the connection, after the response if a complete request is in progress."""
        if self.cycle is not None and self.cycle.more_body and not self.cycle.response_started:
            # The rest of the body may never arrive.
            self.transport.close()
        else:
            super().shutdown()

    def _check_read_stall(self) -> None:
        """Aborts the connection of a client that stopped sending its body, or sends it too slowly. Reading may also be
        paused by this node."""
        now_s = self.loop.time()
        stalled_s = 0.0 if self.flow.read_paused else now_s - self._last_read_s
        if stalled_s >= STALL_TIMEOUT_S or now_s - self._body_begun_s >= BODY_TIMEOUT_S:
            self.transport.abort()
        else:
            self._read_timer = self.loop.call_later(STALL_TIMEOUT_S - stalled_s, self._check_read_stall)

    def _on_head_timeout(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._reject(b"408 Request Timeout", b"the head of the request did not arrive in time")
        else:
            # An earlier request on this connection is still in progress, so there is no place for a response.
            self.transport.abort()

    def _reject(self, status: bytes, detail: bytes) -> None:
        content = b'{"detail":"' + detail + b'"}'
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(content)) + content)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._reject(b"400 Bad Request", b"the request is malformed")

    def _cancel_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
