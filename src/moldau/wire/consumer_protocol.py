"""The Subscription and Assignment messages of Kafka's ConsumerProtocol, which the members of a group exchange.

Brokers store both messages as opaque bytes and decode them only to describe a group. Both messages start with a
version. A decoder ignores the unknown fields of a newer version, so that members of different releases can be in one
group.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

from moldau.wire.codec import DecodeError, Message, entity_decoder, entity_encoder

PROTOCOL_TYPE = "consumer"

VERSION_MAX = 3

Partition = tuple[str, int]
"""Topic name and partition index."""


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


def encode_subscription(subscription: Subscription) -> bytes:
    """Encodes a subscription. Topics and partitions are sorted, as in the Java consumer."""
    return _encode_latest(
        "Subscription",
        {
            "topics": sorted(subscription.topics),
            "user_data": subscription.user_data,
            "owned_partitions": _group_by_topic(subscription.owned_partitions),
            "generation_id": subscription.generation_id,
            "rack_id": subscription.rack_id,
        },
    )


def decode_subscription(data: bytes | memoryview) -> Subscription:
    """Decodes a subscription. Raises DecodeError."""
    message = _decode("Subscription", data)
    return Subscription(
        tuple(message.topics),
        _to_bytes(message.user_data),
        _to_partitions(message.get("owned_partitions", ())),
        message.get("generation_id", -1),
        message.get("rack_id"),
    )


def encode_assignment(assignment: Assignment) -> bytes:
    tree = {"assigned_partitions": _group_by_topic(assignment.partitions), "user_data": assignment.user_data}
    return _encode_latest("Assignment", tree)


def decode_assignment(data: bytes | memoryview) -> Assignment:
    """Decodes an assignment. Empty bytes are an empty assignment. Raises DecodeError."""
    if not data:
        return Assignment(())
    message = _decode("Assignment", data)
    return Assignment(_to_partitions(message.assigned_partitions), _to_bytes(message.user_data))


def encode_sticky_user_data(partitions: Iterable[Partition], generation_id: int) -> bytes:
    """Encodes the user data with which the sticky assignor transfers a member's previous assignment."""
    out = bytearray()
    _ENCODE_STICKY(out, {"previous_assignment": _group_by_topic(partitions), "generation": generation_id})
    return bytes(out)


def decode_sticky_user_data(data: bytes) -> tuple[tuple[Partition, ...], int]:
    """Returns the previous partitions and their generation, which is -1 from clients before Kafka 2.3.

    Raises DecodeError.
    """
    view = memoryview(data)
    try:
        message = _DECODE_STICKY(view)
    except DecodeError:
        message = _DECODE_STICKY_WITHOUT_GENERATION(view)
    return _to_partitions(message.previous_assignment), message.get("generation", -1)


@dataclass(frozen=True)
class _StickyTopic:
    __flexible__: ClassVar = False
    topic: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[int, ...] = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True)
class _StickyUserDataV0:
    __flexible__: ClassVar = False
    previous_assignment: tuple[_StickyTopic, ...]


@dataclass(frozen=True)
class _StickyUserDataV1(_StickyUserDataV0):
    generation: int = field(metadata={"kafka_type": "int32"})


_ENCODE_STICKY = entity_encoder(_StickyUserDataV1)
_DECODE_STICKY = entity_decoder(_StickyUserDataV1)
_DECODE_STICKY_WITHOUT_GENERATION = entity_decoder(_StickyUserDataV0)
_encoder, _decoder = cache(entity_encoder), cache(entity_decoder)


@cache
def _entity(name: str, version: int) -> type:
    module = import_module(f"kio.schema.consumer_protocol_{name.lower()}.v{version}.data")
    entity: type = getattr(module, f"ConsumerProtocol{name}")
    return entity


def _encode_latest(name: str, tree: dict[str, Any]) -> bytes:
    out = bytearray(VERSION_MAX.to_bytes(2, "big"))
    _encoder(_entity(name, VERSION_MAX))(out, tree)
    return bytes(out)


def _decode(name: str, data: bytes | memoryview) -> Message:
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise DecodeError(f"the {name.lower()} has version {version}")
    return _decoder(_entity(name, min(version, VERSION_MAX)))(memoryview(data)[2:])


def _to_bytes(data: memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)


def _to_partitions(topics: Iterable[Message]) -> tuple[Partition, ...]:
    return tuple((each.topic, index) for each in topics for index in each.partitions)


def _group_by_topic(partitions: Iterable[Partition]) -> list[dict[str, Any]]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    return [{"topic": topic, "partitions": indexes} for topic, indexes in by_topic.items()]
