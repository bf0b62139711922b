"""Messages between bytes and plain values, for any API and version, made from the schemas on first use.

Reading gives `Message`s: attributes by field name, lists for arrays, ints for times in milliseconds, UUID
or None, and memoryviews of the frame for record data, which is therefore not copied. Writing takes trees of
dicts and lists; fields that a version does not have are left out, so one tree serves every version.

Whatever comes from outside is checked before anything is allocated for it: lengths and counts against the
bytes left, the number of elements of a whole message, the number of tagged fields.
"""

import struct
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from moldau.wire.schema import REQUIRED, Field, Kind, fields_of, is_flexible, message_type

ELEMENTS_MAX = 100_000
"""Array elements in one message, nested ones counted too: what a frame may make us allocate stays bounded."""
TAGS_MAX = 64
TEXT_BYTES_MAX = 32_767
"""What a length of 16 bits can say; Kafka takes no more in flexible versions, whose lengths could say more."""


class DecodeError(Exception):
    """Bytes that are not a message of the API and version they say they are."""


class Message(SimpleNamespace):
    """One decoded struct. Fields that some versions lack are read with `get`."""

    def get(self, name: str, default: Any = None) -> Any:
        return self.__dict__.get(name, default)


class Cursor:
    """Where the reading of a frame stands."""

    __slots__ = ("data", "elements_left", "end", "position")

    def __init__(self, data: memoryview, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.end = len(data)
        self.elements_left = ELEMENTS_MAX

    def take(self, size: int) -> memoryview:
        start = self.position
        if size < 0 or start + size > self.end:
            raise DecodeError(f"{size} bytes wanted where {self.end - start} are left")
        self.position = start + size
        return self.data[start : start + size]

    def unsigned_varint(self) -> int:
        data, position, result = self.data, self.position, 0
        if position < self.end and data[position] < 0x80:
            self.position = position + 1
            return data[position]
        for shift in (0, 7, 14, 21, 28):
            if position >= self.end:
                break
            byte = data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = position
                return result
        raise DecodeError("a variable-length number does not end")

    def elements(self, count: int, element_size_min: int) -> int:
        if count * element_size_min > self.end - self.position:
            raise DecodeError(f"{count} elements announced where {self.end - self.position} bytes are left")
        self.elements_left -= count
        if self.elements_left < 0:
            raise DecodeError(f"more than {ELEMENTS_MAX} elements in one message")
        return count


Read = Callable[[Cursor], Any]
Write = Callable[[bytearray, Any], None]

_FIXED = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
    "error_code": struct.Struct(">h"),
    "timedelta_i32": struct.Struct(">i"),
    "timedelta_i64": struct.Struct(">q"),
    "datetime_i64": struct.Struct(">q"),
}
_INT16 = _FIXED["int16"]
_INT32 = _FIXED["int32"]
_NO_ID = bytes(16)


@cache
def decoder(api_key: int, version: int, kind: Kind) -> Callable[[memoryview], Message]:
    """The function that reads a whole message body; raises DecodeError."""
    return _whole(_entity_reader(message_type(api_key, version, kind)))


@cache
def encoder(api_key: int, version: int, kind: Kind) -> Callable[[bytearray, Any], None]:
    """The function that appends a message body made of a plain tree to a buffer."""
    return _entity_writer(message_type(api_key, version, kind))


def entity_decoder(entity: type) -> Callable[[memoryview], Message]:
    """As `decoder`, for a struct that is no request or response: a dataclass in the manner of kio's."""
    return _whole(_entity_reader(entity))


def entity_encoder(entity: type) -> Callable[[bytearray, Any], None]:
    """As `encoder`, for a struct that is no request or response: a dataclass in the manner of kio's."""
    return _entity_writer(entity)


@cache
def uses_flexible_headers(api_key: int, version: int) -> bool:
    return is_flexible(message_type(api_key, version, "request"))


def _whole(read: Read) -> Callable[[memoryview], Message]:
    def decode(data: memoryview) -> Message:
        cursor = Cursor(data)
        try:
            message: Message = read(cursor)
        except (struct.error, IndexError) as error:
            raise DecodeError(str(error)) from None
        return message

    return decode


def write_unsigned_varint(out: bytearray, value: int) -> None:
    if value <= 0x7F:
        out.append(value)
        return
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


# Reading


