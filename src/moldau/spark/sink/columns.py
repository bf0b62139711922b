"""The columns of rows that become records: those of Spark's Kafka connector, and `timestamp`.

All other columns are dropped, as in Spark's connector, so that rows from one topic can be written to another.
"""

from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from moldau.spark.errors import SparkSourceError

NAMES = ("key", "value", "headers", "topic", "partition", "timestamp")
_READ_ONLY_COLUMNS = ("offset", "timestampType")
_TYPE_NAMES = {
    "key": "STRING or BINARY",
    "value": "STRING or BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "topic": "STRING",
    "partition": "INT",
    "timestamp": "TIMESTAMP",
}


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The positions of the columns in a row. None means that the column is missing or not used."""

    value: int
    key: int | None = None
    headers: int | None = None
    topic: int | None = None
    partition: int | None = None
    timestamp: int | None = None
    ignored: tuple[str, ...] = ()
    """The names of columns that are not written."""


def sink_columns(schema: StructType, *, has_topic: bool, includes_headers: bool) -> SinkColumns:
    """Returns the positions of the columns. Raises SparkSourceError with the name of a wrong column.

    `has_topic` means that an option sets the topic of all rows.
    """
    positions: dict[str, int] = {}
    ignored: list[str] = []
    for position, field in enumerate(schema.fields):
        if field.name in _READ_ONLY_COLUMNS:
            continue
        if field.name not in NAMES:
            ignored.append(field.name)
            continue
        if field.name in positions:
            raise SparkSourceError(f"the column {field.name!r} is duplicated: drop one")
        if not _has_type(field.name, field.dataType):
            raise SparkSourceError(
                f"the column {field.name!r} is {field.dataType.simpleString().upper()} and must be "
                f"{_TYPE_NAMES[field.name]}: {_type_hint(field.name, field.dataType)}"
            )
        positions[field.name] = position
    if "value" not in positions:
        raise SparkSourceError(
            "there is no column 'value': select the records' content AS value, such as to_json(struct(*)) AS value"
        )
    if not has_topic and "topic" not in positions:
        raise SparkSourceError('no topic is set: use .option("topic", …), or select a column AS topic')
    if has_topic:
        positions.pop("topic", None)
    if not includes_headers:
        positions.pop("headers", None)
    return SinkColumns(**positions, ignored=tuple(ignored))


def _has_type(name: str, kind: DataType) -> bool:
    match name:
        case "key" | "value":
            return isinstance(kind, (StringType, BinaryType))
        case "headers":
            return isinstance(kind, ArrayType) and _is_header(kind.elementType)
        case "topic":
            return isinstance(kind, StringType)
        case "partition":
            return isinstance(kind, IntegerType)
    return isinstance(kind, TimestampType)


def _is_header(kind: DataType) -> bool:
    return (
        isinstance(kind, StructType)
        and kind.names == ["key", "value"]
        and isinstance(kind["key"].dataType, StringType)
        and isinstance(kind["value"].dataType, (BinaryType, StringType))
    )


def _type_hint(name: str, kind: DataType) -> str:
    if name == "headers":
        return "build it as array(struct('name' AS key, CAST(… AS BINARY) AS value))"
    if name in ("key", "value") and isinstance(kind, (StructType, ArrayType, MapType)):
        return f"encode it, as to_json({name}) AS {name}"
    return f"CAST({name} AS {_TYPE_NAMES[name].partition(' ')[0]}) AS {name}"
