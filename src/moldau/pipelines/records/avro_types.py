"""Mapping of Avro schemas to Spark types."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import types as T

from moldau.pipelines.definition import PipelineError

_PRIMITIVES: dict[str, T.DataType] = {
    "null": T.NullType(),
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "bytes": T.BinaryType(),
    "string": T.StringType(),
}
_LOGICAL: dict[str, T.DataType] = {
    "date": T.DateType(),
    "timestamp-millis": T.TimestampType(),
    "timestamp-micros": T.TimestampType(),
    "local-timestamp-millis": T.TimestampNTZType(),
    "local-timestamp-micros": T.TimestampNTZType(),
}
_WIDENED = ({"int", "long"}, "long"), ({"float", "double"}, "double"), ({"int", "double"}, "double")


def spark_schema(schema: str, what: str) -> T.StructType:
    """Returns the columns of a record schema. Raises PipelineError; `what` names the schema's owner in the message."""
    parsed = parsed_schema(schema, what)
    found = _type_of(parsed, {}, what)
    if not isinstance(found, T.StructType):
        raise PipelineError(f"the Avro schema of {what} is not a record")
    return found


def parsed_schema(schema: str, what: str) -> Any:
    """Returns the schema as parsed JSON, after validation. Raises PipelineError."""
    import fastavro

    try:
        plain = json.loads(schema)
        fastavro.parse_schema(plain)
    except ValueError as error:
        raise PipelineError(f"the Avro schema of {what} is not JSON: {error}") from None
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, KeyError, TypeError) as error:
        raise PipelineError(f"the Avro schema of {what} is not valid: {error}") from None
    return plain


def without_unsupported_logical_types(schema: Any) -> Any:
    """Returns the schema without logical types that Spark does not have, so that the underlying values are read."""
    if isinstance(schema, list):
        return [without_unsupported_logical_types(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    changed = {
        key: without_unsupported_logical_types(value) if key in ("type", "items", "values") else value
        for key, value in schema.items()
    }
    if "fields" in changed:
        changed["fields"] = [
            {**field, "type": without_unsupported_logical_types(field["type"])} for field in changed["fields"]
        ]
    if changed.get("logicalType") not in (*_LOGICAL, "decimal"):
        changed.pop("logicalType", None)
    return changed


def _type_of(schema: Any, named: dict[str, Any], what: str) -> T.DataType:
    if isinstance(schema, list):
        return _union(schema, named, what)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        found = named.get(schema) or named.get(schema.rpartition(".")[2])
        if found is None:
            raise PipelineError(f"the Avro schema of {what} is recursive at {schema!r}, which Spark does not support")
        return found  # type: ignore[no-any-return]
    kind = schema["type"]
    logical = schema.get("logicalType")
    if logical == "decimal":
        return T.DecimalType(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        fields = [T.StructField(each["name"], _type_of(each["type"], named, what)) for each in schema["fields"]]
        return _register_named(schema, T.StructType(fields), named)
    if kind == "enum":
        return _register_named(schema, T.StringType(), named)
    if kind == "fixed":
        return _register_named(schema, T.BinaryType(), named)
    if kind == "array":
        return T.ArrayType(_type_of(schema["items"], named, what))
    if kind == "map":
        return T.MapType(T.StringType(), _type_of(schema["values"], named, what))
    return _type_of(kind, named, what)


def _register_named(schema: Mapping[str, Any], found: T.DataType, named: dict[str, Any]) -> T.DataType:
    named[schema["name"].rpartition(".")[2]] = found
    return found


def _union(schema: list[Any], named: dict[str, Any], what: str) -> T.DataType:
    members_without_null = [each for each in schema if each != "null"]
    if not members_without_null:
        return T.NullType()
    if len(members_without_null) == 1:
        return _type_of(members_without_null[0], named, what)
    for members, wider in _WIDENED:
        if all(isinstance(each, str) and each in members for each in members_without_null):
            return _PRIMITIVES[wider]
    raise PipelineError(
        f"the Avro schema of {what} has a union of {len(members_without_null)} types, but a Spark column has one"
    )
