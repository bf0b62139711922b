"""Commits to a Delta table, on the driver: files become part of it all at once, together with the number of the batch
they came from, so that a batch that comes again is known."""

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
from moldau.spark.sink.delta_schema import as_nullable, check_rows_fit_table, non_null_columns
from moldau.spark.sink.delta_stats import stats_json, without_bounds

ATTEMPTS_MAX = 10
"""Each is lost only to another writer that got ahead."""

_log = get_logger("spark.sink.delta")


class CommitConflictError(Exception):
    """Another writer was faster, and what was decided may not be right any more."""


def open_table(location: Location) -> DeltaTable | None:
    """None where there is no table yet."""
    try:
        return DeltaTable(location.path, storage_options=location.options)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise SparkSourceError(
            f"the Delta table {location.path} cannot be opened: {first_line(error)}. Check the path and the "
            "storage.* options"
        ) from error


def table_schema_json(table: DeltaTable) -> dict[str, Any]:
    found = json.loads(table.schema().to_json())
    assert isinstance(found, dict)
    return found


def check_table_schema(
    table: DeltaTable, schema: dict[str, Any], partition_by: Sequence[str], location: Location
) -> None:
    about = table.metadata()
    check_rows_fit_table(
        schema,
        partition_by,
        table_schema_json(table),
        about.partition_columns,
        about.configuration,
        location.path,
    )


def is_batch_committed(
    table: DeltaTable | None, app_id: str | None, batch_id: int | None, query_id: str | None = None
) -> bool:
    """Whether the table has this batch of the application, which comes again then. Raises SparkSourceError where these
    rows are others under an old number, which nobody may drop: a query comes again with its last batch only, and under
    its own id, which is that of its checkpoint."""
    if table is None or app_id is None or batch_id is None:
        return False
    last = table.transaction_version(app_id)
    if last is None or last < batch_id:
        return False
    if last > batch_id or (
        query_id is not None and table.transaction_version(_query_app_id(app_id, query_id)) != batch_id
    ):
        raise SparkSourceError(
            f"the Delta table {table.table_uri} has batch {last} of {app_id!r}, and this write is at {batch_id}: its "
            "checkpoint was begun anew or is an older copy. Go on with the checkpoint that belongs to the table, or "
            "write under another appId, which writes again what the table may have already"
        )
    _log.info(
        "the table has this batch already: it is left out", table=table.table_uri, app=app_id, batch=batch_id
    )
    return True


def batch_commit_properties(
    app_id: str | None, batch_id: int | None, query_id: str | None = None, *, creates_table: bool = False
) -> CommitProperties:
    """What a commit says of the batch it is of, for `is_batch_committed`. One that `creates_table` is tried
    once: the library's
    second try would go over the table that another writer has made meanwhile."""
    batches = []
    if app_id is not None and batch_id is not None:
        batches.append(Transaction(app_id, batch_id))
        if query_id is not None:
            batches.append(Transaction(_query_app_id(app_id, query_id), batch_id))
    return CommitProperties(app_transactions=batches, max_commit_retries=0 if creates_table else None)


def _query_app_id(app_id: str, query_id: str) -> str:
    return f"{app_id}/{query_id}"


