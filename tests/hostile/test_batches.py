"""Invalid record batches get Kafka's error code and leave the log unchanged."""

import gzip
import time
from uuid import UUID

import cramjam
import pytest

from support.topics import Topics
from support.wire import (
    METADATA,
    PRODUCE,
    WireClient,
    batch,
    end_offset,
    fetch,
    produce,
    produce_tree,
    record,
    topic_id,
)

DAY_MS = 86_400_000
CORRUPT, INVALID, OFFSET_UNKNOWN = 2, 87, -1
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
ONE = record(0, b"value")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(batch(crc=1), CORRUPT, id="a wrong checksum"),
        pytest.param(batch(magic=0), INVALID, id="magic 0"),
        pytest.param(batch(magic=1), INVALID, id="magic 1"),
        pytest.param(batch(magic=3), CORRUPT, id="magic 3"),
        pytest.param(batch(magic=-1), CORRUPT, id="magic -1"),
        pytest.param(b"", INVALID, id="no batch"),
        pytest.param(b"abc", INVALID, id="three bytes"),
        pytest.param(batch()[:40], INVALID, id="a header cut short"),
        pytest.param(batch()[:-1], INVALID, id="a batch cut short"),
        pytest.param(batch() + batch(), INVALID, id="two batches"),
        pytest.param(batch() + bytes(20), CORRUPT, id="zeros behind the batch"),
        pytest.param(batch(length=10_000), INVALID, id="a length too large"),
        pytest.param(batch(length=20), CORRUPT, id="a length too small"),
        pytest.param(batch(length=0), CORRUPT, id="no length"),
        pytest.param(batch(length=-1), CORRUPT, id="a negative length"),
        pytest.param(batch(count=2), INVALID, id="two records counted at one offset"),
        pytest.param(batch(last_offset_delta=1), INVALID, id="one record counted at two offsets"),
        pytest.param(batch(count=2, last_offset_delta=1), INVALID, id="fewer records than counted"),
        pytest.param(batch(count=0), INVALID, id="no records counted"),
        pytest.param(batch(count=0, last_offset_delta=-1), INVALID, id="no records and no offsets"),
        pytest.param(batch(count=-1), INVALID, id="a negative count"),
        pytest.param(batch(last_offset_delta=-5), INVALID, id="a negative last offset"),
        pytest.param(batch(count=2**31 - 1, last_offset_delta=2**31 - 2), INVALID, id="2^31 records counted"),
        pytest.param(batch(base_offset=5), INVALID, id="a base offset other than 0"),
        pytest.param(batch(attributes=0x20), INVALID, id="a control batch"),
        pytest.param(batch(producer_id=5, producer_epoch=0), INVALID, id="a producer without a sequence"),
        pytest.param(batch(records=b"\xff\xff\xff\xff\x0f"), INVALID, id="a record of negative length"),
        pytest.param(batch(records=b"\x7e\x00\x00\x00"), INVALID, id="a record longer than the batch"),
    ],
)
def test_a_malformed_batch_is_rejected(wire: WireClient, topics: Topics, data: bytes, code: int) -> None:
    topic = topics.create()
    assert produce(wire, topic, data) == (code, OFFSET_UNKNOWN)
    assert end_offset(wire, topic) == 0
    assert produce(wire, topic, batch()) == (0, 0)


UNREADABLE = [
    pytest.param(batch([b"a", b"b"], count=1, last_offset_delta=0), id="more records than counted"),
    pytest.param(batch(records=b"\x80" * 12), id="a number that does not end"),
    pytest.param(batch(attributes=GZIP, records=b"garbage"), id="not gzip"),
    pytest.param(batch(attributes=SNAPPY, records=b"garbage"), id="not snappy"),
    pytest.param(batch(attributes=LZ4, records=b"garbage"), id="not lz4"),
    pytest.param(batch(attributes=ZSTD, records=b"garbage"), id="not zstd"),
    pytest.param(batch(attributes=GZIP, records=gzip.compress(ONE)[:-9]), id="gzip cut short"),
]


@pytest.mark.parametrize("data", UNREADABLE)
def test_undecodable_records_are_rejected_by_compacted_topics(
    wire: WireClient, topics: Topics, data: bytes, against_kafka: bool
) -> None:
    refused(wire, topics.create(cleanup_policy="compact"), data, against_kafka)


