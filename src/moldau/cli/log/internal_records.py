"""Readable form of the records of `__consumer_offsets` and `__transaction_state`."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from moldau.cli.console import bytes_to_json
from moldau.errors import CorruptRecordError
from moldau.groups import formats as group_formats
from moldau.groups.offsets_topic import OFFSETS_TOPIC
from moldau.groups.records import GroupMetadataRecord, GroupMetadataValue
from moldau.records.record import Record
from moldau.transactions import formats as transaction_formats
from moldau.transactions.records import TransactionGroupRecord
from moldau.transactions.state_topic import TRANSACTION_STATE_TOPIC
from moldau.transactions.transaction_metadata import TransactionMetadata
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription


class InternalRecord(NamedTuple):
    type: str
    key: dict[str, Any]
    value: dict[str, Any] | None
    """None for a tombstone."""


def decode_internal_record(topic: str, record: Record) -> InternalRecord | None:
    """Returns None for other topics and for record types that Moldau ignores. Raises CorruptRecordError."""
    decode = _DECODERS.get(topic)
    if decode is None:
        return None
    if record.key is None:
        raise CorruptRecordError(f"a record of {topic} has no key")
    return decode(record.key, record.value)


def _decode_group_record(key: bytes, value: bytes | None) -> InternalRecord | None:
    record = group_formats.decode(key, value)
    if record is None:
        return None
    if isinstance(record, GroupMetadataRecord):
        metadata = record.metadata
        fields = None if metadata is None else _group_fields(metadata)
        return InternalRecord("GroupMetadata", {"group": record.group_id}, fields)
    committed = None if record.committed is None else asdict(record.committed)
    commit_key = {"group": record.group_id, "topic": record.topic, "partition": record.partition}
    return InternalRecord("OffsetCommit", commit_key, committed)


def _group_fields(group: GroupMetadataValue) -> dict[str, Any]:
    fields = asdict(group)
    for member in fields["members"]:
        member["subscription"] = _decode_protocol(group, decode_subscription, member["subscription"])
        member["assignment"] = _decode_protocol(group, decode_assignment, member["assignment"])
    return fields


def _decode_protocol(group: GroupMetadataValue, decode: Callable[[bytes], Any], data: bytes) -> Any:
    """Decodes a message of the consumer protocol. Other bytes are shown as they are."""
    if group.protocol_type == PROTOCOL_TYPE:
        try:
            fields = asdict(decode(data))
        except DecodeError:
            return bytes_to_json(data)
        return {name: bytes_to_json(each) if isinstance(each, bytes) else each for name, each in fields.items()}
    return bytes_to_json(data)


def _decode_transaction_record(key: bytes, value: bytes | None) -> InternalRecord | None:
    record = transaction_formats.decode(key, value)
    if record is None:
        return None
    if isinstance(record, TransactionGroupRecord):
        fields = None if record.metadata is None else asdict(record.metadata)
        return InternalRecord("TransactionGroup", {"group": record.group_id}, fields)
    fields = None if record.metadata is None else _transaction_fields(record.metadata)
    return InternalRecord("Transaction", {"transactional_id": record.transactional_id}, fields)


def _transaction_fields(metadata: TransactionMetadata) -> dict[str, Any]:
    fields = metadata._asdict()
    # This field is not stored in the log.
    del fields["last_producer_epoch"]
    return fields | {
        "state": metadata.state.label,
        "partitions": [f"{topic}-{partition}" for topic, partition in sorted(metadata.partitions)],
        "client": metadata.client._asdict(),
    }


_DECODERS: Mapping[str, Callable[[bytes, bytes | None], InternalRecord | None]] = {
    OFFSETS_TOPIC: _decode_group_record,
    TRANSACTION_STATE_TOPIC: _decode_transaction_record,
}
