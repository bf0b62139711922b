"""The head of an HTTP request: request line and headers. Only as much is parsed as health requests need."""

from collections.abc import Mapping
from typing import NamedTuple

HEAD_END = b"\r\n\r\n"
HEAD_BYTES_MAX = 32 * 1024
METHOD_LENGTH_MAX = 16


class MalformedRequestError(Exception):
    """Bytes that are not an HTTP request."""


class RequestHead(NamedTuple):
    method: str
    path: str
    """The path of the target, without the query."""
    is_http_1_0: bool
    headers: Mapping[str, str]
    """By name in lower case."""

    @property
    def has_body(self) -> bool:
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0").strip() != "0"

    @property
    def keeps_alive(self) -> bool:
        tokens = [token.strip().lower() for token in self.headers.get("connection", "").split(",")]
        return "keep-alive" in tokens if self.is_http_1_0 else "close" not in tokens


def check_start(data: bytes | bytearray) -> None:
    """Raises MalformedRequestError if no method can start with these bytes, for example those of a TLS handshake."""
    method = data[:METHOD_LENGTH_MAX].partition(b" ")[0]
    if not (method.isalpha() and method.isupper() and method.isascii()) or len(method) == METHOD_LENGTH_MAX:
        raise MalformedRequestError("the request does not start with an HTTP method")


def parse_head(data: bytes) -> RequestHead:
    """Parses a head without its final empty line. Raises MalformedRequestError."""
    request_line, *lines = data.split(b"\r\n")
    parts = request_line.split(b" ")
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0") or not parts[1]:
        raise MalformedRequestError("the request line is not `METHOD target HTTP/1.1`")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip() or b"\x00" in line:
            raise MalformedRequestError("a header is not `name: value`")
        headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()
    target = parts[1].decode("latin-1")
    return RequestHead(parts[0].decode("latin-1"), target.partition("?")[0], parts[2] == b"HTTP/1.0", headers)
