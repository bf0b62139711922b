"""The columns of a read: those that Spark's Kafka connector has, and the ones of them that a query asks for."""

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

from moldau.settings.values import nearest
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
_AS_TEXT = ("key", "value")
"""These may be asked for as STRING: then their bytes must be UTF-8."""
_MAY_BE_NULL = ("key", "value", "timestamp", HEADERS)
"""A time that Spark cannot hold is null."""


class Column(NamedTuple):
    name: str
    is_text: bool
    """It is decoded from UTF-8 on the way."""


def schema(*, include_headers: bool) -> StructType:
    names = [name for name in TYPES if include_headers or name != HEADERS]
    return StructType([StructField(name, TYPES[name]) for name in names])


def columns_of(wanted: StructType) -> Sequence[Column]:
    """The columns that a schema asks for: any of ours in any order. Raises SparkSourceError that names the expected
    type."""
    columns = []
    for field in wanted.fields:
        expected = TYPES.get(field.name)
        if expected is None:
            hint = nearest(field.name, TYPES) or f"; a read has the columns {', '.join(TYPES)}"
            raise SparkSourceError(f"the schema asks for a column {field.name!r}{hint}")
        is_text = field.name in _AS_TEXT and isinstance(field.dataType, StringType)
        if not is_text and not _is_same(field.dataType, expected):
            choices = _sql(expected) + (" or STRING" if field.name in _AS_TEXT else "")
            raise SparkSourceError(
                f"the schema asks for the column {field.name} as {_sql(field.dataType)}, and it is {choices}"
            )
        if not field.nullable and field.name in _MAY_BE_NULL:
            raise SparkSourceError(
                f"the schema asks for {field.name} NOT NULL, and records without it are allowed"
            )
        columns.append(Column(field.name, is_text))
    return columns


def _is_same(one: DataType, other: DataType) -> bool:
    return one.simpleString() == other.simpleString()


def _sql(type_: DataType) -> str:
    return type_.simpleString().upper()
