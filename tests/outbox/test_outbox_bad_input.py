"""Servers that cannot be used, wrong arguments, a connection pooler: each gets an error that says what to do."""

import asyncio
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from support.broker_process import clean_environment
from support.outbox import moldau
from support.ports import free_port
from support.postgres import PostgresServer

COMMANDS = ("install", "status", "relay", "dead")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_server_is_unavailable(command: str) -> None:
    refused = moldau("outbox", command, f"postgresql://moldau@127.0.0.1:{free_port()}/moldau")
    assert refused.returncode == 4
    assert "refused" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_url_is_an_error(command: str) -> None:
    refused = moldau("outbox", command, "postgresql://moldau@127.0.0.1/moldau?nonsense=1")
    assert refused.returncode == 1
    assert "invalid database URL" in refused.stderr


def test_a_wrong_password_is_refused(postgres: PostgresServer) -> None:
    rules = postgres.data_directory / "pg_hba.conf"
    before = rules.read_text()
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE careful LOGIN PASSWORD 'right'")
        try:
            rules.write_text("host all careful 127.0.0.1/32 scram-sha-256\n" + before)
            connection.execute("SELECT pg_reload_conf()")
            url = postgres.url.replace("moldau@", "careful:wrong@")
            for command in ("status", "relay"):
                refused = moldau("outbox", command, url)
                assert refused.returncode == 4
                assert 'password authentication failed for user "careful"' in refused.stderr
                assert "wrong" not in refused.stderr
        finally:
            rules.write_text(before)
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("DROP ROLE careful")


@pytest.mark.parametrize("command", ["status", "relay", "dead", "retry", "discard"])
def test_a_database_without_outbox_says_how_to_install_it(database: str, command: str) -> None:
    arguments = {"retry": ["--all"], "discard": ["--all", "--yes"]}.get(command, [])
    refused = moldau("outbox", command, database, *arguments)
    assert refused.returncode == 1
    assert "is not installed: run `moldau outbox install`" in refused.stderr


def test_a_cluster_that_does_not_respond_is_unavailable(outbox: str) -> None:
    refused = moldau("outbox", "relay", outbox, "-b", f"127.0.0.1:{free_port()}")
    assert refused.returncode == 4
    assert "Is a broker running at" in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("install", "postgresql:///x", "--grant", "app"),
        ("install", "postgresql:///x", "--grant", "=orders"),
        ("status", "postgresql:///x", "--schema", "A b"),
        ("relay", "postgresql:///x", "--compression", "rar"),
        ("relay", "postgresql:///x", "--poll-ms", "0"),
        ("retry", "postgresql:///x"),
        ("discard", "postgresql:///x", "1", "--all"),
    ],
)
def test_wrong_arguments_exit_with_2(arguments: tuple[str, ...]) -> None:
    assert moldau("outbox", *arguments).returncode == 2


@pytest.mark.parametrize(
    ("created_at", "shown"),
    [("4000-01-01 00:00+00 BC", "1-01-02"), ("57852-01-01 00:00+00", "9999-12-30"), ("2026-01-02 03:04+00", "2026")],
)
def test_dead_letters_with_times_beyond_those_of_python_are_listed(outbox: str, created_at: str, shown: str) -> None:
    """Such as `to_timestamp` of milliseconds, which brokers may refuse."""
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO moldau.outbox_dead (id, topic, created_at, error) VALUES (1, 't', %s::timestamptz, 'refused')",
            (created_at,),
        )
    for arguments in ((), ("--json",)):
        listed = moldau("outbox", "dead", outbox, *arguments)
        assert listed.returncode == 0, listed.stderr
        assert shown in listed.stdout


def test_psycopg_is_needed_only_when_the_outbox_is_used() -> None:
    program = (
        "import sys\n"
        "sys.modules['psycopg'] = None\n"
        "from moldau.cli.main import main\n"
        "sys.argv = ['moldau', 'outbox', *sys.argv[1:]]\n"
        "main()"
    )
    for arguments, code, text in (
        (("--help",), 0, "Publish events"),
        (("status", "postgresql:///x"), 1, "pip install 'moldau[postgres]'"),
        (("relay", "postgresql:///x"), 1, "pip install 'moldau[postgres]'"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=clean_environment(),
        )
        assert done.returncode == code
        assert text in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_a_connection_pooler_is_noticed(outbox: str, postgres: PostgresServer) -> None:
    with pooler(postgres.port) as port:
        url = outbox.replace(str(postgres.port), str(port)) + "?sslmode=disable&gssencmode=disable"
        refused = moldau("outbox", "relay", url)
        assert refused.returncode == 1
        assert "a connection pooler such as PgBouncer" in refused.stderr
        assert moldau("outbox", "status", url).returncode == 0


@contextmanager
def pooler(server_port: int) -> Iterator[int]:
    """Runs a proxy that gives its clients process ids and keys of its own, as PgBouncer does."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", server_port)
        upstream = asyncio.create_task(forward(client, to_server))
        kind = b""
        while kind != b"Z":
            kind = await server.readexactly(1)
            size = await server.readexactly(4)
            body = await server.readexactly(struct.unpack("!I", size)[0] - 4)
            if kind == b"K":
                body = struct.pack("!I", 1) + body[4:]
            to_client.write(kind + size + body)
        await forward(server, to_client)
        await upstream

    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listener.close()
        loop.close()
