"""Spark writes micro-batches to a real Postgres server: types, upserts, each batch once, and errors for users."""

import datetime
import itertools
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from moldau.spark.errors import SparkSourceError, find_user_message
from moldau.spark.sink import postgres as sink
from moldau.spark.sink import postgres_connection
from moldau.spark.sink.postgres import write_batch
from support.postgres import PostgresServer, find_servers

pytestmark = pytest.mark.spark

_databases = itertools.count()


class Database:
    """A database of one test."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = f"sink_{next(_databases)}"
        self.url = server.database_url(self.name)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"create database {self.name}")

    def __call__(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return [] if cursor.description is None else cursor.fetchall()


@pytest.fixture
def database(postgres: PostgresServer) -> Database:
    return Database(postgres)


def changes(spark: SparkSession, *given: tuple[int | None, str | None, int]) -> DataFrame:
    return spark.createDataFrame(list(given), "id INT, name STRING, seen INT")


def merge(database: Database, frame: DataFrame, batch_id: int, **more: Any) -> bool:
    more = {"key": ["id"], "order_by": ["seen"], **more}
    return write_batch(frame, batch_id, database.url, "people", "query", **more)


def append(database: Database, frame: DataFrame, batch_id: int, table: str = "people") -> bool:
    return write_batch(frame, batch_id, database.url, table, "query")


def message_of(write: Callable[[], Any]) -> str:
    with pytest.raises(SparkSourceError) as caught:
        write()
    text = str(caught.value)
    assert "\n" not in text
    return text


# Rows and types


def test_every_type_of_spark_has_a_column_and_keeps_its_values(spark: SparkSession, database: Database) -> None:
    frame = spark.range(0, 50, 1, 3).selectExpr(
        "id",
        "CAST(id AS INT) AS i",
        "CAST(id AS SMALLINT) AS sm",
        "CAST(-id AS TINYINT) AS ti",
        "CAST(id AS DOUBLE) / 3 AS d",
        "CAST(id / 7 AS FLOAT) AS f",
        "CASE id WHEN 3 THEN DOUBLE('NaN') WHEN 4 THEN DOUBLE('-Infinity') ELSE 0.5D END AS odd",
        "id % 2 = 0 AS b",
        r"IF(id = 4, NULL, concat('š\t\n\r\\N\\', id, '\"')) AS s",
        "IF(id = 5, '', '\\\\N') AS marker",
        "CAST(concat('x', char(0), char(255)) AS BINARY) AS bin",
        "DATE'2024-02-29' AS day",
        "timestamp_micros(1700000000123456 + id) AS t",
        "TIMESTAMP_NTZ'2024-03-31 02:30:00.000001' AS local",
        "CAST(id AS DECIMAL(38, 10)) / 3 AS m",
        "array(id, NULL) AS a",
        "map('k\\\\\"', id) AS `Map of things`",
        "struct(id AS x, CAST(NULL AS INT) AS y, timestamp_micros(1700000000123456) AS t) AS st",
    )
    assert append(database, frame, 0, "every_type")
    expected = sorted(frame.toArrow().to_pylist(), key=lambda row: row["id"])
    with psycopg.connect(database.url) as connection:
        cursor = connection.execute("select * from every_type order by id")
        names = [column.name for column in cursor.description or ()]
        found = [dict(zip(names, row, strict=True)) for row in cursor]
        types = dict(
            connection.execute(
                "select attname, format_type(atttypid, atttypmod) from pg_attribute "
                "where attrelid = 'every_type'::regclass and attnum > 0"
            ).fetchall()
        )
    for have, want in zip(found, expected, strict=True):
        assert math.isnan(have.pop("odd")) if math.isnan(want["odd"]) else have.pop("odd") == want["odd"]
        want.pop("odd")
        assert have.pop("f") == pytest.approx(want.pop("f"))
        assert have.pop("Map of things") == dict(want.pop("Map of things"))
        nested = have.pop("st")
        assert datetime.datetime.fromisoformat(nested.pop("t")) == want["st"].pop("t")
        assert nested == want.pop("st")
        assert have == want
    assert types == {
        "id": "bigint",
        "i": "integer",
        "sm": "smallint",
        "ti": "smallint",
        "d": "double precision",
        "f": "real",
        "odd": "double precision",
        "b": "boolean",
        "s": "text",
        "marker": "text",
        "bin": "bytea",
        "day": "date",
        "t": "timestamp with time zone",
        "local": "timestamp without time zone",
        "m": types["m"],
        "a": "jsonb",
        "Map of things": "jsonb",
        "st": "jsonb",
    }
    assert types["m"].startswith("numeric(38,")


def test_a_large_batch_passes_in_parts(
    spark: SparkSession, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "CHUNKS_AT_A_TIME", 2)
    frame = spark.range(0, 60_000, 1, 4).selectExpr("id", "repeat('x', 200) AS text")
    assert append(database, frame, 0)
    assert database("select count(*), count(distinct id), sum(length(text)) from people") == [
        (60_000, 60_000, 12_000_000)
    ]


def test_parts_of_two_evaluations_are_not_mixed(
    spark: SparkSession, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored chunks are lost after they were counted, as with an executor."""
    monkeypatch.setattr(sink, "CHUNKS_AT_A_TIME", 2)
    frame = spark.range(0, 60_000, 1, 4).selectExpr("id", "repeat('x', 200) AS text")
    with monkeypatch.context() as patched:
        compute = sink._Chunks.compute

        def compute_and_lose(chunks: sink._Chunks) -> None:
            compute(chunks)
            chunks._frame.unpersist(blocking=True)

        patched.setattr(sink._Chunks, "compute", compute_and_lose)
        assert "an executor was lost" in message_of(lambda: append(database, frame, 0))
    assert database("select count(*) from people") == [(0,)]
    assert append(database, frame, 0)
    assert database("select count(*), count(distinct id) from people") == [(60_000, 60_000)]


