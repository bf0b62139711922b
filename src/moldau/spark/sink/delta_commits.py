"""Commits to a Delta table on the driver. A commit adds all files of a batch and stores the number of the batch."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from moldau.observe.logging import get_logger
from moldau.spark.errors import SparkSourceError
from moldau.spark.sink.delta_files import WrittenFile, first_line, remove_files, table_file_system
from moldau.spark.sink.delta_options import Location
from moldau.spark.sink.delta_schema import as_nullable, check_rows_fit_table

ATTEMPTS_MAX = 10
"""The maximum number of attempts to commit. An attempt fails only if another writer commits first."""

_log = get_logger("spark.sink.delta")


class CommitConflictError(Exception):
    """Another writer committed first, so the commit must be prepared again from the new table version."""


def open_table(location: Location) -> DeltaTable | None:
    """Returns the table, or None if it does not exist. Raises SparkSourceError if the table cannot be opened."""
    try:
        return DeltaTable(location.path, storage_options=location.options)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise SparkSourceError(
            f"the Delta table {location.path} cannot be opened: {first_line(error)}. Check the path and the "
            "storage.* options"
        ) from error


def check_table_schema(
    table: DeltaTable, schema: dict[str, Any], partition_by: Sequence[str], location: Location
) -> None:
    about, table_schema = table.metadata(), json.loads(table.schema().to_json())
    check_rows_fit_table(
        schema, partition_by, table_schema, about.partition_columns, about.configuration, location.path
    )


def is_batch_committed(
    table: DeltaTable | None, app_id: str | None, batch_id: int | None, query_id: str | None = None
) -> bool:
    """Returns whether this batch is the application's last batch in the table.

    A query repeats only its last batch. Raises SparkSourceError if the table has a later batch, or if a query with
    another id (another checkpoint) wrote the last batch, because the rows may be different.
    """
    if table is None or app_id is None or batch_id is None:
        return False
    last = table.transaction_version(app_id)
    if last is None or last < batch_id:
        return False
    if last > batch_id or (query_id is not None and table.transaction_version(f"{app_id}/{query_id}") != batch_id):
        raise SparkSourceError(
            f"the Delta table {table.table_uri} has batch {last} of {app_id!r}, but this write is "
            f"at {batch_id}: its checkpoint is new or an older copy. Use the checkpoint that "
            "belongs to the table, or another appId, which may write rows again"
        )
    _log.info("skipped a batch that the table already has", table=table.table_uri, app=app_id, batch=batch_id)
    return True


def batch_commit_properties(
    app_id: str | None, batch_id: int | None, query_id: str | None = None, *, creates_table: bool = False
) -> CommitProperties:
    """Returns the application transactions that `is_batch_committed` reads.

    With `creates_table` the library does not retry the commit, because a retry would overwrite a table that another
    writer has created.
    """
    batches = []
    if app_id is not None and batch_id is not None:
        batches.append(Transaction(app_id, batch_id))
        if query_id is not None:
            batches.append(Transaction(f"{app_id}/{query_id}", batch_id))
    return CommitProperties(app_transactions=batches, max_commit_retries=0 if creates_table else None)


def retry_commit(location: Location, attempt: Callable[[DeltaTable | None], bool]) -> bool:
    """Calls `attempt` with the current table until its commit does not conflict with another writer."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return attempt(open_table(location))
        except CommitConflictError as lost:
            _log.info("retrying a commit after a conflict with another writer", table=location.path, error=lost)
    raise SparkSourceError(
        f"the Delta table {location.path} could not be committed to in {ATTEMPTS_MAX} attempts, each lost to another "
        "writer: have fewer writers at a time"
    )


