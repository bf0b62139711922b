"""Request headers and response frames. A response frame contains references to stored records, not copies."""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from moldau.wire.codec import has_flexible_header
from moldau.wire.decoder_runtime import DecodeError, decode_string, read_tags

_HEADER = struct.Struct(">hhih")
_SIZE_AND_CORRELATION = struct.Struct(">ii")
_NO_TAGS: dict[int, Any] = {}


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_start: int
    """The position after the client id. In a flexible header the tagged fields start here, otherwise the body.

    `skip_tagged_fields` returns the start of the body in a flexible request.
    """


def read_request_header(frame: memoryview) -> RequestHeader:
    """Decodes a request header up to its tagged fields. Raises DecodeError."""
    if len(frame) < _HEADER.size:
        raise DecodeError(f"a request of {len(frame)} bytes has no complete header")
    api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
    start = _HEADER.size
    if length < 0:
        return RequestHeader(api_key, version, correlation_id, None, start)
    end = start + length
    if end > len(frame):
        raise DecodeError("the client id is longer than the request")
    return RequestHeader(api_key, version, correlation_id, decode_string(frame[start:end]), end)


def skip_tagged_fields(frame: memoryview, position: int) -> int:
    """Returns the position after the tagged fields at `position`."""
    if position < len(frame) and frame[position] == 0:
        return position + 1
    return read_tags(frame, frame, position, 0, _NO_TAGS, {})[0]


def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str) -> bytearray:
    """Returns a request header without the frame size. The caller appends the body."""
    name = client_id.encode()
    header = bytearray(_HEADER.pack(api_key, version, correlation_id, len(name)))
    header += name
    if has_flexible_header(api_key, version):
        header.append(0)
    return header


class StoredRecords(Protocol):
    """Records in a log: their size in bytes, and the parts (file slices or buffers) that contain them."""

    @property
    def parts(self) -> Sequence[Any]: ...

    @property
    def size(self) -> int: ...


class ResponseFrame(bytearray):
    """A response under construction. The encoder appends bytes, and `splice` inserts a reference to stored records."""

    def __init__(self, correlation_id: int, *, flexible: bool) -> None:
        super().__init__(_SIZE_AND_CORRELATION.pack(0, correlation_id))
        if flexible:
            self.append(0)
        self._splices: list[tuple[int, StoredRecords]] = []

    def splice(self, stored: StoredRecords) -> None:
        self._splices.append((len(self), stored))

    def parts(self) -> list[Any]:
        """Returns the complete frame, including the frame size, as a list of buffers and of file ranges."""
        size = len(self) - 4
        if not self._splices:
            self[:4] = size.to_bytes(4, "big")
            return [self]
        size += sum(stored.size for _, stored in self._splices)
        self[:4] = size.to_bytes(4, "big")
        view, parts, position = memoryview(self), [], 0
        for place, stored in self._splices:
            parts.append(view[position:place])
            parts.extend(stored.parts)
            position = place
        if position < len(view):
            parts.append(view[position:])
        return parts
