"""Columns of rows that become records."""

import itertools
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark import TaskContext
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from moldau.spark.errors import SparkSourceError
from moldau.spark.sink import task_writer
from moldau.spark.sink.columns import SinkColumns, sink_columns
from moldau.spark.sink.writers import TopicWriter

STRING, BINARY, INT, BIGINT, TIMESTAMP = (StringType(), BinaryType(), IntegerType(), LongType(), TimestampType())


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


HEADERS = ArrayType(struct(key=STRING, value=BINARY))


def columns(*, has_topic: bool = True, includes_headers: bool = True, **fields: Any) -> SinkColumns:
    return sink_columns(struct(**fields), has_topic=has_topic, includes_headers=includes_headers)


def test_a_value_suffices_if_an_option_sets_the_topic() -> None:
    assert columns(value=STRING) == SinkColumns(value=0)
    assert columns(value=BINARY) == SinkColumns(value=0)


def test_all_columns_are_found() -> None:
    found = columns(
        timestamp=TIMESTAMP, topic=STRING, headers=HEADERS, key=STRING, partition=INT, value=BINARY, has_topic=False
    )
    assert found == SinkColumns(value=5, key=3, headers=2, topic=1, partition=4, timestamp=0)


def test_the_topic_option_overrides_the_column() -> None:
    assert columns(topic=STRING, value=STRING).topic is None


def test_headers_are_dropped_if_not_requested() -> None:
    assert columns(value=STRING, headers=HEADERS).headers == 1
    assert columns(value=STRING, headers=HEADERS, includes_headers=False).headers is None


def test_the_values_of_headers_may_be_text() -> None:
    assert columns(value=STRING, headers=ArrayType(struct(key=STRING, value=STRING))).headers == 1


def test_the_columns_of_a_read_can_be_written() -> None:
    read: dict[str, Any] = {
        "key": BINARY,
        "value": BINARY,
        "topic": STRING,
        "partition": INT,
        "offset": BIGINT,
        "timestamp": TIMESTAMP,
        "timestampType": INT,
    }
    assert columns(has_topic=False, **read) == SinkColumns(value=1, key=0, topic=2, partition=3, timestamp=5)


def test_other_columns_are_ignored_and_listed() -> None:
    """As Spark's own connector ignores them."""
    found = columns(id=BIGINT, value=STRING, Key=INT)
    assert found == SinkColumns(value=1, ignored=("id", "Key"))


def test_ignored_columns_are_logged_once_per_query(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "delivery": "at-least-once"}
    rows = TopicWriter(options, struct(id=BIGINT, value=STRING, price=INT), is_stream=True)
    monkeypatch.setattr(task_writer, "write_rows", lambda *_: {})
    for batch_id, partition_id, attempt in itertools.product((0, 1), repeat=3):
        context = Mock(TaskContext)
        context.getLocalProperty.side_effect = {"streaming.sql.batchId": str(batch_id)}.get
        context.partitionId.return_value, context.attemptNumber.return_value = partition_id, attempt
        monkeypatch.setattr(TaskContext, "get", lambda context=context: context)
        rows.write(iter([]))
    assert caplog.messages == ["a record has no columns id, price: they are not written"]


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("value", INT, r"'value' is INT and must be STRING or BINARY: CAST\(value AS STRING\) AS value"),
        ("value", struct(a=INT), r"must be STRING or BINARY: encode it, as to_json\(value\) AS value"),
        ("value", NullType(), r"'value' is VOID and must be STRING or BINARY: CAST\(value AS STRING\)"),
        ("key", BIGINT, r"'key' is BIGINT and must be STRING or BINARY"),
        ("partition", BIGINT, r"'partition' is BIGINT and must be INT: CAST\(partition AS INT\)"),
        ("topic", BINARY, r"'topic' is BINARY and must be STRING"),
        ("timestamp", TimestampNTZType(), r"'timestamp' is TIMESTAMP_NTZ and must be TIMESTAMP"),
        ("timestamp", BIGINT, r"'timestamp' is BIGINT and must be TIMESTAMP"),
        ("headers", MapType(STRING, BINARY), r"'headers' is MAP.* must be ARRAY<STRUCT<key: STRING"),
        ("headers", ArrayType(struct(k=STRING, v=BINARY)), r"build it as array\(struct\("),
    ],
)
def test_a_wrong_column_type_is_named_with_a_fix(name: str, kind: DataType, message: str) -> None:
    with pytest.raises(SparkSourceError, match=message):
        sink_columns(struct(**{"value": STRING, name: kind}), has_topic=True, includes_headers=True)


def test_a_value_is_needed() -> None:
    with pytest.raises(SparkSourceError, match=r"no column 'value': select the records' content AS value"):
        columns(key=STRING)


def test_a_duplicated_column_is_named() -> None:
    twice = StructType([StructField("value", STRING), StructField("value", STRING)])
    with pytest.raises(SparkSourceError, match="the column 'value' is duplicated: drop one"):
        sink_columns(twice, has_topic=True, includes_headers=True)


def test_rows_need_a_topic() -> None:
    with pytest.raises(SparkSourceError, match=r"no topic is set: use .option\(\"topic\""):
        columns(value=STRING, has_topic=False)
