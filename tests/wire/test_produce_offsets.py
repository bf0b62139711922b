"""The offsets and times in responses to Produce: of appended batches, of duplicates and of rejected batches."""

from typing import Any

import pytest

from support.topics import Topics
from support.wire import DELETE_RECORDS, PRODUCE, WireClient, batch, new_producer_id, produce_tree

TIMESTAMP_MS = 1_700_000_000_000
START_OFFSET = 2
"""The log start offset of the topic in these tests."""
CONTROL_FLAG = 0x20


@pytest.fixture
def topic(client: WireClient, topics: Topics) -> str:
    """A topic with 3 records, of which the first 2 are deleted."""
    name = topics.create(max_message_bytes=1000)
    assert produced(client, name, batch([b"a", b"b", b"c"]))["error_code"] == 0
    deleted = {"name": name, "partitions": [{"partition_index": 0, "offset": START_OFFSET}]}
    response = client.request(DELETE_RECORDS, 2, {"topics": [deleted], "timeout": 10_000})
    assert response["topics"][0]["partitions"][0]["error_code"] == 0
    return name


@pytest.fixture
def producer_id(client: WireClient) -> int:
    return new_producer_id(client)


def produced(client: WireClient, topic: str, *batches: bytes, version: int = 9, **more: Any) -> dict[str, Any]:
    """Returns the response for the partition, without its index and error message."""
    response = client.request(PRODUCE, version, produce_tree(topic, *batches, **more))
    partition: dict[str, Any] = response["responses"][0]["partition_responses"][0]
    return {name: value for name, value in partition.items() if name not in ("index", "error_message")}


@pytest.mark.parametrize("version", [5, 8, 9, 12])
def test_an_appended_batch_has_the_log_start_offset(client: WireClient, topic: str, version: int) -> None:
    response = produced(client, topic, batch(), version=version)
    assert (response["error_code"], response["base_offset"]) == (0, 3)
    assert (response["log_append_time"], response["log_start_offset"]) == (None, START_OFFSET)


def test_versions_before_5_have_no_log_start_offset(client: WireClient, topic: str) -> None:
    assert produced(client, topic, batch(), version=4) == {"error_code": 0, "base_offset": 3, "log_append_time": None}


def test_a_duplicate_has_the_offset_and_the_timestamp_of_the_first_batch(
    client: WireClient, topic: str, producer_id: int
) -> None:
    sent = batch([b"a", b"b"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    expected = {"error_code": 0, "base_offset": 3, "log_start_offset": START_OFFSET, "record_errors": []}
    assert produced(client, topic, sent) == {**expected, "log_append_time": None}
    assert produced(client, topic, sent) == {**expected, "log_append_time": TIMESTAMP_MS}


def test_a_duplicate_on_a_topic_with_log_append_time_has_the_first_time(
    client: WireClient, topics: Topics, producer_id: int
) -> None:
    topic = topics.create(message_timestamp_type="LogAppendTime")
    sent = batch(producer_id=producer_id, producer_epoch=0, base_sequence=0)
    first = produced(client, topic, sent)
    assert first["log_append_time"] > TIMESTAMP_MS
    assert produced(client, topic, sent) == first


def rejected(code: int, start_offset: int) -> dict[str, Any]:
    return {
        "error_code": code,
        "base_offset": -1,
        "log_append_time": None,
        "log_start_offset": start_offset,
        "record_errors": [],
    }


@pytest.mark.parametrize(
    ("code", "data"),
    [
        (87, batch(attributes=CONTROL_FLAG)),
        (87, batch(base_offset=4)),
        (87, batch([b"a"], last_offset_delta=3)),
        (87, batch([b"a"], count=2)),
        (87, batch(producer_id=7, producer_epoch=0, base_sequence=-1)),
    ],
    ids=["control batch", "base offset", "last offset delta", "count", "no sequence"],
)
def test_an_invalid_batch_has_the_log_start_offset(client: WireClient, topic: str, code: int, data: bytes) -> None:
    assert produced(client, topic, data) == rejected(code, START_OFFSET)


def test_sequence_errors_have_the_log_start_offset(client: WireClient, topic: str, producer_id: int) -> None:
    def send(epoch: int, sequence: int) -> dict[str, Any]:
        return produced(client, topic, batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))

    assert send(1, 0)["error_code"] == 0
    assert send(1, 7) == rejected(45, START_OFFSET)
    assert send(0, 1) == rejected(47, START_OFFSET)


@pytest.mark.parametrize(
    ("code", "batches", "more"),
    [
        (2, [batch(crc=1)], {}),
        (10, [batch([bytes(2000)])], {}),
        (87, [], {}),
        (87, [batch(), batch()], {}),
        (87, [batch(magic=1)], {}),
        (76, [batch(attributes=4, records=b"zstd")], {"version": 6}),
        (21, [batch()], {"acks": 5}),
        (3, [batch()], {"partition": 9}),
    ],
    ids=["checksum", "too large", "no batch", "two batches", "magic", "zstd", "acks", "partition"],
)
def test_an_error_before_the_log_is_read_has_no_log_start_offset(
    client: WireClient, topic: str, code: int, batches: list[bytes], more: dict[str, Any]
) -> None:
    response = produced(client, topic, *batches, **more)
    expected = rejected(code, -1)
    assert response == {name: expected[name] for name in response}
