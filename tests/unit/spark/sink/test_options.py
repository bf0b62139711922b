"""Options of a write to topics: values and errors."""

import pytest

from moldau.client.producer.producer import Producer
from moldau.spark.errors import OptionError
from moldau.spark.sink.options import parse_topic_options

BOOTSTRAP = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def test_a_write_needs_only_bootstrap_servers() -> None:
    options = parse_topic_options(BOOTSTRAP)
    assert options.bootstrap == "127.0.0.1:9092"
    assert options.topic is None
    assert options.producer["acks"] == -1
    assert options.producer["idempotent"] is True


@pytest.mark.parametrize(
    ("setting", "text", "argument", "value"),
    [
        ("acks", "1", "acks", 1),
        ("acks", "all", "acks", -1),
        ("acks", "-1", "acks", -1),
        ("acks", "0", "acks", 0),
        ("compression.type", "ZSTD", "compression", "zstd"),
        ("batch.size", "1000", "batch_size", 1000),
        ("batch.size", "0", "batch_size", 1),
        ("linger.ms", "0", "linger_ms", 0),
        ("buffer.memory", "1000000", "buffer_memory", 1_000_000),
        ("max.request.size", "5000", "max_request_size", 5000),
        ("max.block.ms", "10", "max_block_ms", 10),
        ("delivery.timeout.ms", "9000", "delivery_timeout_ms", 9000),
        ("max.in.flight.requests.per.connection", "1", "max_in_flight", 1),
        ("enable.idempotence", "false", "idempotent", False),
    ],
)
def test_kafka_producer_settings_become_producer_arguments(
    setting: str, text: str, argument: str, value: object
) -> None:
    producer = parse_topic_options({**BOOTSTRAP, f"KAFKA.{setting}": text}).producer
    assert producer[argument] == value
    Producer("127.0.0.1:9092", **producer)


def test_the_request_timeout_applies_to_the_connection() -> None:
    options = parse_topic_options({**BOOTSTRAP, "kafka.request.timeout.ms": "1234"})
    assert options.connection["request_timeout_ms"] == 1234


@pytest.mark.parametrize("setting", [{"kafka.acks": "1"}, {"kafka.max.in.flight.requests.per.connection": "6"}])
def test_idempotence_is_off_if_not_possible_unless_it_is_requested(setting: dict[str, str]) -> None:
    assert parse_topic_options({**BOOTSTRAP, **setting}).producer["idempotent"] is False
    with pytest.raises(OptionError, match=r"enable\.idempotence needs kafka\.acks=all and at most 5"):
        parse_topic_options({**BOOTSTRAP, **setting, "kafka.enable.idempotence": "true"})


def test_options_of_spark_and_consumer_settings_are_accepted() -> None:
    added = {"checkpointLocation": "/c", "queryName": "q", "path": "p", "kafka.group.id": "g"}
    assert parse_topic_options({**BOOTSTRAP, **added, "topic": "t"}).topic == "t"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topik": "t"}, r"no write option 'topik'; did you mean topic\?"),
        ({"zzz": "t"}, r"no write option 'zzz'; there are topic, includeHeaders"),
        ({"kafka.ack": "1"}, r"no setting 'ack', given as kafka\.ack; did you mean kafka\.acks\?"),
        ({"subscribe": "t"}, r"subscribe is for reading; name the topic to write with .option\(\"topic\""),
        ({"topic": "a b"}, r"'a b' is not a topic name: use 1 to 249 letters"),
        ({"topic": ""}, r"'' is not a topic name"),
        ({"includeHeaders": "maybe"}, r"includeHeaders must be true or false, not 'maybe'"),
        ({"kafka.acks": "2"}, r"kafka\.acks must be one of all, -1, 0, 1, not '2'"),
        ({"kafka.compression.type": "brotli"}, r"one of none, gzip, snappy, lz4, zstd, not 'brotli'"),
        ({"kafka.batch.size": "many"}, r"kafka\.batch\.size must be an integer, 0 or more, not 'many'"),
        ({"kafka.enable.idempotence": "x"}, r"kafka\.enable\.idempotence must be true or false, not 'x'"),
        ({"kafka.transactional.id": "x"}, r"transactional\.id cannot be set: the sink chooses transactional ids"),
        ({"kafka.value.serializer": "x"}, r"value\.serializer cannot be set: .*cast or encode the column"),
        ({"kafka.partitioner.class": "x"}, r"partitioner\.class cannot be set: .*add a column `partition`"),
    ],
)
def test_invalid_options_are_named_with_what_is_allowed(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_topic_options({**BOOTSTRAP, **given})


def test_brokers_must_be_named() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_topic_options({"topic": "t"})


def test_streams_and_numbered_batches_are_exactly_once_by_default() -> None:
    assert parse_topic_options(BOOTSTRAP, is_stream=True).is_exactly_once
    assert not parse_topic_options(BOOTSTRAP).is_exactly_once
    assert parse_topic_options({**BOOTSTRAP, "batchId": "7", "appId": "a"}).is_exactly_once
    assert parse_topic_options({**BOOTSTRAP, "delivery": "exactly-once"}).is_exactly_once
    assert not parse_topic_options({**BOOTSTRAP, "delivery": "at-least-once"}, is_stream=True).is_exactly_once


def test_the_transaction_timeout_is_a_setting_of_kafka() -> None:
    assert parse_topic_options(BOOTSTRAP).transaction_timeout_ms == 900_000
    assert parse_topic_options({**BOOTSTRAP, "kafka.transaction.timeout.ms": "5"}).transaction_timeout_ms == 5


@pytest.mark.parametrize(
    ("given", "is_stream", "message"),
    [
        ({"delivery": "twice"}, True, r"delivery must be exactly-once or at-least-once, not 'twice'"),
        ({"kafka.acks": "1"}, True, r"delivery=exactly-once, the default of streams, needs an idempotent producer"),
        ({"kafka.acks": "1", "delivery": "exactly-once"}, False, r"needs an idempotent producer: leave out kafka.acks"),
        (
            {"kafka.transaction.timeout.ms": "2147483648"},
            True,
            r"timeout\.ms must be at most 2147483647, not 2147483648",
        ),
        ({"batchId": "1"}, True, r"batchId is for batch writes in foreachBatch"),
        ({"batchId": "-1"}, False, r"batchId must be an integer, 0 or more"),
        ({"appId": "a"}, False, r"appId needs batchId in a batch write"),
        ({"appId": "a/b"}, True, r"appId must be 1 to 200 characters without a slash, not 'a/b'"),
    ],
)
def test_invalid_options_of_the_delivery(given: dict[str, str], is_stream: bool, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_topic_options({**BOOTSTRAP, **given}, is_stream=is_stream)