@contextmanager
def detect_landed_commit(
    location: Location, has_landed: Callable[[DeltaTable], bool], *, creates_table: bool
) -> Iterator[None]:
    """Finds out whether a commit that raised an error has succeeded anyway.

    The response may have been lost, or a step after the commit may have failed. `has_landed` therefore looks for the
    commit in the table. Raises CommitConflictError if a retry may help, else SparkSourceError.
    """
    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        table = open_table(location)
        if table is not None and has_landed(table):
            _log.warning(
                "the commit succeeded although an error was reported", table=location.path, error=first_line(error)
            )
            return
        if isinstance(error, CommitFailedError) or (creates_table and table is not None):
            raise CommitConflictError(first_line(error)) from error
        what = "made" if creates_table else "written to"
        raise SparkSourceError(f"the Delta table {location.path} cannot be {what}: {first_line(error)}") from error


def commit_files(
    location: Location,
    schema: dict[str, Any],
    partition_by: Sequence[str],
    files: Sequence[WrittenFile],
    app_id: str | None,
    batch_id: int | None,
    query_id: str | None = None,
) -> bool:
    """Adds the files in one commit, and creates the table if needed.

    Returns False and removes the files if the batch was committed before. `query_id` is set only for a streaming query
    with the option appId.
    """

    def has_landed(table: DeltaTable) -> bool:
        return not _file_names(table).isdisjoint(each.name for each in files)

    def attempt(table: DeltaTable | None) -> bool:
        if is_batch_committed(table, app_id, batch_id, query_id):
            remove_uncommitted(location, files)
            return False
        transactions = batch_commit_properties(app_id, batch_id, query_id, creates_table=table is None)
        with detect_landed_commit(location, has_landed, creates_table=table is None):
            if table is None:
                _create(location, schema, partition_by, files, transactions)
            elif files:
                check_table_schema(table, schema, partition_by, location)
                _check_nulls(table, files, location)
                _append(table, schema, files, transactions)
        return True

    return retry_commit(location, attempt)


def _create(
    location: Location,
    schema: dict[str, Any],
    partition_by: Sequence[str],
    files: Sequence[WrittenFile],
    transactions: CommitProperties,
) -> None:
    create_table_with_add_actions(
        location.path,
        Schema.from_json(json.dumps(as_nullable(schema))),
        [_add_action(each) for each in files],
        mode="error",
        partition_by=list(partition_by),
        storage_options=location.options,
        commit_properties=transactions,
    )


def _append(
    table: DeltaTable, schema: dict[str, Any], files: Sequence[WrittenFile], transactions: CommitProperties
) -> None:
    if len(schema["fields"]) < len(table.schema().fields):
        # Remove bounds from the statistics. Bounds must cover all columns of the table or none (see `delta_stats`).
        files = [
            replace(each, stats={name: each.stats[name] for name in ("numRecords", "nullCount")}) for each in files
        ]
    table.create_write_transaction(
        [_add_action(each) for each in files],
        "append",
        table.schema(),
        table.metadata().partition_columns,
        commit_properties=transactions,
    )


def _check_nulls(table: DeltaTable, files: Sequence[WrittenFile], location: Location) -> None:
    """Raises SparkSourceError if a NOT NULL column contains nulls, which would make the table unreadable."""
    for name in (field.name for field in table.schema().fields if not field.nullable):
        for file in files:
            if name in file.null_columns or file.partition_values.get(name, "") is None:
                raise SparkSourceError(
                    f"the column {name!r} may not be null in the Delta table {location.path}, and rows have a null "
                    f"there: filter them out (WHERE {name} IS NOT NULL) or fill them with coalesce"
                )


def remove_uncommitted(location: Location, files: Sequence[WrittenFile]) -> None:
    """Removes the files of a failed batch, except files that were committed.

    In an object store the files are left for `vacuum`, because a pending commit may still succeed there.
    """
    if not files or not location.is_directory:
        return
    table = open_table(location)
    committed = set() if table is None else _file_names(table)
    remove_files(table_file_system(location), [each.path for each in files if each.name not in committed])


def _file_names(table: DeltaTable) -> set[str]:
    """Returns the names of the table's files without their URL-encoded directories."""
    return {each.rpartition("/")[2] for each in table.file_uris()}


def _add_action(file: WrittenFile) -> AddAction:
    stats = json.dumps(file.stats, ensure_ascii=False, separators=(",", ":"))
    return AddAction(file.path, file.size, file.partition_values, file.modified_ms, True, stats)
