"""Parameters and error handling shared by the outbox commands."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from moldau.cli.admin import run_or_exit
from moldau.cli.exit_codes import CommandError, ExitCode
from moldau.outbox.errors import OutboxError, PostgresUnavailableError
from moldau.outbox.schema import DEFAULT_SCHEMA, validate_schema_name

if TYPE_CHECKING:
    from moldau.outbox.database import Connection

T = TypeVar("T")


def _validate_schema(value: str) -> str:
    try:
        return validate_schema_name(value)
    except OutboxError as error:
        raise typer.BadParameter(str(error)) from None


DatabaseUrl = Annotated[
    str,
    typer.Argument(
        metavar="DATABASE_URL",
        help="The database, such as postgresql://user@host/name. Keep passwords in ~/.pgpass or PGPASSWORD.",
    ),
]
Schema = Annotated[
    str, typer.Option("--schema", metavar="NAME", help="Schema of the outbox.", callback=_validate_schema)
]
RowIds = Annotated[
    list[int] | None, typer.Argument(metavar="ID", help="Ids of dead rows, as `moldau outbox dead` shows them.")
]
AllRows = Annotated[bool, typer.Option("--all", help="All dead rows.")]
DEFAULT = DEFAULT_SCHEMA


def selected_ids(ids: list[int] | None, all_rows: bool) -> list[int] | None:
    """Returns the ids of the selected rows, None for all."""
    if bool(ids) == all_rows:
        raise typer.BadParameter("name the ids of rows, or use --all")
    return ids or None


class DatabaseUnavailableError(CommandError):
    """Postgres cannot be reached."""

    exit_code = ExitCode.UNAVAILABLE


def run_in_database(url: str, operation: "Callable[[Connection], Awaitable[T]]") -> T:
    """Runs an operation with a connection. Prints an error and exits if it fails."""

    async def run() -> T:
        from moldau.outbox.database import connect

        async with connect(url, "moldau outbox") as connection:
            return await operation(connection)

    return run_outbox(run())


def run_outbox(work: Coroutine[Any, Any, T], bootstrap: str = "") -> T:
    """Runs a coroutine. Prints an error and exits if it fails."""

    async def run() -> T:
        try:
            return await work
        except PostgresUnavailableError as error:
            raise DatabaseUnavailableError(str(error)) from error
        except OutboxError as error:
            raise CommandError(str(error)) from error

    return run_or_exit(run(), bootstrap)
