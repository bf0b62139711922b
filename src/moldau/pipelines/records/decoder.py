"""Decoder of records to columns: the columns of the value, the metadata, and the reason why a record is bad.

Spark expressions decode JSON, and a library in Spark's Python workers decodes Avro. Each record is parsed only once.
"""

import json
import secrets
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from moldau.pipelines.definition import Format, PipelineError, Source
from moldau.pipelines.error_summary import summarize_error
from moldau.pipelines.records.avro_types import spark_schema, without_unsupported_logical_types
from moldau.pipelines.records.columns import (
    BAD,
    IS_BAD,
    MALFORMED,
    METADATA,
    RAW_HEADERS,
    RAW_KEY,
    RAW_VALUE,
    SCHEMA_MISMATCH,
)
from moldau.pipelines.records.sql_text import cases, literal, quoted, struct
from moldau.spark.source import columns

_POSITION = ("_topic", "_partition", "_offset", "_timestamp")
_PARSED, _CORRUPT = "__parsed", "__corrupt"
_SHOWN_MAX = 60
"""The maximum length of values in messages."""


def raw_schema() -> T.StructType:
    """Returns the schema of the data source with the option `includeHeaders`."""
    return columns.schema(include_headers=True)


def value_schema(source: Source, inferred: T.StructType | None = None) -> T.StructType:
    """Returns the columns of a source's values. Raises PipelineError."""
    what = f"the source {source.name}"
    if source.format in (Format.BYTES, Format.STRING):
        kind = T.BinaryType() if source.format is Format.BYTES else T.StringType()
        schema = T.StructType([T.StructField("value", kind)])
    elif source.format is Format.AVRO:
        schema = spark_schema(source.schema or "", what)
    elif source.schema is not None:
        schema = _parse_ddl(source.schema, what)
    elif inferred is not None:
        schema = inferred
    else:
        raise PipelineError(f"{what} has no schema, and none was inferred: set schema: name TYPE, …")
    reserved = [name for name in schema.names if name in METADATA or name.startswith("__")]
    if reserved:
        raise PipelineError(f"{what} has a column {reserved[0]!r}: names with __ and {', '.join(METADATA)} are taken")
    return schema


def _parse_ddl(ddl: str, what: str) -> T.StructType:
    try:
        found = T.StructType.fromDDL(ddl)
    except Exception as error:
        raise PipelineError(
            f"the schema of {what} is not name TYPE, name TYPE, … in Spark's types: {summarize_error(error)}"
        ) from None
    if not isinstance(found, T.StructType):
        raise PipelineError(f"the schema of {what} is one type: write name TYPE, name TYPE, …")
    return found


def decode_records(frame: DataFrame, source: Source, schema: T.StructType) -> DataFrame:
    """Returns the columns of `schema`, the metadata and the internal columns."""
    raw = frame.selectExpr(
        f"key AS {RAW_KEY}",
        f"value AS {RAW_VALUE}",
        f"headers AS {RAW_HEADERS}",
        *[f"{name.removeprefix('_')} AS {name}" for name in _POSITION],
    )
    if source.format is Format.JSON:
        raw, fields, is_bad, bad = _json(raw, schema)
    elif source.format is Format.AVRO:
        raw, fields, is_bad, bad = _avro(raw, source, schema)
    else:
        fields, is_bad, bad = _plain(source.format)
    return raw.selectExpr(
        *fields,
        f"CAST({RAW_KEY} AS STRING) AS _key" if source.key_format is Format.STRING else f"{RAW_KEY} AS _key",
        *_POSITION,
        f"{RAW_HEADERS} AS _headers",
        f"{RAW_VALUE} IS NULL AS _deleted",
        RAW_KEY,
        RAW_VALUE,
        RAW_HEADERS,
        f"{is_bad} AS {IS_BAD}",
        f"CAST({bad} AS STRUCT<reason: STRING, detail: STRING>) AS {BAD}",
    )


def failure_struct(reason: str, detail: str) -> str:
    """Returns SQL for the value of the column BAD. `detail` is an SQL expression."""
    return struct(reason=literal(reason), detail=detail)


_TEXT = f"CAST({RAW_VALUE} AS STRING)"
_IS_TEXT = f"coalesce(is_valid_utf8({_TEXT}), true)"
"""SQL for whether the value is valid UTF-8. It is true for tombstones, which have no value."""


def _plain(kind: Format) -> tuple[list[str], str, str]:
    if kind is Format.BYTES:
        return [f"{RAW_VALUE} AS value"], "false", "NULL"
    return [f"{_TEXT} AS value"], f"NOT {_IS_TEXT}", failure_struct(MALFORMED, literal("the value is not UTF-8"))


# Spark parses a valid prefix of a text and ignores the rest. To detect a rest, a value is parsed as the first element
# of a list whose second element is a marker. Spark finds the marker there only if the value is one complete JSON value.
# The marker is random per process, so that no record contains it.
_MARK = f"m{secrets.token_hex(6)}"
_WRAPPED = f"""concat('{{"{_MARK}":[', {_TEXT}, ',{{"{_MARK}":""}}]}}')"""
_VALUE, _END = f"get({_PARSED}.{_MARK}, 0)", f"get({_PARSED}.{_MARK}, 1).{_MARK}"
_JSON_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false"}


