"""Upserts into a Delta table, for `foreachBatch`: the rows of a batch replace those with the same key, or remove them.

    query = frame.writeStream.foreachBatch(
        lambda batch, batch_id: upsert(batch, batch_id, path, "orders", key=["id"], order_by=["time"])
    )

Spark finds the last row of each key; the driver fetches these rows and merges them with the library deltalake in one
commit, which carries (app_id, batch_id): a batch that the table has already is left out. So a batch must fit into the
driver's memory; the source's maxOffsetsPerTrigger bounds it. Which of two rows is the last is asked within a batch; a
later batch goes over an earlier one.
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

from moldau.settings.values import nearest
from moldau.spark.errors import OptionError, SparkSourceError
from moldau.spark.sink.delta_commits import (
    attempted,
    check_fits,
    committing,
    is_done,
    properties,
)
from moldau.spark.sink.delta_options import Location, locate
from moldau.spark.sink.delta_schema import check_frame, nullable
from moldau.spark.sink.options import there_are

_DELETES = "__moldau_deletes"
_RANK = "__moldau_rank"


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
    """Merges the rows of a batch into the table, which the first batch makes. False: it was merged before.

    A row replaces all of the one with its key: columns of the table that the rows do not have become null in it.
    Of several rows with one key the last by `order_by` counts; without `order_by` a key may be there once only.
    `delete_when` is SQL over the columns: rows for which it is true remove their key. The columns in `leave_out` are
    there for these two only: they are no part of the table. A query that begins anew, with another checkpoint, needs
    another `app_id`: its batches count from 0 again.
    """
    schema = _checked(frame.schema, key, order_by, partition_by, leave_out)
    location = locate(path, storage_options)
    rows: pa.Table | None = None

    def attempt(table: DeltaTable | None) -> bool:
        nonlocal rows
        if is_done(table, app_id, batch_id):
            return False
        if table is not None:
            check_fits(table, schema, partition_by, location)
        if rows is None:
            rows = _last_rows(frame, schema, key, order_by, delete_when, leave_out)
        with committing(
            location, lambda now: now.transaction_version(app_id) == batch_id, makes_table=table is None
        ):
            if table is None:
                _create(location, rows, partition_by, app_id, batch_id)
            else:
                _merge(table, rows, key, app_id, batch_id)
        return True

    return attempted(location, attempt)


def _checked(
    schema: StructType,
    key: Sequence[str],
    order_by: Sequence[str],
    partition_by: Sequence[str],
    leave_out: Sequence[str],
) -> dict[str, Any]:
    if not key:
        raise OptionError("an upsert needs the columns that identify a row: give key=[…]")
    for what, names in (("key", key), ("order_by", order_by)):
        for name in names:
            if name not in schema.names:
                raise OptionError(
                    f"{what} names {name!r}, which is no column{nearest(name, schema.names) or there_are(schema.names)}"
                )
    for name in key:
        if name in leave_out:
            raise OptionError(
                f"key names {name!r}, which is left out of the table: keep it, or name another key"
            )
    kept = StructType([field for field in schema.fields if field.name not in leave_out])
    found = nullable(json.loads(kept.json()))
    check_frame(found, partition_by)
    return found


def _last_rows(
    frame: DataFrame,
    schema: dict[str, Any],
    key: Sequence[str],
    order_by: Sequence[str],
    delete_when: str | None,
    leave_out: Sequence[str],
) -> pa.Table:
    """The rows that count, in the columns of the schema and one that says whether they delete."""
    deletes: Column = F.lit(False) if delete_when is None else F.coalesce(F.expr(delete_when), F.lit(False))
    marked = frame.withColumn(_DELETES, deletes)
    # Ranked by their order, or, where there is none, so that a second row of a key shows.
    order = [F.col(_quoted(name)).desc_nulls_last() for name in order_by] or [F.lit(0)]
    window = Window.partitionBy(*[F.col(_quoted(name)) for name in key]).orderBy(*order)
    ranked = marked.withColumn(_RANK, F.row_number().over(window))
    ranked = ranked.where(F.col(_RANK) == 1 if order_by else F.col(_RANK) <= 2)
    rows = ranked.drop(*leave_out).toArrow()
    for name in key:
        if rows[name].null_count:
            raise SparkSourceError(
                f"{rows[name].null_count} rows have no {name!r}, which is part of the key: filter them out "
                f"(WHERE {name} IS NOT NULL)"
            )
    if not order_by and (pc.max(rows[_RANK]).as_py() or 1) > 1:
        raise SparkSourceError(
            f"a key ({', '.join(key)}) is there more than once in a batch: say with order_by which row is the last"
        )
    wanted = to_arrow_schema(StructType.fromJson(schema), timezone="UTC").append(
        pa.field(_DELETES, pa.bool_())
    )
    return rows.drop_columns([_RANK]).cast(wanted)


def _create(
    location: Location, rows: pa.Table, partition_by: Sequence[str], app_id: str, batch_id: int
) -> None:
    kept = rows.filter(pc.invert(rows[_DELETES])).drop_columns([_DELETES])
    write_deltalake(
        location.path,
        kept,
        mode="error",
        partition_by=list(partition_by) or None,
        storage_options=location.options,
        commit_properties=properties(app_id, batch_id, makes_table=True),
    )


def _merge(table: DeltaTable, rows: pa.Table, key: Sequence[str], app_id: str, batch_id: int) -> None:
    columns = {_quoted(name): f"source.{_quoted(name)}" for name in rows.column_names if name != _DELETES}
    # A row replaces the whole of the other: of that nothing stays.
    missing = {
        _quoted(field.name): "NULL" for field in table.schema().fields if field.name not in rows.column_names
    }
    (
        table.merge(
            rows,
            predicate=" AND ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in key),
            source_alias="source",
            target_alias="target",
            commit_properties=properties(app_id, batch_id),
        )
        .when_matched_delete(f"source.{_quoted(_DELETES)}")
        .when_matched_update({**columns, **missing})
        .when_not_matched_insert(columns, f"NOT source.{_quoted(_DELETES)}")
        .execute()
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
