"""Spark writes to topics in batches and streams: the resulting log, and errors."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from moldau.client.producer.partitioner import partition_of_key
from moldau.spark.errors import find_user_message
from moldau.testing import Broker
from support.log_reader import all_records, committed_records
from support.log_writer import LogWriter

pytestmark = pytest.mark.spark


def save(frame: DataFrame, broker: Broker, mode: str = "append", **options: str) -> None:
    """Options with underscores for dots are `kafka.*`."""
    given = {
        name if name in ("topic", "includeHeaders") else f"kafka.{name.replace('_', '.')}": value
        for name, value in options.items()
    }
    writer = frame.write.format("moldau").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.options(**given).mode(mode).save()


def failure(write: Callable[[], Any]) -> str:
    with pytest.raises(PySparkException) as caught:
        write()
    text = find_user_message(caught.value)
    assert text is not None, caught.value
    assert "Traceback" not in str(caught.value)
    return text


def test_all_columns_arrive_in_the_log(spark: SparkSession, broker: Broker, written: LogWriter) -> None:
    topic = written.create(partitions=3)
    frame = spark.range(20).selectExpr(
        "CAST(id AS STRING) AS key",
        "IF(id = 7, NULL, CAST(concat('v', id) AS BINARY)) AS value",
        "array(struct('a' AS key, CAST('x' AS BINARY) AS value), struct('b' AS key, CAST(NULL AS BINARY) AS value)) "
        "AS headers",
        "IF(id % 2 = 0, CAST(2 AS INT), NULL) AS partition",
        "timestamp_millis(1700000000000 + id) AS timestamp",
        f"'{topic}' AS topic",
    )
    save(frame, broker)
    found = {each.key: each for each in all_records(broker.bootstrap, topic)}
    assert len(found) == 20
    for number in range(20):
        record = found[str(number).encode()]
        assert record.value == (None if number == 7 else f"v{number}".encode())
        assert tuple(record.headers) == (("a", b"x"), ("b", None))
        assert record.partition == (2 if number % 2 == 0 else partition_of_key(record.key or b"", 3))
        assert record.timestamp == 1_700_000_000_000 + number


def test_a_topic_can_be_copied_to_another(spark: SparkSession, broker: Broker, written: LogWriter) -> None:
    source, target = written.create(partitions=2), written.create(partitions=2)
    written.spread(source, {0: 3, 1: 4})
    read = spark.read.format("moldau").option("kafka.bootstrap.servers", broker.bootstrap)
    save(read.option("subscribe", source).load(), broker, topic=target)
    records = [
        [(each.partition, each.offset, each.value, each.timestamp) for each in all_records(broker.bootstrap, topic)]
        for topic in (source, target)
    ]
    assert records[0] == records[1]


def test_other_columns_are_not_written(spark: SparkSession, broker: Broker, written: LogWriter) -> None:
    topic = written.create()
    frame = spark.range(0, 8, 1, 4).selectExpr("CAST(id AS STRING) AS value", "id", "1 AS price")
    save(frame, broker, topic=topic)
    assert {each.value for each in all_records(broker.bootstrap, topic)} == {
        str(number).encode() for number in range(8)
    }


def test_the_topic_option_overrides_the_column_and_rows_may_go_to_many_topics(
    spark: SparkSession, broker: Broker, written: LogWriter
) -> None:
    one, other, third = (written.create() for _ in range(3))
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value", f"IF(id < 4, '{one}', '{other}') AS topic")
    save(frame, broker)
    save(frame, broker, topic=third)
    values = [{int(each.value or b"") for each in all_records(broker.bootstrap, name)} for name in (one, other, third)]
    assert values == [set(range(4)), set(range(4, 10)), set(range(10))]


@pytest.mark.parametrize(
    "options",
    [
        {"acks": "1"},
        {"acks": "0", "enable_idempotence": "false"},
        {"compression_type": "zstd", "batch_size": "500", "linger_ms": "1"},
        {"buffer_memory": "2000", "batch_size": "500", "max_request_size": "1000"},
        {"delivery_timeout_ms": "30000", "request_timeout_ms": "10000", "max_block_ms": "10000"},
        {"max_in_flight_requests_per_connection": "1"},
        {"includeHeaders": "false"},
    ],
)
def test_producer_settings_are_applied(
    spark: SparkSession, broker: Broker, written: LogWriter, options: dict[str, str]
) -> None:
    topic = written.create()
    frame = spark.range(0, 100, 1, 1).selectExpr(
        "CAST(id AS STRING) AS value", "array(struct('a' AS key, CAST('x' AS BINARY) AS value)) AS headers"
    )
    save(frame, broker, topic=topic, **options)
    found = all_records(broker.bootstrap, topic)
    assert [each.value for each in found] == [str(number).encode() for number in range(100)]
    assert {tuple(each.headers) for each in found} == {() if "includeHeaders" in options else (("a", b"x"),)}


def test_rows_without_a_key_are_spread_over_the_partitions(
    spark: SparkSession, broker: Broker, written: LogWriter
) -> None:
    topic = written.create(partitions=4)
    save(spark.range(0, 4000, 1, 2).selectExpr("repeat('x', 100) AS value"), broker, topic=topic, batch_size="10000")
    counts = Counter(each.partition for each in all_records(broker.bootstrap, topic))
    assert sum(counts.values()) == 4000
    assert min(counts.values()) > 500


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (["1 AS value"], {}, "the column 'value' is INT and must be STRING or BINARY: CAST(value AS STRING)"),
        (["'k' AS key"], {}, "there is no column 'value': select the"),
        (["NULL AS value"], {}, "the column 'value' is VOID"),
        (["'v' AS value", "IF(id = 1, NULL, 'a') AS topic"], {"topic": ""}, "'' is not a topic name"),
        (["'v' AS value"], {"acks": "5"}, "kafka.acks must be one of all"),
        (["'v' AS value"], {"ackz": "5"}, "given as kafka.ackz; did you mean kafka.acks?"),
        (["'v' AS value"], {"transactional_id": "5"}, "kafka.transactional.id cannot be set: the sink"),
        (["'v' AS value", "CAST(3 AS INT) AS partition"], {}, "is 3, but 'T' has the partitions 0 to 0: correct"),
        (["repeat('x', 2000000) AS value", "'big' AS key"], {}, "a row with the key 'big' becomes a record of 2000024"),
        (["'v' AS value"], {"topic": "missing", "max_block_ms": "200"}, "the topic 'missing' does not exist, and the"),
    ],
)
def test_invalid_rows_are_reported_in_one_sentence_on_the_driver(
    spark: SparkSession, broker: Broker, written: LogWriter, columns: list[str], options: dict[str, str], text: str
) -> None:
    topic = written.create()
    frame = spark.range(2).selectExpr(*columns)
    found = failure(lambda: save(frame, broker, **{"topic": topic, **options}))
    assert text.replace("'T'", repr(topic)) in found
    assert "\n" not in found
    assert all_records(broker.bootstrap, topic) == []


def test_a_null_topic_is_reported_in_one_sentence(spark: SparkSession, broker: Broker, written: LogWriter) -> None:
    topic = written.create()
    frame = spark.range(0, 4, 1, 1).selectExpr("'v' AS value", f"IF(id < 3, NULL, '{topic}') AS topic")
    assert "3 of 4 rows have no topic (the column `topic` is null)" in failure(lambda: save(frame, broker))
    frame = frame.drop("topic")
    assert "no topic is set" in failure(lambda: save(frame, broker))


def test_a_topic_is_not_overwritten(spark: SparkSession, broker: Broker, written: LogWriter) -> None:
    frame = spark.range(1).selectExpr("'v' AS value")
    found = failure(lambda: save(frame, broker, mode="overwrite", topic=written.create()))
    assert found == "records are appended to a topic and never overwritten: use .mode('append')"


def test_an_unreachable_broker_is_reported_in_one_sentence(spark: SparkSession) -> None:
    writer = spark.range(1).selectExpr("'v' AS value").write.format("moldau").mode("append")
    writer.options(**{"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.request.timeout.ms": "300", "topic": "t"})
    assert failure(writer.save).startswith("no response from the brokers at 127.0.0.1:1")
    writer = spark.range(1).selectExpr("'v' AS value").write.format("moldau").mode("append")
    assert failure(writer.option("topic", "t").save).startswith("kafka.bootstrap.servers is missing")


# Streams


def stream(spark: SparkSession, broker: Broker, source: str, target: str, checkpoint: Path, **options: str) -> Any:
    """Reads the available records in batches of at most four, and ends."""
    read = spark.readStream.format("moldau").option("kafka.bootstrap.servers", broker.bootstrap)
    frame = read.options(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="4").load()
    write = frame.select("key", "value").writeStream.format("moldau")
    write.options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": target, **options})
    query = write.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def forget_last_commit(checkpoint: Path) -> int:
    """As if the query had ended after the sink finished a batch and before it was committed."""
    last = max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    return last


def replay(spark: SparkSession, broker: Broker, written: LogWriter, checkpoint: Path, **options: str) -> str:
    """Runs a stream whose last batch is replayed. Returns the target topic."""
    source, target = written.create(), written.create(partitions=2)
    written.send(source, range(10))
    stream(spark, broker, source, target, checkpoint, **options)
    values = [int(each.value or b"") for each in committed_records(broker.bootstrap, target)]
    assert sorted(values) == list(range(10))

    assert forget_last_commit(checkpoint) == 2
    written.send(source, range(10, 12))
    stream(spark, broker, source, target, checkpoint, **options)
    return target


def test_a_stream_writes_every_row_once_although_a_batch_is_replayed(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    target = replay(spark, broker, written, tmp_path / "checkpoint")
    values = [int(each.value or b"") for each in committed_records(broker.bootstrap, target)]
    assert sorted(values) == list(range(12))
    assert len(all_records(broker.bootstrap, target)) == 12


def test_a_stream_with_at_least_once_writes_a_replayed_batch_again(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    target = replay(spark, broker, written, tmp_path / "checkpoint", delivery="at-least-once")
    counts = Counter(int(each.value or b"") for each in all_records(broker.bootstrap, target))
    assert counts == {**dict.fromkeys(range(8), 1), 8: 2, 9: 2, 10: 1, 11: 1}


def test_a_stream_from_an_older_checkpoint_fails_instead_of_skipping_rows(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    source, target = written.create(), written.create()
    written.send(source, range(4))
    stream(spark, broker, source, target, tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    written.send(source, range(4, 12))
    stream(spark, broker, source, target, tmp_path / "checkpoint")
    found = failure(lambda: stream(spark, broker, source, target, tmp_path / "copy"))
    assert "is older than the last committed batch 2" in found
    assert "the checkpoint is an older copy. Use the latest checkpoint, or a new one" in found
    assert len(all_records(broker.bootstrap, target)) == 12


def test_numbered_batches_of_foreach_batch_are_written_once(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    source, target, second, third = (written.create() for _ in range(4))
    written.send(source, range(6))
    read = spark.readStream.format("moldau").option("kafka.bootstrap.servers", broker.bootstrap)
    frame = read.options(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="4").load()

    def write(batch: DataFrame, batch_id: int) -> None:
        numbered = {"kafka.bootstrap.servers": broker.bootstrap, "batchId": str(batch_id)}
        for options in ({"topic": target}, {"topic": second}, {"topic": third, "appId": f"{third}-app"}):
            batch.select("value").write.format("moldau").mode("append").options(**numbered, **options).save()

    def run() -> None:
        stream = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
        stream.trigger(availableNow=True).start().awaitTermination()

    run()
    assert forget_last_commit(tmp_path) == 1
    run()
    for topic in (target, second, third):
        values = [int(each.value or b"") for each in committed_records(broker.bootstrap, topic)]
        assert sorted(values) == list(range(6))


def test_a_stream_that_would_overwrite_is_refused(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    read = spark.readStream.format("moldau").option("kafka.bootstrap.servers", broker.bootstrap)
    source = written.create()
    written.send(source, range(1))
    frame = read.options(subscribe=source, startingOffsets="earliest").load()
    counted = frame.groupBy("key").count().selectExpr("CAST(count AS STRING) AS value")
    write = counted.writeStream.format("moldau").outputMode("complete").trigger(availableNow=True)
    write.options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": written.create()})

    def run() -> None:
        write.option("checkpointLocation", str(tmp_path)).start().awaitTermination()

    assert "never overwritten: use .outputMode('append') or 'update'" in failure(run)


def test_a_stream_of_bad_rows_fails_with_one_sentence(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    source = written.create()
    written.send(source, range(2))
    read = spark.readStream.format("moldau").option("kafka.bootstrap.servers", broker.bootstrap)
    frame = read.options(subscribe=source, startingOffsets="earliest").load()
    write = frame.selectExpr("value", "CAST(9 AS INT) AS partition").writeStream.format("moldau")
    write.options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": written.create()})
    write.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert "the column `partition` is 9" in failure(lambda: write.start().awaitTermination())
