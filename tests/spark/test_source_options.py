"""Every option of a batch read on real Spark, with the expected rows."""

import datetime
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from moldau.spark.errors import find_user_message
from moldau.testing import Broker
from support.log_writer import LogWriter, ProducedRecord

pytestmark = pytest.mark.spark

FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def topics(broker: Broker) -> dict[str, str]:
    """Read-only topics. Record n of `orders` is in partition n % 2 with the timestamp FIRST_MS + 1000 n."""
    written = LogWriter(broker.bootstrap)
    orders = written.create("orders", partitions=2, retention_ms="-1")
    written.send(
        orders,
        [
            ProducedRecord(
                b"v%d" % number if number else None,
                key=b"k%d" % number if number % 3 else None,
                partition=number % 2,
                timestamp_ms=FIRST_MS + 1000 * number,
                headers=(("n", str(number).encode()), ("none", None)) if number % 2 else (),
            )
            for number in range(12)
        ],
        compression="lz4",
    )
    payments = written.create("payments")
    written.send(payments, range(3))
    appended = written.create("appended", message_timestamp_type="LogAppendTime")
    written.send(appended, [ProducedRecord(b"late", timestamp_ms=5)])
    cut = written.create("cut")
    written.spread(cut, {0: 10})
    written.delete_records(cut, 6)
    return {"orders": orders, "payments": payments, "appended": appended, "cut": cut, "empty": written.create("empty")}


class Reads:
    def __init__(self, spark: SparkSession, bootstrap: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap

    def frame(self, schema: str | None = None, /, **options: object) -> DataFrame:
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        reader = self.spark.read.format("moldau").options(**{"kafka.bootstrap.servers": self.bootstrap, **named})
        return (reader if schema is None else reader.schema(schema)).load()

    def places(self, **options: object) -> list[tuple[int, int]]:
        """Partition and offset of each row, sorted."""
        rows = self.frame("partition INT, offset BIGINT", **options).collect()
        return sorted((row.partition, row.offset) for row in rows)

    def error_text(self, schema: str | None = None, /, **options: object) -> str:
        """Returns the message of the error on the driver."""
        with pytest.raises(PySparkException) as refused:
            self.frame(schema, **options).collect()
        text = find_user_message(refused.value)
        assert text is not None, refused.value
        assert "Traceback" not in str(refused.value)
        return text


@pytest.fixture
def reads(spark: SparkSession, broker: Broker) -> Reads:
    return Reads(spark, broker.bootstrap)


def at(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


def both(*offsets: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in (0, 1) for offset in offsets]


# Columns


def test_rows_have_the_columns_of_the_kafka_connector(reads: Reads, topics: dict[str, str]) -> None:
    frame = reads.frame(subscribe=topics["orders"])
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    rows = {(row.partition, row.offset): row for row in frame.collect()}
    assert len(rows) == 12
    first, last = rows[0, 0], rows[1, 5]
    assert (first.key, first.value, first.topic, first.timestampType) == (None, None, topics["orders"], 0)
    assert (bytes(last.key), bytes(last.value)) == (b"k11", b"v11")
    assert last.timestamp.astimezone(datetime.UTC) == datetime.datetime.fromtimestamp(
        FIRST_MS / 1000 + 11, datetime.UTC
    )


def test_the_timestamp_may_be_log_append_time(reads: Reads, topics: dict[str, str]) -> None:
    (row,) = reads.frame(subscribe=topics["appended"]).collect()
    assert row.timestampType == 1
    assert row.timestamp.year > 2020


def test_include_headers(reads: Reads, topics: dict[str, str]) -> None:
    frame = reads.frame(subscribe=topics["orders"], INCLUDEHEADERS="true")
    assert frame.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    rows = {(row.partition, row.offset): row.headers for row in frame.collect()}
    assert [(each.key, each.value and bytes(each.value)) for each in rows[1, 1]] == [("n", b"3"), ("none", None)]
    assert not rows[0, 1]


def test_a_schema_requests_some_columns_in_any_order(reads: Reads, topics: dict[str, str]) -> None:
    rows = reads.frame(
        "offset BIGINT, value STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>", subscribe=topics["payments"]
    ).collect()
    assert [(row.offset, row.value, row.headers) for row in rows] == [(0, "0", None), (1, "1", None), (2, "2", None)]


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("offset INT", "the column offset as INT, but it is BIGINT"),
        ("value DOUBLE", "the column value as DOUBLE, but it is BINARY or STRING"),
        ("ofset BIGINT", "a column 'ofset'; did you mean offset?"),
        ("value BINARY NOT NULL", "value NOT NULL"),
    ],
)
def test_an_invalid_schema_is_refused(reads: Reads, topics: dict[str, str], schema: str, complaint: str) -> None:
    assert complaint in reads.error_text(schema, subscribe=topics["orders"])


