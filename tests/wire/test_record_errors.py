"""Produce lists every invalid record of a batch in `record_errors`, with the reason."""

import gzip
import re
import time
from collections.abc import Sequence
from typing import Any

import pytest
from broker_under_test import Broker
from confluent_kafka import Message, Producer

from support.topics import Topics
from support.wire import PRODUCE, WireClient, batch, end_offset, fetch, produce_tree, record

INVALID_TIMESTAMP, INVALID_RECORD = 32, 87
GZIP = 1
LOG_APPEND_TIME_FLAG = 0x08
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = int(time.time() * 1000)

KEYED = (b"key", 0)
KEYLESS = (None, 0)
TOO_OLD = (b"key", -2 * HOUR_MS)
TOO_NEW = (b"key", 2 * HOUR_MS)
KEYLESS_AND_TOO_OLD = (None, -2 * HOUR_MS)

Records = Sequence[tuple[bytes | None, int]]
"""The key of each record, and its timestamp relative to now."""


def batch_of(records: Records, *, codec: int = 0, attributes: int = 0, **fields: Any) -> bytes:
    data = b"".join(record(index, b"v", key, delta) for index, (key, delta) in enumerate(records))
    if codec == GZIP:
        data = gzip.compress(data)
    latest = NOW_MS + max(delta for _, delta in records)
    header = {"base_timestamp": NOW_MS, "max_timestamp": latest, **fields}
    return batch([b""] * len(records), records=data, attributes=attributes | codec, **header)


def produced(client: WireClient, topic: str, data: bytes, version: int = 9) -> dict[str, Any]:
    """Returns the response for the partition."""
    response = client.request(PRODUCE, version, produce_tree(topic, data))
    partition: dict[str, Any] = response["responses"][0]["partition_responses"][0]
    return partition


def record_errors(response: dict[str, Any]) -> dict[int, str]:
    return {each["batch_index"]: each["batch_index_error_message"] for each in response["record_errors"]}


def no_key(topic: str) -> str:
    return f"Compacted topic cannot accept message without key in topic partition {topic}-0"


def summary(count: int, errors: dict[int, str]) -> str:
    first = [f"RecordError(batchIndex={index}, message='{errors[index]}')" for index in sorted(errors)[:3]]
    return (
        f"One or more records have been rejected due to {count} record errors in total, "
        f"and only showing the first three errors at most: [{', '.join(first)}]"
    )


def out_of_range(index: int, delta: int) -> re.Pattern[str]:
    return re.compile(
        rf"Timestamp {NOW_MS + delta} of message with offset {index} is out of range\. "
        r"The timestamp should be within \[\d+, \d+\]"
    )


@pytest.mark.parametrize("codec", [0, GZIP], ids=["uncompressed", "gzip"])
@pytest.mark.parametrize("version", [8, 9, 12])
def test_every_keyless_record_on_a_compacted_topic_is_listed(
    client: WireClient, topics: Topics, codec: int, version: int
) -> None:
    topic = topics.create(cleanup_policy="compact")
    records = [KEYLESS if index % 2 else KEYED for index in range(10)]
    response = produced(client, topic, batch_of(records, codec=codec), version)
    expected = dict.fromkeys([1, 3, 5, 7, 9], no_key(topic))
    assert record_errors(response) == expected
    assert response["error_code"] == INVALID_RECORD
    assert response["error_message"] == summary(5, expected)
    assert (response["base_offset"], response["log_append_time"], response["log_start_offset"]) == (-1, None, 0)
    assert end_offset(client, topic) == 0


@pytest.mark.parametrize("version", [3, 5, 7])
def test_older_versions_have_the_error_code_only(client: WireClient, topics: Topics, version: int) -> None:
    topic = topics.create(cleanup_policy="compact")
    response = produced(client, topic, batch_of([KEYED, KEYLESS]), version)
    assert (response["error_code"], response["base_offset"]) == (INVALID_RECORD, -1)
    assert "record_errors" not in response


@pytest.mark.parametrize("codec", [0, GZIP], ids=["uncompressed", "gzip"])
def test_every_record_with_a_timestamp_out_of_range_is_listed(client: WireClient, topics: Topics, codec: int) -> None:
    topic = topics.create(message_timestamp_before_max_ms=HOUR_MS, message_timestamp_after_max_ms=HOUR_MS)
    response = produced(client, topic, batch_of([KEYED, TOO_OLD, KEYLESS, TOO_NEW], codec=codec))
    errors = record_errors(response)
    assert list(errors) == [1, 3]
    assert out_of_range(1, -2 * HOUR_MS).fullmatch(errors[1])
    assert out_of_range(3, 2 * HOUR_MS).fullmatch(errors[3])
    assert response["error_code"] == INVALID_TIMESTAMP
    assert response["error_message"] == "One or more records have been rejected due to invalid timestamp"
    assert (response["base_offset"], response["log_start_offset"]) == (-1, 0)
    assert end_offset(client, topic) == 0


def test_the_range_of_timestamps_is_in_the_message(client: WireClient, topics: Topics) -> None:
    topic = topics.create(message_timestamp_before_max_ms=HOUR_MS, message_timestamp_after_max_ms=2000)
    (message,) = record_errors(produced(client, topic, batch_of([TOO_NEW]))).values()
    oldest, newest = map(int, message.rpartition("[")[2].removesuffix("]").split(", "))
    assert newest - oldest == HOUR_MS + 2000
    assert abs(oldest + HOUR_MS - time.time() * 1000) < 60_000


