"""Servers that refuse writes for a while: the relay waits for them, and sends each event once."""

import asyncio
from pathlib import Path

import psycopg
import pytest

from moldau.outbox.batches import OutboxBatches
from moldau.outbox.database import Connection, connect, fetch_one, translate_errors
from moldau.outbox.errors import PostgresUnavailableError
from support.outbox import RelayProcess, install, moldau, read_topics, wait_until_sent
from support.postgres import HOW_TO_GET_ONE, PostgresServer, find_servers
from support.topics import unique


def produce(url: str, topic: str, event: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        # A server that refuses writes by default still allows them to who asks for them.
        connection.execute("SET default_transaction_read_only = off")
        connection.execute("SELECT moldau.produce(%s, 'k', %s)", (topic, f'{{"event": {event}}}'))


@pytest.mark.clients
def test_the_relay_waits_while_the_server_refuses_writes(outbox: str, relay: RelayProcess, bootstrap: str) -> None:
    topic, database = unique(), outbox.rpartition("/")[2]
    produce(outbox, topic, 1)
    relay.start()
    wait_until_sent(outbox, relay)
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{database}" SET default_transaction_read_only = on'.encode())
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'moldau outbox relay'"
        )
        produce(outbox, topic, 2)
        relay.wait_for_output("read-only transaction", 2)
        connection.execute(f'ALTER DATABASE "{database}" RESET default_transaction_read_only'.encode())
    wait_until_sent(outbox, relay)
    assert [each["event"] for each in read_topics(bootstrap, (topic,))] == [1, 2]


@pytest.mark.clients
def test_the_relay_waits_until_a_standby_is_promoted(bootstrap: str, tmp_path: Path) -> None:
    servers = find_servers()
    if not servers:
        pytest.skip(HOW_TO_GET_ONE)
    topic = unique()
    with PostgresServer(servers[max(servers, key=int)]) as server:
        install(server.url)
        produce(server.url, topic, 1)
        with RelayProcess(server.url, bootstrap, tmp_path / "relay.out") as relay:
            wait_until_sent(server.url, relay)
            produce(server.url, topic, 2)
            server.stop()
            server.make_standby()
            server.start()
            relay.wait_for_output("this server is a standby", 2)
            refused = moldau("outbox", "relay", server.url, "-b", bootstrap)
            assert refused.returncode == 4
            assert "this server is a standby" in refused.stderr
            status = moldau("outbox", "status", server.url)
            assert status.returncode == 0
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute("SELECT pg_promote()")
            produce(server.url, topic, 3)
            wait_until_sent(server.url, relay)
            assert relay.stop() == 0
    assert [each["event"] for each in read_topics(bootstrap, (topic,))] == [1, 2, 3]


def test_a_transaction_that_the_server_ended_can_be_repeated(outbox: str) -> None:
    async def transact(connection: Connection) -> None:
        with translate_errors():
            async with connection.transaction():
                await connection.execute("SELECT 1")
                await asyncio.sleep(0.5)
                await connection.execute("SELECT 1")

    async def wait_too_long(setting: str) -> None:
        async with connect(outbox, "test") as connection:
            await connection.execute(f"SET {setting} = '100ms'".encode())
            with pytest.raises(PostgresUnavailableError, match="timeout"):
                await transact(connection)

    asyncio.run(wait_too_long("idle_in_transaction_session_timeout"))
    with psycopg.connect(outbox) as connection:
        has_transaction_timeout = connection.info.server_version >= 170000
    if has_transaction_timeout:
        asyncio.run(wait_too_long("transaction_timeout"))


def test_the_relay_has_none_of_the_timeouts_of_its_role(outbox: str) -> None:
    names = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"]

    async def timeouts() -> list[str]:
        async with connect(outbox, "test") as connection:
            await OutboxBatches(connection, "moldau").prepare_session()
            return [(await fetch_one(connection, f"SHOW {name}"))[0] for name in names]

    with psycopg.connect(outbox, autocommit=True) as connection:
        if connection.info.server_version >= 170000:
            names.append("transaction_timeout")
        for name in names:
            connection.execute(f"ALTER DATABASE \"{connection.info.dbname}\" SET {name} = '7s'".encode())
    assert asyncio.run(timeouts()) == ["0"] * len(names)
