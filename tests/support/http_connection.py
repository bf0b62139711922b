"""A raw connection to an HTTP server, for tests that decide about every packet."""

import json
import socket
from types import TracebackType
from typing import Any, NamedTuple

TIMEOUT_S = 60.0
"""Long, because the first request loads the HTTP API, which takes seconds on a busy machine."""


class HttpResponse(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def request_bytes(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    """Returns a request. A body that is not bytes is sent as JSON. Underscores in header names become dashes."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: test"]
    if body is not None:
        lines.append(f"content-length: {len(content)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "\r\n"]).encode() + content


class RawConnection:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._received = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> HttpResponse:
        self.send(request_bytes(method, path, body, **headers))
        return self.receive(has_body=method != "HEAD")

    def receive(self, *, has_body: bool = True) -> HttpResponse:
        """Reads one response with a content-length."""
        while b"\r\n\r\n" not in self._received:
            self._read()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        status_line, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", "0")) if has_body else 0
        while len(self._received) < size:
            self._read()
        body, self._received = self._received[:size], self._received[size:]
        return HttpResponse(int(status_line.split(" ")[1]), headers, body)

    def _read(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise ConnectionError(f"the server closed the connection after {self._received!r}")
        self._received += data

    def is_closed(self) -> bool:
        """Waits until the server closes the connection. Returns False if it sends bytes or nothing instead."""
        try:
            return not self._received and self.socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def is_silent(self, seconds: float = 0.3) -> bool:
        """Whether the server sends nothing for this time."""
        self.socket.settimeout(seconds)
        try:
            self._read()
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(TIMEOUT_S)
        return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