def retry_commit(location: Location, attempt: Callable[[DeltaTable | None], bool]) -> bool:
    """What an attempt on the table as it is says, the first that is not lost to another writer."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return attempt(open_table(location))
        except CommitConflictError as lost:
            _log.info("another writer was faster: once more", table=location.path, error=lost)
    raise SparkSourceError(
        f"the Delta table {location.path} could not be committed to in {ATTEMPTS_MAX} attempts, each lost to another "
        "writer: have fewer writers at a time"
    )


@contextmanager
def detect_landed_commit(
    location: Location, has_landed: Callable[[DeltaTable], bool], *, creates_table: bool
) -> Iterator[None]:
    """Around a commit. One that failed may have been carried out all the same, where the answer was lost or what comes
    after it failed (a checkpoint of the log): `has_landed` asks the table. Raises Lost where another try may help."""
    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        table = open_table(location)
        if table is not None and has_landed(table):
            _log.warning(
                "the commit is done, and yet told as failed", table=location.path, error=first_line(error)
            )
            return
        if isinstance(error, CommitFailedError) or (creates_table and table is not None):
            raise CommitConflictError(first_line(error)) from error
        what = "made" if creates_table else "written to"
        raise SparkSourceError(
            f"the Delta table {location.path} cannot be {what}: {first_line(error)}"
        ) from error


def commit_files(
    location: Location,
    schema: dict[str, Any],
    partition_by: Sequence[str],
    files: Sequence[WrittenFile],
    app_id: str | None,
    batch_id: int | None,
    query_id: str | None = None,
) -> bool:
    """Adds the files in one commit, which makes the table if there is none. False: this batch was committed before,
    and the files are gone. `query_id` is that of a streaming query with an application's id of its own."""

    def attempt(table: DeltaTable | None) -> bool:
        if is_batch_committed(table, app_id, batch_id, query_id):
            remove_uncommitted(location, files)
            return False
        noted = batch_commit_properties(app_id, batch_id, query_id, creates_table=table is None)
        with detect_landed_commit(
            location, lambda now: _contains_any(now, files), creates_table=table is None
        ):
            if table is None:
                _create(location, schema, partition_by, files, noted)
            elif files:
                check_table_schema(table, schema, partition_by, location)
                _check_nulls(table, files, location)
                _append(table, schema, files, noted)
        return True

    return retry_commit(location, attempt)


def _create(
    location: Location,
    schema: dict[str, Any],
    partition_by: Sequence[str],
    files: Sequence[WrittenFile],
    noted: CommitProperties,
) -> None:
    create_table_with_add_actions(
        location.path,
        Schema.from_json(json.dumps(as_nullable(schema))),
        [_add_action(each) for each in files],
        mode="error",
        partition_by=list(partition_by),
        storage_options=location.options,
        commit_properties=noted,
    )


def _append(
    table: DeltaTable,
    schema: dict[str, Any],
    files: Sequence[WrittenFile],
    noted: CommitProperties,
) -> None:
    if len(schema["fields"]) < len(table.schema().fields):
        # Of the columns that the rows do not have nothing is noted.
        files = [replace(each, stats=without_bounds(each.stats)) for each in files]
    table.create_write_transaction(
        [_add_action(each) for each in files],
        "append",
        table.schema(),
        table.metadata().partition_columns,
        commit_properties=noted,
    )


def _check_nulls(table: DeltaTable, files: Sequence[WrittenFile], location: Location) -> None:
    """A null would make a table unreadable whose columns may not have any."""
    partition_by = table.metadata().partition_columns
    for name in non_null_columns(table_schema_json(table)):
        for file in files:
            has_null = (
                file.partition_values[name] is None if name in partition_by else name in file.null_columns
            )
            if has_null:
                raise SparkSourceError(
                    f"the column {name!r} may not be null in the Delta table {location.path}, and rows have a null "
                    f"there: filter them out (WHERE {name} IS NOT NULL) or fill them with coalesce"
                )


def remove_uncommitted(location: Location, files: Sequence[WrittenFile]) -> None:
    """Removes those of a batch that failed; what became part of the table after all stays. In an object store, which
    may still be about to carry out a commit that nobody heard of, they are left for `vacuum`."""
    if not files or not location.is_directory:
        return
    table = open_table(location)
    committed = set() if table is None else _file_names(table)
    remove_files(table_file_system(location), [each.path for each in files if each.name not in committed])


def _contains_any(table: DeltaTable, files: Sequence[WrittenFile]) -> bool:
    """Of files that come together or not at all."""
    committed = _file_names(table)
    return any(each.name in committed for each in files)


def _file_names(table: DeltaTable) -> set[str]:
    """Of all files in the table, which stand there with their directories as a URL writes them."""
    return {each.rpartition("/")[2] for each in table.file_uris()}


def _add_action(file: WrittenFile) -> AddAction:
    return AddAction(
        file.path, file.size, file.partition_values, file.modified_ms, True, stats_json(file.stats)
    )
