"""A proxy between clients and a broker that records requests and responses of the group protocol, in order and with
monotonic time."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kio.index import load_request_schema
from kio.serial import entity_reader

from support.wire import decode, plain

NAMES = {
    1: "Fetch",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
}
WITHOUT_CONTENT = {"Fetch"}
"""Recorded without its content."""


@dataclass(frozen=True)
class RecordedMessage:
    """A request or a response."""

    at_ns: int
    client: str
    name: str
    is_response: bool
    content: dict[str, Any]

    @property
    def error(self) -> int:
        found: int = self.content["error_code"]
        return found


class Recorder:
    """Listens on `port` and forwards to the broker's port once that is known."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.broker_port: int | None = None
        self.messages: list[RecordedMessage] = []
        self._connections: list[socket.socket] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listening.close()

    def of(self, client: str) -> list[RecordedMessage]:
        with self._changed:
            return [each for each in self.messages if each.client == client]

    def wait_for_response(self, client: str, name: str, since_ns: int = 0) -> RecordedMessage:
        """Returns the first response to such a request of a client, waiting for it if needed."""

        def found() -> list[RecordedMessage]:
            wanted = (client, name, True)
            return [e for e in self.messages if (e.client, e.name, e.is_response) == wanted and e.at_ns >= since_ns]

        with self._changed:
            assert self._changed.wait_for(lambda: bool(found()), 30), f"no answer to a {name} of {client}"
            return found()[0]

    def close_connections(self) -> None:
        """Closes all connections; new ones are accepted."""
        for connection in self._connections:
            _shut(connection)
        self._connections.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self.broker_port or 0))
            except OSError:
                client.close()
                continue
            self._connections += (client, broker)
            pending: dict[int, tuple[str, int, int]] = {}
            for pump in (self._forward_requests, self._forward_responses):
                threading.Thread(target=pump, args=(client, broker, pending), daemon=True).start()

    def _forward_requests(
        self, client: socket.socket, broker: socket.socket, pending: dict[int, tuple[str, int, int]]
    ) -> None:
        for frame in _frames(client):
            api_key, version, correlation_id = struct.unpack(">hhi", frame[:8])
            if api_key in NAMES:
                schema = load_request_schema(api_key, version)
                header, size = entity_reader(schema.__header_schema__)(frame, 0)
                client_id = header.client_id or ""
                pending[correlation_id] = (client_id, api_key, version)
                content = {}
                if NAMES[api_key] not in WITHOUT_CONTENT:
                    content = plain(entity_reader(schema)(frame, size)[0])
                self._record(client_id, api_key, False, content)
            _forward(broker, frame)
        _shut(broker, client)

    def _forward_responses(
        self, client: socket.socket, broker: socket.socket, pending: dict[int, tuple[str, int, int]]
    ) -> None:
        for frame in _frames(broker):
            (correlation_id,) = struct.unpack(">i", frame[:4])
            if correlation_id in pending:
                name, api_key, version = pending.pop(correlation_id)
                content = {} if NAMES[api_key] in WITHOUT_CONTENT else decode(api_key, version, frame)[1]
                self._record(name, api_key, True, content)
            _forward(client, frame)
        _shut(client, broker)

    def _record(self, client: str, api_key: int, is_response: bool, content: dict[str, Any]) -> None:
        with self._changed:
            self.messages.append(RecordedMessage(time.monotonic_ns(), client, NAMES[api_key], is_response, content))
            self._changed.notify_all()


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Yields complete frames without their size, until the peer closes."""
    with source.makefile("rb") as stream:
        while True:
            try:
                size = stream.read(4)
                frame = stream.read(*struct.unpack(">i", size)) if len(size) == 4 else b""
            except OSError:
                return
            if not frame:
                return
            yield frame


def _forward(target: socket.socket, frame: bytes) -> None:
    try:
        target.sendall(struct.pack(">i", len(frame)) + frame)
    except OSError:
        target.close()


def _shut(*both: socket.socket) -> None:
    for each in both:
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The other direction has shut it down already.
        each.close()