def test_a_record_without_a_key_is_not_listed_for_its_timestamp_too(client: WireClient, topics: Topics) -> None:
    topic = topics.create(cleanup_policy="compact", message_timestamp_before_max_ms=HOUR_MS)
    response = produced(client, topic, batch_of([KEYED, KEYLESS, TOO_OLD, KEYLESS_AND_TOO_OLD]))
    errors = record_errors(response)
    assert list(errors) == [1, 2, 3]
    assert errors[1] == errors[3] == no_key(topic)
    assert out_of_range(2, -2 * HOUR_MS).fullmatch(errors[2])
    assert response["error_code"] == INVALID_TIMESTAMP, "one invalid timestamp decides, wherever it is"


def test_keyless_records_alone_are_invalid_records(client: WireClient, topics: Topics) -> None:
    topic = topics.create(cleanup_policy="compact", message_timestamp_before_max_ms=HOUR_MS)
    response = produced(client, topic, batch_of([KEYLESS_AND_TOO_OLD, KEYED]))
    assert (response["error_code"], list(record_errors(response))) == (INVALID_RECORD, [0])


def test_records_without_a_timestamp_are_valid(client: WireClient, topics: Topics) -> None:
    topic = topics.create(message_timestamp_before_max_ms=HOUR_MS)
    response = produced(client, topic, batch_of([KEYED, KEYED], base_timestamp=-1, max_timestamp=-1))
    assert (response["error_code"], response["base_offset"]) == (0, 0)


def test_a_batch_with_undecodable_records_lists_no_records(client: WireClient, topics: Topics) -> None:
    topic = topics.create(cleanup_policy="compact")
    damaged = record(0, b"value without a key") + b"\x20" + bytes(8)
    response = produced(client, topic, batch([b"", b""], records=damaged))
    assert (response["error_code"], response["record_errors"]) == (INVALID_RECORD, [])


def test_a_maximum_timestamp_that_no_record_has_is_corrected(client: WireClient, topics: Topics) -> None:
    topic = topics.create()
    response = produced(client, topic, batch_of([KEYED, (b"key", 7)], max_timestamp=NOW_MS + 10 * DAY_MS))
    assert (response["error_code"], response["base_offset"]) == (0, 0)
    stored = fetch(client, topic, 0)["records"]
    assert int.from_bytes(stored[35:43], "big") == NOW_MS + 7


def test_a_base_timestamp_ahead_is_valid_if_no_record_is(client: WireClient, topics: Topics) -> None:
    topic = topics.create()
    ahead = NOW_MS + 10 * DAY_MS
    response = produced(client, topic, batch_of([(None, -10 * DAY_MS)], base_timestamp=ahead, max_timestamp=NOW_MS))
    assert (response["error_code"], response["base_offset"]) == (0, 0)


@pytest.mark.parametrize("timestamp_ms", [NOW_MS, -1], ids=["with timestamps", "without timestamps"])
def test_producers_may_not_set_log_append_time(client: WireClient, topics: Topics, timestamp_ms: int) -> None:
    topic = topics.create(message_timestamp_type="LogAppendTime")
    header = {"base_timestamp": timestamp_ms, "max_timestamp": timestamp_ms}
    response = produced(client, topic, batch_of([KEYED, KEYLESS], attributes=LOG_APPEND_TIME_FLAG, **header))
    assert response["error_code"] == INVALID_TIMESTAMP
    assert record_errors(response) == {
        index: f"Invalid timestamp type in message DefaultRecord(offset={index}, timestamp={timestamp_ms}, "
        f"key={key_bytes} bytes, value=1 bytes). Producer should not set timestamp type to LogAppendTime."
        for index, key_bytes in [(0, 3), (1, 0)]
    }


def test_a_topic_with_create_time_ignores_the_timestamp_type(client: WireClient, topics: Topics) -> None:
    topic = topics.create()
    response = produced(client, topic, batch_of([KEYED, (b"key", 7)], attributes=LOG_APPEND_TIME_FLAG))
    assert (response["error_code"], response["base_offset"]) == (0, 0)
    stored = fetch(client, topic, 0)["records"]
    assert (int.from_bytes(stored[21:23], "big"), int.from_bytes(stored[35:43], "big")) == (0, NOW_MS + 7)


def test_librdkafka_reports_invalid_records_and_their_neighbours(node: Broker, topics: Topics) -> None:
    topic = topics.create(cleanup_policy="compact")
    # All records are in one batch: the leader is known before the first record, and `flush` ends the linger time.
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 10_000, "log_level": 0})
    producer.list_topics(topic, timeout=30)
    outcomes: dict[int, str] = {}

    def delivered(error: Any, message: Message) -> None:
        value = message.value()
        assert isinstance(value, bytes)
        outcomes[int(value)] = "" if error is None else error.name()

    for number in range(100):
        key = None if number % 10 == 3 else b"key"
        producer.produce(topic, b"%d" % number, key, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert outcomes == {
        number: "INVALID_RECORD" if number % 10 == 3 else "_INVALID_DIFFERENT_RECORD" for number in range(100)
    }
