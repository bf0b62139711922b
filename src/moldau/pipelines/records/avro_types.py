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
"""The wider type for unions of numbers."""


def spark_schema(schema: str, what: str) -> T.StructType:
    """Returns the columns of a record schema. Raises PipelineError; `what` names the schema's owner in the message."""
    named: dict[str, T.DataType] = {}

    def convert(part: Any) -> T.DataType:
        if isinstance(part, list):
            return convert_union([each for each in part if each != "null"])
        if isinstance(part, str):
            found = _PRIMITIVES.get(part) or named.get(part.rpartition(".")[2])
            if found is None:
                raise PipelineError(f"the Avro schema of {what} is recursive at {part!r}, which Spark does not support")
            return found
        logical = part.get("logicalType")
        if logical == "decimal":
            return T.DecimalType(part["precision"], part.get("scale", 0))
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        match part["type"]:
            case "array":
                return T.ArrayType(convert(part["items"]))
            case "map":
                return T.MapType(T.StringType(), convert(part["values"]))
            case "record":
                found = T.StructType([T.StructField(each["name"], convert(each["type"])) for each in part["fields"]])
            case "enum":
                found = T.StringType()
            case "fixed":
                found = T.BinaryType()
            case kind:
                return convert(kind)
        named[part["name"].rpartition(".")[2]] = found
        return found

    def convert_union(types: list[Any]) -> T.DataType:
        if len(types) <= 1:
            return convert(types[0]) if types else T.NullType()
        for members, wider in _WIDENED:
            if all(isinstance(each, str) and each in members for each in types):
                return _PRIMITIVES[wider]
        raise PipelineError(f"the Avro schema of {what} has a union of {len(types)} types, but a Spark column has one")

    columns = convert(parsed_schema(schema, what))
    if not isinstance(columns, T.StructType):
        raise PipelineError(f"the Avro schema of {what} is not a record")
    return columns


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
