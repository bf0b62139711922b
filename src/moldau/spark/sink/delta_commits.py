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
from moldau.spark.sink.delta_files import WrittenFile, files_of, first_line, remove
from moldau.spark.sink.delta_options import Location
from moldau.spark.sink.delta_schema import check_table, must_have_values, nullable
from moldau.spark.sink.delta_stats import as_json, without_bounds

ATTEMPTS_MAX = 10
"""Each is lost only to another writer that got ahead."""

_log = get_logger("spark.sink.delta")


class Lost(Exception):
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


def schema_of(table: DeltaTable) -> dict[str, Any]:
    found = json.loads(table.schema().to_json())
    assert isinstance(found, dict)
    return found


def check_fits(
    table: DeltaTable, schema: dict[str, Any], partition_by: Sequence[str], location: Location
) -> None:
    about = table.metadata()
    check_table(
        schema, partition_by, schema_of(table), about.partition_columns, about.configuration, location.path
    )


def is_done(
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
        query_id is not None and table.transaction_version(_of_query(app_id, query_id)) != batch_id
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


def properties(
    app_id: str | None, batch_id: int | None, query_id: str | None = None, *, makes_table: bool = False
) -> CommitProperties:
    """What a commit says of the batch it is of, for `is_done`. One that `makes_table` is tried once: the library's
    second try would go over the table that another writer has made meanwhile."""
    batches = []
    if app_id is not None and batch_id is not None:
        batches.append(Transaction(app_id, batch_id))
        if query_id is not None:
            batches.append(Transaction(_of_query(app_id, query_id), batch_id))
    return CommitProperties(app_transactions=batches, max_commit_retries=0 if makes_table else None)


def _of_query(app_id: str, query_id: str) -> str:
    return f"{app_id}/{query_id}"


def attempted(location: Location, attempt: Callable[[DeltaTable | None], bool]) -> bool:
    """What an attempt on the table as it is says, the first that is not lost to another writer."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return attempt(open_table(location))
        except Lost as lost:
            _log.info("another writer was faster: once more", table=location.path, error=lost)
    raise SparkSourceError(
        f"the Delta table {location.path} could not be committed to in {ATTEMPTS_MAX} attempts, each lost to another "
        "writer: have fewer writers at a time"
    )


@contextmanager
def committing(
    location: Location, has_landed: Callable[[DeltaTable], bool], *, makes_table: bool
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
        if isinstance(error, CommitFailedError) or (makes_table and table is not None):
            raise Lost(first_line(error)) from error
        what = "made" if makes_table else "written to"
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
        if is_done(table, app_id, batch_id, query_id):
            remove_uncommitted(location, files)
            return False
        noted = properties(app_id, batch_id, query_id, makes_table=table is None)
        with committing(location, lambda now: _has_any(now, files), makes_table=table is None):
            if table is None:
                _create(location, schema, partition_by, files, noted)
            elif files:
                check_fits(table, schema, partition_by, location)
                _check_nulls(table, files, location)
                _append(table, schema, files, noted)
        return True

    return attempted(location, attempt)


def _create(
    location: Location,
    schema: dict[str, Any],
    partition_by: Sequence[str],
    files: Sequence[WrittenFile],
    noted: CommitProperties,
) -> None:
    create_table_with_add_actions(
        location.path,
        Schema.from_json(json.dumps(nullable(schema))),
        [_action(each) for each in files],
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
        [_action(each) for each in files],
        "append",
        table.schema(),
        table.metadata().partition_columns,
        commit_properties=noted,
    )


def _check_nulls(table: DeltaTable, files: Sequence[WrittenFile], location: Location) -> None:
    """A null would make a table unreadable whose columns may not have any."""
    partition_by = table.metadata().partition_columns
    for name in must_have_values(schema_of(table)):
        for file in files:
            has_null = (
                file.partition_values[name] is None if name in partition_by else name in file.with_nulls
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
    committed = set() if table is None else _names(table)
    remove(files_of(location), [each.path for each in files if each.name not in committed])


def _has_any(table: DeltaTable, files: Sequence[WrittenFile]) -> bool:
    """Of files that come together or not at all."""
    committed = _names(table)
    return any(each.name in committed for each in files)


def _names(table: DeltaTable) -> set[str]:
    """Of all files in the table, which stand there with their directories as a URL writes them."""
    return {each.rpartition("/")[2] for each in table.file_uris()}


def _action(file: WrittenFile) -> AddAction:
    return AddAction(file.path, file.size, file.partition_values, file.modified_ms, True, as_json(file.stats))
