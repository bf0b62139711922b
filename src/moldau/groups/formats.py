"""Encoding of `__consumer_offsets` in Kafka's formats for group and offset records.

This module decodes all versions that Kafka has ever written, and encodes the versions that Kafka 4.3 writes. Record
types of the newer group protocols (consumer, share, streams) are ignored, as Kafka ignores unknown types.
"""

import struct
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from uuid import UUID

from moldau.coordinator.record_format import (
    VERSION,
    FormatField,
    declare_entity,
    decode_message,
    decode_versioned,
    encode_message,
    read_version,
    value_too_large,
)
from moldau.groups.records import (
    NO_EXPIRY,
    NO_LEADER_EPOCH,
    CommittedOffset,
    GroupMetadataRecord,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadataValue,
    OffsetCommitRecord,
)
from moldau.wire.codec import Message, entity_decoder, entity_encoder
from moldau.wire.encoder_compiler import write_unsigned_varint

OFFSET_KEY_VERSION = 1
OFFSET_KEY_VERSIONS = (0, 1)
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 4
EXPIRING_OFFSET_VALUE_VERSION = 1
"""The only version with an expiration timestamp."""
GROUP_VALUE_VERSION = 3

_VERSION_MAX = 4
_FLEXIBLE_VERSION_MIN = 4
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OFFSET_START = struct.Struct(">hqi")
"""Version, offset and leader epoch."""


def _entity(name: str, version: int, fields: Sequence[FormatField]) -> type:
    return declare_entity(name, version, fields, is_flexible=version >= _FLEXIBLE_VERSION_MIN)


_OFFSET_KEY = [
    FormatField("group", str, "string"),
    FormatField("topic", str, "string"),
    FormatField("partition", int, "int32"),
]
_GROUP_KEY = [FormatField("group", str, "string")]
_OFFSET_VALUE = [
    FormatField("offset", int, "int64"),
    FormatField("leader_epoch", int, "int32", since=3),
    FormatField("metadata", str, "string"),
    FormatField("commit_timestamp_ms", int, "int64"),
    FormatField("expire_timestamp_ms", int, "int64", since=1, until=1),
    FormatField("topic_id", UUID | None, "uuid", since=4, tag=0),
]
_MEMBER = [
    FormatField("member_id", str, "string"),
    FormatField("instance_id", str | None, "string", since=3),
    FormatField("client_id", str, "string"),
    FormatField("client_host", str, "string"),
    FormatField("rebalance_timeout_ms", int, "int32", since=1),
    FormatField("session_timeout_ms", int, "int32"),
    FormatField("subscription", bytes, "bytes"),
    FormatField("assignment", bytes, "bytes"),
]


def _group_value_entity(version: int) -> type:
    member = _entity("MemberMetadataValue", version, _MEMBER)
    return _entity(
        "GroupMetadataValue",
        version,
        [
            FormatField("protocol_type", str, "string"),
            FormatField("generation", int, "int32"),
            FormatField("protocol_name", str | None, "string"),
            FormatField("leader", str | None, "string"),
            FormatField("state_timestamp_ms", int, "int64", since=2),
            FormatField("members", tuple[member, ...], ""),  # type: ignore[valid-type]
        ],
    )


_VERSIONS = range(_VERSION_MAX + 1)
_OFFSET_KEY_ENTITY = _entity("OffsetCommitKey", OFFSET_KEY_VERSION, _OFFSET_KEY)
_GROUP_KEY_ENTITY = _entity("GroupMetadataKey", GROUP_KEY_VERSION, _GROUP_KEY)
_OFFSET_VALUES = [_entity("OffsetCommitValue", version, _OFFSET_VALUE) for version in _VERSIONS]
_GROUP_VALUES = [_group_value_entity(version) for version in _VERSIONS]

_read_offset_key = entity_decoder(_OFFSET_KEY_ENTITY)
_read_group_key = entity_decoder(_GROUP_KEY_ENTITY)
_read_offset_value = [entity_decoder(entity) for entity in _OFFSET_VALUES]
_read_group_value = [entity_decoder(entity) for entity in _GROUP_VALUES]
_write_group_key = entity_encoder(_GROUP_KEY_ENTITY)
_write_expiring_offset_value = entity_encoder(_OFFSET_VALUES[EXPIRING_OFFSET_VALUE_VERSION])
_write_group_value = entity_encoder(_GROUP_VALUES[GROUP_VALUE_VERSION])


