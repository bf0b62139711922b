"""Records over HTTP and over Kafka are the same records."""

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from support.http_node import HttpNode
from support.wire import WireClient, end_offset

pytestmark = pytest.mark.clients


def kafka_producer(node: HttpNode, **config: Any) -> Producer:
    return Producer({"bootstrap.servers": node.bootstrap, **config})


def read_with_kafka(node: HttpNode, topic: str, partition: int, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "reader"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        records: list[Any] = []
        while len(records) < count:
            found = consumer.consume(count - len(records), timeout=60)
            assert found, f"only {len(records)} of {count} records"
            records += found
        return records
    finally:
        consumer.close()


def wait_for_end_offset(node: HttpNode, topic: str, offset: int) -> None:
    """Waits for the marker of a transaction, which the coordinator writes after its response to the producer."""
    deadline_s = time.monotonic() + 60
    with WireClient(node.bootstrap) as wire:
        while end_offset(wire, topic) < offset:
            assert time.monotonic() < deadline_s


def test_records_produced_over_http_are_read_by_a_kafka_client(node: HttpNode) -> None:
    node.create_topic("fromhttp", 2)
    node.produce("fromhttp-2", "žluťoučký kůň", key="klíč", acks="all")
    node.produce("fromhttp-2", "", acks=1)
    node.produce("fromhttp-2", "line\nbreak \x00 🚀", key="", acks="0")
    records = read_with_kafka(node, "fromhttp", 1, 3)
    assert [(each.offset(), each.key(), each.value()) for each in records] == [
        (0, "klíč".encode(), "žluťoučký kůň".encode()),
        (1, None, b""),
        (2, b"", "line\nbreak \x00 🚀".encode()),
    ]
    assert all(each.headers() is None and each.timestamp()[1] > 0 for each in records)


def test_records_produced_by_a_kafka_client_are_read_over_http(node: HttpNode) -> None:
    node.create_topic("fromkafka", 1)
    producer = kafka_producer(node, **{"compression.type": "zstd", "linger.ms": 50})
    for number in range(50):
        producer.produce("fromkafka", f"value {number}", f"key {number}", partition=0, headers={"h": b"1"})
    producer.produce("fromkafka", None, "tombstone", partition=0)
    producer.produce("fromkafka", b"\xff\x00", None, partition=0)
    producer.flush()
    found: Any = node.consume("fromkafka-1")
    assert found["last_offset"] == 51
    assert found["records"][7] == {"offset": 7, "key": "key 7", "payload": "value 7"}
    assert found["records"][50] == {"offset": 50, "key": "tombstone", "payload": None}
    assert found["records"][51] == {"offset": 51, "key": None, "payload": "\ufffd\x00"}


def test_a_batch_is_read_in_parts(node: HttpNode) -> None:
    node.create_topic("parts", 1)
    producer = kafka_producer(node, **{"linger.ms": 100})
    for number in range(10):
        producer.produce("parts", str(number), partition=0)
    producer.flush()
    offsets, last_offset = [], -1
    while True:
        found: Any = node.consume("parts-1", last_offset, 3)
        if not found["records"]:
            break
        assert found["last_offset"] == found["records"][-1]["offset"]
        offsets.append([each["offset"] for each in found["records"]])
        last_offset = found["last_offset"]
    assert offsets == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert found == {"last_offset": 9, "records": []}


def test_more_records_than_one_fetch_returns(node: HttpNode) -> None:
    node.create_topic("large", 1)
    producer = kafka_producer(node)
    for number in range(30):
        producer.produce("large", f"{number}" + "x" * 100_000, partition=0)
    producer.flush()
    found: Any = node.consume("large-1", -1, 1_000_000_000)
    assert [each["offset"] for each in found["records"]] == list(range(30))


def test_aborted_transactions_are_not_read(node: HttpNode) -> None:
    node.create_topic("transactions", 1)
    producer = kafka_producer(node, **{"transactional.id": "http"})
    producer.init_transactions()
    for number, ends in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
        producer.begin_transaction()
        producer.produce("transactions", str(number), partition=0)
        ends()
    # The coordinator writes the markers after its response to the producer.
    deadline_s = time.monotonic() + 60
    payloads: list[str] = []
    while payloads != ["0", "2"]:
        assert time.monotonic() < deadline_s, payloads
        found: Any = node.consume("transactions-1")
        payloads = [each["payload"] for each in found["records"]]


def test_a_consumer_behind_deleted_records_starts_at_the_log_start(node: HttpNode) -> None:
    node.create_topic("trimmed", 1)
    for number in range(5):
        node.produce("trimmed-1", str(number))
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in admin.delete_records([TopicPartition("trimmed", 0, 3)]).values():
        future.result(10)
    found: Any = node.consume("trimmed-1")
    assert [each["payload"] for each in found["records"]] == ["3", "4"]
    assert node.consume("trimmed-1", 100) == {"last_offset": 100, "records": []}


def test_topics_with_dashes_of_kafka_clients_can_be_used(node: HttpNode) -> None:
    producer = kafka_producer(node)
    producer.produce("my-own-topic", "1", partition=0)
    producer.flush()
    node.produce("my-own-topic-1", "2")
    found: Any = node.consume("my-own-topic-1")
    assert [each["payload"] for each in found["records"]] == ["1", "2"]
    listed = node.client.get("/admin/v1/topics").json()["topics"]
    assert {"topic_name": "my-own-topic", "partitions": [{"id": "my-own-topic-1", "replica_brokers": ["1"]}]} in listed
    assert node.client.delete("/admin/v1/topics/my-own-topic").status_code == 204


def test_internal_topics_are_not_listed(node: HttpNode) -> None:
    read_group = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "internal"})
    node.create_topic("grouped", 1)
    read_group.subscribe(["grouped"])
    read_group.poll(1)
    read_group.close()
    names = [topic["topic_name"] for topic in node.client.get("/admin/v1/topics").json()["topics"]]
    assert "grouped" in names
    assert not [name for name in names if name.startswith("__")]