# Subscriptions and ranges


def test_subscribe(reads: Reads, topics: dict[str, str]) -> None:
    rows = reads.frame("topic STRING", subscribe=f"{topics['orders']},{topics['payments']}").collect()
    assert sorted(row.topic for row in rows) == sorted([topics["orders"]] * 12 + [topics["payments"]] * 3)


def test_subscribe_pattern(reads: Reads, topics: dict[str, str]) -> None:
    rows = reads.frame("topic STRING", subscribePattern="pay.*|appended-.*").collect()
    assert {row.topic for row in rows} == {topics["payments"], topics["appended"]}
    assert reads.frame(subscribePattern="nothing-of-that-name").collect() == []


def test_assign(reads: Reads, topics: dict[str, str]) -> None:
    assert reads.places(assign=json.dumps({topics["orders"]: [1]})) == [(1, offset) for offset in range(6)]


def test_an_empty_topic_has_no_rows(reads: Reads, topics: dict[str, str]) -> None:
    assert reads.frame(subscribe=topics["empty"]).collect() == []


def test_starting_and_ending_offsets(reads: Reads, topics: dict[str, str]) -> None:
    orders = topics["orders"]
    found = reads.places(
        subscribe=orders, startingOffsets=at(orders, {0: 2, 1: -2}), endingOffsets=at(orders, {0: 4, 1: 1})
    )
    assert found == [(0, 2), (0, 3), (1, 0)]
    assert reads.places(subscribe=orders, startingOffsets="earliest", endingOffsets="latest") == both(*range(6))


def test_starting_and_ending_timestamp(reads: Reads, topics: dict[str, str]) -> None:
    found = reads.places(subscribe=topics["orders"], startingTimestamp=FIRST_MS + 4000, endingTimestamp=FIRST_MS + 8000)
    assert found == both(2, 3)


def test_offsets_by_timestamp_override_offsets(reads: Reads, topics: dict[str, str]) -> None:
    orders = topics["orders"]
    found = reads.places(
        subscribe=orders,
        startingOffsetsByTimestamp=at(orders, {0: FIRST_MS + 9000, 1: FIRST_MS + 9001}),
        startingOffsets=at(orders, {0: 0, 1: 0}),
        endingOffsetsByTimestamp=at(orders, {0: FIRST_MS + 10_001, 1: FIRST_MS + 99_000}),
        endingOffsets=at(orders, {0: 1, 1: 1}),
    )
    assert found == [(0, 5), (1, 5)]


def test_a_global_timestamp_overrides_the_others(reads: Reads, topics: dict[str, str]) -> None:
    orders = topics["orders"]
    found = reads.places(
        subscribe=orders,
        startingTimestamp=FIRST_MS + 10_000,
        startingOffsetsByTimestamp=at(orders, {0: FIRST_MS, 1: FIRST_MS}),
        startingOffsets="earliest",
    )
    assert found == both(5)


