"""Faults of the Postgres log store: lost connections and servers, several owners, bad servers, full disks."""

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from moldau.errors import RecordTooLargeError, StorageError
from moldau.logs.postgres import database, deletion, log
from moldau.logs.postgres import store as store_module
from moldau.logs.postgres.files import FileTable
from moldau.logs.postgres.log import PostgresLog
from moldau.logs.postgres.schema import check_server
from moldau.logs.postgres.store import PostgresLogStore
from moldau.logs.store import Log, LogName, StoreUnavailableError, is_transient
from moldau.node.postgres_storage import PostgresStorage
from moldau.settings.topic import TopicSettings
from support.logs import NAME, OTHER_TOPIC_ID, TOPIC_ID, append, batch_at, batches_of, values_of
from support.postgres import PostgresServer, find_servers
from support.postgres_logs import (
    EVICTED_AT_ONCE,
    VERSIONS,
    drop_schema,
    kill,
    new_schema,
    postgres_store,
    server_settings,
    shared_server,
)
from support.postgres_proxy import PostgresProxy

OTHER = LogName("orders", 1)


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest) -> PostgresServer:
    return shared_server(request.param)


@pytest.fixture
def newest() -> PostgresServer:
    return shared_server()


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> Iterator[str]:
    name = new_schema()
    yield name
    for fixture in ("server", "newest"):
        if fixture in request.fixturenames:
            drop_schema(request.getfixturevalue(fixture), name)


@pytest.fixture(params=["one statement", "COPY"])
def commit_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the store commits its appends: small ones, as in these tests, with one statement."""
    if request.param == "COPY":
        monkeypatch.setattr(store_module, "AT_ONCE_BYTES_MAX", -1)


@asynccontextmanager
async def started(url: str, schema: str, *, patience_s: float = 10.0, **more: int) -> AsyncIterator[PostgresLogStore]:
    """A store that is killed at the end, as by a crash."""
    store = postgres_store(url, schema, patience_s=patience_s, **more)
    try:
        await store.start()
        yield store
    finally:
        await kill(store)


async def open_log(store: PostgresLogStore, name: LogName = NAME) -> Log:
    return await store.open(name, TOPIC_ID, TopicSettings())


async def values_after_restart(url: str, schema: str) -> list[bytes | None]:
    async with started(url, schema) as store:
        return await values_of(await open_log(store))


def query(server: PostgresServer, schema: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"set search_path to {schema}")
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


async def rows_are_deleted(store: PostgresLogStore) -> None:
    async with asyncio.timeout(30):
        while store.deletion.is_running:
            await asyncio.sleep(0.01)


async def append_until(log: Log, count: int, values: list[bytes], acknowledged: list[bytes]) -> None:
    """Appends numbered values, and flushes until the store confirms each."""
    for number in range(count):
        value = b"%d" % number + b"." * random.Random(number).randrange(20_000)
        with suppress_unavailable():
            await append(log, value)
            values.append(value)
            while log.durable_offset < log.end_offset:
                with suppress_unavailable():
                    await log.flush()
            acknowledged.append(value)


def suppress_unavailable() -> suppress:
    return suppress(StoreUnavailableError)


# Lost connections


@pytest.mark.usefixtures("commit_path")
def test_a_commit_whose_answer_is_lost_is_neither_lost_nor_repeated(server: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with PostgresProxy(server) as proxy, started(proxy.url, schema) as store:
            log = await open_log(store)
            await append(log, b"before")
            await log.flush()
            [(commits,)] = query(server, schema, "select commit_number from node")
            await append(log, b"lost answer")
            proxy.loses_answer = True
            await log.flush()
            assert proxy.cuts == 1
            assert log.durable_offset == 2
            assert query(server, schema, "select commit_number from node") == [(commits + 1,)]
            assert query(server, schema, "select base_offset from batch order by 1") == [(0,), (1,)]
            await append(log, b"after")
            await log.flush()
        assert await values_after_restart(server.url, schema) == [b"before", b"lost answer", b"after"]

    asyncio.run(body())


@pytest.mark.usefixtures("commit_path")
def test_a_commit_that_the_server_has_not_received_is_repeated(server: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with PostgresProxy(server) as proxy, started(proxy.url, schema) as store:
            log = await open_log(store)
            [(commits,)] = query(server, schema, "select commit_number from node")
            await append(log, b"repeated")
            proxy.loses_commit = True
            await log.flush()
            assert proxy.cuts == 1
            assert query(server, schema, "select commit_number from node") == [(commits + 1,)]
        assert await values_after_restart(server.url, schema) == [b"repeated"]

    asyncio.run(body())


def test_no_statement_follows_a_commit_of_one_statement(
    newest: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a DEALLOCATE of psycopg, which an operator may cancel instead of the commit."""

    async def body() -> None:
        async with started(newest.url, schema) as store:
            # psycopg prepares a statement for each combination of the types of its parameters.
            starts = (0, 2**15, 2**31)
            logs = [await open_log(store, LogName("orders", number)) for number in range(len(starts))]
            for log, start in zip(logs, starts, strict=True):
                await log.truncate_fully_and_start_at(start)
            writer = store.database._writer

            def deallocate(connection: object, name: bytes | None) -> Iterator[None]:
                if connection is writer:
                    raise psycopg.errors.QueryCanceled("canceling statement due to user request")
                yield from original(connection, name)

            original: Any = psycopg.AsyncConnection._deallocate
            monkeypatch.setattr(psycopg.AsyncConnection, "_deallocate", deallocate)
            for log, start in zip(logs, starts, strict=True):
                for _ in range(5):
                    await append(log, b"x")
                    await log.flush()
                assert log.durable_offset == start + 5

    monkeypatch.setattr(psycopg._preparing.PrepareManager, "prepared_max", 1)
    asyncio.run(body())


@pytest.mark.usefixtures("commit_path")
def test_an_answer_that_is_lost_while_the_server_goes_away_is_resolved_later(
    newest: PostgresServer, schema: str
) -> None:
    async def body() -> None:
        async with PostgresProxy(newest) as proxy, started(proxy.url, schema, patience_s=0.3) as store:
            log = await open_log(store)
            await append(log, b"first")
            proxy.loses_answer = proxy.refuses = True
            with pytest.raises(StoreUnavailableError):
                await log.flush()
            assert log.durable_offset == 0, "nobody knows yet whether it was committed"
            assert query(newest, schema, "select end_offset from log") == [(1,)]
            proxy.refuses = False
            while log.durable_offset < 1:
                with suppress_unavailable():
                    await log.flush()
            assert await values_of(log) == [b"first"]
            assert query(newest, schema, "select count(*) from batch") == [(1,)]

    asyncio.run(body())


