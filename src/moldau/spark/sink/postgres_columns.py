"""The columns of rows in a Postgres table: their types, new tables, and whether rows fit an existing table."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql import types as T

from moldau.settings.option_parser import did_you_mean
from moldau.spark.errors import SparkSourceError
from moldau.spark.sink.postgres_connection import PostgresTable
from moldau.spark.sink.postgres_copy import is_json

_TYPES: Mapping[type[T.DataType], tuple[str, ...]] = {
    T.ByteType: ("smallint", "integer", "bigint", "real", "double precision"),
    T.ShortType: ("smallint", "integer", "bigint", "real", "double precision"),
    T.IntegerType: ("integer", "bigint", "double precision"),
    T.LongType: ("bigint",),
    T.FloatType: ("real", "double precision"),
    T.DoubleType: ("double precision",),
    T.BooleanType: ("boolean",),
    T.BinaryType: ("bytea",),
    T.DateType: ("date",),
    T.TimestampType: ("timestamp with time zone",),
    T.TimestampNTZType: ("timestamp without time zone",),
}
"""The Postgres types that hold every value of a Spark type. The first is the type in a new table."""
_WHOLE_DIGITS: Mapping[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}
_JSON_TYPES = ("jsonb", "json")
_TEXT_CATEGORIES = "SEUI"
"""Categories of types to which a text may be written: text, enums, types such as uuid and json, network addresses."""
_NUMERIC = re.compile(r"numeric(?:\((\d+),(-?\d+)\))?")
IDENTIFIER_BYTES_MAX = 63


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of an existing table."""

    name: str
    type: str
    """As `format_type` shows it; for a domain, the type below."""
    category: str
    """`pg_type.typcategory`."""
    must_be_set: bool
    """Whether the column is NOT NULL without a default."""


def postgres_type(kind: T.DataType) -> str | None:
    """Returns the type of a new column for values of this Spark type, or None if there is none."""
    if isinstance(kind, T.DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, T.StringType):
        return "text"
    types = _types(kind)
    return types[0] if types else None


def check_rows(schema: T.StructType) -> None:
    """Raises SparkSourceError for rows that no Postgres table can store."""
    if not schema.fields:
        raise SparkSourceError("a table needs columns, and the rows have none: select at least one")
    for field in schema.fields:
        if schema.names.count(field.name) > 1:
            raise SparkSourceError(f"the column {field.name!r} is duplicated: rename one with AS")
        if not field.name or "\0" in field.name or len(field.name.encode()) > IDENTIFIER_BYTES_MAX:
            raise SparkSourceError(
                f"the column {field.name!r} cannot be a column in Postgres, whose names have 1 to "
                f"{IDENTIFIER_BYTES_MAX} bytes: rename it with AS"
            )
        if postgres_type(field.dataType) is None:
            raise SparkSourceError(
                f"the column {field.name!r} is of type {_spark_type(field.dataType)}, which Postgres does not have: "
                "cast or drop it"
            )


def create_table_statement(target: sql.Identifier, schema: T.StructType, key: Sequence[str]) -> sql.Composed:
    """Returns the statement for a new table. The columns of the key are its primary key."""
    columns: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(str(postgres_type(field.dataType))))
        for field in schema.fields
    ]
    if key:
        columns.append(sql.SQL("primary key ({})").format(identifiers(key)))
    return sql.SQL("create table {} ({})").format(target, sql.SQL(", ").join(columns))


def identifiers(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in names)


def table_columns(connection: psycopg.Connection[Any], table_oid: int) -> list[TableColumn]:
    rows = connection.execute(
        """
        with recursive base (attnum, type, modifier) as (
            select attnum, atttypid, atttypmod from pg_attribute
            where attrelid = %(table)s and attnum > 0 and not attisdropped
            union all
            select base.attnum, t.typbasetype, t.typtypmod from base join pg_type t on t.oid = base.type
            where t.typtype = 'd'
        )
        select a.attname, format_type(base.type, base.modifier), t.typcategory,
               a.attnotnull and not a.atthasdef and a.attidentity = ''
        from pg_attribute a join base using (attnum) join pg_type t on t.oid = base.type
        where a.attrelid = %(table)s and t.typtype <> 'd'
        order by attnum
        """,
        {"table": table_oid},
    )
    return [TableColumn(*row) for row in rows]


def check_rows_fit_table(
    connection: psycopg.Connection[Any],
    table: PostgresTable,
    table_oid: int,
    target: sql.Identifier,
    schema: T.StructType,
    key: Sequence[str],
) -> None:
    """Raises SparkSourceError, with the statement of a table that fits, if the rows do not fit the table."""
    existing = {column.name: column for column in table_columns(connection, table_oid)}
    problems = []
    for field in schema.fields:
        column = existing.get(field.name)
        if column is None:
            problems.append(f"{field.name!r} is not in the table{did_you_mean(field.name, existing)}")
        elif not _fits(field.dataType, column):
            problems.append(f"{field.name!r} is {_spark_type(field.dataType)} here and {column.type} in the table")
    problems += [
        f"{name!r} may not be null in the table and is missing here"
        for name, column in existing.items()
        if column.must_be_set and name not in schema.names
    ]
    statement = create_table_statement(target, schema, key).as_string(connection)
    if problems:
        raise SparkSourceError(
            f"the rows do not fit {table.label}: {'; '.join(problems)}. Select and cast the columns to what the table "
            f"has, or change the table. One that fits: {statement}"
        )
    if key and not _is_unique(connection, table_oid, key):
        names = identifiers(key).as_string(connection)
        raise SparkSourceError(
            f"{table.label} has no unique index on ({names}), which an upsert needs: alter table "
            f"{target.as_string(connection)} add primary key ({names})"
        )


def _fits(kind: T.DataType, column: TableColumn) -> bool:
    if isinstance(kind, T.StringType):
        return column.category in _TEXT_CATEGORIES and column.type != "bytea"
    numeric = _NUMERIC.fullmatch(column.type)
    if numeric is not None:
        scale = kind.scale if isinstance(kind, T.DecimalType) else 0
        whole = kind.precision - scale if isinstance(kind, T.DecimalType) else _WHOLE_DIGITS.get(type(kind))
        if whole is None:
            return False
        return numeric[1] is None or (int(numeric[1]) - int(numeric[2]) >= whole and int(numeric[2]) >= scale)
    return column.type in _types(kind)


def _types(kind: T.DataType) -> tuple[str, ...]:
    return _JSON_TYPES if is_json(kind) else _TYPES.get(type(kind), ())


def _is_unique(connection: psycopg.Connection[Any], table_oid: int, key: Sequence[str]) -> bool:
    row = connection.execute(
        """
        select 1 from pg_index i
        where i.indrelid = %s and i.indisunique and i.indisvalid and i.indimmediate
          and i.indpred is null and i.indexprs is null
          and (
              select array_agg(a.attname::text order by a.attname::text) from pg_attribute a
              where a.attrelid = i.indrelid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])
          ) = (select array_agg(name order by name) from unnest(%s::text[]) name)
        limit 1
        """,
        (table_oid, list(key)),
    ).fetchone()
    return row is not None


def _spark_type(kind: T.DataType) -> str:
    return kind.simpleString().upper()
