"""Formats of the records in a state topic. Keys and values are Kafka messages that start with their version."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import MISSING, field, make_dataclass
from typing import Any, NamedTuple

from moldau.errors import CorruptRecordError, InvalidRequestError
from moldau.wire.codec import DecodeError, Message

VERSION = struct.Struct(">h")
_LATEST = 32_767


class FormatField(NamedTuple):
    """A field of a format and the versions that have it."""

    name: str
    hint: Any
    kafka_type: str
    since: int = 0
    until: int = _LATEST
    tag: int | None = None
    default: Any = MISSING


def declare_entity(name: str, version: int, fields: Sequence[FormatField], *, is_flexible: bool = False) -> type:
    """Returns the dataclass of one version of a format, declared like kio's."""
    present = [each for each in fields if each.since <= version <= each.until]
    return make_dataclass(
        f"{name}V{version}",
        [
            (
                each.name,
                each.hint,
                field(default=each.default, metadata={"kafka_type": each.kafka_type, "tag": each.tag}),
            )
            for each in present
        ],
        namespace={"__flexible__": is_flexible},
    )


def encode_message(version: int, write: Callable[[bytearray, Any], None], tree: dict[str, Any]) -> bytes:
    """Encodes a message with its version in front. Raises InvalidRequestError if a value is too large."""
    out = bytearray(VERSION.pack(version))
    try:
        write(out, tree)
    except struct.error as error:
        raise value_too_large(error) from None
    return bytes(out)


def value_too_large(error: struct.error) -> InvalidRequestError:
    return InvalidRequestError(f"value too large for a record of the coordinator: {error}")


def read_version(data: memoryview, what: str) -> int:
    if len(data) < VERSION.size:
        raise CorruptRecordError(f"{what} has only {len(data)} bytes")
    version: int = VERSION.unpack_from(data)[0]
    return version


def decode_message(read: Callable[[memoryview], Message], data: memoryview, what: str) -> Message:
    """Decodes a message that follows its version. Raises CorruptRecordError."""
    try:
        return read(data[VERSION.size :])
    except DecodeError as error:
        raise CorruptRecordError(f"{what} cannot be decoded: {error}") from None


def decode_versioned(readers: Sequence[Callable[[memoryview], Message]], data: memoryview, what: str) -> Message:
    """Decodes a message of any version, with the decoder of that version. Raises CorruptRecordError."""
    version = read_version(data, what)
    if not 0 <= version < len(readers):
        raise CorruptRecordError(f"unknown version {version} of {what}; supported are 0 to {len(readers) - 1}")
    return decode_message(readers[version], data, what)