# Encoding


def encode(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """Returns the key and value of a record. Raises InvalidRequestError if a string is too long for the format."""
    if isinstance(record, GroupMetadataRecord):
        key = encode_message(GROUP_KEY_VERSION, _write_group_key, {"group": record.group_id})
        if record.metadata is None:
            return key, None
        return key, encode_message(GROUP_VALUE_VERSION, _write_group_value, asdict(record.metadata))
    try:
        key = _encode_offset_key(record.group_id, record.topic) + _INT32.pack(record.partition)
        return key, None if record.committed is None else _encode_offset_value(record.committed)
    except struct.error as error:
        raise value_too_large(error) from None


# Most records are offset commits. They are packed by hand for speed, and tests compare the result with Kafka's bytes.


@lru_cache(maxsize=4096)
def _encode_offset_key(group_id: str, topic: str) -> bytes:
    """Returns an offset key without the partition. Keys are cached, because consumers commit the same keys often."""
    out = bytearray(VERSION.pack(OFFSET_KEY_VERSION))
    for text in (group_id.encode(), topic.encode()):
        out += VERSION.pack(len(text)) + text
    return bytes(out)


def _encode_offset_value(committed: CommittedOffset) -> bytes:
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return encode_message(EXPIRING_OFFSET_VALUE_VERSION, _write_expiring_offset_value, asdict(committed))
    out = bytearray(_OFFSET_START.pack(OFFSET_VALUE_VERSION, committed.offset, committed.leader_epoch))
    metadata = committed.metadata.encode()
    write_unsigned_varint(out, len(metadata) + 1)
    out += metadata
    out += _INT64.pack(committed.commit_timestamp_ms)
    out += _topic_id_tag(committed.topic_id)
    return bytes(out)


@lru_cache(maxsize=4096)
def _topic_id_tag(topic_id: UUID | None) -> bytes:
    """Returns the tagged fields of an offset value: no field, or tag 0 with the 16 bytes of the topic id."""
    return b"\0" if topic_id is None else b"\x01\0\x10" + topic_id.bytes


# Decoding


def decode(key: bytes | memoryview, value: bytes | memoryview | None) -> GroupRecord | None:
    """Decodes a record. Returns None if the record type is ignored. Raises CorruptRecordError."""
    key_view = memoryview(key)
    version = read_version(key_view, "a key of the offsets topic")
    if version in OFFSET_KEY_VERSIONS:
        offset_key = decode_message(_read_offset_key, key_view, "the key of an offset")
        committed = None if value is None else _decode_offset(memoryview(value))
        return OffsetCommitRecord(offset_key.group, offset_key.topic, offset_key.partition, committed)
    if version == GROUP_KEY_VERSION:
        group_id = decode_message(_read_group_key, key_view, "the key of a group").group
        return GroupMetadataRecord(group_id, None if value is None else _decode_group(memoryview(value)))
    return None


def _decode_offset(value: memoryview) -> CommittedOffset:
    message = decode_versioned(_read_offset_value, value, "the value of an offset")
    return CommittedOffset(**{"leader_epoch": NO_LEADER_EPOCH, **vars(message)})


def _decode_group(value: memoryview) -> GroupMetadataValue:
    message = decode_versioned(_read_group_value, value, "the value of a group")
    members = tuple(_decode_member(member) for member in message.members)
    return GroupMetadataValue(**{"state_timestamp_ms": -1, **vars(message), "members": members})


def _decode_member(message: Message) -> MemberMetadataValue:
    rebalance_timeout_ms = message.get("rebalance_timeout_ms", -1)
    return MemberMetadataValue(
        member_id=message.member_id,
        instance_id=message.get("instance_id"),
        client_id=message.client_id,
        client_host=message.client_host,
        # Version 0 of this value has only a session timeout, which was also the rebalance timeout.
        rebalance_timeout_ms=message.session_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
        session_timeout_ms=message.session_timeout_ms,
        # The bytes are copied, because a view would keep the whole batch in memory.
        subscription=bytes(message.subscription),
        assignment=bytes(message.assignment),
    )