@pytest.mark.usefixtures("commit_path")
@pytest.mark.parametrize("seed", range(2))
def test_connections_cut_at_any_byte_lose_and_repeat_nothing(server: PostgresServer, schema: str, seed: int) -> None:
    async def body() -> None:
        rng = random.Random(seed)
        values: list[bytes] = []
        acknowledged: list[bytes] = []
        options = EVICTED_AT_ONCE if seed % 2 else {}
        async with PostgresProxy(server) as proxy, started(proxy.url, schema, patience_s=1.0, **options) as store:
            log = await open_log(store)
            while proxy.cuts <= 5:
                writer = asyncio.create_task(append_until(log, 25, values, acknowledged))
                while not writer.done():
                    await asyncio.sleep(rng.uniform(0, 0.03))
                    if proxy.cut_after_bytes is None and proxy.cuts <= 5:
                        proxy.cut_after_bytes = rng.randrange(40_000)
                    with suppress_unavailable():
                        found = await values_of(log)
                        assert found == values[: len(found)]
                await writer
            assert acknowledged == values
            assert await values_of(log) == values
        assert await values_after_restart(server.url, schema) == values

    asyncio.run(body())


def test_a_server_that_is_killed_during_appends_loses_nothing_acknowledged(schema: str) -> None:
    async def body(own: PostgresServer) -> None:
        values: list[bytes] = []
        acknowledged: list[bytes] = []
        async with started(own.url, schema, patience_s=20) as store:
            log = await open_log(store)
            writer = asyncio.create_task(append_until(log, 120, values, acknowledged))
            for _ in range(2):
                count = len(acknowledged)
                while len(acknowledged) < count + 20:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(own.kill)
                await asyncio.to_thread(own.start)
            await writer
            assert acknowledged == values
            assert await values_of(log) == values
            assert len(values) == 120
        assert await values_after_restart(own.url, schema) == values

    with PostgresServer(shared_server().binaries) as own:
        asyncio.run(body(own))


