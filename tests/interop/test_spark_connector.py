"""Spark's Kafka connector with Moldau as source and sink, and reading what Moldau's data source writes."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from spark_data import (
    PARTITIONS,
    RECORDS,
    Read,
    SparkTopics,
    batch,
    in_order,
    read_with_librdkafka,
    stream,
    stream_to_end,
)

from support.topics import Topics

pytestmark = pytest.mark.spark

WRITERS = ("kafka", "moldau")
ALL = {"startingOffsets": "earliest", "includeHeaders": "true"}


def test_the_connector_reads_every_record_librdkafka_wrote(spark: SparkSession, written: SparkTopics) -> None:
    rows = in_order(batch(spark, "kafka", written.bootstrap, {"subscribe": written.plain, **ALL}))
    expected = read_with_librdkafka(written.bootstrap, written.plain, RECORDS)
    assert [_read_file(row) for row in rows] == expected


def test_the_connector_streams_every_record_librdkafka_wrote(
    spark: SparkSession, written: SparkTopics, tmp_path: Path
) -> None:
    options = {"subscribe": written.plain, "maxOffsetsPerTrigger": 70, **ALL}
    streamed = stream_to_end(stream(spark, "kafka", written.bootstrap, options), tmp_path)
    assert [_read_file(row) for row in streamed.rows] == read_with_librdkafka(written.bootstrap, written.plain, RECORDS)
    assert len(streamed.ends) == 2


@pytest.mark.parametrize("writer", WRITERS)
def test_rows_written_are_read_by_the_connector_and_by_librdkafka(
    spark: SparkSession, written: SparkTopics, writer: str
) -> None:
    into = Topics(written.bootstrap).create(partitions=PARTITIONS)
    source = batch(spark, "kafka", written.bootstrap, {"subscribe": written.plain, **ALL})
    _write(source.select("key", "value", "headers", "partition"), writer, written, into)
    expected = read_with_librdkafka(written.bootstrap, written.plain, RECORDS)
    assert read_with_librdkafka(written.bootstrap, into, RECORDS) == expected
    for reader in WRITERS:
        rows = in_order(batch(spark, reader, written.bootstrap, {"subscribe": into, **ALL}))
        assert [_read_file(row) for row in rows] == expected


@pytest.mark.parametrize("writer", WRITERS)
def test_a_stream_from_topic_to_topic_copies_every_record(
    spark: SparkSession, written: SparkTopics, tmp_path: Path, writer: str
) -> None:
    into = Topics(written.bootstrap).create(partitions=PARTITIONS)
    options = {"subscribe": written.plain, "maxOffsetsPerTrigger": 70, **ALL}
    source = stream(spark, writer, written.bootstrap, options)
    started = (
        source.select("key", "value", "headers", "partition")
        .writeStream.format(writer)
        .option("kafka.bootstrap.servers", written.bootstrap)
        .option("topic", into)
        .option("includeHeaders", "true")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    started.awaitTermination()
    expected = read_with_librdkafka(written.bootstrap, written.plain, RECORDS)
    assert read_with_librdkafka(written.bootstrap, into, RECORDS) == expected


def test_keys_go_to_the_same_partitions_as_with_the_connector(spark: SparkSession, written: SparkTopics) -> None:
    keys = spark.range(200).selectExpr("CAST(CONCAT('key-', id * id) AS STRING) AS key", "'value' AS value")
    placed = {}
    for writer in WRITERS:
        into = Topics(written.bootstrap).create(partitions=5)
        _write(keys, writer, written, into)
        read = read_with_librdkafka(written.bootstrap, into, 200)
        placed[writer] = {one.key: one.partition for one in read}
    assert placed["moldau"] == placed["kafka"]
    assert set(placed["kafka"].values()) == set(range(5))


@pytest.mark.parametrize("writer", WRITERS)
def test_rows_can_name_their_topic(spark: SparkSession, written: SparkTopics, writer: str) -> None:
    topics = Topics(written.bootstrap)
    even, odd = topics.create(), topics.create()
    rows = spark.range(20).selectExpr(f"IF(id % 2 = 0, '{even}', '{odd}') AS topic", "CAST(id AS STRING) AS value")
    rows.write.format(writer).mode("append").option("kafka.bootstrap.servers", written.bootstrap).save()
    for topic, first in ((even, 0), (odd, 1)):
        found = {one.value for one in read_with_librdkafka(written.bootstrap, topic, 10)}
        assert found == {b"%d" % number for number in range(first, 20, 2)}


def _write(frame: DataFrame, writer: str, written: SparkTopics, topic: str) -> None:
    options = {"kafka.bootstrap.servers": written.bootstrap, "topic": topic, "includeHeaders": "true"}
    # The only mode in which Spark can write to Python data sources; the connector accepts it too.
    frame.write.format(writer).mode("append").options(**options).save()


def _read_file(row: Row) -> Read:
    headers = tuple((one.key, _bytes(one.value)) for one in row.headers or ())
    return Read(row.partition, _bytes(row.key), _bytes(row.value), headers)


def _bytes(field: bytearray | None) -> bytes | None:
    return None if field is None else bytes(field)