def _json(raw: DataFrame, schema: T.StructType) -> tuple[DataFrame, list[str], str, str]:
    marked = T.StructType([*schema.fields, T.StructField(_MARK, T.StringType())])
    outer = T.StructType([T.StructField(_MARK, T.ArrayType(marked)), T.StructField(_CORRUPT, T.StringType())])
    parsed = F.from_json(F.expr(_WRAPPED), outer, _JSON_OPTIONS)
    # Use `explode`, because the optimizer does not push filters through it. A pushed filter would parse the text again.
    raw = raw.select("*", F.explode(F.array(parsed)).alias(_PARSED))
    is_no_json = f"({_PARSED}.{_CORRUPT} IS NOT NULL OR {_VALUE} IS NULL OR {_END} IS NULL)"
    is_bad = f"{RAW_VALUE} IS NOT NULL AND ({is_no_json} OR NOT {_IS_TEXT})"
    no_text = failure_struct(MALFORMED, literal("the value is not UTF-8, as JSON must be"))
    bad = cases((f"NOT {_IS_TEXT}", no_text), otherwise=_json_failure(schema))
    return raw, _fields(schema, _VALUE), is_bad, bad


def _fields(schema: T.StructType, value: str) -> list[str]:
    return [f"{value}.{quoted(name)} AS {quoted(name)}" for name in schema.names]


def _json_failure(schema: T.StructType) -> str:
    """Returns SQL for the column BAD. It parses a bad record again to find the fields that do not match the schema."""
    mismatches = []
    for field in schema.fields:
        text = f"get(given, 0)[{literal(field.name)}]"
        expected = literal(f"{field.name} is {field.dataType.simpleString().upper()}, not ")
        is_mismatch = f"{text} IS NOT NULL AND {_VALUE}.{quoted(field.name)} IS NULL"
        mismatches.append(cases((is_mismatch, f"concat({expected}, left({text}, {_SHOWN_MAX}))")))
    nested = T.StructType | T.ArrayType | T.MapType
    inside = ", ".join(field.name for field in schema.fields if isinstance(field.dataType, nested))
    elsewhere = f"a field {f'inside {inside} ' if inside else ''}does not fit the schema"
    detail = f"coalesce(nullif(concat_ws('; ', {', '.join(mismatches)}), ''), {literal(elsewhere)})"
    is_no_object = f"get(given, 0) IS NULL OR get(given, 1)[{literal(_MARK)}] IS NULL"
    failure = cases(
        (is_no_object, failure_struct(MALFORMED, literal("the value is not a JSON object"))),
        otherwise=failure_struct(SCHEMA_MISMATCH, detail),
    )
    options = ", ".join(f"{literal(key)}, {literal(value)}" for key, value in _JSON_OPTIONS.items())
    fields = f"{_MARK} ARRAY<MAP<STRING, STRING>>, {_CORRUPT} STRING"
    given = f"from_json({_WRAPPED}, {literal(fields)}, map({options})).{_MARK}"
    # `transform` binds the parsed record to the name `given`, so that the record is parsed only once for all fields.
    return f"element_at(transform(array({given}), given -> {failure}), 1)"


def _avro(raw: DataFrame, source: Source, schema: T.StructType) -> tuple[DataFrame, list[str], str, str]:
    raw = raw.select("*", _avro_decoder(source, schema)(F.col(RAW_VALUE)).alias(_PARSED))
    failure = f"concat('the value does not match its Avro schema: ', {_PARSED}.error)"
    return raw, _fields(schema, f"{_PARSED}.v"), f"{_PARSED}.error IS NOT NULL", failure_struct(MALFORMED, failure)


def _avro_decoder(source: Source, schema: T.StructType) -> Any:
    from pyspark.sql.pandas.types import to_arrow_type

    from moldau.pipelines.records.avro_codec import decode_arrow

    plain = json.dumps(without_unsupported_logical_types(json.loads(source.schema or "")))
    wire = avro_wire(source.options, f"the source {source.name}")
    arrow_type = to_arrow_type(schema, timezone="UTC")
    result = T.StructType([T.StructField("v", schema), T.StructField("error", T.StringType())])

    def decoder(values: pa.Array) -> pa.Array:
        return decode_arrow(values, plain, wire, arrow_type)

    # Mark the decoder as nondeterministic. Otherwise the optimizer calls it again for each filter on its result.
    return arrow_udf(decoder, result).asNondeterministic()  # type: ignore[call-overload]


def avro_wire(options: Mapping[str, str], what: str) -> str:
    wire = options.get("avro.wire", "binary")
    if wire not in ("binary", "confluent"):
        raise PipelineError(f"avro.wire of {what} is binary or confluent, not {wire!r}")
    return wire
