"""Encoder of a view's rows to the `key` and `value` of records."""

import json
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from moldau.pipelines.definition import Format, PipelineError, Sink
from moldau.pipelines.records.avro_types import parsed_schema
from moldau.pipelines.records.columns import METADATA
from moldau.pipelines.records.decoder import avro_wire
from moldau.pipelines.records.sql_text import literal, quoted
from moldau.settings.option_parser import did_you_mean, suggest_names


def encode_records(frame: DataFrame, sink: Sink) -> DataFrame:
    """Returns the columns `key` and `value`. Raises PipelineError if the columns do not match the sink.

    The value contains the key columns too. It contains metadata columns only if they are renamed.
    """
    for name in sink.key:
        check_column(frame, name, f"the key of the sink {sink.name}")
    schema = frame.schema
    columns = [name for name in schema.names if name not in METADATA]
    value = _value(schema, columns, sink)
    if sink.delete_when is not None:
        # A row that satisfies `delete_when` becomes a tombstone, which has no value.
        value = F.when(~F.coalesce(F.expr(sink.delete_when), F.lit(False)), value)
    return frame.select(F.expr(f"{_key(sink.key, schema)} AS key"), value.alias("value"))


def check_column(frame: DataFrame, name: str, what: str) -> None:
    if name not in frame.columns:
        visible = [each for each in frame.columns if each not in METADATA]
        hint = did_you_mean(name, frame.columns) or f"; there are {', '.join(visible)}"
        raise PipelineError(f"{what} names the column {name!r}, which the view does not have{hint}")


def _key(names: tuple[str, ...], schema: T.StructType) -> str:
    """Returns SQL for the record key. One column becomes text (bytes stay unchanged); several become a JSON object."""
    if not names:
        return "CAST(NULL AS BINARY)"
    if len(names) > 1:
        return _json(f"struct({', '.join(map(quoted, names))})", {})
    kind, column = schema[names[0]].dataType, quoted(names[0])
    if isinstance(kind, T.StructType | T.ArrayType | T.MapType):
        return _json(column, {})
    return column if isinstance(kind, T.BinaryType) else f"CAST(CAST({column} AS STRING) AS BINARY)"


def _json(column: str, options: Mapping[str, str]) -> str:
    all_options = {"ignoreNullFields": "false", **options}
    pairs = ", ".join(f"{literal(key)}, {literal(value)}" for key, value in all_options.items())
    return f"CAST(to_json({column}, map({pairs})) AS BINARY)"


def _value(schema: T.StructType, columns: list[str], sink: Sink) -> Column:
    if not columns:
        raise PipelineError(f"the view {sink.view} has no column that the sink {sink.name} could write")
    whole = f"struct({', '.join(map(quoted, columns))})"
    if sink.format is Format.JSON:
        named = {key: value for key, value in sink.options.items() if key.startswith("json.")}
        return F.expr(_json(whole, {key.removeprefix("json."): value for key, value in named.items()}))
    if sink.format is Format.AVRO:
        return _avro(whole, columns, sink)
    name = _only_column(columns, sink)
    kind = schema[name].dataType
    if isinstance(kind, T.BinaryType):
        return F.expr(quoted(name))
    if sink.format is Format.BYTES and not isinstance(kind, T.StringType):
        raise PipelineError(
            f"the column {name!r} of the sink {sink.name} is {kind.simpleString()}: bytes are BINARY or STRING"
        )
    return F.expr(f"CAST(CAST({quoted(name)} AS STRING) AS BINARY)")


def _only_column(columns: list[str], sink: Sink) -> str:
    candidates = ["value"] if "value" in columns else [name for name in columns if name not in sink.key]
    if len(candidates) == 1:
        return candidates[0]
    raise PipelineError(
        f"the sink {sink.name} writes {sink.format}, which is one column called `value`; the view {sink.view} has "
        f"{', '.join(columns)}: name one of them value, or write format: json"
    )


def _avro(whole: str, columns: list[str], sink: Sink) -> Column:
    from moldau.pipelines.records.avro_codec import confluent_prefix, encode_arrow

    what = f"the sink {sink.name}"
    schema = parsed_schema(sink.schema or "", what)
    fields = [each["name"] for each in schema.get("fields", ())]
    for field in schema.get("fields", ()):
        if field["name"] not in columns and "default" not in field:
            hint = suggest_names(field["name"], columns)
            raise PipelineError(f"{what} has the Avro field {field['name']!r}, which the view does not have{hint}")
    for name in columns:
        if name not in fields:
            raise PipelineError(f"{what}: its Avro schema has no field {name!r}{did_you_mean(name, fields)}")
    prefix = b""
    if avro_wire(sink.options, what) == "confluent":
        number = sink.options.get("avro.schema.id", "")
        if not number.isdecimal():
            raise PipelineError(f"{what} writes avro.wire: confluent, which needs the schema's number: avro.schema.id")
        prefix = confluent_prefix(int(number))
    schema_json = json.dumps(schema)

    def encoder(rows: pa.Array) -> pa.Array:
        return encode_arrow(rows, schema_json, prefix)

    return arrow_udf(encoder, T.BinaryType())(F.expr(whole))  # type: ignore[call-overload, no-any-return]