def test_no_rows_create_an_empty_table(spark: SparkSession, database: Database) -> None:
    assert append(database, changes(spark), 0)
    assert database("select count(*) from people") == [(0,)]
    assert database("select * from moldau_batches") == [("query", 0)]


def test_texts_and_numbers_take_the_types_of_an_existing_table(spark: SparkSession, database: Database) -> None:
    database("create domain small_text as varchar(20)")
    database("create type mood as enum ('glad', 'sad')")
    database(
        "create table people (number bigint generated always as identity, id numeric not null, name small_text,"
        " mood mood, uuid uuid, doc jsonb, at timestamptz default now())"
    )
    uuid = "00000000-0000-0000-0000-000000000007"
    frame = spark.range(1).selectExpr(
        "id", "'a' AS name", "'sad' AS mood", f"'{uuid}' AS uuid", """'{"a": [1]}' AS doc"""
    )
    assert append(database, frame, 0)
    assert database("select number, id, name, mood, uuid::text, doc, at is not null from people") == [
        (1, 0, "a", "sad", uuid, {"a": [1]}, True)
    ]


# Upserts


def test_the_last_row_of_a_key_counts_and_deletes_remove_it(spark: SparkSession, database: Database) -> None:
    merge(database, changes(spark, (1, "a", 1), (2, "b", 1), (1, "aa", 2)), 0)
    assert database("select * from people order by id") == [(1, "aa", 2), (2, "b", 1)]
    frame = changes(spark, (1, None, 9), (2, None, 3), (2, "bb", 4), (3, "c", 1), (4, None, 1))
    merge(database, frame, 1, delete_when="name IS NULL")
    assert database("select * from people order by id") == [(2, "bb", 4), (3, "c", 1)]


def test_ordering_and_deleting_columns_need_not_be_stored(spark: SparkSession, database: Database) -> None:
    frame = changes(spark, (1, "a", 1), (2, "b", -1), (1, "z", 0))
    merge(database, frame, 0, delete_when="seen < 0", leave_out=["seen"])
    assert database("select * from people") == [(1, "a")]


def test_columns_that_the_rows_lack_keep_their_values(spark: SparkSession, database: Database) -> None:
    database("create table people (id int primary key, name text, note text default 'new')")
    database("insert into people values (1, 'a', 'mine')")
    frame = changes(spark, (1, "aa", 1), (2, "b", 1)).drop("seen")
    write_batch(frame, 0, database.url, "people", "query", key=["id"])
    assert database("select * from people order by id") == [(1, "aa", "mine"), (2, "b", "new")]


def test_a_key_of_all_columns_is_inserted_once(spark: SparkSession, database: Database) -> None:
    frame = changes(spark, (1, "a", 1), (2, "b", 1)).select("name", "id")
    for batch_id in range(2):
        write_batch(frame, batch_id, database.url, "people", "query", key=["id", "name"])
    assert database("select id, name from people order by id") == [(1, "a"), (2, "b")]


def test_the_key_may_be_any_unique_index_over_its_columns(spark: SparkSession, database: Database) -> None:
    database("create schema shop")
    database("""create table shop."People" (id int not null, name text, seen int, unique (seen, id))""")
    frame = changes(spark, (1, "a", 1), (1, "b", 2))
    write_batch(frame, 0, database.url, "shop.People", "query", key=["id", "seen"])
    assert database("""select count(*) from shop."People" """) == [(2,)]
    assert database("select * from shop.moldau_batches") == [("query", 0)]


