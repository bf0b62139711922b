"""Log stores in Postgres for tests: each test has a schema of its own on a server that a test run shares."""

import atexit
import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from moldau.logs.postgres.database import Database
from moldau.logs.postgres.store import PostgresLogStore
from moldau.platform.clock import SystemClock
from support.postgres import HOW_TO_GET_ONE, PostgresServer, find_servers

_found = sorted(find_servers(), key=int) or ["any version"]
VERSIONS = sorted({_found[0], _found[-1]}, key=_found.index)
"""The oldest and the newest major version on this machine."""

EVICTED_AT_ONCE = {"recent_bytes_max": 0, "uncommitted_bytes_max": 1}
"""Options of a store whose reads use the rows: nothing that is committed stays in memory, and every append waits until
the earlier ones are committed."""

_servers: dict[str, PostgresServer] = {}
_stack = ExitStack()
_names = itertools.count(1)


def shared_server(version: str = VERSIONS[-1]) -> PostgresServer:
    """Returns the server of a version that all tests of a process share. Skips the test if there is none."""
    if version not in _servers:
        found = find_servers()
        if version not in found:
            pytest.skip(HOW_TO_GET_ONE)
        if not _servers:
            atexit.register(_stack.close)
        _servers[version] = _stack.enter_context(PostgresServer(found[version]))
    return _servers[version]


def new_schema() -> str:
    return f"test_{os.getpid()}_{next(_names)}"


def drop_schema(server: PostgresServer, schema: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(schema)))


async def kill(store: PostgresLogStore) -> None:
    """Ends a store as a crash of its process does: nothing more is committed, and its sessions end."""
    await store.database.close()


def postgres_store(url: str, schema: str, *, patience_s: float = 10.0, **more: int) -> PostgresLogStore:
    """Returns a store of a new incarnation of the node."""
    return PostgresLogStore(Database(url, schema, uuid4(), patience_s=patience_s), SystemClock(), **more)


@contextmanager
def server_settings(server: PostgresServer, *lines: str) -> Iterator[None]:
    """Changes settings of a running server for a while."""
    path = server.data_directory / "postgresql.auto.conf"
    before = path.read_text()
    path.write_text(before + "\n".join(lines) + "\n")
    _reload(server, lines)
    try:
        yield
    finally:
        path.write_text(before)
        _reload(server, ())


def _reload(server: PostgresServer, lines: tuple[str, ...]) -> None:
    expected = dict(line.split(" = ") for line in lines)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("select pg_reload_conf()")
    while True:
        # Each session applies the change before its next statement, but only after the server has sent the signal.
        with psycopg.connect(server.url, autocommit=True) as connection:
            names = ("fsync", "full_page_writes", "synchronous_commit")
            columns = ", ".join(f"current_setting('{name}')" for name in names)
            row = connection.execute(f"select {columns}").fetchone()
            if row == tuple(expected.get(name, "on") for name in names):
                return
