"""The Postgres store of a node: its logs and its small files. Only a node that uses it imports psycopg."""

from collections.abc import Awaitable, Callable

from moldau.controller.ids import random_uuid
from moldau.errors import InvalidConfigError
from moldau.logs.store import LogStore
from moldau.platform import Platform
from moldau.settings.broker import BrokerSettings

try:
    from psycopg import ProgrammingError
    from psycopg.conninfo import make_conninfo
except ImportError as error:
    raise InvalidConfigError(
        f"store: a Postgres store needs the package psycopg ({error}): pip install 'moldau[postgres]'"
    ) from None

from moldau.logs.postgres.database import Database
from moldau.logs.postgres.files import FileTable
from moldau.logs.postgres.store import PostgresLogStore


def make_postgres_store(
    platform: Platform, settings: BrokerSettings
) -> tuple[LogStore, Callable[[], Awaitable[FileTable]]]:
    """Returns the log store, and a function that loads the small files when the store has started."""
    password = {"password": settings.postgres_password} if settings.postgres_password else {}
    try:
        conninfo = make_conninfo(settings.store, **password)
    except ProgrammingError as error:
        raise InvalidConfigError(f"store: {settings.store} is no valid URL of Postgres: {error}") from None
    database = Database(conninfo, settings.postgres_schema, random_uuid(platform.random))
    store = PostgresLogStore(database, platform.clock, producer_expiration_ms=settings.producer_id_expiration_ms)

    async def load_files() -> FileTable:
        files = FileTable(database, settings.log_dir)
        await files.load()
        return files

    return store, load_files