@pytest.mark.parametrize("data", UNREADABLE[2:])
def test_undecodable_records_are_rejected_when_recompressed(
    wire: WireClient, topics: Topics, data: bytes, against_kafka: bool
) -> None:
    refused(wire, topics.create(compression_type="uncompressed"), data, against_kafka)


def refused(wire: WireClient, topic: str, data: bytes, against_kafka: bool) -> None:
    """Kafka responds to most of these with UNKNOWN_SERVER_ERROR, its code for unexpected errors."""
    code, offset = produce(wire, topic, data)
    assert code in ((-1, INVALID) if against_kafka else (CORRUPT, INVALID))
    assert offset == OFFSET_UNKNOWN
    assert end_offset(wire, topic) == 0
    assert produce(wire, topic, batch(key=b"key")) == (0, 0)


@pytest.mark.parametrize("data", UNREADABLE)
def test_undecodable_records_affect_only_their_own_batch(
    wire: WireClient, topics: Topics, data: bytes, only_moldau: None
) -> None:
    """If a topic does not need the records, Moldau checks only the header of a batch and stores it unchanged."""
    topic = topics.create()
    assert produce(wire, topic, batch([b"before"])) == (0, 0)
    assert produce(wire, topic, data) == (0, 1)
    assert produce(wire, topic, batch([b"after"])) == (0, 2)
    assert fetch(wire, topic, 1)["records"].find(data[16:]) == 16
    assert b"after" in fetch(wire, topic, 2)["records"]


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_rejected(wire: WireClient, topics: Topics, codec: int, against_kafka: bool) -> None:
    topic = topics.create()
    assert produce(wire, topic, batch(attributes=codec)) == (-1 if against_kafka else 76, OFFSET_UNKNOWN)
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(batch(base_timestamp=-1), id="no timestamp"),
        pytest.param(batch(max_timestamp=5), id="a wrong largest timestamp"),
        pytest.param(batch(attributes=0x4000), id="attributes nobody knows"),
        pytest.param(batch([None]), id="a null value"),
        pytest.param(batch(attributes=GZIP, records=gzip.compress(ONE)), id="gzip"),
        pytest.param(batch(attributes=ZSTD, records=bytes(cramjam.zstd.compress(ONE))), id="zstd"),
    ],
)
def test_an_unusual_but_valid_batch_is_accepted(wire: WireClient, topics: Topics, data: bytes) -> None:
    topic = topics.create()
    assert produce(wire, topic, data) == (0, 0)
    assert produce(wire, topic, data) == (0, 1)


def test_a_timestamp_too_far_in_the_future_is_rejected(wire: WireClient, topics: Topics) -> None:
    soon = int(time.time() * 1000) + 2 * DAY_MS
    assert produce(wire, topics.create(), batch(base_timestamp=soon)) == (32, OFFSET_UNKNOWN)


def test_zstd_is_rejected_in_older_versions(wire: WireClient, topics: Topics) -> None:
    topic = topics.create()
    data = batch(attributes=ZSTD, records=bytes(cramjam.zstd.compress(ONE)))
    assert produce(wire, topic, data, version=6) == (76, OFFSET_UNKNOWN)
    assert produce(wire, topic, data, version=7) == (0, 0)


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_of_produce_is_served(wire: WireClient, topics: Topics, version: int) -> None:
    topic = topics.create()
    assert produce(wire, topic, batch([b"a", b"b"]), version=version) == (0, 0)
    assert produce(wire, topic, batch(crc=1), version=version) == (CORRUPT, OFFSET_UNKNOWN)
    assert produce(wire, topic, batch(), version=version) == (0, 2)


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_invalid_acks_are_rejected(wire: WireClient, topics: Topics, acks: int) -> None:
    topic = topics.create()
    assert produce(wire, topic, batch(), acks=acks) == (21, OFFSET_UNKNOWN)
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize(("topic", "partition"), [("missing-topic", 0), ("no spaces!", 0), ("", 0)])
def test_producing_to_an_unknown_topic_is_rejected(wire: WireClient, topic: str, partition: int) -> None:
    assert produce(wire, topic, batch(), partition=partition) == (3, OFFSET_UNKNOWN)


