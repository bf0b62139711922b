"""Columns of a read, and schemas that request some of them."""

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampNTZType

from moldau.columnar.columns import COLUMNS, arrow_schema
from moldau.spark.errors import SparkSourceError
from moldau.spark.source.columns import TYPES, SourceColumn, requested_columns, schema


def asked(name: str, type_: object, *, nullable: bool = True) -> StructType:
    return StructType([StructField(name, type_, nullable)])  # type: ignore[arg-type]


def test_columns_are_those_of_the_decoder() -> None:
    assert tuple(TYPES) == COLUMNS
    assert to_arrow_schema(schema(include_headers=True), timezone="UTC").equals(arrow_schema(COLUMNS))


def test_headers_are_included_on_request() -> None:
    assert schema(include_headers=False).names == list(COLUMNS[:-1])
    assert schema(include_headers=True).names == list(COLUMNS)


def test_any_columns_may_be_requested_in_any_order() -> None:
    wanted = StructType([StructField("value", BinaryType()), StructField("offset", LongType(), False)])
    assert requested_columns(wanted) == [SourceColumn("value", False), SourceColumn("offset", False)]


def test_keys_and_values_may_be_text() -> None:
    assert requested_columns(asked("key", StringType())) == [SourceColumn("key", True)]
    assert requested_columns(asked("topic", StringType())) == [SourceColumn("topic", False)]


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        (asked("offset", IntegerType()), "the column offset as INT, but it is BIGINT"),
        (asked("value", LongType()), "the column value as BIGINT, but it is BINARY or STRING"),
        (asked("timestamp", TimestampNTZType()), "as TIMESTAMP_NTZ, but it is TIMESTAMP"),
        (asked("headers", BinaryType()), "it is ARRAY<STRUCT<KEY:STRING,VALUE:BINARY>>"),
        (asked("Value", BinaryType()), "'Value'; did you mean value?"),
        (asked("amount", LongType()), "a read has the columns key, value, topic"),
        (asked("key", BinaryType(), nullable=False), "key NOT NULL"),
        (asked("timestamp", TYPES["timestamp"], nullable=False), "timestamp NOT NULL"),
    ],
)
def test_a_wrong_column_type_is_refused_with_the_expected_one(wanted: StructType, complaint: str) -> None:
    with pytest.raises(SparkSourceError) as refused:
        requested_columns(wanted)
    assert complaint in str(refused.value)