def _entity_reader(entity: type) -> Read:
    flexible = is_flexible(entity)
    fields = fields_of(entity)
    plain = [(field.name, _field_reader(field, flexible)) for field in fields if field.tag is None]
    tagged = {
        field.tag: (field.name, _field_reader(field, flexible)) for field in fields if field.tag is not None
    }
    defaults = [(field.name, _message_default(field)) for field in fields if field.tag is not None]

    def read(cursor: Cursor) -> Message:
        message = Message()
        values = message.__dict__
        for name, read_field in plain:
            values[name] = read_field(cursor)
        if flexible:
            for name, default in defaults:
                values[name] = default
            # Hardly any message has tags, so the common case costs no call.
            if cursor.data[cursor.position] == 0:
                cursor.position += 1
            else:
                read_tags(cursor, tagged, values)
        return message

    return read


def _message_default(field: Field) -> Any:
    return Message(**field.default) if field.entity and isinstance(field.default, dict) else field.default


def read_tags(cursor: Cursor, tagged: dict[int, tuple[str, Read]], values: dict[str, Any]) -> None:
    count = cursor.unsigned_varint()
    if count > TAGS_MAX:
        raise DecodeError(f"{count} tagged fields in one struct")
    for _ in range(count):
        tag = cursor.unsigned_varint()
        size = cursor.unsigned_varint()
        end = cursor.position + size
        if end > cursor.end:
            raise DecodeError(f"a tagged field of {size} bytes where {cursor.end - cursor.position} are left")
        if tag in tagged:
            name, read_field = tagged[tag]
            values[name] = read_field(cursor)
            if cursor.position != end:
                raise DecodeError(f"tagged field {tag} is not as long as it says")
        cursor.position = end


def _field_reader(field: Field, flexible: bool) -> Read:
    if field.is_array:
        item, size_min = _item_reader(field, flexible)
        return _array_reader(item, size_min, flexible, field.nullable)
    if field.entity is None:
        return _primitive_reader(field.kafka_type, flexible, field.nullable)[0]
    read = _entity_reader(field.entity)
    # A nullable struct is preceded by a marker byte; a tagged one is null by being absent.
    return _nullable_reader(read) if field.nullable and field.tag is None else read


def _item_reader(field: Field, flexible: bool) -> tuple[Read, int]:
    if field.entity is None:
        return _primitive_reader(field.kafka_type, flexible, False)
    return _entity_reader(field.entity), _size_min(field.entity)


def _size_min(entity: type) -> int:
    flexible = is_flexible(entity)
    size = 1 if flexible else 0
    for field in fields_of(entity):
        if field.tag is not None:
            continue
        if field.is_array:
            size += 1 if flexible else 4
        elif field.entity is not None:
            size += 1 if field.nullable else _size_min(field.entity)
        else:
            size += _primitive_reader(field.kafka_type, flexible, field.nullable)[1]
    return size


def _nullable_reader(read: Read) -> Read:
    def read_nullable(cursor: Cursor) -> Message | None:
        marker = cursor.take(1)[0]
        message: Message | None = None if marker == 0xFF else read(cursor)
        return message

    return read_nullable


def _array_reader(item: Read, size_min: int, flexible: bool, nullable: bool) -> Read:
    def read_array(cursor: Cursor) -> list[Any] | None:
        count = cursor.unsigned_varint() - 1 if flexible else _INT32.unpack(cursor.take(4))[0]
        if count < 0:
            if count == -1 and nullable:
                return None
            raise DecodeError(f"an array of {count} elements")
        return [item(cursor) for _ in range(cursor.elements(count, size_min))]

    return read_array


def _primitive_reader(kafka_type: str, flexible: bool, nullable: bool) -> tuple[Read, int]:
    """The reader, and the least number of bytes it takes."""
    if kafka_type in _FIXED:
        fixed = _FIXED[kafka_type]
        unpack_from, size = fixed.unpack_from, fixed.size

        def read_fixed(cursor: Cursor) -> Any:
            position = cursor.position
            value = unpack_from(cursor.data, position)[0]
            cursor.position = position + size
            return value

        return read_fixed, size
    if kafka_type == "uuid":
        return _read_uuid, 16
    if kafka_type == "string":
        read_length = _compact_length if flexible else _short_length
        return _text_reader(read_length, nullable), 1 if flexible else 2
    if kafka_type in ("bytes", "records"):
        read_length = _compact_length if flexible else _long_length
        return _bytes_reader(read_length, nullable), 1 if flexible else 4
    raise LookupError(f"no reader for the type {kafka_type!r}")


def _compact_length(cursor: Cursor) -> int:
    return cursor.unsigned_varint() - 1


def _short_length(cursor: Cursor) -> int:
    length: int = _INT16.unpack(cursor.take(2))[0]
    return length


def _long_length(cursor: Cursor) -> int:
    length: int = _INT32.unpack(cursor.take(4))[0]
    return length