# Each batch once


def test_a_repeated_batch_is_skipped(spark: SparkSession, database: Database) -> None:
    assert append(database, changes(spark, (1, "a", 1)), 0)
    assert not append(database, changes(spark, (1, "a", 1)), 0)
    assert append(database, changes(spark, (1, "a", 1)), 1)
    assert database("select count(*) from people") == [(2,)]


def test_a_batch_is_on_the_servers_disk_although_the_database_commits_asynchronously(
    spark: SparkSession, database: Database
) -> None:
    database(f"alter database {database.name} set synchronous_commit = off")
    database(f"alter database {database.name} set default_transaction_isolation = 'serializable'")
    database(
        "create table people (id int, name text, seen int, mode text default current_setting('synchronous_commit'))"
    )
    append(database, changes(spark, (1, "a", 1)), 0)
    assert database("select mode from people") == [("on",)]
    assert database("show synchronous_commit") == [("off",)]


def test_a_batch_that_fails_leaves_neither_rows_nor_its_number(spark: SparkSession, database: Database) -> None:
    database("create table people (id int, name text, seen int check (seen < 5))")
    append(database, changes(spark, (1, "a", 1)), 0)
    said = message_of(lambda: append(database, changes(spark, (2, "b", 2), (3, "c", 7)), 1))
    assert "people_seen_check" in said
    assert "(3, c, 7)" in said
    assert database("select * from people") == [(1, "a", 1)]
    assert database("select batch_id from moldau_batches") == [(0,)]


@pytest.mark.parametrize(
    ("given", "said"),
    [(0, "has batch 1 of 'query', but this write is at 0"), (4, "lacks batches of 'query' before 4 (batch 1 is the")],
)
def test_a_checkpoint_that_does_not_fit_the_database_is_refused(
    spark: SparkSession, database: Database, given: int, said: str
) -> None:
    for batch_id in range(2):
        append(database, changes(spark, (1, "a", 1)), batch_id)
    assert said in message_of(lambda: append(database, changes(spark, (1, "a", 1)), given))