@pytest.mark.parametrize("partition", [1, -1, 2**31 - 1])
def test_producing_to_an_unknown_partition_is_rejected(wire: WireClient, topics: Topics, partition: int) -> None:
    assert produce(wire, topics.create(), batch(), partition=partition) == (3, OFFSET_UNKNOWN)


@pytest.mark.parametrize("unknown", [UUID(int=77), None])
def test_producing_to_an_unknown_topic_id_is_rejected(wire: WireClient, topics: Topics, unknown: UUID | None) -> None:
    topic = topics.create()

    def by_id(wanted: UUID | None) -> int:
        partition = {"index": 0, "records": batch()}
        tree = {"acks": -1, "timeout": 1000, "topic_data": [{"topic_id": wanted, "partition_data": [partition]}]}
        code: int = wire.request(PRODUCE, 13, tree)["responses"][0]["partition_responses"][0]["error_code"]
        return code

    assert by_id(unknown) == 100
    assert by_id(topic_id(wire, topic)) == 0


def test_an_invalid_partition_does_not_fail_a_valid_one(wire: WireClient, topics: Topics) -> None:
    topic = topics.create(partitions=3)
    parts = [(0, batch()), (1, batch(crc=1)), (2, batch()), (9, batch())]
    data = [{"index": index, "records": records} for index, records in parts]
    tree = {"acks": -1, "timeout": 5000, "topic_data": [{"name": topic, "partition_data": data}]}
    response = wire.request(PRODUCE, 9, tree)["responses"]
    codes = {each["index"]: each["error_code"] for topic_ in response for each in topic_["partition_responses"]}
    assert codes == {0: 0, 1: CORRUPT, 2: 0, 9: 3}


def test_a_keyless_record_on_a_compacted_topic_is_reported(wire: WireClient, topics: Topics) -> None:
    topic = topics.create(cleanup_policy="compact")
    mixed = batch([b"a", b"b", b"c"], records=record(0, b"a", b"k") + record(1, b"b") + record(2, b"c", b"k"))
    response = wire.request(PRODUCE, 9, produce_tree(topic, mixed))["responses"][0]["partition_responses"][0]
    assert response["error_code"] == INVALID
    assert [error["batch_index"] for error in response["record_errors"]] == [1]
    assert response["error_message"]
    assert end_offset(wire, topic) == 0
    assert produce(wire, topic, batch(key=b"k")) == (0, 0)


@pytest.mark.parametrize(
    ("data", "partition"), [(batch(crc=1), 0), (batch(), 9)], ids=["a corrupt batch", "an unknown partition"]
)
def test_an_error_with_acks_0_closes_the_connection(
    wire: WireClient, topics: Topics, data: bytes, partition: int
) -> None:
    wire.send(PRODUCE, 9, produce_tree(topics.create(), data, acks=0, partition=partition))
    assert wire.is_closed()


def test_a_batch_over_max_message_bytes_is_rejected(wire: WireClient, topics: Topics) -> None:
    topic = topics.create(max_message_bytes=1000)
    assert produce(wire, topic, batch([bytes(1000)])) == (10, OFFSET_UNKNOWN)
    assert produce(wire, topic, batch([bytes(900)])) == (0, 0)


def test_a_zero_timeout_gets_a_response(wire: WireClient, topics: Topics) -> None:
    tree = {**produce_tree(topics.create(), batch()), "timeout": 0}
    assert wire.request(PRODUCE, 9, tree)["responses"][0]["partition_responses"][0]["error_code"] in (0, 7)


def test_only_offset_and_leader_epoch_of_a_batch_are_changed(wire: WireClient, topics: Topics) -> None:
    topic = topics.create()
    data = batch([b"a", b"b"], attributes=0)
    assert produce(wire, topic, data) == (0, 0)
    assert produce(wire, topic, data) == (0, 2)
    stored = fetch(wire, topic, 2)["records"]
    assert int.from_bytes(stored[:8], "big") == 2
    assert stored[16:] == data[16:]


def test_a_connection_still_works_after_a_rejected_batch(wire: WireClient, topics: Topics) -> None:
    assert produce(wire, topics.create(), batch(crc=1))[0] == CORRUPT
    assert wire.request(METADATA, 1, {"topics": []})["topics"] == []