def _text_reader(read_length: Callable[[Cursor], int], nullable: bool) -> Read:
    def read_text(cursor: Cursor) -> str | None:
        length = read_length(cursor)
        if length == -1 and nullable:
            return None
        if length > TEXT_BYTES_MAX:
            raise DecodeError(f"a text of {length} bytes")
        # As Kafka does: a name that is no text is an unknown name, not a broken request.
        return str(cursor.take(length), "utf-8", "replace")

    return read_text


def _bytes_reader(read_length: Callable[[Cursor], int], nullable: bool) -> Read:
    def read_bytes(cursor: Cursor) -> memoryview | None:
        length = read_length(cursor)
        if length == -1 and nullable:
            return None
        return cursor.take(length)

    return read_bytes


def _read_uuid(cursor: Cursor) -> UUID | None:
    raw = bytes(cursor.take(16))
    return None if raw == _NO_ID else UUID(bytes=raw)


# Writing


def _entity_writer(entity: type) -> Write:
    flexible = is_flexible(entity)
    fields = fields_of(entity)
    plain = [(f.name, _field_writer(f, flexible), f.default) for f in fields if f.tag is None]
    tagged = sorted(
        ((f.tag, f.name, _field_writer(f, flexible), f.default) for f in fields if f.tag is not None),
        key=lambda each: each[0],
    )

    def write(out: bytearray, tree: Any) -> None:
        for name, write_field, default in plain:
            value = tree.get(name, default)
            if value is REQUIRED:
                raise KeyError(f"{entity.__name__} needs a value for {name}")
            write_field(out, value)
        if tagged:
            _write_tags(out, tagged, tree)
        elif flexible:
            out.append(0)

    return write


def _write_tags(out: bytearray, tagged: list[tuple[int, str, Write, Any]], tree: Any) -> None:
    present = []
    for tag, name, write_field, default in tagged:
        value = tree.get(name, default)
        if value is not None and value != default:
            body = bytearray()
            write_field(body, value)
            present.append((tag, body))
    write_unsigned_varint(out, len(present))
    for tag, body in present:
        write_unsigned_varint(out, tag)
        write_unsigned_varint(out, len(body))
        out += body


def _field_writer(field: Field, flexible: bool) -> Write:
    if field.entity is None:
        write = _primitive_writer(field.kafka_type, flexible)
    else:
        write = _entity_writer(field.entity)
        if field.nullable and not field.is_array and field.tag is None:
            write = _nullable_writer(write)
    return _array_writer(write, flexible) if field.is_array else write


def _nullable_writer(write: Write) -> Write:
    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write(out, value)

    return write_nullable


def _array_writer(write_item: Write, flexible: bool) -> Write:
    def write_array(out: bytearray, items: Any) -> None:
        count = -1 if items is None else len(items)
        if flexible:
            write_unsigned_varint(out, count + 1)
        else:
            out += _INT32.pack(count)
        for item in items or ():
            write_item(out, item)

    return write_array


def _primitive_writer(kafka_type: str, flexible: bool) -> Write:
    if kafka_type in _FIXED:
        pack = _FIXED[kafka_type].pack

        def write_fixed(out: bytearray, value: Any) -> None:
            out += pack(value)

        return write_fixed
    if kafka_type == "uuid":
        return _write_uuid
    if kafka_type == "records":
        return _write_compact_records if flexible else _write_records
    if kafka_type not in ("string", "bytes"):
        raise LookupError(f"no writer for the type {kafka_type!r}")
    length = _INT16 if kafka_type == "string" else _INT32

    def write_sized(out: bytearray, value: Any) -> None:
        raw = value.encode() if isinstance(value, str) else value
        size = -1 if raw is None else len(raw)
        if flexible:
            write_unsigned_varint(out, size + 1)
        else:
            out += length.pack(size)
        if raw is not None:
            out += raw

    return write_sized


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += _NO_ID if value is None else value.bytes


# Records may be given as bytes, or as stored records (`frames.Stored`) that the frame splices in when it
# leaves.


def _write_records(out: bytearray, value: Any) -> None:
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        out += _INT32.pack(-1 if value is None else len(value))
        out += value or b""
    else:
        out += _INT32.pack(value.size)
        out.splice(value)  # type: ignore[attr-defined]


def _write_compact_records(out: bytearray, value: Any) -> None:
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        write_unsigned_varint(out, 0 if value is None else len(value) + 1)
        out += value or b""
    else:
        write_unsigned_varint(out, value.size + 1)
        out.splice(value)  # type: ignore[attr-defined]
