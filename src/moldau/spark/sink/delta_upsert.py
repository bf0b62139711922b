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
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from moldau.spark.errors import SparkSourceError
from moldau.spark.sink.delta_commits import (
    batch_commit_properties,
    check_table_schema,
    detect_landed_commit,
    is_batch_committed,
    retry_commit,
)
from moldau.spark.sink.delta_options import Location, locate
from moldau.spark.sink.delta_schema import as_nullable, check_row_schema
from moldau.spark.sink.upsert_rows import (
    DELETES_COLUMN,
    RANK_COLUMN,
    check_upsert_columns,
    last_rows,
    null_key_message,
    quote_column,
    repeated_key_message,
)


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
            rows = _collect_last_rows(frame, schema, key, order_by, delete_when, leave_out)
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
    check_upsert_columns(schema, key, order_by, leave_out)
    kept_schema = StructType([field for field in schema.fields if field.name not in leave_out])
    found: dict[str, Any] = as_nullable(json.loads(kept_schema.json()))
    check_row_schema(found, partition_by)
    return found


def _collect_last_rows(
    frame: DataFrame,
    schema: dict[str, Any],
    key: Sequence[str],
    order_by: Sequence[str],
    delete_when: str | None,
    leave_out: Sequence[str],
) -> pa.Table:
    """Returns the last row of each key, with a column that marks deletions."""
    rows = last_rows(frame, key, order_by, delete_when, leave_out).toArrow()
    for name in key:
        if rows[name].null_count:
            raise SparkSourceError(null_key_message(rows[name].null_count, name))
    if not order_by and (pc.max(rows[RANK_COLUMN]).as_py() or 1) > 1:
        raise SparkSourceError(repeated_key_message(key))
    expected = to_arrow_schema(StructType.fromJson(schema), timezone="UTC").append(pa.field(DELETES_COLUMN, pa.bool_()))
    return rows.drop_columns([RANK_COLUMN]).cast(expected)


def _create(location: Location, rows: pa.Table, partition_by: Sequence[str], app_id: str, batch_id: int) -> None:
    kept_rows = rows.filter(pc.invert(rows[DELETES_COLUMN])).drop_columns([DELETES_COLUMN])
    write_deltalake(
        location.path,
        kept_rows,
        mode="error",
        partition_by=list(partition_by) or None,
        storage_options=location.options,
        commit_properties=batch_commit_properties(app_id, batch_id, creates_table=True),
    )


def _merge(table: DeltaTable, rows: pa.Table, key: Sequence[str], app_id: str, batch_id: int) -> None:
    columns = {
        quote_column(name): f"source.{quote_column(name)}" for name in rows.column_names if name != DELETES_COLUMN
    }
    # Set a table column to null if the rows lack it, because a new row replaces the old row completely.
    missing = {
        quote_column(field.name): "NULL" for field in table.schema().fields if field.name not in rows.column_names
    }
    (
        table.merge(
            rows,
            predicate=" AND ".join(f"target.{quote_column(name)} = source.{quote_column(name)}" for name in key),
            source_alias="source",
            target_alias="target",
            commit_properties=batch_commit_properties(app_id, batch_id),
        )
        .when_matched_delete(f"source.{quote_column(DELETES_COLUMN)}")
        .when_matched_update({**columns, **missing})
        .when_not_matched_insert(columns, f"NOT source.{quote_column(DELETES_COLUMN)}")
        .execute()
    )