def test_of_two_drivers_with_one_batch_only_one_writes(spark: SparkSession, database: Database) -> None:
    append(database, changes(spark), 0)
    frame = changes(spark, (1, "a", 1))
    results: list[bool] = []
    with psycopg.connect(database.url) as other:
        other.execute("update moldau_batches set batch_id = 1")
        other.execute("insert into people values (7, 'other', 7)")
        writer = threading.Thread(target=lambda: results.append(append(database, frame, 1)))
        writer.start()
        waiting = (
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        while database(waiting) == [(0,)]:
            time.sleep(0.01)
    writer.join()
    assert results == [False]
    assert database("select id from people") == [(7,)]


def test_a_commit_whose_answer_is_lost_is_not_repeated(
    spark: SparkSession, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, attempts = postgres_connection.connect, []

    class LosesTheAnswer:
        """A transaction whose connection breaks after the server has committed."""

        def __init__(self, transaction: Any) -> None:
            self.transaction = transaction

        def __enter__(self) -> None:
            self.transaction.__enter__()

        def __exit__(self, *raised: Any) -> None:
            self.transaction.__exit__(*raised)
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    def connect(table: Any) -> psycopg.Connection[Any]:
        connection = real(table)
        attempts.append(connection)
        if len(attempts) == 1:
            begin = connection.transaction
            connection.transaction = lambda: LosesTheAnswer(begin())  # type: ignore[method-assign,assignment,misc]
        return connection

    append(database, changes(spark), 0)
    monkeypatch.setattr(postgres_connection, "connect", connect)
    assert not append(database, changes(spark, (1, "a", 1)), 1)
    assert len(attempts) == 2
    assert database("select * from people") == [(1, "a", 1)]


# Streams


def offer(spark: SparkSession, source: Path, start: int, end: int) -> None:
    spark.range(start, end, 1, 1).write.mode("append").parquet(str(source))


def stream(spark: SparkSession, database: Database, folder: Path, **more: Any) -> None:
    rows = spark.readStream.schema("id LONG").parquet(str(folder / "source")).selectExpr("id", "id % 3 AS third")
    query = (
        rows.writeStream.foreachBatch(
            lambda batch, batch_id: write_batch(batch, batch_id, database.url, "people", "query", **more)
        )
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_a_replayed_micro_batch_of_a_stream_is_in_the_table_once(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    for number in range(3):
        offer(spark, tmp_path / "source", number * 10, number * 10 + 10)
        stream(spark, database, tmp_path)
        # As if the driver was killed between the commit in Postgres and the one in the checkpoint.
        for name in (str(number), f".{number}.crc"):
            (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
        stream(spark, database, tmp_path)
    assert database("select count(*), count(distinct id) from people") == [(30, 30)]
    assert database("select * from moldau_batches") == [("query", 2)]


def test_a_server_that_is_killed_during_a_stream_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    servers = find_servers()
    if not servers:
        pytest.skip("no Postgres server")
    with PostgresServer(servers[max(servers, key=int)]) as server:
        database = Database(server)
        for number in range(10):
            offer(spark, tmp_path / "source", number * 10, number * 10 + 10)
        rows = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
        query = (
            rows.writeStream.foreachBatch(
                lambda batch, batch_id: write_batch(batch, batch_id, database.url, "people", "query")
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        for _ in range(3):
            before = committed(database)
            while query.isActive and committed(database) == before:
                time.sleep(0.02)
            server.kill()
            server.start()
        query.awaitTermination()
        assert database("select count(*), count(distinct id) from people") == [(100, 100)]


def committed(database: Database) -> list[tuple[Any, ...]]:
    try:
        return database("select batch_id from moldau_batches")
    except psycopg.errors.UndefinedTable:
        return []


def test_the_error_of_a_stream_is_one_sentence(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    database("create table people (id bigint)")
    offer(spark, tmp_path / "source", 0, 1)
    with pytest.raises(PySparkException) as caught:
        stream(spark, database, tmp_path)
    said = find_user_message(caught.value)
    assert said is not None
    assert "'third' is not in the table" in said


def test_the_example_of_the_page_about_spark_runs(
    spark: SparkSession, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    (example,) = re.findall(r"^```python\n(from moldau\.spark\.sink\.postgres .*?)^```", page, flags=re.M | re.S)
    offer(spark, tmp_path / "source", 0, 3)
    example = example.replace("postgresql://app@localhost/shop", database.url)
    example = example.replace("checkpoints/orders", str(tmp_path / "checkpoint"))
    exec(example, {"frame": spark.readStream.schema("id LONG").parquet(str(tmp_path / "source"))})
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()
    assert database("select id from orders order by id") == [(0,), (1,), (2,)]


# Errors


def test_rows_that_no_table_or_this_table_cannot_store_are_named(spark: SparkSession, database: Database) -> None:
    database("create table people (id int, nam text, seen numeric(5,2), must int not null)")
    said = message_of(lambda: append(database, changes(spark, (1, "a", 1)), 0))
    for piece in (
        "'name' is not in the table; did you mean nam?",
        "'seen' is INT here and numeric(5,2) in the table",
        "'must' may not be null in the table and is missing here",
        'create table "public"."people" ("id" integer, "name" text, "seen" integer)',
    ):
        assert piece in said
    said = message_of(lambda: append(database, spark.range(1).selectExpr("INTERVAL '1' DAY AS i"), 0))
    assert "'i' is of type INTERVAL DAY, which Postgres does not have" in said
    said = message_of(lambda: append(database, spark.range(1), 0, "missing.people"))
    assert 'create schema "missing"' in said


def spelled(spark: SparkSession, *given: tuple[str, str | None, int]) -> DataFrame:
    return spark.createDataFrame(list(given), "id STRING, name STRING, seen INT").repartition(3)


@pytest.mark.parametrize("first_is_later", [False, True])
def test_keys_that_only_postgres_finds_equal_have_one_last_row(
    spark: SparkSession, database: Database, first_is_later: bool
) -> None:
    database("create table people (id uuid primary key, name text, seen int)")
    lower = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    ids = (lower.upper(), lower) if first_is_later else (lower, lower.upper())
    others = [(f"{number:032x}", "other", number) for number in range(20)]
    assert merge(database, spelled(spark, (ids[0], "old", 1), *others, (ids[1], "new", 2)), 0)
    assert database(f"select name, seen from people where id = '{lower}'") == [("new", 2)]

    more = {"delete_when": "name IS NULL"}
    assert merge(database, spelled(spark, (ids[1], "again", 3), *others, (ids[0], None, 4)), 1, **more)
    assert database(f"select name from people where id = '{lower}'") == []
    assert merge(database, spelled(spark, (ids[1], None, 5), *others, (ids[0], "back", 6)), 2, **more)
    assert database(f"select name from people where id = '{lower}'") == [("back",)]
    assert database("select count(*) from people") == [(21,)]

    repeated = spelled(spark, (ids[0], "a", 1), (ids[1], "b", 2))
    assert "occurs more than once" in message_of(lambda: merge(database, repeated, 3, order_by=[]))


def test_an_upsert_needs_a_unique_index(spark: SparkSession, database: Database) -> None:
    database("create table people (id int, name text, seen int)")
    database("create unique index on people (id) where seen > 0")
    said = message_of(lambda: merge(database, changes(spark, (1, "a", 1)), 0))
    assert 'alter table "public"."people" add primary key ("id")' in said


def test_keys_that_are_null_or_repeated_are_refused(spark: SparkSession, database: Database) -> None:
    said = message_of(lambda: merge(database, changes(spark, (1, "a", 1), (None, "b", 1)), 0))
    assert said.startswith("1 rows have no 'id'")
    said = message_of(lambda: merge(database, changes(spark, (1, "a", 1), (1, "b", 1)), 0, order_by=()))
    assert "occurs more than once in a batch" in said
    assert database("select count(*) from moldau_batches") == [(0,)]


def test_a_row_that_violates_not_null_is_shown(spark: SparkSession, database: Database) -> None:
    database("create table people (id int primary key, name text not null, seen int)")
    for write in (merge, append):
        said = message_of(lambda write=write: write(database, changes(spark, (1, "a", 1), (2, None, 3)), 0))
        assert 'null value in column "name"' in said
        assert "(2, null, 3)" in said


def test_a_text_that_postgres_cannot_store_is_named(spark: SparkSession, database: Database) -> None:
    frame = spark.range(1).selectExpr("id", "concat('a', char(0)) AS name")
    said = message_of(lambda: append(database, frame, 0))
    assert "0x00" in said
    assert "COPY people, line 1" in said


def test_both_ends_notice_that_the_other_machine_is_gone(spark: SparkSession, database: Database) -> None:
    database("create table people (id int, name text, seen int, server_idle text)")
    database(
        "create function note() returns trigger language plpgsql as "
        "$$ begin new.server_idle := current_setting('tcp_keepalives_idle'); return new; end $$"
    )
    database("create trigger note before insert on people for each row execute function note()")
    assert append(database, changes(spark, (1, "a", 1)), 0)
    assert database("select server_idle from people") == [("10",)]
    with postgres_connection.connect(postgres_connection.parse_table(database.url, "people")) as connection:
        opened = socket.socket(fileno=os.dup(connection.fileno()))
        with opened:
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


def test_a_server_that_is_away_fails_after_a_while(
    spark: SparkSession, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connection, "RETRY_S", 0.5)
    url = "postgresql://moldau:sesame@127.0.0.1:1/shop"
    began = time.monotonic()
    said = message_of(lambda: write_batch(changes(spark), 0, url, "people", "query"))
    assert time.monotonic() - began > 0.2
    assert "the table people at 127.0.0.1:1/shop cannot be written to" in said
    assert "tried for 0.5 seconds" in said
    assert "sesame" not in said


def test_a_wrong_password_fails_at_once_and_is_not_shown(spark: SparkSession, database: Database) -> None:
    server = database.server
    database("create role secured login password 'right'")
    access = server.data_directory / "pg_hba.conf"
    access.write_text("host all secured 127.0.0.1/32 scram-sha-256\n" + access.read_text())
    database("select pg_reload_conf()")
    url = f"postgresql://secured:sesame@127.0.0.1:{server.port}/{database.name}"
    began = time.monotonic()
    while True:
        # The server reads the file a moment after the signal.
        try:
            write_batch(changes(spark), 0, url, "people", "query")
        except SparkSourceError as error:
            if "password" in str(error):
                said = str(error)
                break
        assert time.monotonic() - began < 30
    assert 'password authentication failed for user "secured"' in said
    assert "sesame" not in said
    assert "\n" not in said
    with pytest.raises(SparkSourceError, match="permission denied"):
        write_batch(changes(spark), 0, url.replace("sesame", "right"), "pg_catalog.pg_class", "query")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://moldau:sesame@x@127.0.0.1/db",
        "postgresql://moldau:sesame/x@127.0.0.1/db",
        "postgresql://moldau:sesame%zz@127.0.0.1/db",
        "host=127.0.0.1 password=sesame",
    ],
)
def test_an_invalid_url_is_refused_without_its_password(spark: SparkSession, url: str) -> None:
    said = message_of(lambda: write_batch(changes(spark), 0, url, "people", "query"))
    assert "url" in said
    assert "sesame" not in said
