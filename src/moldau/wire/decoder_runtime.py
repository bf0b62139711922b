"""What all reading of messages stands on: the messages that come out, the limits that are kept, and the few
functions that written readers (`readers.py`) call.

Whatever comes from outside is checked before anything is allocated for it: lengths and counts against the
bytes left, the number of elements of a whole request, the number of tagged fields.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

ELEMENTS_MAX = 100_000
"""Array elements in one request, nested ones counted too: what a frame may make us allocate stays bounded."""
TAGS_MAX = 64
STRING_BYTES_MAX = 32_767
"""What a length of 16 bits can say; Kafka takes no more in flexible versions, whose lengths could say more."""
SAFE_STRING_BYTES = STRING_BYTES_MAX // 3
"""So few fit into a text whatever they are: a byte that is no text is read as a character of three."""
NO_ID = bytes(16)


class DecodeError(Exception):
    """Bytes that are not a message of the API and version they say they are."""


class Message:
    """One decoded struct. Fields that some versions lack are read with `get`."""

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


class Cursor:
    """Where reading by hand stands."""

    __slots__ = ("data", "elements_left", "end", "position")

    def __init__(self, data: memoryview, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.end = len(data)
        self.elements_left = ELEMENTS_MAX

    def take(self, size: int) -> memoryview:
        start = self.position
        if size < 0 or start + size > self.end:
            raise too_short(size, self.end - start)
        self.position = start + size
        return self.data[start : start + size]

    def elements(self, count: int, element_size_min: int) -> int:
        self.elements_left -= count
        bytes_left = self.end - self.position
        if count < 0 or count * element_size_min > bytes_left or self.elements_left < 0:
            raise too_many(count, element_size_min, bytes_left)
        return count


def too_short(size: int, bytes_left: int) -> DecodeError:
    return DecodeError(f"{size} bytes wanted where {bytes_left} are left")


def too_many(count: int, element_size_min: int, bytes_left: int) -> DecodeError:
    if count < 0:
        return DecodeError(f"an array of {count} elements")
    if count * element_size_min > bytes_left:
        return DecodeError(f"{count} elements announced where {bytes_left} bytes are left")
    return DecodeError(f"more than {ELEMENTS_MAX} elements in one message")


BytesLike = bytes | memoryview

ReadFunction = Callable[[memoryview, BytesLike, int, int], tuple[Any, int, int]]
"""Takes the frame, the same bytes again (a copy, where that is quicker to read), the position of what is to be read
and the number of elements that the message may still have. Gives the value, and what the latter two are after it."""


def varint(data: BytesLike, position: int) -> tuple[int, int]:
    """The unsigned number at a position, and where it ends."""
    result = 0
    for shift in (0, 7, 14, 21, 28):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
    raise DecodeError("a variable-length number does not end")


def text_varint(data: BytesLike, position: int) -> tuple[int, int]:
    """As `varint`, for a text: the number is one more than its bytes, so that 0 can stand for null."""
    size, position = varint(data, position)
    if size - 1 > STRING_BYTES_MAX:
        raise DecodeError(f"a text of {size - 1} bytes")
    return size, position


def text(raw: BytesLike) -> str:
    """As Kafka does: a name that is no text is an unknown name, not a broken request; unless it becomes longer by that
    than texts can be, for then nobody could be told of it."""
    found = str(raw, "utf-8", "replace")
    if len(raw) > SAFE_STRING_BYTES and (size := len(found.encode())) > STRING_BYTES_MAX:
        raise DecodeError(f"a text of {size} bytes")
    return found


def read_tags(
    frame: memoryview,
    data: BytesLike,
    position: int,
    elements_left: int,
    known: dict[int, tuple[str, ReadFunction]],
    values: dict[str, Any],
) -> tuple[int, int]:
    """Puts the tagged fields that are known into `values`, and passes over the others."""
    count, position = varint(data, position)
    if count > TAGS_MAX:
        raise DecodeError(f"{count} tagged fields in one struct")
    for _ in range(count):
        tag, position = varint(data, position)
        size, position = varint(data, position)
        end = position + size
        if end > len(data):
            raise DecodeError(f"a tagged field of {size} bytes where {len(data) - position} are left")
        if tag in known:
            name, read = known[tag]
            values[name], position, elements_left = read(frame, data, position, elements_left)
            if position != end:
                raise DecodeError(f"tagged field {tag} is not as long as it says")
        position = end
    return position, elements_left


@lru_cache(maxsize=1024)
def id_of(raw: bytes) -> UUID | None:
    """Remembered, because a topic's id is in every fetch of it, and to make a UUID takes longer than all the rest."""
    return None if raw == NO_ID else UUID(bytes=raw)
