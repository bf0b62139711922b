"""Schemas of messages, read from kio's dataclasses on first use, and the tagged fields that Moldau adds to them.

`own_messages.py` declares the messages of Moldau's own APIs.

kio's own decoders are not used for requests. They allocate memory for the element count in the request before they
check how many bytes follow, so a request of ten bytes could kill the process (docs/decisions/0002-own-codec.md).
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal
from uuid import UUID

from moldau.wire.kio import EntityType, api_key_map, load_payload_module, schema_name_map
from moldau.wire.own_messages import OWN_MESSAGES

MessageKind = Literal["request", "response"]

REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class SchemaField:
    name: str
    kafka_type: str
    """The name of a primitive type (`int32`, `string`, ...), or "" for an entity."""
    entity: type | None = None
    is_array: bool = False
    nullable: bool = False
    tag: int | None = None
    default: Any = REQUIRED
    """The value to encode if the tree has no value for the field. `REQUIRED` if the tree must have a value."""


FIRST_TAG = 10_000
"""The first tag of Moldau's extension fields. Kafka numbers its tags from 0, so future tags of Kafka do not collide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReadyReplica:
    __flexible__: ClassVar[bool] = True
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partition_index: int = field(metadata={"kafka_type": "int32"})
    reason: str = field(metadata={"kafka_type": "string"})


_FETCH_REQUEST_FIELDS = (
    # The `sent_ms` of the latest response that the replica received from the quorum's leader; -1 if there is none.
    SchemaField("heard_ms", "int64", tag=FIRST_TAG, default=-1),
)
_FETCH_RESPONSE_FIELDS = (
    # The time when the quorum's leader sent the response, by its clock; -1 if the sender is not this leader.
    SchemaField("sent_ms", "int64", tag=FIRST_TAG, default=-1),
)

EXTENSION_FIELDS: Mapping[str, tuple[SchemaField, ...]] = types.MappingProxyType(
    {
        "BrokerRegistrationRequest": (
            # The ids of the broker's previous incarnations that are saved on its disk.
            SchemaField("former_incarnation_ids", "uuid", is_array=True, tag=FIRST_TAG, default=[]),
        ),
        "BrokerHeartbeatRequest": (
            # Replicas whose logs could not be opened, with the reason. Clients that wait for the topic get this reason.
            SchemaField("not_ready", "", NotReadyReplica, is_array=True, tag=FIRST_TAG, default=[]),
            # Replicas that are intact but temporarily reject appends, with the reason.
            SchemaField("not_writable", "", NotReadyReplica, is_array=True, tag=FIRST_TAG + 1, default=[]),
        ),
        "BrokerHeartbeatResponse": (
            # The time between the quorum's last confirmation of the controller and the arrival of the heartbeat.
            SchemaField("confirmed_age_ms", "int32", tag=FIRST_TAG, default=0),
        ),
        "EnvelopeResponse": (
            # The controller's metadata offset after the change; -1 if unknown. The forwarding node waits for this
            # offset before it responds to the client, so that the client sees the change on that node.
            SchemaField("metadata_offset", "int64", tag=FIRST_TAG, default=-1),
        ),
        "FetchRequest": _FETCH_REQUEST_FIELDS,
        "FetchResponse": _FETCH_RESPONSE_FIELDS,
        "FetchSnapshotRequest": _FETCH_REQUEST_FIELDS,
        "FetchSnapshotResponse": _FETCH_RESPONSE_FIELDS,
        # Of DescribeProducers.
        "ProducerState": (
            # The owner of the open transaction, if this leader has accepted its first batch.
            SchemaField("transactional_id", "string", tag=FIRST_TAG, default=""),
            SchemaField("client_id", "string", tag=FIRST_TAG + 1, default=""),
            SchemaField("client_host", "string", tag=FIRST_TAG + 2, default=""),
        ),
        # Of DescribeTransactions. In ListTransactions, which has a struct of the same name, both are always absent.
        "TransactionState": (
            # The client that started the producer of the transaction.
            SchemaField("client_id", "string", tag=FIRST_TAG, default=""),
            SchemaField("client_host", "string", tag=FIRST_TAG + 1, default=""),
        ),
        "VoteResponse": (
            # The minimum time since the voter last heard from a leader; 0 if unknown. A new controller shortens the
            # session of the previous controller's node by up to this time.
            SchemaField("silent_ms", "int32", tag=FIRST_TAG, default=0),
        ),
    }
)
"""Tagged fields that Moldau nodes add to Kafka's messages, by message name. Only flexible versions have tagged fields.

Other decoders skip unknown tags, and an absent field has its default value.
"""

