"""Delta statistics of a file, from its Parquet footer: row counts, null counts and the bounds of columns.

Readers skip files by their bounds. Bounds are written for all columns or for none, because some readers assume that a
column without bounds has no values. Files with NaN, infinity, years after 9999 or very many columns have no bounds.
"""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COLUMNS_MAX = 100
"""Files with more columns have no bounds, because the bounds would inflate the table's log, which all readers load."""
_TEXT_MAX = 64
_LAST_CHARACTER = "\U0010ffff"
_ORDERED_TYPES = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date,
    pa.types.is_timestamp,
)


class _UnboundedError(Exception):
    """A column has a value for which no bound can be written."""


def has_bounds(rows: pa.Table) -> bool:
    """Returns whether all floating-point values are finite, so that the bounds in a footer are valid."""
    return all(
        pc.all(pc.is_finite(rows[field.name])).as_py() is not False
        for field in rows.schema
        if pa.types.is_floating(field.type)
    )


def file_stats(metadata: pq.FileMetaData, schema: pa.Schema, *, bounded: bool) -> dict[str, Any]:
    """Returns the statistics for the Delta log. `bounded` is the result of `has_bounds` for all rows of the file."""
    column_numbers = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    parts = {
        field.name: [
            metadata.row_group(number).column(column_numbers[field.name]).statistics
            for number in range(metadata.num_row_groups)
        ]
        for field in schema
        if not pa.types.is_nested(field.type)
    }
    nulls = {
        name: sum(each.null_count for each in statistics)
        for name, statistics in parts.items()
        if all(each is not None and each.has_null_count for each in statistics)
    }
    stats: dict[str, Any] = {"numRecords": metadata.num_rows, "nullCount": nulls}
    if not bounded or len(schema) > COLUMNS_MAX:
        return stats
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    try:
        for field in schema:
            if any(is_kind(field.type) for is_kind in _ORDERED_TYPES) and nulls.get(field.name) != metadata.num_rows:
                lower, upper = _bounds(parts[field.name])
                least[field.name] = _stat_value(lower, field.type, is_upper=False)
                greatest[field.name] = _stat_value(upper, field.type, is_upper=True)
    except _UnboundedError:
        return stats
    return {**stats, "minValues": least, "maxValues": greatest}


def _bounds(parts: list[Any]) -> tuple[Any, Any]:
    filled = [each for each in parts if each is None or each.num_values]
    if not all(each is not None and each.has_min_max for each in filled):
        raise _UnboundedError
    try:
        return min(each.min for each in filled), max(each.max for each in filled)
    except OverflowError:
        # Python cannot represent a time or date outside the years 1 to 9999.
        raise _UnboundedError from None


def _stat_value(value: Any, kind: pa.DataType, *, is_upper: bool) -> Any:
    if isinstance(value, str):
        if len(value) <= _TEXT_MAX or not is_upper:
            return value[:_TEXT_MAX]
        if value[_TEXT_MAX] == _LAST_CHARACTER:
            raise _UnboundedError
        return value[:_TEXT_MAX] + _LAST_CHARACTER
    if isinstance(value, Decimal):
        number = float(value)
        if Decimal(repr(number)) != value:
            raise _UnboundedError
        return number
    if isinstance(value, datetime):
        if kind.tz is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    return value
