"""Records over `/v1`: bytes and headers are the same for HTTP and Kafka clients, in every format, and bad requests name
their fields."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import Producer as ClientProducer
from moldau.client.producer.record_accumulator import RecordAccumulator
from moldau.http.v1 import records
from moldau.http.v1.client import REQUEST_TIMEOUT_MS, HttpClient
from support.http_v1 import HttpBroker, base64, consume, error_code, http_broker, produce

ALL_BYTES = bytes(range(256))
RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (b"key", b"value", []),
    (None, None, []),
    (b"", b"", [("empty", b""), ("null", None)]),
    (ALL_BYTES, ALL_BYTES[::-1], [("bytes", ALL_BYTES), ("bytes", b"\xff"), ("\u00fc", b"\x00")]),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[HttpBroker]:
    names = (
        "http-to-kafka",
        "kafka-to-http",
        "formats",
        "limits",
        "poll",
        "keys",
        "acks",
        "partial",
        "times",
        "aborted",
    )
    with http_broker(dict.fromkeys(names, 1) | {"keys": 8, "many": 2}) as running:
        yield running


def read_with_confluent(bootstrap: str, topic: str, count: int) -> list[Any]:
    settings = {"bootstrap.servers": bootstrap, "group.id": f"read-{topic}", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        messages: list[Any] = []
        deadline = time.monotonic() + 30
        while len(messages) < count and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None:
                assert message.error() is None
                messages.append(message)
        return messages
    finally:
        consumer.close()


def test_a_kafka_client_reads_the_bytes_that_were_produced_over_http(broker: HttpBroker) -> None:
    records = [
        {
            "key": base64(key),
            "value": base64(value),
            "headers": [{"name": name, "value": base64(data)} for name, data in headers],
            "timestamp": 1_700_000_000_000 + index,
        }
        for index, (key, value, headers) in enumerate(RECORDS)
    ]
    results = produce(broker.api, "http-to-kafka", *records)
    assert [each["offset"] for each in results] == [0, 1, 2, 3]
    messages = read_with_confluent(broker.bootstrap, "http-to-kafka", len(RECORDS))
    assert [(each.key(), each.value(), each.headers() or []) for each in messages] == RECORDS
    assert [each.timestamp()[1] for each in messages] == [1_700_000_000_000 + index for index in range(len(RECORDS))]


def test_http_returns_the_bytes_that_a_kafka_client_produced(broker: HttpBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key, value, headers in RECORDS:
        producer.produce("kafka-to-http", key=key, value=value, headers=headers, timestamp=1_700_000_000_000)
    assert producer.flush(30) == 0
    consumed = consume(broker.api, "kafka-to-http", format="base64")
    assert [
        (each["key"], each["value"], [(header["name"], header["value"]) for header in each["headers"]])
        for each in consumed["records"]
    ] == [
        (base64(key), base64(value), [(name, base64(data)) for name, data in headers])
        for key, value, headers in RECORDS
    ]
    assert {each["timestamp"] for each in consumed["records"]} == {1_700_000_000_000}
    assert (consumed["next_offset"], consumed["high_watermark"]) == (4, 4)


def test_bytes_that_are_not_valid_in_the_format_are_base64(broker: HttpBroker) -> None:
    document = {"id": 7, "tags": ["a", None, 1.5], "\u00fc": {}}
    produce(
        broker.api,
        "formats",
        {"key": {"json": 7}, "value": {"json": document}},
        {"value": {"text": "gr\u00fc\u00df dich"}},
        {"value": base64(b"\xff")},
        {"value": {"text": '{"n": 1e400, "big": 12345678901234567890123, "n": 2}'}},
        {"value": {"json": None}},
        {"value": {"text": "NaN"}},
    )
    values = {
        form: [each["value"] for each in consume(broker.api, "formats", format=form)["records"]]
        for form in ("json", "text")
    }
    assert values["json"][0] == {"json": document}
    assert values["text"][0] == {"text": json.dumps(document, ensure_ascii=False, separators=(",", ":"))}
    assert values["json"][1] == base64("gr\u00fc\u00df dich".encode())
    assert values["text"][1] == {"text": "gr\u00fc\u00df dich"}
    assert values["json"][2] == values["text"][2] == base64(b"\xff")
    assert values["json"][4:] == [{"json": None}, base64(b"NaN")]
    # The text of the JSON is in the response as it was produced: no number is rounded, and no field is lost.
    raw = broker.api.get("/topics/formats/partitions/0/records", params={"offset": 3, "max_records": 1}).text
    assert '{"json":{"n": 1e400, "big": 12345678901234567890123, "n": 2}}' in raw


def test_consumed_records_can_be_produced_again(broker: HttpBroker) -> None:
    consumed = consume(broker.api, "formats", format="json")["records"]
    fields = ("key", "value", "headers", "timestamp")
    again = produce(broker.api, "formats", *({name: each[name] for name in fields} for each in consumed))
    copies = consume(broker.api, "formats", offset=again[0]["offset"], format="json")["records"]
    assert [each["value"] for each in copies if each["offset"] != again[3]["offset"]] == [
        each["value"] for index, each in enumerate(consumed) if index != 3
    ]


def test_limits_end_a_response_and_next_offset_continues_it(broker: HttpBroker) -> None:
    produce(broker.api, "limits", *({"value": {"text": str(index) * 100}} for index in range(9)))
    offset, found = "earliest", []
    while len(found) < 9:
        consumed = consume(broker.api, "limits", offset=offset, max_records=2, wait_ms=0, format="text")
        assert 1 <= len(consumed["records"]) <= 2
        found += [each["value"]["text"][0] for each in consumed["records"]]
        offset = consumed["next_offset"]
    assert found == list("012345678")
    assert len(consume(broker.api, "limits", max_bytes=250)["records"]) == 2
    assert len(consume(broker.api, "limits", max_bytes=1)["records"]) == 1, "at least one record is returned"
    assert consume(broker.api, "limits", offset="latest", wait_ms=0)["next_offset"] == 9


def test_a_long_poll_returns_when_a_record_arrives(broker: HttpBroker) -> None:
    started = time.monotonic()
    assert consume(broker.api, "poll", offset="latest", wait_ms=300)["records"] == []
    assert 0.3 <= time.monotonic() - started < 10
    timer = threading.Timer(0.5, lambda: produce(broker.api, "poll", {"value": {"text": "late"}}))
    timer.start()
    started = time.monotonic()
    [record] = consume(broker.api, "poll", offset="latest", wait_ms=30_000, format="text")["records"]
    timer.join()
    assert record["value"] == {"text": "late"}
    assert time.monotonic() - started < 15


def test_keys_select_partitions_as_in_kafka_producers(broker: HttpBroker) -> None:
    keys = [f"key-{index}" for index in range(20)]
    results = produce(broker.api, "keys", *({"key": {"text": key}} for key in keys))
    reports: list[int] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2"})
    for key in keys:
        producer.produce(
            "keys", key=key, on_delivery=lambda error, message: reports.append((message.key(), message.partition()))
        )
    assert producer.flush(30) == 0
    by_key = {key.decode(): partition for key, partition in reports}
    assert [each["partition"] for each in results] == [by_key[key] for key in keys]
    [explicit] = produce(broker.api, "keys", {"key": {"text": "key-0"}, "partition": 5})
    assert explicit["partition"] == 5


@pytest.mark.parametrize("acks", ["all", -1, 1, 0])
def test_acks(broker: HttpBroker, acks: str | int) -> None:
    before = consume(broker.api, "acks", offset="latest", wait_ms=0)["next_offset"]
    [result] = produce(broker.api, "acks", {"value": {"text": "x"}}, acks=acks)
    assert result["offset"] == (None if acks == 0 else before)
    assert len(consume(broker.api, "acks", offset=before, wait_ms=5_000)["records"]) == 1


def test_each_record_has_its_own_result(broker: HttpBroker) -> None:
    url = "/topics/partial/records"
    response = broker.api.post(url, json={"records": [{"value": {"text": "ok"}}, {"partition": 7}]})
    assert response.status_code == 207
    good, bad = response.json()["records"]
    assert good["offset"] == 0
    assert bad["error"]["code"] == "UNKNOWN_TOPIC_OR_PARTITION"
    response = broker.api.post(url, json={"records": [{"partition": 7}, {"partition": 8}]})
    assert error_code(response, 404) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert len(response.json()["records"]) == 2


def test_read_committed_hides_aborted_records(broker: HttpBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "http-aborted"})
    producer.init_transactions()
    for outcome in ("aborted", "committed"):
        producer.begin_transaction()
        producer.produce("aborted", value=outcome)
        producer.flush(30)
        producer.abort_transaction() if outcome == "aborted" else producer.commit_transaction()

    # The coordinator writes the marker after its response to the producer.
    deadline = time.monotonic() + 60
    while consume(broker.api, "aborted", offset="latest", wait_ms=0)["next_offset"] < 4:
        assert time.monotonic() < deadline

    def values(isolation_level: str) -> list[str]:
        consumed = consume(broker.api, "aborted", isolation_level=isolation_level, format="text")
        assert consumed["next_offset"] == 4
        return [each["value"]["text"] for each in consumed["records"]]

    assert values("read_uncommitted") == ["aborted", "committed"]
    assert values("read_committed") == ["committed"]
    only_markers = consume(broker.api, "aborted", offset=3, wait_ms=0)
    assert (only_markers["records"], only_markers["next_offset"]) == ([], 4)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"value": {"base64": "a"}}, "body.records.0.value.base64"),
        ({"value": {"base64": "_w=="}}, "body.records.0.value.base64"),
        ({"value": {"text": 1}}, "body.records.0.value.text"),
        ({"value": {"text": "\ud800"}}, "body.records.0.value.text"),
        ({"value": {"json": {"\ud800": 1}}}, "body.records.0.value.json"),
        ({"value": {"text": "x", "base64": ""}}, "body.records.0.value.base64"),
        ({"value": "x"}, "body.records.0.value"),
        ({"valeu": None}, "body.records.0.valeu"),
        ({"headers": [{"value": None}]}, "body.records.0.headers.0.name"),
        ({"partition": -1}, "body.records.0.partition"),
        ({"partition": 2**31}, "body.records.0.partition"),
        ({"partition": "0"}, "body.records.0.partition"),
        ({"timestamp": -1}, "body.records.0.timestamp"),
        ({"timestamp": 2**63}, "body.records.0.timestamp"),
    ],
)
def test_an_invalid_field_is_named(broker: HttpBroker, record: dict[str, Any], field: str) -> None:
    response = broker.api.post("/topics/acks/records", content=json.dumps({"records": [record]}))
    assert error_code(response, 422) == "INVALID_FIELD"
    assert [each["field"] for each in response.json()["error"]["fields"]] == [field]


@pytest.mark.parametrize(
    "parameters",
    [
        {"max_bytes": -1},
        {"max_bytes": 2**40},
        {"max_records": 0},
        {"wait_ms": 30_001},
        {"wait_ms": -1},
        {"offset": -1},
        {"offset": 2**63},
        {"offset": "middle"},
        {"format": "xml"},
        {"isolation_level": "serializable"},
        {"max_record": 1},
    ],
)
def test_an_invalid_parameter_is_named(broker: HttpBroker, parameters: dict[str, Any]) -> None:
    response = broker.api.get("/topics/acks/partitions/0/records", params=parameters)
    assert error_code(response, 422) == "INVALID_FIELD"
    assert [each["field"] for each in response.json()["error"]["fields"]] == [f"query.{next(iter(parameters))}"]


def test_errors_of_topics_partitions_and_offsets(broker: HttpBroker) -> None:
    api = broker.api
    missing = api.post("/topics/missing/records", json={"records": [{}]})
    assert error_code(missing, 404) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert error_code(api.get("/topics/missing"), 404), "producing does not create topics"
    for path in ("/topics/missing/partitions/0/records", "/topics/acks/partitions/1/records"):
        assert error_code(api.get(path), 404) == "UNKNOWN_TOPIC_OR_PARTITION"
    response = api.get("/topics/acks/partitions/0/records", params={"offset": 1_000_000})
    assert error_code(response, 400) == "OFFSET_OUT_OF_RANGE"
    assert error_code(api.get("/topics/a%20b/partitions/0/records"), 422) == "INVALID_FIELD"
    assert error_code(api.post("/topics/acks/records", content=b"{"), 400) == "INVALID_REQUEST"
    assert error_code(api.post("/topics/acks/records", json={"records": []}), 422) == "INVALID_FIELD"
    assert error_code(api.get("/nowhere"), 404) == "NOT_FOUND"
    assert error_code(api.put("/topics"), 405) == "METHOD_NOT_ALLOWED"


def test_a_producer_that_failed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = HttpClient._start_producer

    async def start_and_record(client: HttpClient, cluster: Cluster, acks: int) -> ClientProducer:
        started.append(await start(client, cluster, acks))
        return started[-1]

    monkeypatch.setattr(HttpClient, "_start_producer", start_and_record)
    with http_broker({"replaced": 1}) as broker:
        produce(broker.api, "replaced", {})
        produce(broker.api, "replaced", {})
        assert len(started) == 1
        started[0]._sender.failure = KafkaError(ErrorCode.cluster_authorization_failed, "not allowed")
        assert [each["offset"] for each in produce(broker.api, "replaced", {})] == [2]
        assert len(started) == 2


def test_records_that_wait_too_long_for_the_producer_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_broker({"slow": 1}) as broker:
        produce(broker.api, "slow", {})
        monkeypatch.setattr(RecordAccumulator, "has_memory", lambda accumulator, size: False)
        monkeypatch.setattr(records, "REQUEST_TIMEOUT_MS", 200)
        started = time.monotonic()
        response = broker.api.post("/topics/slow/records", json={"records": [{}, {}, {}]})
        assert error_code(response, 504) == "REQUEST_TIMED_OUT"
        assert len(response.json()["records"]) == 3
        assert time.monotonic() - started < REQUEST_TIMEOUT_MS / 1000


def test_a_request_ends_although_its_records_are_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_broker({"silent": 1}) as broker:
        produce(broker.api, "silent", {})
        monkeypatch.setattr(RecordAccumulator, "ready_partitions", lambda accumulator, now_ms: [])
        monkeypatch.setattr(records, "PRODUCE_TIMEOUT_MS", 200)
        response = broker.api.post("/topics/silent/records", json={"records": [{}, {"partition": 7}]})
        assert error_code(response, 504) == "REQUEST_TIMED_OUT"
        errors = [each["error"] for each in response.json()["records"]]
        assert "may have been written" in errors[0]["message"]
        assert errors[1]["code"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_very_many_records_have_one_result_each(broker: HttpBroker) -> None:
    results = produce(
        broker.api, "many", *({"value": {"json": index}, "partition": index % 2} for index in range(3_000))
    )
    assert [each["partition"] for each in results] == [index % 2 for index in range(3_000)]
    assert [each["offset"] for each in results[::2]] == list(range(1_500))
    consumed = consume(broker.api, "many", max_records=1_000)["records"]
    assert [each["value"] for each in consumed] == [{"json": index} for index in range(0, 2_000, 2)]


def test_sizes_are_limited() -> None:
    settings = {"http.request.max.bytes": "20000", "message.max.bytes": "5000"}
    with http_broker({"small": 1}, settings) as broker:
        url = "/topics/small/records"
        too_large = broker.api.post(url, json={"records": [{"value": {"text": "x" * 20_000}}]})
        assert error_code(too_large, 413) == "REQUEST_TOO_LARGE"
        response = broker.api.post(url, json={"records": [{"value": {"text": "x" * 6_000}}]})
        assert error_code(response, 413) == "MESSAGE_TOO_LARGE"
        produce(broker.api, "small", *({"value": {"text": "x" * 4_000}} for _ in range(4)))
        assert consume(broker.api, "small", max_bytes=4_000)["next_offset"] == 1