def test_a_server_that_is_away_takes_bounded_memory_and_time(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with (
            PostgresProxy(newest) as proxy,
            started(proxy.url, schema, patience_s=0.3, uncommitted_bytes_max=10_000) as store,
        ):
            log = await open_log(store)
            await append(log, b"before")
            await log.flush()
            proxy.refuses = True
            proxy.cut()
            began = loop.time()
            appended = 0
            while store.has_room:
                await append(log, b"x" * 1_000)
                appended += 1
            assert 5 < appended < 10
            with pytest.raises(StoreUnavailableError) as refused:
                await append(log, b"x")
            assert is_transient(refused.value)
            with pytest.raises(StoreUnavailableError):
                await log.flush()
            with pytest.raises(StoreUnavailableError):
                await log.truncate_to(1)
            with pytest.raises(StoreUnavailableError):
                await store.open(OTHER, TOPIC_ID, TopicSettings())
            assert loop.time() - began < 10
            assert log.durable_offset == 1
            assert log.failure is None
            proxy.refuses = False
            async with asyncio.timeout(10):
                while log.durable_offset < log.end_offset:
                    with suppress_unavailable():
                        await log.flush()
            assert log.end_offset == 1 + appended
            await append(log, b"after")
            await log.flush()
            assert len(await values_of(log)) == 2 + appended

    asyncio.run(body())


def test_a_frozen_server_ends_reads_in_time(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the reads that wait for their turn, and the first reads of new sessions."""

    async def body(own: PostgresServer, warm: int) -> None:
        loop = asyncio.get_running_loop()
        async with started(own.url, schema, recent_bytes_max=0) as store:
            log = await open_log(store)
            await append(log, b"x")
            await log.flush()
            await asyncio.gather(*(log.read(0, 100, 1) for _ in range(warm)))
            monkeypatch.setattr(database, "QUERY_TIMEOUT_S", 1.0)
            with own.frozen():
                began = loop.time()
                results = await asyncio.gather(*(log.read(0, 100, 1) for _ in range(16)), return_exceptions=True)
                assert 1 <= loop.time() - began < 4
                assert all(isinstance(each, StoreUnavailableError) for each in results), results
            monkeypatch.setattr(database, "QUERY_TIMEOUT_S", 60.0)
            slices = await asyncio.gather(*(log.read(0, 100, 1) for _ in range(16)))
            assert all(each.size for each in slices)
            await append(log, b"y")
            await log.flush()
            assert await values_of(log) == [b"x", b"y"]

    with PostgresServer(shared_server().binaries) as own:
        asyncio.run(body(own, warm=8))
        drop_schema(own, schema)
        asyncio.run(body(own, warm=0))


def test_the_check_of_the_owner_does_not_wait_for_slow_reads(newest: PostgresServer, schema: str) -> None:
    """Otherwise slow reads of clients would make the node give up its leadership."""

    async def body() -> None:
        async with started(newest.url, schema) as store:
            reads = [asyncio.create_task(store.database.query("select pg_sleep(2)")) for _ in range(5)]
            await asyncio.sleep(0.3)
            for _ in range(2):
                await store.database.check_owner(1.0)
            await asyncio.gather(*reads)
            name = f"moldau {schema} reader"
            readers = query(newest, schema, f"select from pg_stat_activity where application_name = '{name}'")
            assert len(readers) <= database.READERS_MAX

    asyncio.run(body())


def test_a_frozen_server_ends_transactions_in_time(schema: str) -> None:
    """They go on when the server does, since it may have executed them."""

    async def body(own: PostgresServer) -> None:
        async with started(own.url, schema, patience_s=1.0) as store:
            files = FileTable(store.database, "")
            log, removed = await open_log(store), await open_log(store, LogName("removed", 0))
            await append(log, b"x", b"y")
            await append(log, b"z")
            await log.flush()
            log.checkpointed_high_watermark = 3
            for operation in (
                lambda: open_log(store, OTHER),
                lambda: store.remove(removed.name),
                lambda: log.advance_start_offset(2),
                lambda: files.replace("/file", b"new"),
                store.checkpoint_high_watermarks,
            ):
                with own.frozen():
                    attempt = asyncio.ensure_future(operation())
                    await asyncio.wait((attempt,), timeout=20)
                    assert isinstance(attempt.exception(), StoreUnavailableError)
                async with asyncio.timeout(10):
                    while store.database.is_busy or store.deletion.is_running:
                        await asyncio.sleep(0.01)
            assert store.list_logs() == [(NAME, TOPIC_ID), (OTHER, TOPIC_ID)]
            assert (await open_log(store, OTHER)).end_offset == 0
            assert files.open("/file").read(0, 10) == b"new"
            assert log.start_offset == 2
            await store.checkpoint_high_watermarks()
            rows = query(own, schema, "select topic, partition, start_offset, high_watermark from log order by id")
            assert rows == [("orders", 0, 2, 3), ("orders", 1, 0, 0)]
            assert query(own, schema, "select data from file") == [(b"new",)]
            assert await values_of(log) == [b"z"]

    with PostgresServer(shared_server().binaries) as own:
        asyncio.run(body(own))


def test_a_store_closes_in_time_without_its_server(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with PostgresProxy(newest) as proxy:
            store = postgres_store(proxy.url, schema, patience_s=0.5)
            await store.start()
            for partition in range(20):
                await append(await open_log(store, LogName("orders", partition)), b"unflushed")
            proxy.refuses = True
            proxy.cut()
            async with asyncio.timeout(5):
                await store.close()
        async with started(newest.url, schema) as store:
            assert not store.had_clean_shutdown

    asyncio.run(body())


def test_an_aborted_store_closes_while_a_truncation_reads_from_a_frozen_server(schema: str) -> None:
    async def body(own: PostgresServer) -> None:
        store = postgres_store(own.url, schema, recent_bytes_max=0)
        await store.start()
        log = await open_log(store)
        for value in (b"a", b"b"):
            await append(log, value)
            await log.flush()
        await log.read(0, 100, 1)
        with own.frozen():
            truncation = asyncio.create_task(log.truncate_to(1))
            await asyncio.sleep(0.1)
            store.database.abort()
            async with asyncio.timeout(5):
                await store.close()
                with pytest.raises(StorageError):
                    await truncation

    with PostgresServer(shared_server().binaries) as own:
        asyncio.run(body(own))


# Owners


def test_a_second_store_waits_and_then_refuses_the_schema(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with started(server.url, schema) as first:
            log = await open_log(first)
            monkeypatch.setattr(database, "START_TIMEOUT_S", 0.5)
            second = postgres_store(server.url, schema)
            with pytest.raises(StorageError, match=r"another process uses the schema .* stop it"):
                await second.start()
            await append(log, b"still works")
            await log.flush()
            monkeypatch.setattr(database, "START_TIMEOUT_S", 10.0)
            waiting = asyncio.create_task(second.start())
            await asyncio.sleep(0.1)
            assert not waiting.done()
        await waiting
        assert await values_of(await open_log(second)) == [b"still works"]
        await kill(second)

    asyncio.run(body())


@pytest.mark.usefixtures("commit_path")
def test_a_store_that_was_replaced_is_fenced(server: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(server.url, schema) as first:
            old = await open_log(first)
            await append(old, b"of the first")
            await old.flush()
            query(
                server, schema, f"select pg_terminate_backend(pid) from pg_stat_activity where application_name like "
                f"'moldau {schema} %'"
            )  # fmt: skip
            async with started(server.url, schema) as second:
                log = await open_log(second)
                await append(old, b"never acknowledged")
                with pytest.raises(StorageError, match="another process owns the schema") as refused:
                    await old.flush()
                assert not is_transient(refused.value)
                assert old.failure is not None
                with pytest.raises(StorageError):
                    await append(old, b"refused")
                await append(log, b"of the second")
                await log.flush()
                assert await values_of(log) == [b"of the first", b"of the second"]

    asyncio.run(body())


@pytest.mark.usefixtures("commit_path")
def test_a_transaction_of_a_replaced_owner_is_rolled_back(newest: PostgresServer, schema: str) -> None:
    """Its session may still be open, for example if the lock was released by an operator."""

    async def body() -> None:
        async with started(newest.url, schema) as store:
            log = await open_log(store)
            await append(log, b"never acknowledged")
            query(newest, schema, "update node set incarnation = gen_random_uuid()")
            with pytest.raises(StorageError, match="another process owns the schema"):
                await log.flush()
            assert query(newest, schema, "select * from batch") == []

    asyncio.run(body())


@pytest.mark.usefixtures("commit_path")
def test_a_commit_that_waits_for_a_new_owner_is_rolled_back(newest: PostgresServer, schema: str) -> None:
    """The statement has begun before the other process owns the schema."""

    async def body() -> None:
        async with started(newest.url, schema) as store:
            log = await open_log(store)
            await append(log, b"never acknowledged")
            async with await psycopg.AsyncConnection.connect(newest.url) as other:
                await other.execute(f"update {schema}.node set incarnation = gen_random_uuid()")
                flush = asyncio.create_task(log.flush())
                waiting = (
                    "select pid from pg_stat_activity where wait_event_type = 'Lock' and application_name = "
                    f"'moldau {schema} writer'"
                )
                async with asyncio.timeout(10):
                    while not query(newest, schema, waiting):
                        await asyncio.sleep(0.01)
            with pytest.raises(StorageError, match="another process owns the schema"):
                await flush
            assert query(newest, schema, "select * from batch") == []
            assert query(newest, schema, "select end_offset from log") == [(0,)]

    asyncio.run(body())


@pytest.mark.usefixtures("commit_path")
def test_a_log_that_another_program_has_changed_goes_offline_alone(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as store:
            changed, other = await open_log(store), await open_log(store, OTHER)
            query(newest, schema, "update log set end_offset = 7 where partition = 0")
            await append(changed, b"lost")
            await append(other, b"kept")
            await other.flush()
            assert other.durable_offset == 1
            assert changed.failure is not None
            assert "another program has changed it" in changed.failure
            with pytest.raises(StorageError):
                await changed.flush()
            assert await values_of(other) == [b"kept"]

    asyncio.run(body())


def test_a_flush_gets_no_error_of_a_commit_without_its_log(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as store:
            changed, other = await open_log(store), await open_log(store, OTHER)
            query(newest, schema, "update log set end_offset = 7 where partition = 0")
            await append(changed, b"lost")
            flush = asyncio.create_task(changed.flush())
            while not store.database.is_busy:
                await asyncio.sleep(0)
            await append(other, b"kept")
            await other.flush()
            with pytest.raises(StorageError, match="another program has changed it"):
                await flush
            assert other.durable_offset == 1

    asyncio.run(body())


# Failover


@contextmanager
def primary_and_standby() -> Iterator[tuple[PostgresServer, PostgresServer, str]]:
    """Yields two servers, of which the second replicates the first, and a URL with both."""
    programs = [each for each in find_servers().values() if (each / "pg_basebackup").exists()]
    if not programs:
        pytest.skip("needs pg_basebackup, which is in Debian's package postgresql-client-15")
    with PostgresServer(programs[-1]) as primary:
        standby = PostgresServer(programs[-1])
        try:
            standby.run_program(
                "pg_basebackup", "--host=127.0.0.1", f"--port={primary.port}", "--username=moldau", "--no-sync",
                "--write-recovery-conf", "--checkpoint=fast", f"--pgdata={standby.data_directory}",
            )  # fmt: skip
            standby.start()
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            yield primary, standby, f"postgresql://moldau@{hosts}/moldau"
        finally:
            standby.__exit__()


def promote(standby: PostgresServer) -> None:
    with psycopg.connect(standby.url, autocommit=True) as connection:
        assert connection.execute("select pg_promote()").fetchone() == (True,)


@contextmanager
def missing_standby(server: PostgresServer) -> Iterator[None]:
    """Lets commits wait for a synchronous standby that does not exist."""
    query(server, "public", "alter system set synchronous_standby_names = 'nobody'")
    query(server, "public", "select pg_reload_conf()")
    while query(server, "public", "show synchronous_standby_names") != [("nobody",)]:
        time.sleep(0.01)
    try:
        yield
    finally:
        query(server, "public", "alter system reset synchronous_standby_names")
        query(server, "public", "select pg_reload_conf()")


async def waiting_session(server: PostgresServer) -> int:
    """Returns the process id of the session whose commit waits for the standby."""
    statement = "select pid from pg_stat_activity where wait_event = 'SyncRep'"
    async with asyncio.timeout(10):
        while not (found := query(server, "public", statement)):
            await asyncio.sleep(0.01)
    pid = found[0][0]
    assert isinstance(pid, int)
    return pid


@pytest.mark.usefixtures("commit_path")
@pytest.mark.parametrize("function", ["pg_terminate_backend", "pg_cancel_backend"])
def test_a_commit_that_no_standby_has_is_not_acknowledged(schema: str, function: str) -> None:
    """Ending or cancelling a session that waits for the standby makes its commit visible without it."""

    async def body(own: PostgresServer) -> None:
        async with started(own.url, schema, patience_s=1.0) as store:
            log = await open_log(store)
            await append(log, b"waits")
            with missing_standby(own):
                flush = asyncio.create_task(log.flush())
                for _ in range(2):
                    pid = await waiting_session(own)
                    query(own, "public", f"select {function}({pid})")
                    await asyncio.sleep(0.2)
                with pytest.raises(StoreUnavailableError):
                    await flush
                assert query(own, schema, "select end_offset from log") == [(1,)]
                assert log.durable_offset == 0
            async with asyncio.timeout(10):
                while log.durable_offset < 1:
                    with suppress_unavailable():
                        await log.flush()
            await append(log, b"next")
            await log.flush()
        assert await values_after_restart(own.url, schema) == [b"waits", b"next"]

    with PostgresServer(shared_server().binaries) as own:
        asyncio.run(body(own))


def test_a_log_that_is_opened_during_its_deletion_is_a_new_one(schema: str) -> None:
    async def body(own: PostgresServer) -> None:
        async with started(own.url, schema, patience_s=0.3) as store:
            log = await open_log(store)
            await append(log, b"deleted")
            await log.flush()
            with missing_standby(own):
                with pytest.raises(StoreUnavailableError):
                    await store.remove(NAME)
                with pytest.raises(StoreUnavailableError):
                    await open_log(store)
            async with asyncio.timeout(30):
                while log.is_closed:
                    with suppress_unavailable():
                        log = await open_log(store)
                await append(log, b"new")
                while log.durable_offset < 1:
                    with suppress_unavailable():
                        await log.flush()
                while store.deletion.is_running:
                    await asyncio.sleep(0.01)
            assert await values_of(log) == [b"new"]
        assert await values_after_restart(own.url, schema) == [b"new"]

    with PostgresServer(shared_server().binaries) as own:
        asyncio.run(body(own))


def test_a_log_whose_name_was_created_late_for_an_earlier_topic_can_be_opened(schema: str) -> None:
    """A topic is created, deleted and created again while the server does not respond."""

    async def body(own: PostgresServer) -> None:
        async with started(own.url, schema, patience_s=1.0) as store:
            with own.frozen():
                with pytest.raises(StoreUnavailableError):
                    await open_log(store)
                opening = asyncio.ensure_future(store.open(NAME, OTHER_TOPIC_ID, TopicSettings()))
                await asyncio.sleep(0.2)
            with pytest.raises(StoreUnavailableError):
                await opening
            log = await store.open(NAME, OTHER_TOPIC_ID, TopicSettings())
            await append(log, b"new")
            await log.flush()
            assert store.list_logs() == [(NAME, OTHER_TOPIC_ID)]
            assert query(own, schema, "select state, end_offset from log order by id") == [("stray", 0), ("live", 1)]

    with PostgresServer(shared_server().binaries) as own:
        asyncio.run(body(own))


@pytest.mark.usefixtures("commit_path")
def test_a_commit_in_doubt_at_the_end_is_not_taken_for_the_next_one(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with PostgresProxy(newest) as proxy, started(proxy.url, schema, patience_s=0.3) as store:
            log = await open_log(store)
            await append(log, b"first")
            proxy.loses_answer = proxy.refuses = True
            with pytest.raises(StoreUnavailableError):
                await log.flush()
            store.database.stop_waiting()
            async with asyncio.timeout(10):
                while store.database.is_busy:
                    await asyncio.sleep(0.01)
            proxy.refuses = False
            with pytest.raises(StorageError, match="confirmed a commit"):
                await append(log, b"second")
            assert log.durable_offset == 0

    asyncio.run(body())


def test_a_store_continues_on_a_promoted_standby(schema: str) -> None:
    async def body(primary: PostgresServer, standby: PostgresServer, url: str) -> None:
        values: list[bytes] = []
        acknowledged: list[bytes] = []
        with server_settings(primary, "synchronous_standby_names = '*'"):
            async with started(url, schema, patience_s=20) as store:
                log = await open_log(store)
                writer = asyncio.create_task(append_until(log, 60, values, acknowledged))
                while len(acknowledged) < 20:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(primary.kill)
                await asyncio.to_thread(promote, standby)
                await writer
                assert acknowledged == values
                assert await values_of(log) == values
            assert await values_after_restart(standby.url, schema) == values
            primary.start()

    with primary_and_standby() as (primary, standby, url):
        asyncio.run(body(primary, standby, url))


async def append_next(_: PostgresLogStore, log: Log) -> None:
    await append(log, b"next")
    await log.flush()


async def read_lost_batch(_: PostgresLogStore, log: Log) -> None:
    await log.read(1, 1_000, 2)


async def wait_idle(store: PostgresLogStore, _: Log) -> None:
    files = FileTable(store.database, "")
    await PostgresStorage(store.database, store, files)._responds()
    store.database.check()


@pytest.mark.parametrize("lost", [append_next, read_lost_batch, wait_idle])
def test_a_standby_that_lacks_commits_is_refused(
    schema: str, lost: Callable[[PostgresLogStore, Log], Awaitable[None]]
) -> None:
    """Also by a node that only reads, and by one without any request."""

    async def body(primary: PostgresServer, standby: PostgresServer, url: str) -> None:
        async with started(url, schema, patience_s=20, recent_bytes_max=0) as store:
            log = await open_log(store)
            await append(log, b"replicated")
            await log.flush()
            end = query(primary, schema, "select pg_current_wal_lsn()")[0][0]
            while query(standby, "public", f"select pg_last_wal_replay_lsn() >= '{end}'") != [(True,)]:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(standby.stop)
            await append(log, b"not replicated")
            await log.flush()
            await asyncio.to_thread(primary.kill)
            await asyncio.to_thread(standby.start)
            await asyncio.to_thread(promote, standby)
            with pytest.raises(StorageError, match="has lost transactions") as refused:
                await lost(store, log)
            assert not is_transient(refused.value)
            assert store.database.failure is not None
        assert await values_after_restart(standby.url, schema) == [b"replicated"]

    with primary_and_standby() as (primary, standby, url):
        asyncio.run(body(primary, standby, url))


# Servers that cannot be used


async def refusal(url: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(database, "START_TIMEOUT_S", 60.0)
    async with asyncio.timeout(10):
        with pytest.raises(StorageError) as refused:
            await postgres_store(url, schema).start()
    return str(refused.value)


def test_a_wrong_password_is_refused_at_once(
    newest: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query(newest, "public", "drop role if exists locked")
    query(newest, "public", "create role locked login password 'right'")
    hba = newest.data_directory / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text("host all locked 127.0.0.1/32 scram-sha-256\n" + before)
    query(newest, "public", "select pg_reload_conf()")
    try:
        for password in (":wrong", ""):
            url = newest.url.replace("moldau@", f"locked{password}@")
            text = asyncio.run(refusal(url, schema, monkeypatch))
            assert "cannot connect to Postgres at 127.0.0.1" in text
            assert "password" in text
            assert "wrong" not in text
    finally:
        hba.write_text(before)
        query(newest, "public", "select pg_reload_conf()")
        query(newest, "public", "drop role locked")


def test_an_unknown_database_or_role_is_refused_at_once(
    newest: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (newest.database_url("missing"), newest.url.replace("moldau@", "missing@")):
        assert '"missing" does not exist' in asyncio.run(refusal(url, schema, monkeypatch))


def test_a_role_that_may_not_create_a_schema_gets_the_reason(
    newest: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query(newest, "public", "create role guest login")
    try:
        url = newest.url.replace("moldau@", "guest@")
        assert "permission denied for database moldau" in asyncio.run(refusal(url, schema, monkeypatch))
    finally:
        query(newest, "public", "drop role guest")


def test_a_server_that_does_not_listen_is_refused_after_a_while(
    newest: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with PostgresProxy(newest) as proxy:
            proxy.refuses = True
            monkeypatch.setattr(database, "START_TIMEOUT_S", 0.3)
            with pytest.raises(StorageError, match="cannot connect to Postgres"):
                await postgres_store(proxy.url, schema).start()
            monkeypatch.setattr(database, "START_TIMEOUT_S", 30.0)
            store = postgres_store(proxy.url, schema)
            starting = asyncio.create_task(store.start())
            await asyncio.sleep(0.1)
            proxy.refuses = False
            await starting
            await kill(store)

    asyncio.run(body())


@pytest.mark.parametrize("version", [0, 99])
def test_tables_of_another_version_are_refused(
    newest: PostgresServer, schema: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with started(newest.url, schema):
            pass
        query(newest, schema, f"update node set schema_version = {version}")
        assert f"version {version}, and this version of Moldau needs version 1" in await refusal(
            newest.url, schema, monkeypatch
        )
        assert query(newest, schema, "select schema_version from node") == [(version,)]

    asyncio.run(body())


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_loses_commits_is_refused(schema: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shared_server()
    with server_settings(own, f"{setting} = off"):
        text = asyncio.run(refusal(own.url, schema, monkeypatch))
    assert f"the Postgres server has {setting}=off" in text


def test_a_new_session_finds_that_the_server_loses_commits(newest: PostgresServer, schema: str) -> None:
    """A failover may lead to a server with other settings."""

    async def body() -> None:
        async with PostgresProxy(newest) as proxy, started(proxy.url, schema) as store:
            log = await open_log(store)
            await append(log, b"x")
            with server_settings(newest, "fsync = off"):
                proxy.cut()
                with pytest.raises(StorageError, match="has fsync=off"):
                    await log.flush()
            assert log.durable_offset == 0

    asyncio.run(body())


def test_a_server_that_is_too_old_is_refused() -> None:
    class Info:
        server_version = 120_022

    class OldConnection:
        info = Info()

    with pytest.raises(StorageError, match="has version 12, and Moldau needs 13 or newer"):
        asyncio.run(check_server(cast("psycopg.AsyncConnection[object]", OldConnection())))


def test_commits_are_durable_whatever_the_role_prefers(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as store:
            found: list[object] = []

            async def work(cursor: database.Cursor) -> None:
                await cursor.execute("select current_setting('synchronous_commit')")
                found[:] = await cursor.fetchone() or ()

            await store.database.transaction(work)
            assert found == ["on"]

    with server_settings(newest, "synchronous_commit = off"):
        asyncio.run(body())


def test_a_pooler_is_refused(newest: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with PostgresProxy(newest) as proxy:
            proxy.replaces_pid = True
            assert "a pooler such as PgBouncer" in await refusal(proxy.url, schema, monkeypatch)

    asyncio.run(body())


def test_limits_of_the_role_do_not_apply(server: PostgresServer, schema: str) -> None:
    limits = ("statement_timeout = '1ms'", "lock_timeout = '1ms'", "default_transaction_read_only = on")

    async def body() -> None:
        async with started(server.url.replace("moldau@", "limited@"), schema) as store:
            log = await open_log(store)
            await append(log, b"x" * 2_000_000)
            await log.flush()
            assert len(await values_of(log)) == 1

    query(server, "public", "create role limited login superuser")
    for limit in limits:
        query(server, "public", f"alter role limited set {limit}")
    try:
        asyncio.run(body())
    finally:
        drop_schema(server, schema)
        query(server, "public", "drop role limited")


# Errors of statements


def raise_on_insert(server: PostgresServer, schema: str, code: str, condition: str = "true") -> None:
    """Lets inserts of batches fail with an SQLSTATE, as a server does whose disk is full or damaged."""
    query(
        server, schema, f"create or replace function refuse() returns trigger language plpgsql as $$ begin "
        f"if {condition} then raise exception 'injected' using errcode = '{code}'; end if; return new; end $$"
    )  # fmt: skip
    query(server, schema, "create trigger refuse before insert on batch for each row execute function refuse()")


@pytest.mark.usefixtures("commit_path")
def test_a_full_disk_refuses_commits_until_there_is_space(server: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(server.url, schema) as store:
            log = await open_log(store)
            raise_on_insert(server, schema, "53100")
            await append(log, b"waits")
            for _ in range(2):
                with pytest.raises(StorageError, match="injected") as refused:
                    await log.flush()
                assert is_transient(refused.value)
            assert log.failure is None
            assert log.durable_offset == 0
            query(server, schema, "drop trigger refuse on batch")
            await log.flush()
            assert log.durable_offset == 1
        assert await values_after_restart(server.url, schema) == [b"waits"]

    asyncio.run(body())


@pytest.fixture
def small_disk() -> Iterator[Path]:
    # The user of the server may not enter the directories of pytest.
    parent = Path(tempfile.mkdtemp(prefix="moldau-disk-"))
    parent.chmod(0o755)
    where = parent / "small"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=1777", "none", str(where)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command for a small tmpfs")
    if done.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)
    shutil.rmtree(parent)


def test_a_disk_that_is_really_full_loses_nothing(schema: str, small_disk: Path) -> None:
    async def body(own: PostgresServer) -> None:
        values: list[bytes] = []
        async with started(f"{own.url}?options=-cdefault_tablespace%3Dsmall", schema, patience_s=5) as store:
            log = await open_log(store)
            ballast = small_disk / "ballast"
            ballast.write_bytes(bytes(16 << 20))
            with pytest.raises(StorageError, match="No space left on device") as refused:
                await fill(log, values)
            assert is_transient(refused.value)
            assert log.failure is None
            assert log.durable_offset == len(values) - 1
            assert await values_of(log) == values
            ballast.unlink()
            await log.flush()
            await append(log, b"next")
            await log.flush()
        assert await values_after_restart(own.url, schema) == [*values, b"next"]

    with PostgresServer(shared_server().binaries) as own:
        query(own, "public", f"create tablespace small location '{make_tablespace(own, small_disk)}'")
        asyncio.run(body(own))


async def fill(log: Log, values: list[bytes]) -> None:
    for number in range(200):
        values.append(b"%d" % number + b"x" * 200_000)
        await append(log, values[-1])
        await log.flush()


def make_tablespace(server: PostgresServer, disk: Path) -> Path:
    directory = disk / "tablespace"
    directory.mkdir(mode=0o700)
    owner = server.data_directory.stat()
    os.chown(directory, owner.st_uid, owner.st_gid)
    return directory


def test_damage_takes_only_the_log_offline_that_has_it(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as store:
            damaged, other = await open_log(store), await open_log(store, OTHER)
            [(log_id,)] = query(newest, schema, "select id from log where partition = 0")
            raise_on_insert(newest, schema, "XX001", f"new.log_id = {log_id}")
            await append(other, b"kept")
            await append(damaged, b"lost")
            with pytest.raises(StorageError):
                await damaged.flush()
            assert damaged.failure is not None
            assert store.recent.uncommitted == 0
            await other.flush()
            assert other.failure is None
            assert other.durable_offset == 1

    asyncio.run(body())


def test_damage_that_a_read_finds_takes_the_log_offline(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema, **EVICTED_AT_ONCE) as store:
            log = await open_log(store)
            await append(log, b"x")
            await log.flush()
            for statement in (
                "alter table batch rename to damaged",
                """create function damage(bytea) returns bytea language plpgsql as $$ begin
                raise exception 'invalid page' using errcode = 'XX001'; end $$""",
                """create view batch as select log_id, base_offset, last_offset, max_timestamp, leader_epoch, size,
                damage(data) as data from damaged""",
            ):
                query(newest, schema, statement)
            with pytest.raises(StorageError, match="invalid page"):
                await log.read(0, 1, 1)
            assert log.failure is not None

    asyncio.run(body())


def test_a_batch_that_contradicts_its_row_is_damage(newest: PostgresServer, schema: str) -> None:
    """A reader would find the same row again and again."""

    async def body() -> None:
        async with started(newest.url, schema, recent_bytes_max=0) as store:
            log = await open_log(store)
            await append(log, b"x")
            await append(log, b"y")
            await append(log, b"z")
            await log.flush()
            query(newest, schema, "update batch set data = overlay(data placing int8send(0) from 1)")
            async with asyncio.timeout(5):
                with pytest.raises(StorageError, match="has a damaged batch"):
                    await log.read(0, 1_000, 3)
            assert log.failure is not None
        async with started(newest.url, schema) as store, asyncio.timeout(5):
            with pytest.raises(StorageError, match="has a damaged batch"):
                await open_log(store)

    asyncio.run(body())


def test_rows_after_the_end_of_a_log_are_refused(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as store:
            log = await open_log(store)
            await append(log, b"x", b"y")
            await log.flush()
        query(newest, schema, "update log set end_offset = 1")
        async with started(newest.url, schema) as store:
            with pytest.raises(StorageError, match="ends at 1, but the table batch has a batch up to 2"):
                await open_log(store)

    asyncio.run(body())


def test_a_batch_larger_than_a_value_of_postgres_is_refused(
    newest: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as opened:
            log_ = await open_log(opened)
            with pytest.raises(RecordTooLargeError, match="at most 1 GiB: make the batches of the producer smaller"):
                await log_.append([batch_at(0, [b"x" * 200])])
            assert log_.end_offset == 0
            await append(log_, b"small")
            await log_.flush()

    monkeypatch.setattr(log, "BATCH_BYTES_MAX", 200)
    asyncio.run(body())


@pytest.mark.parametrize("name", ['My "logs", $user; %s', "n" * 63])
def test_a_schema_may_have_any_name(server: PostgresServer, name: str) -> None:
    async def body() -> None:
        async with PostgresProxy(server) as proxy, started(proxy.url, name) as store:
            log = await open_log(store)
            await append(log, b"x")
            proxy.loses_answer = True
            await log.flush()
            assert proxy.cuts == 1
        assert await values_after_restart(server.url, name) == [b"x"]

    try:
        asyncio.run(body())
    finally:
        drop_schema(server, name)


# Shared commits, memory, deletion


def test_flushes_of_many_logs_share_commits(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as store:
            logs = [await open_log(store, LogName("orders", number)) for number in range(50)]
            [(before,)] = query(newest, schema, "select commit_number from node")
            for log in logs:
                await append(log, b"x")
            await asyncio.gather(*(log.flush() for log in logs))
            assert query(newest, schema, "select commit_number from node") == [(before + 1,)]

    asyncio.run(body())


def test_batches_that_nobody_flushes_are_committed_soon(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as store:
            log = await store.open(NAME, TOPIC_ID, TopicSettings(write_caching=True))
            await append(log, b"x")
            async with asyncio.timeout(10):
                while log.durable_offset < 1:
                    await asyncio.sleep(0.01)

    asyncio.run(body())


def test_batches_that_leave_memory_during_a_query_are_found(
    newest: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with started(newest.url, schema, recent_bytes_max=0) as store:
            log = await open_log(store)
            original = store.database.query

            async def slow(*arguments: Any) -> list[Any]:
                rows = await original(*arguments)
                await log.flush()
                return rows

            monkeypatch.setattr(store.database, "query", slow)
            for lookup in (
                lambda: log.offset_for_timestamp(1_000 + log.end_offset, log.end_offset),
                lambda: log.max_timestamp(log.end_offset),
                lambda: log.find_batch_time(log.end_offset - 1, log.end_offset),
            ):
                for _ in range(2):
                    await log.flush()
                    await log.append([batch_at(log.end_offset, [b"x"], timestamp_ms=1_001 + log.end_offset)])
                found = await lookup()
                assert found is not None
                assert found.offset == log.end_offset - 1

    asyncio.run(body())


def test_reads_of_transactions_wait_for_a_compaction_in_doubt(newest: PostgresServer, schema: str) -> None:
    """Its rows may be replaced while their aborted transactions are still in memory."""

    async def body() -> None:
        async with started(newest.url, schema, recent_bytes_max=0) as store:
            log = await open_log(store)
            assert isinstance(log, PostgresLog)
            await append(log, b"x")
            await log.flush()
            async with store.database.exclusive():
                log.is_rewriting = True
                read = asyncio.create_task(log.read_committed(0, 100, 1))
                await asyncio.sleep(0.2)
                assert not read.done()
                log.is_rewriting = False
            records, _ = await read
            assert records.size

    asyncio.run(body())


def test_a_truncation_is_not_reported_as_failed_after_its_commit(
    newest: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with PostgresProxy(newest) as proxy, started(proxy.url, schema, patience_s=0.3) as store:
            log = await open_log(store)
            await append(log, b"a")
            first_size = log.size
            await append(log, b"b")
            await log.flush()
            execute = store.database.execute_exclusively

            async def execute_and_cut(work: database.Work) -> None:
                await execute(work)
                proxy.refuses = True
                proxy.cut()

            monkeypatch.setattr(store.database, "execute_exclusively", execute_and_cut)
            await log.truncate_to(1)
            assert (log.end_offset, log.durable_offset, log.size) == (1, 1, first_size)

    asyncio.run(body())


def test_a_checkpoint_that_waits_for_a_truncation_has_its_high_watermark(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as store:
            log = await open_log(store)
            await append(log, b"a")
            await append(log, b"b")
            await log.flush()
            log.checkpointed_high_watermark = 2
            async with store.database.exclusive():
                truncation = asyncio.create_task(log.truncate_to(1))
                await asyncio.sleep(0.01)
                checkpoint = asyncio.create_task(store.checkpoint_high_watermarks())
                await asyncio.sleep(0.01)
            await asyncio.gather(truncation, checkpoint)
            assert query(newest, schema, "select end_offset, high_watermark from log") == [(1, 1)]

    asyncio.run(body())


def test_memory_of_batches_is_bounded(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema, recent_bytes_max=100_000, uncommitted_bytes_max=50_000) as store:
            logs = [await open_log(store, LogName("orders", number)) for number in range(3)]
            for number in range(300):
                await append(logs[number % 3], b"%d" % number + b"x" * 5_000)
                assert store.recent.size <= 160_000
            for number, log in enumerate(logs):
                assert [int((value or b"").rstrip(b"x")) for value in await values_of(log)] == list(
                    range(number, 300, 3)
                )
            await logs[0].truncate_fully_and_start_at(5)
            await store.remove(LogName("orders", 1))
            await logs[2].flush()
            await logs[2].advance_start_offset(logs[2].end_offset)
            assert (store.recent.size, store.recent.uncommitted) == (0, 0)

    asyncio.run(body())


def test_an_interrupted_deletion_is_completed_at_the_next_start(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as store:
            log = await open_log(store)
            await append(log, b"x", producer_id=1, producer_epoch=0, base_sequence=0)
            await store.close()
        query(newest, schema, "update log set state = 'deleted'")
        async with started(newest.url, schema) as store:
            assert store.list_logs() == []
            await rows_are_deleted(store)
            for table in ("log", "batch", "producer_snapshot", "aborted_transaction"):
                assert query(newest, schema, f"select * from {table}") == []
            assert (await open_log(store)).end_offset == 0

    asyncio.run(body())


def test_a_stray_log_keeps_its_rows(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as store:
            for value in (b"first", b"second"):
                log = await open_log(store)
                await append(log, value)
                await log.flush()
                await store.move_to_stray(NAME)
            assert await batches_of(await open_log(store)) == []
            assert query(newest, schema, "select state, end_offset from log order by id") == [
                ("stray", 1),
                ("stray", 1),
                ("live", 0),
            ]
            assert query(newest, schema, "select count(*) from batch") == [(2,)]

    asyncio.run(body())


def test_high_watermarks_and_shutdown_survive_a_restart(newest: PostgresServer, schema: str) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as store:
            log = await open_log(store)
            await append(log, b"a", b"b", b"c")
            await log.flush()
            log.checkpointed_high_watermark = 2
            await store.checkpoint_high_watermarks()
        async with started(newest.url, schema) as store:
            assert (store.had_clean_shutdown, store.previous_broker_epoch) == (False, -1)
            log = await open_log(store)
            assert log.checkpointed_high_watermark == 2
            log.checkpointed_high_watermark = 3
            await store.close(broker_epoch=12)
        async with started(newest.url, schema) as store:
            assert (store.had_clean_shutdown, store.previous_broker_epoch) == (True, 12)
            assert (await open_log(store)).checkpointed_high_watermark == 3

    asyncio.run(body())


@pytest.mark.parametrize("limits", [(3, 10**9), (1_000, 2_500), (1_000, 1)])
def test_batches_are_deleted_in_small_transactions(
    newest: PostgresServer, schema: str, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with started(newest.url, schema) as store:
            log_ = await open_log(store)
            for _ in range(20):
                await append(log_, b"x" * 1_000)
            await log_.flush()
            for start in (1, 4, 10):
                await log_.advance_start_offset(start)
                await rows_are_deleted(store)
                assert query(newest, schema, "select min(base_offset), count(*) from batch") == [(start, 20 - start)]
                assert log_.size == sum(batch.size for batch in await batches_of(log_))
            [(before,)] = query(newest, schema, "select commit_number from node")
            await store.remove(NAME)
            await rows_are_deleted(store)
            assert query(newest, schema, "select * from batch") == []
            [(after,)] = query(newest, schema, "select commit_number from node")
            assert after - before > 4, "the batches did not go in one transaction"

    monkeypatch.setattr(deletion, "DELETE_ROWS", limits[0])
    monkeypatch.setattr(deletion, "DELETE_BYTES", limits[1])
    asyncio.run(body())


async def remove(store: PostgresLogStore, _: Log) -> None:
    await store.remove(NAME)


async def reset(_: PostgresLogStore, log: Log) -> None:
    await log.truncate_fully_and_start_at(7)


async def advance(_: PostgresLogStore, log: Log) -> None:
    await log.advance_start_offset(20)


async def expire(_: PostgresLogStore, log: Log) -> None:
    log.configure(TopicSettings(retention_bytes=0))
    await log.apply_retention(0, 20)


@pytest.mark.parametrize("operation", [remove, reset, advance, expire])
def test_rows_are_deleted_in_the_background_and_after_a_crash(
    newest: PostgresServer,
    schema: str,
    operation: Callable[[PostgresLogStore, Log], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Publishing metadata, and the requests of a partition, do not wait for it; nor does a start."""

    async def paused(_: deletion.RowDeletion) -> None:
        """Deletes nothing."""

    async def body() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(deletion.RowDeletion, "_run", paused)
            async with started(newest.url, schema, recent_bytes_max=0) as store:
                log = await open_log(store)
                for number in range(20):
                    await append(log, b"x", producer_id=1, producer_epoch=0, base_sequence=number)
                await log.flush()
                await operation(store, log)
                log = await open_log(store)
                assert (log.size, await batches_of(log)) == (0, [])
            assert query(newest, schema, "select count(*) from batch") == [(20,)]
            async with started(newest.url, schema) as store:
                log = await open_log(store)
                assert (log.size, await batches_of(log)) == (0, [])
                start = log.start_offset
        async with started(newest.url, schema) as store:
            log = await open_log(store)
            await append(log, b"next")
            await log.flush()
            await rows_are_deleted(store)
            assert query(newest, schema, "select base_offset from batch") == [(start,)]
            assert query(newest, schema, "select state from log") == [("live",)]
            assert await values_of(log) == [b"next"]
            assert log.size == sum(batch.size for batch in await batches_of(log))

    monkeypatch.setattr(deletion, "DELETE_ROWS", 2)
    asyncio.run(body())


def test_a_log_that_was_closed_deletes_no_rows_of_its_successor(
    newest: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def paused(_: deletion.RowDeletion) -> None:
        """Deletes nothing."""

    async def unavailable(*_: object) -> None:
        raise StoreUnavailableError("Postgres is away")

    async def body() -> None:
        async with started(newest.url, schema) as store:
            log = await open_log(store)
            for value in (b"a", b"b", b"c"):
                await append(log, value)
            await log.flush()
            with monkeypatch.context() as patch:
                patch.setattr(deletion.RowDeletion, "_run", paused)
                await log.advance_start_offset(2)
                patch.setattr(database.Database, "execute_exclusively", unavailable)
                with pytest.raises(StoreUnavailableError):
                    await store.remove(NAME)
            successor = await open_log(store)
            await successor.truncate_to(0)
            for value in (b"x", b"y", b"z"):
                await append(successor, value)
            await successor.flush()
            store.deletion._task = None
            store.deletion.add(cast(PostgresLog, successor))
            await rows_are_deleted(store)
            assert await values_of(successor) == [b"x", b"y", b"z"]
        assert await values_after_restart(newest.url, schema) == [b"x", b"y", b"z"]

    asyncio.run(body())


def test_a_slow_advance_of_the_start_changes_no_deleted_log(
    newest: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        is_summed = asyncio.Event()

        async def size_until(log: PostgresLog, offset: int) -> int:
            await is_summed.wait()
            return 0

        async with started(newest.url, schema, patience_s=0.3) as store:
            log = await open_log(store)
            await append(log, b"a")
            await append(log, b"b")
            await log.flush()
            monkeypatch.setattr(PostgresLog, "_size_until", size_until)
            with pytest.raises(StoreUnavailableError):
                await log.advance_start_offset(1)
            await store.remove(NAME)
            await rows_are_deleted(store)
            is_summed.set()
            while store.database.is_busy or store.deletion.is_running:
                await asyncio.sleep(0.01)
            assert query(newest, schema, "select * from producer_snapshot") == []

    asyncio.run(body())
