"""Connections to the user's database, with the checks that every command needs."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, cast

from moldau.outbox.errors import OutboxError, PostgresUnavailableError
from moldau.outbox.schema import STEPS, quote, validate_schema_name
from moldau.settings.postgres_keepalives import CLIENT_KEEPALIVES

try:
    import psycopg
except ImportError as error:
    raise OutboxError("The outbox needs psycopg, which is not installed: pip install 'moldau[postgres]'") from error

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

SERVER_VERSION_MIN = 130000
"""Postgres 13 is the first version with the type xid8."""
CONNECT_TIMEOUT_S = 10
_TRANSIENT_STATES = ("25006", "25P03", "25P04")
"""SQLSTATEs that are no OperationalError in psycopg, but can pass: the server refuses writes, as a standby does, or it
ended an idle or long transaction."""


@asynccontextmanager
async def connect(url: str, application_name: str) -> AsyncIterator[Connection]:
    """Connects in autocommit mode. Raises OutboxError if the server cannot be used.

    Names are searched only in pg_catalog, so that no role can put its functions in place of those of Postgres. A pooler
    gives sessions to others, so behind one the setting is for one transaction, which is open until the end.
    """
    with translate_errors():
        try:
            connection = await psycopg.AsyncConnection.connect(
                url,
                autocommit=True,
                application_name=application_name,
                connect_timeout=CONNECT_TIMEOUT_S,
                **cast(dict[str, Any], CLIENT_KEEPALIVES),
            )
        except psycopg.ProgrammingError as error:
            raise OutboxError(f"invalid database URL: {error}".strip()) from None
    try:
        if connection.info.server_version < SERVER_VERSION_MIN:
            version = connection.info.server_version // 10000
            raise OutboxError(f"this server is Postgres {version}; the outbox needs Postgres 13 or newer")
        async with AsyncExitStack() as stack:
            with translate_errors():
                if await is_pooled(connection):
                    await stack.enter_async_context(_transaction(connection))
                    await execute(connection, "SET LOCAL search_path = pg_catalog, pg_temp")
                else:
                    await execute(connection, "SET search_path = pg_catalog, pg_temp")
            yield connection
    finally:
        await connection.close()


async def is_pooled(connection: Connection) -> bool:
    """Returns whether there is a pooler between this process and Postgres: the server then has another process id."""
    (pid,) = await fetch_one(connection, "SELECT pg_catalog.pg_backend_pid()")
    return bool(pid != connection.info.backend_pid)


@asynccontextmanager
async def _transaction(connection: Connection) -> AsyncIterator[None]:
    with translate_errors():
        async with connection.transaction():
            yield


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turns errors of psycopg into OutboxErrors with advice."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise OutboxError(
            f"{_first_line(error)}. Use the owner of the outbox, or let the owner grant the rights: "
            "moldau outbox install ... --relay-role ROLE"
        ) from error
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        raise OutboxError(f"{_first_line(error)}: the outbox was removed or changed") from error
    except psycopg.OperationalError as error:
        raise PostgresUnavailableError(_first_line(error)) from error
    except psycopg.InterfaceError as error:
        raise PostgresUnavailableError(f"the connection to Postgres was lost ({_first_line(error)})") from error
    except psycopg.Error as error:
        if error.sqlstate in _TRANSIENT_STATES:
            raise PostgresUnavailableError(_first_line(error)) from error
        raise OutboxError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:2]) if lines else type(error).__name__


async def find_version(connection: Connection, schema: str) -> int:
    """Returns the installed version of the outbox, 0 if there is none. Raises OutboxError for a newer one."""
    name = quote(validate_schema_name(schema))
    found = await fetch_one(connection, "SELECT to_regclass(%s) IS NOT NULL", (f"{name}.outbox_state",))
    if not found[0]:
        return 0
    (version,) = await fetch_one(connection, f"SELECT version FROM {name}.outbox_state")
    if version > len(STEPS):
        raise OutboxError(
            f"the outbox in the schema {schema} has version {version}, but this Moldau knows only {len(STEPS)}: "
            "upgrade Moldau"
        )
    return int(version)


async def check_installed(connection: Connection, schema: str) -> None:
    """Raises OutboxError unless the outbox is installed with the current version."""
    version = await find_version(connection, schema)
    if version != len(STEPS):
        state = f"has the old version {version}" if version else "is not installed"
        database = connection.info.dbname
        raise OutboxError(
            f"the outbox in the schema {schema} of the database {database} {state}: run `moldau outbox install`"
        )


async def execute(connection: Connection, query: str, parameters: Any = None) -> psycopg.AsyncCursor[tuple[Any, ...]]:
    """Runs a query. Its text contains no values of users, only the quoted name of the schema."""
    return await connection.execute(query.encode(), parameters)


async def fetch_one(connection: Connection, query: str, parameters: Any = None) -> tuple[Any, ...]:
    row = await (await execute(connection, query, parameters)).fetchone()
    assert row is not None, query
    return row
