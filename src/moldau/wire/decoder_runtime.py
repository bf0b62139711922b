"""Decoded messages, the limits of decoding, and the functions that generated decoders call.

Before anything is allocated, lengths and counts are compared with the number of remaining bytes. The number of elements
and the number of tagged fields are limited.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

ELEMENTS_MAX = 100_000
"""The maximum number of array elements in one request, including nested arrays. It limits the allocated memory."""
TAGS_MAX = 64
STRING_BYTES_MAX = 32_767
"""The largest length that fits in a signed 16-bit integer. Kafka has the same limit in flexible versions."""
SAFE_STRING_BYTES = STRING_BYTES_MAX // 3
"""Strings up to this size never exceed STRING_BYTES_MAX after decoding, because an invalid byte becomes three."""
ZERO_UUID = bytes(16)


class DecodeError(Exception):
    """Bytes that are not a valid message of their API and version."""


class Message:
    """One decoded struct, with an attribute for each field. Use `get` for fields that some versions do not have."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, Message) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...


def too_short_error(size: int, bytes_left: int) -> DecodeError:
    return DecodeError(f"{size} bytes expected, but only {bytes_left} are left")


def too_many_elements_error(count: int, element_size_min: int, bytes_left: int) -> DecodeError:
    if count < 0:
        return DecodeError(f"an array has {count} elements")
    if count * element_size_min > bytes_left:
        return DecodeError(f"{count} elements announced, but only {bytes_left} bytes are left")
    return DecodeError(f"more than {ELEMENTS_MAX} elements in one message")


BytesLike = bytes | memoryview

ReadFunction = Callable[[memoryview, BytesLike, int, int], tuple[Any, int, int]]
"""Takes the frame, the bytes to decode (the frame or a copy of the frame), the position, and the number of array
elements that the message may still have. Returns the decoded value, and the new position and number of elements."""


def varint(data: BytesLike, position: int) -> tuple[int, int]:
    """Returns the unsigned varint at a position, and the position after the varint."""
    result = 0
    for shift in (0, 7, 14, 21, 28):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
    raise DecodeError("a varint does not end")


def compact_string_length(data: BytesLike, position: int) -> tuple[int, int]:
    """Returns the length of a compact string plus one (0 means null), and the position after the length."""
    size, position = varint(data, position)
    if size - 1 > STRING_BYTES_MAX:
        raise DecodeError(f"a string has {size - 1} bytes")
    return size, position


def decode_string(raw: BytesLike) -> str:
    """Decodes a string as Kafka does. Invalid UTF-8 is replaced, so it leads to an unknown name, not a decode error.

    Raises DecodeError if the replacement makes the string too long for a response.
    """
    decoded = str(raw, "utf-8", "replace")
    if len(raw) > SAFE_STRING_BYTES and (size := len(decoded.encode())) > STRING_BYTES_MAX:
        raise DecodeError(f"a string has {size} bytes")
    return decoded


def read_tags(
    frame: memoryview,
    data: BytesLike,
    position: int,
    elements_left: int,
    known: dict[int, tuple[str, ReadFunction]],
    values: dict[str, Any],
) -> tuple[int, int]:
    """Decodes known tagged fields into `values` and skips unknown tagged fields.

    Returns the new position and the number of array elements that the message may still have.
    """
    count, position = varint(data, position)
    if count > TAGS_MAX:
        raise DecodeError(f"a struct has {count} tagged fields")
    for _ in range(count):
        tag, position = varint(data, position)
        size, position = varint(data, position)
        end = position + size
        if end > len(data):
            raise DecodeError(f"a tagged field has {size} bytes, but only {len(data) - position} are left")
        if tag in known:
            name, read = known[tag]
            values[name], position, elements_left = read(frame, data, position, elements_left)
            if position != end:
                raise DecodeError(f"tagged field {tag} has another length than announced")
        position = end
    return position, elements_left


@lru_cache(maxsize=1024)
def decode_uuid(raw: bytes) -> UUID | None:
    """Returns the UUID, or None for the zero UUID. The cache saves time, because fetches repeat the same topic ids."""
    return None if raw == ZERO_UUID else UUID(bytes=raw)
