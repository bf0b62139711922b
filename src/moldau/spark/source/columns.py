"""The columns of a read: those of Spark's Kafka connector, or a subset that the query requests."""

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from moldau.settings.option_parser import did_you_mean
from moldau.spark.errors import SparkSourceError

HEADERS = "headers"
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(_HEADER),
}
_TEXT_COLUMNS = ("key", "value")
"""Columns that may be requested as STRING. The bytes of these columns must then be UTF-8."""
_NULLABLE_COLUMNS = ("key", "value", "timestamp", HEADERS)
"""Columns that may be null. The timestamp is null if Spark cannot represent the time."""


class SourceColumn(NamedTuple):
    name: str
    is_text: bool
    """Whether the bytes of the column are decoded as UTF-8."""


def schema(*, include_headers: bool) -> StructType:
    names = [name for name in TYPES if include_headers or name != HEADERS]
    return StructType([StructField(name, TYPES[name]) for name in names])


def requested_columns(schema_requested: StructType) -> Sequence[SourceColumn]:
    """Returns the columns of a requested schema. Raises SparkSourceError with the expected type of a wrong column."""
    columns = []
    for field in schema_requested.fields:
        expected = TYPES.get(field.name)
        if expected is None:
            hint = did_you_mean(field.name, TYPES) or f"; a read has the columns {', '.join(TYPES)}"
            raise SparkSourceError(f"the schema requests a column {field.name!r}{hint}")
        is_text = field.name in _TEXT_COLUMNS and isinstance(field.dataType, StringType)
        expected_sql, requested_sql = expected.simpleString().upper(), field.dataType.simpleString().upper()
        if not is_text and requested_sql != expected_sql:
            choices = expected_sql + (" or STRING" if field.name in _TEXT_COLUMNS else "")
            raise SparkSourceError(
                f"the schema requests the column {field.name} as {requested_sql}, but it is {choices}"
            )
        if not field.nullable and field.name in _NULLABLE_COLUMNS:
            raise SparkSourceError(f"the schema requests {field.name} NOT NULL, but records without it are allowed")
        columns.append(SourceColumn(field.name, is_text))
    return columns
