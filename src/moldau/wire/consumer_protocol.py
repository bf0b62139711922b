"""The Subscription and Assignment messages of Kafka's ConsumerProtocol, which the members of a group exchange.

Brokers store both messages as opaque bytes and decode them only to describe a group. Both messages start with a
version. A decoder ignores the unknown fields of a newer version, so that members of different releases can be in one
group.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from moldau.wire.codec import Cursor, DecodeError
from moldau.wire.decoder_runtime import decode_string

PROTOCOL_TYPE = "consumer"

VERSION_MAX = 3

Partition = tuple[str, int]
"""Topic name and partition index."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Subscription:
    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[Partition, ...] = ()
    """The partitions that the member owned before the rebalance. Since version 1."""
    generation_id: int = -1
    """The generation in which the member owned `owned_partitions`; -1 if unknown. Since version 2."""
    rack_id: str | None = None
    """The rack of the member, or None. Since version 3."""


@dataclass(frozen=True, slots=True)
class Assignment:
    partitions: tuple[Partition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, version: int = VERSION_MAX) -> bytes:
    """Encodes a subscription. Topics and partitions are sorted, as in the Java consumer."""
    out = bytearray(_INT16.pack(_check_version(version)))
    out += _INT32.pack(len(subscription.topics))
    for topic in sorted(subscription.topics):
        _write_string(out, topic)
    _write_bytes(out, subscription.user_data)
    if version >= 1:
        _write_partitions(out, subscription.owned_partitions)
    if version >= 2:
        out += _INT32.pack(subscription.generation_id)
    if version >= 3:
        _write_string(out, subscription.rack_id)
    return bytes(out)


def decode_subscription(data: bytes | memoryview) -> Subscription:
    """Decodes a subscription. Raises DecodeError."""
    cursor, version = _read_version(data, "subscription")
    topics = tuple(_read_string(cursor) for _ in range(_read_array_length(cursor, 2)))
    user_data = _read_bytes(cursor)
    owned: tuple[Partition, ...] = ()
    generation_id, rack_id = -1, None
    if version >= 1:
        owned = _read_partitions(cursor)
    if version >= 2:
        generation_id = _read_int32(cursor)
    if version >= 3:
        rack_id = _read_nullable_string(cursor)
    return Subscription(topics, user_data, owned, generation_id, rack_id)


def encode_assignment(assignment: Assignment, version: int = VERSION_MAX) -> bytes:
    out = bytearray(_INT16.pack(_check_version(version)))
    _write_partitions(out, assignment.partitions)
    _write_bytes(out, assignment.user_data)
    return bytes(out)


def decode_assignment(data: bytes | memoryview) -> Assignment:
    """Decodes an assignment. Raises DecodeError.

    Empty bytes are an empty assignment: the group leader assigned nothing to the member.
    """
    if not data:
        return Assignment(())
    cursor, _ = _read_version(data, "assignment")
    return Assignment(_read_partitions(cursor), _read_bytes(cursor))


def encode_partitions(partitions: Iterable[Partition]) -> bytes:
    """Encodes partitions as in both messages. Assignors use the same encoding in their user data."""
    out = bytearray()
    _write_partitions(out, partitions)
    return bytes(out)


def decode_partitions(data: bytes | memoryview) -> tuple[tuple[Partition, ...], memoryview]:
    """Decodes partitions. Returns the partitions and the bytes that follow them. Raises DecodeError."""
    cursor = Cursor(memoryview(data))
    return _read_partitions(cursor), cursor.data[cursor.position :]


def _check_version(version: int) -> int:
    if not 0 <= version <= VERSION_MAX:
        raise ValueError(f"version {version} of the consumer protocol is not supported, only 0 to {VERSION_MAX}")
    return version


def _read_version(data: bytes | memoryview, what: str) -> tuple[Cursor, int]:
    cursor = Cursor(memoryview(data))
    version: int = _INT16.unpack(cursor.take(2))[0]
    if version < 0:
        raise DecodeError(f"the {what} has version {version}")
    return cursor, version


def _read_int32(cursor: Cursor) -> int:
    value: int = _INT32.unpack(cursor.take(4))[0]
    return value


def _read_array_length(cursor: Cursor, element_size_min: int) -> int:
    count = _read_int32(cursor)
    if count < 0:
        raise DecodeError(f"an array has {count} elements")
    return cursor.elements(count, element_size_min)


def _read_nullable_string(cursor: Cursor) -> str | None:
    length: int = _INT16.unpack(cursor.take(2))[0]
    return None if length == -1 else decode_string(cursor.take(length))


def _read_string(cursor: Cursor) -> str:
    name = _read_nullable_string(cursor)
    if name is None:
        raise DecodeError("a topic name is null")
    return name


def _read_bytes(cursor: Cursor) -> bytes | None:
    length = _read_int32(cursor)
    return None if length == -1 else bytes(cursor.take(length))


def _read_partitions(cursor: Cursor) -> tuple[Partition, ...]:
    partitions: list[Partition] = []
    for _ in range(_read_array_length(cursor, 6)):
        topic = _read_string(cursor)
        partitions += [(topic, _read_int32(cursor)) for _ in range(_read_array_length(cursor, 4))]
    return tuple(partitions)


def _write_string(out: bytearray, text: str | None) -> None:
    raw = None if text is None else text.encode()
    out += _INT16.pack(-1 if raw is None else len(raw))
    out += raw or b""


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    out += _INT32.pack(-1 if data is None else len(data))
    out += data or b""


def _write_partitions(out: bytearray, partitions: Iterable[Partition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    out += _INT32.pack(len(by_topic))
    for topic, indexes in by_topic.items():
        _write_string(out, topic)
        out += _INT32.pack(len(indexes))
        for index in indexes:
            out += _INT32.pack(index)
