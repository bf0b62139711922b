"""Commits to a Delta table, on the driver: files become part of it all at once, together with the number of the batch
they came from, so that a batch that comes again is known."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from moldau.observe.logging import get_logger
from moldau.spark.errors import SparkSourceError
from moldau.spark.sink.delta_files import WrittenFile, files_of, remove
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


def is_done(table: DeltaTable | None, app_id: str | None, batch_id: int | None) -> bool:
    """Whether the table has this batch of the application, or a later one."""
    if table is None or app_id is None or batch_id is None:
        return False
    last = table.transaction_version(app_id)
    return last is not None and last >= batch_id


def properties(app_id: str | None, batch_id: int | None) -> CommitProperties | None:
    if app_id is None or batch_id is None:
        return None
    return CommitProperties(app_transactions=[Transaction(app_id, batch_id)])


def commit_files(
    location: Location,
    schema: dict[str, Any],
    partition_by: Sequence[str],
    files: Sequence[WrittenFile],
    app_id: str | None,
    batch_id: int | None,
) -> bool:
    """Adds the files in one commit, which makes the table if there is none. False: this batch was committed before,
    and the files are gone."""
    for _ in range(ATTEMPTS_MAX):
        table = open_table(location)
        if is_done(table, app_id, batch_id):
            remove(files_of(location), [each.path for each in files])
            return False
        try:
            if table is None:
                _create(location, schema, partition_by, files, app_id, batch_id)
            elif files:
                check_fits(table, schema, partition_by, location)
                _check_nulls(table, files, location)
                if len(schema["fields"]) < len(table.schema().fields):
                    # Of the columns that the rows do not have nothing is noted.
                    files = [replace(each, stats=without_bounds(each.stats)) for each in files]
                _append(table, files, app_id, batch_id)
            return True
        except Lost as lost:
            _log.info("another writer was faster: once more", table=location.path, error=lost)
    raise SparkSourceError(
        f"the Delta table {location.path} could not be committed to in {ATTEMPTS_MAX} attempts, each lost to another "
        "writer: have fewer writers at a time"
    )


def _create(
    location: Location,
    schema: dict[str, Any],
    partition_by: Sequence[str],
    files: Sequence[WrittenFile],
    app_id: str | None,
    batch_id: int | None,
) -> None:
    try:
        create_table_with_add_actions(
            location.path,
            Schema.from_json(json.dumps(nullable(schema))),
            [_action(each) for each in files],
            mode="error",
            partition_by=list(partition_by),
            storage_options=location.options,
            commit_properties=properties(app_id, batch_id),
        )
    except (CommitFailedError, DeltaError) as error:
        if open_table(location) is not None:
            raise Lost(first_line(error)) from error
        raise SparkSourceError(
            f"the Delta table {location.path} cannot be made: {first_line(error)}"
        ) from error


def _append(
    table: DeltaTable, files: Sequence[WrittenFile], app_id: str | None, batch_id: int | None
) -> None:
    try:
        table.create_write_transaction(
            [_action(each) for each in files],
            "append",
            table.schema(),
            table.metadata().partition_columns,
            commit_properties=properties(app_id, batch_id),
        )
    except CommitFailedError as error:
        raise Lost(first_line(error)) from error
    except DeltaError as error:
        raise SparkSourceError(
            f"the Delta table {table.table_uri} cannot be appended to: {first_line(error)}"
        ) from error


def _check_nulls(table: DeltaTable, files: Sequence[WrittenFile], location: Location) -> None:
    """A null would make a table unreadable whose columns may not have any."""
    partition_by = table.metadata().partition_columns
    for name in must_have_values(schema_of(table)):
        for file in files:
            # A file of which nothing is known may have nulls.
            nulls = file.stats["nullCount"].get(name, 1)
            if name in partition_by:
                nulls = file.partition_values[name] is None
            if nulls:
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
    committed = set() if table is None else {each.rpartition("/")[2] for each in table.file_uris()}
    remove(files_of(location), [each.path for each in files if each.path.rpartition("/")[2] not in committed])


def _action(file: WrittenFile) -> AddAction:
    return AddAction(file.path, file.size, file.partition_values, file.modified_ms, True, as_json(file.stats))


def first_line(error: BaseException) -> str:
    """The library adds traces of its own."""
    return str(error).strip().partition("\n")[0]
