"""Java's producer: its defaults, partitioning of keys, record contents, and errors."""

import struct

import pytest
from broker_under_test import Broker
from confluent_kafka import Message, Producer
from java_clients import JavaClients, JavaError

from support.topics import QUIET, Topics
from support.wire import WireClient, end_offset, fetch, stored_codec


def test_the_java_producer_is_idempotent_by_default(java: JavaClients, node: Broker) -> None:
    topic = Topics(node.bootstrap).create()
    sent = java.produce(node.bootstrap, topic, [{"value": str(number)} for number in range(10)])
    assert [each["offset"] for each in sent] == list(range(10))
    with WireClient(node.bootstrap) as wire:
        data = fetch(wire, topic, 0)["records"]
    producer_id, epoch, sequence = struct.unpack(">qhi", data[43:57])
    assert producer_id >= 0
    assert (epoch, sequence) == (0, 0)


def test_the_java_producer_partitions_keys_by_murmur2(java: JavaClients, node: Broker) -> None:
    topics = Topics(node.bootstrap)
    topic, other_topic = topics.create(partitions=7), topics.create(partitions=7)
    keys = [f"key-{number}" for number in range(100)] + ["", "ключ", "a" * 1000]
    sent = java.produce(node.bootstrap, topic, [{"key": key, "value": "x"} for key in keys])
    where: dict[str, int] = {}

    def note(error: object, message: Message) -> None:
        assert error is None
        where[bytes(message.key() or b"").decode()] = int(message.partition() or 0)

    other = Producer({"bootstrap.servers": node.bootstrap, "partitioner": "murmur2", **QUIET})
    for key in keys:
        other.produce(other_topic, b"x", key=key, on_delivery=note)
    assert other.flush(20) == 0
    assert [each["partition"] for each in sent] == [where[key] for key in keys]
    assert set(where.values()) == set(range(7))


def test_the_java_consumer_reads_what_the_java_producer_sends(java: JavaClients, node: Broker) -> None:
    topic = Topics(node.bootstrap).create()
    records = [
        {"key": "k", "value": "v", "headers": [["a", "1"], ["a", "2"], ["b", ""], ["none", None]]},
        {"key": None, "value": "no key"},
        {"key": "no value", "value": None},
        {"key": "", "value": ""},
        {"key": "time", "value": "then", "timestamp": 1_600_000_000_000},
    ]
    sent = java.produce(node.bootstrap, topic, records)
    reader = java.consumer(node.bootstrap, "reader", partitions=[f"{topic}:0"])
    reader.wait_for_records(len(records))
    got = reader.events_of("record")
    for each, record in zip(got, records, strict=True):
        assert (each["key"], each["value"]) == (record["key"], record["value"])
        assert each["headers"] == record.get("headers", [])
    assert [each["timestamp"] for each in got] == [each["timestamp"] for each in sent]
    assert got[-1]["timestamp"] == 1_600_000_000_000


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_java_compresses_and_decompresses(java: JavaClients, node: Broker, codec: str) -> None:
    topic = Topics(node.bootstrap).create()
    values = [f"{number} " + "abc" * 300 for number in range(100)]
    records = [{"value": value} for value in values]
    java.produce(node.bootstrap, topic, records, compression_type=codec, linger_ms=20)
    assert stored_codec(node.bootstrap, topic) == codec
    reader = java.consumer(node.bootstrap, "reader", partitions=[f"{topic}:0"])
    assert reader.wait_for_records(100) == values


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_the_java_producer_works_with_every_acks_setting(java: JavaClients, node: Broker, acks: str) -> None:
    topic = Topics(node.bootstrap).create()
    settings = {"acks": acks, "enable_idempotence": acks == "all"}
    sent = java.produce(node.bootstrap, topic, [{"value": str(n)} for n in range(5)], **settings)
    assert [each["offset"] for each in sent] == ([-1] * 5 if acks == "0" else list(range(5)))
    reader = java.consumer(node.bootstrap, "reader", partitions=[f"{topic}:0"])
    assert reader.wait_for_records(5) == list("01234")


def test_the_java_producer_gets_errors_for_invalid_records(java: JavaClients, node: Broker) -> None:
    topics = Topics(node.bootstrap)
    large, compacted = topics.create(max_message_bytes=1000), topics.create(cleanup_policy="compact")
    with pytest.raises(JavaError) as refused:
        java.produce(node.bootstrap, large, [{"value": "x" * 2000}])
    assert refused.value.name == "RecordTooLargeException"
    with pytest.raises(JavaError) as refused:
        java.produce(node.bootstrap, compacted, [{"value": "no key"}])
    assert refused.value.name == "InvalidRecordException"
    with WireClient(node.bootstrap) as wire:
        assert (end_offset(wire, large), end_offset(wire, compacted)) == (0, 0)
