"""Formats of `__transaction_state`. The expected bytes come from Apache Kafka 4.3 (TransactionLog.valueToBytes)."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import CorruptRecordError, InvalidRequestError
from moldau.transactions.formats import TRANSACTION_GROUP_KEY_VERSION, TRANSACTION_KEY_VERSION, decode, encode
from moldau.transactions.records import TransactionGroupRecord, TransactionRecord
from moldau.transactions.transaction_group import TransactionGroupMetadata
from moldau.transactions.transaction_metadata import (
    NO_PRODUCER_EPOCH,
    TV0,
    TV1,
    TV2,
    UNKNOWN_CLIENT,
    ProducerClient,
    TransactionMetadata,
    TransactionState,
)

KEY = "000000096f72646572732d7478"
EMPTY = TransactionMetadata(
    producer_id=1000,
    producer_epoch=0,
    timeout_ms=60_000,
    state=TransactionState.EMPTY,
    last_update_ms=1_700_000_000_000,
    previous_producer_id=1000,
)
ONGOING = EMPTY._replace(
    producer_epoch=4,
    state=TransactionState.ONGOING,
    partitions=frozenset({("orders", 3)}),
    start_ms=1_700_000_000_001,
    last_update_ms=1_700_000_000_002,
)
PREPARED = ONGOING._replace(
    producer_epoch=32_767,
    state=TransactionState.PREPARE_COMMIT,
    last_update_ms=1_700_000_000_003,
    next_producer_id=2000,
    client_version=TV2,
)
COMPLETE = PREPARED._replace(
    producer_id=2000,
    producer_epoch=0,
    state=TransactionState.COMPLETE_ABORT,
    partitions=frozenset(),
    last_update_ms=1_700_000_000_004,
    next_producer_id=-1,
)


@pytest.mark.parametrize(
    ("metadata", "transaction_version", "value"),
    [
        (EMPTY, TV2, "000100000000000003e800000000ea6000000000018bcfe56800ffffffffffffffff01000800000000000003e8"),
        (EMPTY, TV0, "000000000000000003e800000000ea6000ffffffff0000018bcfe56800ffffffffffffffff"),
        (
            EMPTY._replace(previous_producer_id=-1, client_version=TV1),
            TV1,
            "000100000000000003e800000000ea6000000000018bcfe56800ffffffffffffffff0102020001",
        ),
        (
            ONGOING._replace(client_version=TV2),
            TV2,
            (
                "000100000000000003e800040000ea600102076f72646572730200000003000000018bcfe568020000018bcfe5680102000800000000"
                "000003e802020002"
            ),
        ),
        (
            ONGOING,
            TV0,
            "000000000000000003e800040000ea60010000000100066f726465727300000001000000030000018bcfe568020000018bcfe56801",
        ),
        (
            PREPARED,
            TV2,
            (
                "000100000000000003e87fff0000ea600202076f72646572730200000003000000018bcfe568030000018bcfe5680103000800000000"
                "000003e8010800000000000007d002020002"
            ),
        ),
        (
            COMPLETE,
            TV2,
            "000100000000000007d000000000ea6005010000018bcfe568040000018bcfe5680102000800000000000003e802020002",
        ),
    ],
)
def test_records_have_kafkas_bytes(metadata: TransactionMetadata, transaction_version: int, value: str) -> None:
    key, encoded = encode(TransactionRecord("orders-tx", metadata, transaction_version))
    assert encoded is not None
    assert (key.hex(), encoded.hex()) == (KEY, value)
    decoded = decode(key, encoded)
    assert decoded is not None
    assert decoded.transactional_id == "orders-tx"
    if transaction_version == TV0:
        metadata = metadata._replace(previous_producer_id=-1)
    assert decoded.metadata == metadata


def test_partitions_in_kafkas_order_are_decoded() -> None:
    value = (
        "000100000000000003e800040000ea600103097061796d656e7473020000000700076f7264657273030000000000000001000000018bcf"
        "e568020000018bcfe5680102000800000000000003e802020002"
    )
    record = decode(bytes.fromhex(KEY), bytes.fromhex(value))
    assert record is not None
    assert record.metadata is not None
    assert record.metadata.partitions == {("orders", 0), ("orders", 1), ("payments", 7)}


def test_keys_are_utf8() -> None:
    key, value = encode(TransactionRecord("Vltava-řeka", None))
    assert (key.hex(), value) == ("0000000c566c746176612dc599656b61", None)
    assert decode(key, None) == TransactionRecord("Vltava-řeka", None)


def test_the_last_epoch_is_not_stored() -> None:
    metadata = PREPARED._replace(last_producer_epoch=32_766)
    record = decode(*encode(TransactionRecord("t", metadata, TV2)))
    assert record is not None
    assert record.metadata == PREPARED


@pytest.mark.parametrize("version", [1, 7, TRANSACTION_GROUP_KEY_VERSION + 1, -1])
def test_unknown_record_types_are_ignored(version: int) -> None:
    assert decode(struct.pack(">h", version) + b"anything", b"\0\0") is None


def test_kafka_knows_no_record_type_of_ours() -> None:
    assert TRANSACTION_GROUP_KEY_VERSION > TRANSACTION_KEY_VERSION + 1_000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\0", b""),
        (b"\0\0", b""),
        (b"\0\0\0\5ab", None),
        (bytes.fromhex(KEY), b""),
        (bytes.fromhex(KEY), b"\0\2" + bytes(60)),
        (bytes.fromhex(KEY), b"\xff\xff" + bytes(60)),
        (bytes.fromhex(KEY), b"\0\1" + bytes(10)),
        (bytes.fromhex(KEY), bytes.fromhex("000000000000000003e800000000ea6009ffffffff") + bytes(16)),
    ],
)
def test_damaged_records_are_errors(key: bytes, value: bytes | None) -> None:
    with pytest.raises(CorruptRecordError):
        decode(key, value)


def test_a_transactional_id_that_is_too_long_is_rejected() -> None:
    with pytest.raises(InvalidRequestError):
        encode(TransactionRecord("x" * 40_000, EMPTY, TV2))


INT64 = st.integers(-(2**63), 2**63 - 1)
METADATA = st.builds(
    TransactionMetadata,
    producer_id=INT64,
    producer_epoch=st.integers(-(2**15), 2**15 - 1),
    timeout_ms=st.integers(-(2**31), 2**31 - 1),
    state=st.sampled_from([state for state in TransactionState if state is not TransactionState.EMPTY]),
    partitions=st.frozensets(st.tuples(st.text(max_size=8), st.integers(0, 2**31 - 1))),
    start_ms=INT64,
    last_update_ms=INT64,
    previous_producer_id=INT64,
    next_producer_id=INT64,
    client_version=st.integers(0, 2),
    last_producer_epoch=st.just(NO_PRODUCER_EPOCH),
    client=st.builds(ProducerClient, st.text(max_size=8), st.text(max_size=8)),
)


@given(transactional_id=st.text(max_size=20), metadata=METADATA)
def test_all_values_are_decoded_again(transactional_id: str, metadata: TransactionMetadata) -> None:
    decoded = decode(*encode(TransactionRecord(transactional_id, metadata, TV2)))
    assert decoded is not None
    assert (decoded.transactional_id, decoded.metadata) == (transactional_id, metadata)
    old = decode(*encode(TransactionRecord(transactional_id, metadata, TV0)))
    assert old is not None
    assert old.metadata == metadata._replace(
        previous_producer_id=-1, next_producer_id=-1, client_version=TV0, client=UNKNOWN_CLIENT
    )


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        TransactionGroupMetadata(),
        TransactionGroupMetadata(
            last_batch_id=2**40, run_id="r3", ended_run_ids=("r1", "r2"), is_complete=True, last_update_ms=17
        ),
    ],
)
def test_a_transaction_group_is_decoded_as_it_was_encoded(metadata: TransactionGroupMetadata | None) -> None:
    record = TransactionGroupRecord("Vltava-řeka", metadata)
    key, value = encode(record)
    assert key[:2] == struct.pack(">h", 10_000)
    assert decode(key, value) == record


def test_a_damaged_transaction_group_is_corrupt() -> None:
    key, value = encode(TransactionGroupRecord("q", TransactionGroupMetadata(run_id="r1")))
    assert value is not None
    for damaged in (value[:-3], b"\x00\x07" + value[2:]):
        with pytest.raises(CorruptRecordError, match="transaction group"):
            decode(key, damaged)
