"""Encoding of `__transaction_state` in Kafka's formats for transactions, and in an own format for transaction groups.

Version 1 of the value is written since transaction.version 1, version 0 before. Unknown record types are ignored, as
Kafka ignores them. Version 1 has two tagged fields that Kafka does not have and skips: the client of the producer.
"""

from itertools import groupby
from typing import Any

from moldau.coordinator.record_format import (
    FormatField,
    declare_entity,
    decode_message,
    decode_versioned,
    encode_message,
    read_version,
)
from moldau.errors import CorruptRecordError
from moldau.transactions.records import StateRecord, TransactionGroupRecord, TransactionRecord
from moldau.transactions.transaction_group import TransactionGroupMetadata
from moldau.transactions.transaction_metadata import (
    NO_PRODUCER_ID,
    TV0,
    TV1,
    ProducerClient,
    TransactionMetadata,
    TransactionState,
)
from moldau.wire.codec import entity_decoder, entity_encoder
from moldau.wire.schema import FIRST_TAG

TRANSACTION_KEY_VERSION = 0
TRANSACTION_GROUP_KEY_VERSION = 10_000
"""The key version of transaction groups, which only Moldau has. Kafka numbers its types from 0 and ignores unknown
ones."""

_TRANSACTION_KEY = declare_entity(
    "TransactionLogKey", TRANSACTION_KEY_VERSION, [FormatField("transactional_id", str, "string")]
)

_GROUP_KEY = declare_entity(
    "TransactionGroupKey", TRANSACTION_GROUP_KEY_VERSION, [FormatField("group_id", str, "string")]
)
_GROUP_VALUE = declare_entity(
    "TransactionGroupValue",
    0,
    [
        FormatField("last_batch_id", int, "int64"),
        FormatField("run_id", str, "string"),
        FormatField("ended_run_ids", tuple[str, ...], "string"),
        FormatField("is_complete", bool, "bool"),
        FormatField("last_update_ms", int, "int64"),
    ],
    is_flexible=True,
)


def _value_entity(version: int) -> type:
    is_flexible = version >= 1
    partitions = declare_entity(
        "PartitionsSchema",
        version,
        [FormatField("topic", str, "string"), FormatField("partition_ids", tuple[int, ...], "int32")],
        is_flexible=is_flexible,
    )
    fields = [
        FormatField("producer_id", int, "int64"),
        FormatField("producer_epoch", int, "int16"),
        FormatField("timeout_ms", int, "int32"),
        FormatField("status", int, "int8"),
        FormatField("partitions", tuple[partitions, ...] | None, ""),  # type: ignore[valid-type]
        FormatField("last_update_ms", int, "int64"),
        FormatField("start_ms", int, "int64"),
        FormatField("previous_producer_id", int, "int64", since=1, tag=0, default=NO_PRODUCER_ID),
        FormatField("next_producer_id", int, "int64", since=1, tag=1, default=NO_PRODUCER_ID),
        FormatField("client_version", int, "int16", since=1, tag=2, default=TV0),
        FormatField("client_id", str, "string", since=1, tag=FIRST_TAG, default=""),
        FormatField("client_host", str, "string", since=1, tag=FIRST_TAG + 1, default=""),
    ]
    return declare_entity("TransactionLogValue", version, fields, is_flexible=is_flexible)


_VALUES = [_value_entity(version) for version in (0, 1)]

_read_key = entity_decoder(_TRANSACTION_KEY)
_write_key = entity_encoder(_TRANSACTION_KEY)
_read_value = [entity_decoder(entity) for entity in _VALUES]
_write_value = [entity_encoder(entity) for entity in _VALUES]
_read_group_key, _write_group_key = entity_decoder(_GROUP_KEY), entity_encoder(_GROUP_KEY)
_read_group_value, _write_group_value = entity_decoder(_GROUP_VALUE), entity_encoder(_GROUP_VALUE)


def encode(record: StateRecord) -> tuple[bytes, bytes | None]:
    """Returns the key and value of a record. Raises InvalidRequestError if a string is too long for the format."""
    return _encode_group(record) if isinstance(record, TransactionGroupRecord) else _encode_transaction(record)


