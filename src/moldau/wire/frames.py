"""Request headers in, answer frames out. An answer may hold stored records by reference: they are spliced
in, not copied."""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from moldau.wire.codec import DecodeError, has_flexible_header, read_tags
from moldau.wire.decoder_runtime import text

_HEADER = struct.Struct(">hhih")
_SIZE_AND_CORRELATION = struct.Struct(">ii")
_NO_TAGS: dict[int, Any] = {}


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_start: int
    """Where the body begins in headers without tagged fields; `skip_tagged_fields` finds it in the others."""


def read_request_header(frame: memoryview) -> RequestHeader:
    """The header of a request, up to its tagged fields; raises DecodeError."""
    if len(frame) < _HEADER.size:
        raise DecodeError(f"a request of {len(frame)} bytes is shorter than its header")
    api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
    start = _HEADER.size
    if length < 0:
        return RequestHeader(api_key, version, correlation_id, None, start)
    end = start + length
    if end > len(frame):
        raise DecodeError("a client id that is longer than the request")
    return RequestHeader(api_key, version, correlation_id, text(frame[start:end]), end)


def skip_tagged_fields(frame: memoryview, position: int) -> int:
    """Where the tagged fields that begin at `position` end."""
    if position < len(frame) and frame[position] == 0:
        return position + 1
    return read_tags(frame, frame, position, 0, _NO_TAGS, {})[0]


def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str) -> bytearray:
    """What goes before the body of a request, for the body to be appended; the frame's size is not in it."""
    name = client_id.encode()
    header = bytearray(_HEADER.pack(api_key, version, correlation_id, len(name)))
    header += name
    if has_flexible_header(api_key, version):
        header.append(0)
    return header


class StoredRecords(Protocol):
    """Records that lie in a store: how many bytes they have and where they are."""

    @property
    def parts(self) -> Sequence[Any]: ...

    @property
    def size(self) -> int: ...


class ResponseFrame(bytearray):
    """An answer being written: the codec appends to it, and `splice` remembers where stored records belong."""

    def __init__(self, correlation_id: int, *, flexible: bool) -> None:
        super().__init__(_SIZE_AND_CORRELATION.pack(0, correlation_id))
        if flexible:
            self.append(0)
        self._splices: list[tuple[int, StoredRecords]] = []

    def splice(self, stored: StoredRecords) -> None:
        self._splices.append((len(self), stored))

    def parts(self) -> list[Any]:
        """The whole frame, its size in front, as buffers and stored parts in the order they leave."""
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