def test_starting_offsets_by_timestamp_strategy(reads: Reads, topics: dict[str, str]) -> None:
    late: dict[str, Any] = {"subscribe": topics["orders"], "startingTimestamp": FIRST_MS + 99_000}
    assert "has no record at or after" in reads.error_text(**late)
    assert reads.places(**late, startingOffsetsByTimestampStrategy="latest") == []


def test_min_partitions(reads: Reads, topics: dict[str, str]) -> None:
    frame = reads.frame("partition INT, offset BIGINT", subscribe=topics["orders"], minPartitions="6")
    rows = frame.withColumn("task", functions.spark_partition_id()).collect()
    assert len({row.task for row in rows}) == 6
    assert sorted((row.partition, row.offset) for row in rows) == both(*range(6))


def test_max_records_per_partition(reads: Reads, topics: dict[str, str]) -> None:
    frame = reads.frame("offset BIGINT", subscribe=topics["orders"], maxRecordsPerPartition="2")
    tasks = Counter(row.task for row in frame.select(functions.spark_partition_id().alias("task")).collect())
    assert list(tasks.values()) == [2] * 6


def test_fail_on_data_loss(reads: Reads, topics: dict[str, str]) -> None:
    cut = topics["cut"]
    gone = {"subscribe": cut, "startingOffsets": at(cut, {0: 2}), "endingOffsets": at(cut, {0: 20})}
    text = reads.error_text(**gone)
    assert f"{cut}-0 at {reads.bootstrap} should be read from offset 2, but its log starts at 6" in text
    assert "With failOnDataLoss set to false the query starts at 6" in text
    assert reads.places(**gone, failOnDataLoss="false") == [(0, offset) for offset in (6, 7, 8, 9)]


def test_stream_options_are_accepted_in_a_batch(reads: Reads, topics: dict[str, str]) -> None:
    options = {
        "maxOffsetsPerTrigger": "1",
        "minOffsetsPerTrigger": "1",
        "maxTriggerDelay": "1s",
        "groupIdPrefix": "team",
        "kafka.group.id": "group",
        "publishOffsets": "false",
    }
    assert reads.places(subscribe=topics["payments"], **options) == [(0, 0), (0, 1), (0, 2)]


def test_settings_of_kafkas_clients(reads: Reads, topics: dict[str, str]) -> None:
    options = {
        "kafka.isolation.level": "read_committed",
        "kafka.client.id": "somebody",
        "kafka.request.timeout.ms": "9000",
        "kafka.max.partition.fetch.bytes": "100",
        "kafka.fetch.max.bytes": "1000",
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.max.poll.records": "7",
        "kafkaConsumer.pollTimeoutMs": "9000",
        "fetchOffset.numRetries": "2",
        "fetchOffset.retryIntervalMs": "5",
    }
    assert reads.places(subscribe=topics["orders"], **options) == both(*range(6))


# Errors


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "invoices"}, "there is no topic 'invoices'"),
        ({}, "set subscribe, subscribePattern or assign"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "not subscribe and assign"),
        ({"subscribe": "a", "startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"subscribe": "a", "kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset cannot be set"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "nowhere"}, "no response from the cluster at nowhere"),
    ],
)
def test_an_invalid_option_is_reported_on_the_driver_in_one_sentence(
    reads: Reads, options: dict[str, str], complaint: str
) -> None:
    assert complaint in reads.error_text(**{"kafka.request.timeout.ms": "500", **options})


def test_an_error_in_a_worker_is_reported_in_one_sentence(
    reads: Reads, topics: dict[str, str], spark: SparkSession
) -> None:
    hide = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"
    before = spark.conf.get(hide, "false")
    spark.conf.set(hide, "false")
    try:
        written = LogWriter(reads.bootstrap)
        topic = written.create("binary")
        written.send(topic, [b"\xff"])
        assert "one that is not UTF-8" in reads.error_text("value STRING", subscribe=topic)
    finally:
        spark.conf.set(hide, before)
