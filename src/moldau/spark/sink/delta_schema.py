"""Compatibility of Spark rows with a Delta table.

Delta stores schemas as Spark's JSON, so both schemas are compared in that form. Types are compared without nullability
and comments. Columns of a new table are nullable, as with Spark's streaming writers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moldau.settings.option_parser import suggest_names
from moldau.spark.errors import OptionError, SparkSourceError

_PRIMITIVE_TYPES = (
    *("string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date"),
    *("timestamp", "timestamp_ntz"),
)
_PARTITION_TYPES = ("string", "long", "integer", "short", "byte", "boolean", "date")
_WRITER_CONSTRAINTS = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
_ILLEGAL_NAME_CHARACTERS = " ,;{}()\n\t="


def as_nullable(kind: Any) -> Any:
    """Returns a schema, or a type in it, with all columns nullable and without metadata."""
    if isinstance(kind, list):
        return [as_nullable(each) for each in kind]
    if not isinstance(kind, Mapping):
        return kind
    nullable = {"nullable": True, "containsNull": True, "valueContainsNull": True, "metadata": {}}
    return {name: nullable[name] if name in nullable else as_nullable(each) for name, each in kind.items()}


def type_text(kind: Any) -> str:
    """Formats a type as in SQL."""
    if not isinstance(kind, Mapping):
        return str({"long": "BIGINT", "integer": "INT"}.get(kind, kind)).upper()
    match kind["type"]:
        case "struct":
            inner = ", ".join(f"{each['name']}: {type_text(each['type'])}" for each in kind["fields"])
            return f"STRUCT<{inner}>"
        case "array":
            return f"ARRAY<{type_text(kind['elementType'])}>"
        case "map":
            return f"MAP<{type_text(kind['keyType'])}, {type_text(kind['valueType'])}>"
    return str(kind["type"]).upper()


def check_row_schema(schema: Mapping[str, Any], partition_by: Sequence[str]) -> None:
    """Raises SparkSourceError or OptionError for rows that no Delta table can store."""
    types = {each["name"]: each["type"] for each in schema["fields"]}
    if not types:
        raise SparkSourceError("a table needs columns, and the rows have none: select at least one")
    small = [name.lower() for name in types]
    for name, kind in types.items():
        if small.count(name.lower()) > 1:
            raise SparkSourceError(f"the column {name!r} is duplicated (Delta ignores case): rename one")
        if any(each in name for each in _ILLEGAL_NAME_CHARACTERS):
            raise SparkSourceError(
                f"the name of the column {name!r} contains a space or one of ,;{{}}()=, which "
                "Delta does not allow: rename it with withColumnRenamed or AS"
            )
        if (unknown := _unsupported_type(kind)) is not None:
            raise SparkSourceError(
                f"the column {name!r} is of type {type_text(unknown)}, which Delta does not support: cast or drop it"
            )
    for name in partition_by:
        if name not in types:
            raise OptionError(f"partitionBy names {name!r}, which is not a column{suggest_names(name, types)}")
        if not _can_partition(types[name]):
            raise OptionError(
                f"partitionBy names {name!r}, which is of type {type_text(types[name])}: partition by a string, "
                "a whole number, a boolean or a date"
            )
    if len(set(partition_by)) < len(partition_by):
        raise OptionError(f"partitionBy names a column twice: {', '.join(partition_by)}")
    if len(partition_by) == len(types):
        raise OptionError("partitionBy names all columns: leave out at least one, which is stored in the files")


def _can_partition(kind: Any) -> bool:
    return isinstance(kind, str) and kind in _PARTITION_TYPES


def _unsupported_type(kind: Any) -> Any | None:
    """Returns the part of a type that Delta does not support, or None."""
    if isinstance(kind, str):
        return None if kind in _PRIMITIVE_TYPES or kind.startswith("decimal(") else kind
    match kind["type"]:
        case "struct":
            parts: Iterable[Any] = (each["type"] for each in kind["fields"])
        case "array":
            parts = (kind["elementType"],)
        case "map":
            parts = (kind["keyType"], kind["valueType"])
        case _:
            return kind
    return next((found for found in map(_unsupported_type, parts) if found is not None), None)


def check_rows_fit_table(
    schema: Mapping[str, Any],
    partition_by: Sequence[str],
    table_schema: Mapping[str, Any],
    table_partition_by: Sequence[str],
    configuration: Mapping[str, Any],
    path: str,
) -> None:
    """Raises SparkSourceError or OptionError if the rows do not fit the table or its features are not supported."""
    _check_writer_features(table_schema, configuration, path)
    rows = {each["name"]: each for each in schema["fields"]}
    table = {each["name"]: each for each in table_schema["fields"]}
    problems = []
    for name, field in rows.items():
        if name not in table:
            problems.append(f"{name} ({type_text(field['type'])}) is not in the table")
        elif as_nullable(field["type"]) != as_nullable(table[name]["type"]):
            problems.append(
                f"{name} is {type_text(field['type'])} here and {type_text(table[name]['type'])} in the table"
            )
    problems += [
        f"{name} may not be null in the table and is missing here"
        for name, field in table.items()
        if name not in rows and not field["nullable"]
    ]
    if problems:
        raise SparkSourceError(
            f"the rows do not fit the Delta table {path}: {'; '.join(problems)}. Select and cast the columns "
            "to what the table has, or write to another path"
        )
    if partition_by and list(partition_by) != list(table_partition_by):
        has = f"by {', '.join(table_partition_by)}" if table_partition_by else "not at all"
        raise OptionError(
            f"the Delta table {path} is partitioned {has}, but partitionBy is "
            f"{', '.join(partition_by)}: leave partitionBy out, or write to another path"
        )
    for name in table_partition_by:
        if name not in rows:
            raise SparkSourceError(
                f"the Delta table {path} is partitioned by {name}, which the rows do not have: select it too"
            )
        if not _can_partition(table[name]["type"]):
            raise SparkSourceError(
                f"the Delta table {path} is partitioned by {name} of type {type_text(table[name]['type'])}, which "
                "is not written here: append with Delta's own Spark package, or write to another path"
            )


def _check_writer_features(table_schema: Mapping[str, Any], configuration: Mapping[str, Any], path: str) -> None:
    reasons = [
        f"the constraint {name.removeprefix('delta.constraints.')!r}"
        for name in configuration
        if name.startswith("delta.constraints.")
    ]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        reasons.append("column mapping")
    for field in table_schema["fields"]:
        reasons += [
            f"{each} of the column {field['name']!r}" for each in _WRITER_CONSTRAINTS if each in field["metadata"]
        ]
    if reasons:
        raise SparkSourceError(
            f"the Delta table {path} has {', '.join(reasons)}, which this writer does not support: drop that from the "
            "table, or append with Delta's own Spark package"
        )
