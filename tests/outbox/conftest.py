"""A database of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from support.outbox import RelayProcess, install
from support.postgres import PostgresServer
from support.topics import unique


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database."""
    name = unique("outbox").replace("-", "_")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    yield postgres.database_url(name)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@pytest.fixture
def outbox(database: str) -> str:
    """The URL of a database with an outbox."""
    install(database)
    return database


@pytest.fixture
def relay(outbox: str, bootstrap: str, tmp_path: Path) -> Iterator[RelayProcess]:
    """A relay of the outbox that is not started yet."""
    created = RelayProcess(outbox, bootstrap, tmp_path / "relay.out")
    yield created
    if created.process is not None:
        created.kill()