_ENTITY_TYPES: dict[MessageKind, Any] = {"request": EntityType.request, "response": EntityType.response}

_ZEROS: dict[str, Any] = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None}


@cache
def schema_fields(entity: type) -> tuple[SchemaField, ...]:
    """Returns the fields of an entity in wire order, followed by Moldau's extension fields."""
    fields = [_field(field) for field in dataclasses.fields(entity)]
    if is_flexible(entity):
        fields += EXTENSION_FIELDS.get(entity.__name__, ())
    if entity.__module__.endswith(".response"):
        fields = [_with_response_default(field) for field in fields]
    return tuple(fields)


def _with_response_default(field: SchemaField) -> SchemaField:
    """Adds a default to throttle time, error and array fields without one in Kafka's schema."""
    if field.default is not REQUIRED:
        return field
    if field.name in ("throttle_time", "error_code"):
        return dataclasses.replace(field, default=0)
    if field.nullable and field.name == "error_message":
        return dataclasses.replace(field, default=None)
    return dataclasses.replace(field, default=[]) if field.is_array and not field.nullable else field


def _field(declared: "dataclasses.Field[Any]") -> SchemaField:
    hint, nullable = _without_none(declared.type)
    is_array = typing.get_origin(hint) is tuple
    if is_array:
        hint, _ = _without_none(typing.get_args(hint)[0])
    entity: Any = hint if dataclasses.is_dataclass(hint) else None
    kafka_type = "" if entity else declared.metadata["kafka_type"]
    # Times are not nullable on the wire. kio declares them nullable only because it reads -1 as None.
    nullable = nullable and kafka_type != "datetime_i64"
    field = SchemaField(declared.name, kafka_type, entity, is_array, nullable, declared.metadata.get("tag"))
    return dataclasses.replace(field, default=_default(field, declared.default))


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [option for option in typing.get_args(hint) if option is not types.NoneType]
        return rest[0], True
    return hint, False


def _default(field: SchemaField, declared: Any) -> Any:
    if declared is dataclasses.MISSING:
        return REQUIRED if field.tag is None else _zero_value(field)
    if field.is_array:
        return None if declared is None else list(declared)
    if field.kafka_type == "datetime_i64" and declared is None:
        return -1
    if dataclasses.is_dataclass(declared):
        return {each.name: _to_plain(getattr(declared, each.name)) for each in dataclasses.fields(declared)}
    return _to_plain(declared)


def _zero_value(field: SchemaField) -> Any:
    """Returns the value of an absent tagged field that declares no default."""
    if field.is_array:
        return []
    if field.nullable:
        return None
    if field.entity is None:
        return _ZEROS.get(field.kafka_type, 0)
    inner = schema_fields(field.entity)
    return {each.name: _zero_value(each) if each.default is REQUIRED else each.default for each in inner}


def _to_plain(value: Any) -> Any:
    """Converts kio's values to plain Python values. Durations and times become milliseconds."""
    if hasattr(value, "total_seconds"):
        return round(value.total_seconds() * 1000)
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1000)
    if isinstance(value, tuple):
        return [_to_plain(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def message_type(api_key: int, version: int, kind: MessageKind) -> type:
    """Returns the top-level entity of a request or response. Raises LookupError if there is no such message."""
    if (api_key, version) in OWN_MESSAGES:
        request, response = OWN_MESSAGES[api_key, version]
        return request if kind == "request" else response
    try:
        name = api_key_map[api_key]
        schema_name_map[name][version]
        module = load_payload_module(api_key, version, _ENTITY_TYPES[kind])
    except KeyError:
        raise LookupError(f"no schema for API {api_key} version {version}") from None
    class_name = "".join(part.capitalize() for part in name.split("_")) + kind.capitalize()
    found: type = getattr(module, class_name)
    return found


def is_flexible(entity: type) -> bool:
    return bool(entity.__flexible__)  # type: ignore[attr-defined]
