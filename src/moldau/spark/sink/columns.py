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

_READ_ONLY_COLUMNS = ("offset", "timestampType")
_TYPES: dict[str, tuple[str, tuple[type[DataType], ...]]] = {
    "key": ("STRING or BINARY", (StringType, BinaryType)),
    "value": ("STRING or BINARY", (StringType, BinaryType)),
    "headers": ("ARRAY<STRUCT<key: STRING, value: BINARY>>", (ArrayType,)),
    "topic": ("STRING", (StringType,)),
    "partition": ("INT", (IntegerType,)),
    "timestamp": ("TIMESTAMP", (TimestampType,)),
}
"""The type of each column, as text and as classes."""


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
    """The names of unknown columns, which are not written."""


def sink_columns(schema: StructType, *, has_topic: bool, includes_headers: bool) -> SinkColumns:
    """Returns the positions of the columns. Raises SparkSourceError with the name of a wrong column.

    `has_topic` means that an option sets the topic of all rows.
    """
    positions: dict[str, int] = {}
    ignored: list[str] = []
    for position, field in enumerate(schema.fields):
        if field.name in _READ_ONLY_COLUMNS:
            continue
        if field.name not in _TYPES:
            ignored.append(field.name)
            continue
        if field.name in positions:
            raise SparkSourceError(f"the column {field.name!r} is duplicated: drop one")
        type_text, classes = _TYPES[field.name]
        if not isinstance(field.dataType, classes) or not _has_header_elements(field.dataType):
            raise SparkSourceError(
                f"the column {field.name!r} is {field.dataType.simpleString().upper()} and must be "
                f"{type_text}: {_type_hint(field.name, field.dataType)}"
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


def _has_header_elements(kind: DataType) -> bool:
    """Returns whether the elements of an array are headers. Returns True for all other types."""
    if not isinstance(kind, ArrayType):
        return True
    header = kind.elementType
    return (
        isinstance(header, StructType)
        and header.names == ["key", "value"]
        and isinstance(header["key"].dataType, StringType)
        and isinstance(header["value"].dataType, (BinaryType, StringType))
    )


def _type_hint(name: str, kind: DataType) -> str:
    if name == "headers":
        return "build it as array(struct('name' AS key, CAST(… AS BINARY) AS value))"
    if name in ("key", "value") and isinstance(kind, (StructType, ArrayType, MapType)):
        return f"encode it, as to_json({name}) AS {name}"
    return f"CAST({name} AS {_TYPES[name][0].partition(' ')[0]}) AS {name}"