def _encode_transaction(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    key = encode_message(TRANSACTION_KEY_VERSION, _write_key, {"transactional_id": record.transactional_id})
    metadata = record.metadata
    if metadata is None:
        return key, None
    version = 1 if record.transaction_version >= TV1 else 0
    value = {
        "producer_id": metadata.producer_id,
        "producer_epoch": metadata.producer_epoch,
        "timeout_ms": metadata.timeout_ms,
        "status": metadata.state,
        "partitions": _partition_trees(metadata),
        "last_update_ms": metadata.last_update_ms,
        "start_ms": metadata.start_ms,
        "previous_producer_id": metadata.previous_producer_id,
        "next_producer_id": metadata.next_producer_id,
        "client_version": metadata.client_version,
        "client_id": metadata.client.client_id,
        "client_host": metadata.client.host,
    }
    return key, encode_message(version, _write_value[version], value)


def _partition_trees(metadata: TransactionMetadata) -> list[dict[str, Any]] | None:
    if metadata.state is TransactionState.EMPTY:
        return None
    # The order is not significant to Kafka. It is sorted so that equal states have equal bytes.
    return [
        {"topic": topic, "partition_ids": [partition for _, partition in partitions]}
        for topic, partitions in groupby(sorted(metadata.partitions), key=lambda each: each[0])
    ]


def _encode_group(record: TransactionGroupRecord) -> tuple[bytes, bytes | None]:
    key = encode_message(TRANSACTION_GROUP_KEY_VERSION, _write_group_key, {"group_id": record.group_id})
    metadata = record.metadata
    if metadata is None:
        return key, None
    value = {
        "last_batch_id": metadata.last_batch_id,
        "run_id": metadata.run_id,
        "ended_run_ids": list(metadata.ended_run_ids),
        "is_complete": metadata.is_complete,
        "last_update_ms": metadata.last_update_ms,
    }
    return key, encode_message(0, _write_group_value, value)


def decode(key: bytes, value: bytes | None) -> StateRecord | None:
    """Decodes a record. Returns None if the record type is ignored. Raises CorruptRecordError."""
    key_view = memoryview(key)
    version = read_version(key_view, "a key of the transaction topic")
    if version == TRANSACTION_GROUP_KEY_VERSION:
        group_id = decode_message(_read_group_key, key_view, "the key of a transaction group").group_id
        return TransactionGroupRecord(group_id, None if value is None else _decode_group(memoryview(value)))
    if version != TRANSACTION_KEY_VERSION:
        return None
    transactional_id = decode_message(_read_key, key_view, "the key of a transaction").transactional_id
    return TransactionRecord(transactional_id, None if value is None else _decode_value(memoryview(value)))


def _decode_value(value: memoryview) -> TransactionMetadata:
    message = decode_versioned(_read_value, value, "the value of a transaction")
    try:
        state = TransactionState(message.status)
    except ValueError:
        raise CorruptRecordError(f"a transaction has the unknown state {message.status}") from None
    return TransactionMetadata(
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        timeout_ms=message.timeout_ms,
        state=state,
        partitions=frozenset(
            (each.topic, partition) for each in message.partitions or () for partition in each.partition_ids
        ),
        start_ms=message.start_ms,
        last_update_ms=message.last_update_ms,
        previous_producer_id=message.get("previous_producer_id", NO_PRODUCER_ID),
        next_producer_id=message.get("next_producer_id", NO_PRODUCER_ID),
        client_version=message.get("client_version", TV0),
        client=ProducerClient(message.get("client_id", ""), message.get("client_host", "")),
    )


def _decode_group(value: memoryview) -> TransactionGroupMetadata:
    message = decode_versioned([_read_group_value], value, "the value of a transaction group")
    return TransactionGroupMetadata(
        last_batch_id=message.last_batch_id,
        run_id=message.run_id,
        ended_run_ids=tuple(message.ended_run_ids),
        is_complete=message.is_complete,
        last_update_ms=message.last_update_ms,
    )
