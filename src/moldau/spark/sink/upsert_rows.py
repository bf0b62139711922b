"""The rows of an upsert: the last row of each key in a micro-batch, found by Spark."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from moldau.settings.option_parser import suggest_names
from moldau.spark.errors import OptionError

DELETES_COLUMN = "__moldau_deletes"
"""Whether the row deletes the row with its key."""
RANK_COLUMN = "__moldau_rank"
"""1 for the last row of a key. A 2 appears only without `order_by`, for a key that occurs more than once. With
`numbers_rows`, a number that grows with `order_by` over all keys."""


def check_upsert_columns(
    schema: StructType, key: Sequence[str], order_by: Sequence[str], leave_out: Sequence[str]
) -> None:
    """Raises OptionError if `key` or `order_by` name columns that do not exist or are not stored."""
    if not key:
        raise OptionError("an upsert needs the columns that identify a row: set key=[…]")
    for what, names in (("key", key), ("order_by", order_by)):
        for name in names:
            if name not in schema.names:
                raise OptionError(f"{what} names {name!r}, which is not a column{suggest_names(name, schema.names)}")
    for name in key:
        if name in leave_out:
            raise OptionError(
                f"key names {name!r}, which leave_out removes from the table: keep it, or choose another key"
            )


def last_rows(
    frame: DataFrame,
    key: Sequence[str],
    order_by: Sequence[str],
    delete_when: str | None,
    leave_out: Sequence[str],
    *,
    numbers_rows: bool = False,
) -> DataFrame:
    """Returns the last row of each key with the columns `DELETES_COLUMN` and `RANK_COLUMN`, without `leave_out`.

    Without `order_by` the second row of a key is returned too, so that the caller can detect a repeated key.
    `numbers_rows` is for tables in which keys can be equal that differ in Spark.
    """
    deletes: Column = F.lit(False) if delete_when is None else F.coalesce(F.expr(delete_when), F.lit(False))
    marked = frame.withColumn(DELETES_COLUMN, deletes)
    order = [F.col(quote_column(name)).desc_nulls_last() for name in order_by] or [F.lit(0)]
    window = Window.partitionBy(*[F.col(quote_column(name)) for name in key]).orderBy(*order)
    ranked = marked.withColumn(RANK_COLUMN, F.row_number().over(window))
    ranked = ranked.where(F.col(RANK_COLUMN) == 1 if order_by else F.col(RANK_COLUMN) <= 2)
    if numbers_rows and order_by:
        ordered = ranked.sort(*[F.col(quote_column(name)).asc_nulls_first() for name in order_by])
        ranked = ordered.withColumn(RANK_COLUMN, F.monotonically_increasing_id())
    return ranked.drop(*leave_out)


def null_key_message(count: int, name: str) -> str:
    return f"{count} rows have no {name!r}, which is part of the key: filter them out (WHERE {name} IS NOT NULL)"


def repeated_key_message(key: Sequence[str]) -> str:
    return f"a key ({', '.join(key)}) occurs more than once in a batch: set order_by to find its last row"


def quote_column(name: str) -> str:
    """Quotes a column name for Spark."""
    return "`" + name.replace("`", "``") + "`"