def test_topics_have_the_configs_of_the_simple_api(node: HttpNode) -> None:
    node.create_topic("configured", 1)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "configured")
    # The client must exist until the response arrives.
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    [future] = admin.describe_configs([resource]).values()
    configs = future.result(10)
    assert configs["leader.follows.controller"].value == "true"
    assert configs["min.insync.replicas"].value == "1"


def test_the_cluster_secret_is_not_shown(node: HttpNode) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    # The client must exist until the response arrives.
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    [future] = admin.describe_configs([resource]).values()
    secret = future.result(10)["cluster.secret"]
    assert (secret.value, secret.is_sensitive) == (None, True)
    assert "s3cret" not in node.process.output()


def test_a_response_is_bounded_by_the_size_of_its_decompressed_records(node: HttpNode) -> None:
    node.create_topic("compressed", 1)
    producer = kafka_producer(node, **{"compression.type": "zstd", "linger.ms": 50, "batch.size": 1_000_000})
    for _ in range(40):
        producer.produce("compressed", b"v" * 900_000, partition=0)
    producer.flush()
    last_offset, sizes = -1, []
    while last_offset < 39:
        found: Any = node.consume("compressed-1", last_offset, 2**31 - 1)
        sizes.append(len(found["records"]))
        assert found["last_offset"] == last_offset + sizes[-1]
        last_offset = found["last_offset"]
    assert sizes == [19, 19, 2]


def test_a_response_has_a_part_of_many_small_records(node: HttpNode) -> None:
    node.create_topic("small", 1)
    producer = kafka_producer(
        node, **{"compression.type": "zstd", "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    )
    for _ in range(200_000):
        producer.produce("small", b"v", partition=0)
    producer.flush()
    found: Any = node.consume("small-1", -1, 2**31 - 1)
    assert 100_000 < len(found["records"]) < 200_000
    assert [each["offset"] for each in found["records"]] == list(range(len(found["records"])))


def test_a_long_aborted_transaction_is_skipped(node: HttpNode) -> None:
    node.create_topic("aborted", 1)
    producer = kafka_producer(node, **{"transactional.id": "aborted", "batch.size": 1_000_000})
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(20):
        producer.produce("aborted", bytes(900_000), partition=0)
    producer.flush()
    producer.abort_transaction()
    wait_for_end_offset(node, "aborted", 21)
    node.produce("aborted-1", "after")
    first: Any = node.consume("aborted-1")
    assert first["records"] == []
    assert first["last_offset"] > 0
    second: Any = node.consume("aborted-1", first["last_offset"])
    assert second["records"] == [{"offset": 21, "key": None, "payload": "after"}]
