"""Upserts into a Delta table for `foreachBatch`. The rows of a batch replace or delete table rows with the same key.

    query = frame.writeStream.foreachBatch(
        lambda batch, batch_id: upsert(batch, batch_id, path, "orders", key=["id"], order_by=["time"])
    )

Spark finds the last row of each key. The driver collects these rows and merges them in one commit with (app_id,
batch_id), so that a repeated batch is skipped. A batch must fit into the driver's memory; the source's
maxOffsetsPerTrigger limits the size of a batch. `order_by` applies within a batch; later batches override earlier ones.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from moldau.settings.option_parser import suggest_names
from moldau.spark.errors import OptionError, SparkSourceError
from moldau.spark.sink.delta_commits import (
    batch_commit_properties,
    check_table_schema,
    detect_landed_commit,
    is_batch_committed,
    retry_commit,
)
from moldau.spark.sink.delta_options import Location, locate
from moldau.spark.sink.delta_schema import as_nullable, check_row_schema

_DELETES_COLUMN = "__moldau_deletes"
_RANK_COLUMN = "__moldau_rank"


def upsert(
    frame: DataFrame,
    batch_id: int,
    path: str,
    app_id: str,
    key: Sequence[str],
    order_by: Sequence[str] = (),
    delete_when: str | None = None,
    *,
    partition_by: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    leave_out: Sequence[str] = (),
) -> bool:
    """Merges the rows of a batch into the table, which is created if needed. Returns False for a repeated batch.

    A row replaces the whole table row with the same key. Table columns that the new row lacks become null. If several
    rows have the same key, the last row by `order_by` is used. Without `order_by`, keys must be unique.

    `delete_when` is an SQL condition. A row for which it is true deletes the table row with the same key. Columns in
    `leave_out` are not stored; they can be used in `order_by` and `delete_when`. A query with a new checkpoint needs
    another `app_id`, because the batch numbers start at 0 again.
    """
    schema = _check_columns(frame.schema, key, order_by, partition_by, leave_out)
    location = locate(path, storage_options)
    rows: pa.Table | None = None

    def attempt(table: DeltaTable | None) -> bool:
        nonlocal rows
        if is_batch_committed(table, app_id, batch_id):
            return False
        if table is not None:
            check_table_schema(table, schema, partition_by, location)
        if rows is None:
            rows = _last_rows(frame, schema, key, order_by, delete_when, leave_out)
        with detect_landed_commit(
            location, lambda now: now.transaction_version(app_id) == batch_id, creates_table=table is None
        ):
            if table is None:
                _create(location, rows, partition_by, app_id, batch_id)
            else:
                _merge(table, rows, key, app_id, batch_id)
        return True

    return retry_commit(location, attempt)


def _check_columns(
    schema: StructType,
    key: Sequence[str],
    order_by: Sequence[str],
    partition_by: Sequence[str],
    leave_out: Sequence[str],
) -> dict[str, Any]:
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
    kept_schema = StructType([field for field in schema.fields if field.name not in leave_out])
    found: dict[str, Any] = as_nullable(json.loads(kept_schema.json()))
    check_row_schema(found, partition_by)
    return found


def _last_rows(
    frame: DataFrame,
    schema: dict[str, Any],
    key: Sequence[str],
    order_by: Sequence[str],
    delete_when: str | None,
    leave_out: Sequence[str],
) -> pa.Table:
    """Returns the last row of each key, with a column that marks deletions."""
    deletes: Column = F.lit(False) if delete_when is None else F.coalesce(F.expr(delete_when), F.lit(False))
    marked = frame.withColumn(_DELETES_COLUMN, deletes)
    order = [F.col(_quote(name)).desc_nulls_last() for name in order_by] or [F.lit(0)]
    window = Window.partitionBy(*[F.col(_quote(name)) for name in key]).orderBy(*order)
    ranked = marked.withColumn(_RANK_COLUMN, F.row_number().over(window))
    # Without `order_by`, keep the second row of a key too, so that a repeated key is detected below.
    ranked = ranked.where(F.col(_RANK_COLUMN) == 1 if order_by else F.col(_RANK_COLUMN) <= 2)
    rows = ranked.drop(*leave_out).toArrow()
    for name in key:
        if rows[name].null_count:
            raise SparkSourceError(
                f"{rows[name].null_count} rows have no {name!r}, which is part of the key: filter them out "
                f"(WHERE {name} IS NOT NULL)"
            )
    if not order_by and (pc.max(rows[_RANK_COLUMN]).as_py() or 1) > 1:
        raise SparkSourceError(
            f"a key ({', '.join(key)}) occurs more than once in a batch: set order_by to find its last row"
        )
    expected = to_arrow_schema(StructType.fromJson(schema), timezone="UTC").append(
        pa.field(_DELETES_COLUMN, pa.bool_())
    )
    return rows.drop_columns([_RANK_COLUMN]).cast(expected)


def _create(location: Location, rows: pa.Table, partition_by: Sequence[str], app_id: str, batch_id: int) -> None:
    kept_rows = rows.filter(pc.invert(rows[_DELETES_COLUMN])).drop_columns([_DELETES_COLUMN])
    write_deltalake(
        location.path,
        kept_rows,
        mode="error",
        partition_by=list(partition_by) or None,
        storage_options=location.options,
        commit_properties=batch_commit_properties(app_id, batch_id, creates_table=True),
    )


def _merge(table: DeltaTable, rows: pa.Table, key: Sequence[str], app_id: str, batch_id: int) -> None:
    columns = {_quote(name): f"source.{_quote(name)}" for name in rows.column_names if name != _DELETES_COLUMN}
    # Set a table column to null if the rows lack it, because a new row replaces the old row completely.
    missing = {_quote(field.name): "NULL" for field in table.schema().fields if field.name not in rows.column_names}
    (
        table.merge(
            rows,
            predicate=" AND ".join(f"target.{_quote(name)} = source.{_quote(name)}" for name in key),
            source_alias="source",
            target_alias="target",
            commit_properties=batch_commit_properties(app_id, batch_id),
        )
        .when_matched_delete(f"source.{_quote(_DELETES_COLUMN)}")
        .when_matched_update({**columns, **missing})
        .when_not_matched_insert(columns, f"NOT source.{_quote(_DELETES_COLUMN)}")
        .execute()
    )


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
