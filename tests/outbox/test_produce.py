"""`moldau.produce` and `moldau outbox install`: rows in the user's transaction, rights, versions."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from moldau.outbox.schema import STEPS, install_sql
from support.outbox import install, moldau
from support.topics import unique


@pytest.fixture
def connection(outbox: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(outbox, autocommit=True) as connected:
        yield connected


@pytest.fixture
def role(outbox: str) -> Iterator[str]:
    """A role without rights, which can log in."""
    name = unique("role").replace("-", "_")
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute(f'CREATE ROLE "{name}" LOGIN'.encode())
        yield name
        connection.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"'.encode())


def as_role(url: str, role: str) -> str:
    return url.replace("moldau@", f"{role}@")


def rows(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT topic, partition, key, value, headers FROM moldau.outbox ORDER BY id").fetchall()


def test_keys_and_values_are_text_json_or_bytes(connection: psycopg.Connection[Any]) -> None:
    for call in (
        "'orders', '42', 'ä'",
        "'orders', NULL, NULL",
        "'orders', '42', '{\"a\": 1}'::jsonb",
        "'orders', '42', '{\"a\":1}'::json",
        "'orders', '42', '\\x00'::bytea",
        "'orders', '\\x01'::bytea, '\\x00'::bytea, partition => 3",
    ):
        connection.execute(f"SELECT moldau.produce({call})".encode())
    connection.execute("SELECT moldau.produce(%s, %s, %s)", ("orders", "k", Jsonb({"b": 2})))
    connection.execute("SELECT moldau.produce(%s, %s, %s)", ("orders", b"k", b"v"))
    assert rows(connection) == [
        ("orders", None, b"42", "ä".encode(), None),
        ("orders", None, None, None, None),
        ("orders", None, b"42", b'{"a": 1}', None),
        ("orders", None, b"42", b'{"a":1}', None),
        ("orders", None, b"42", b"\x00", None),
        ("orders", 3, b"\x01", b"\x00", None),
        ("orders", None, b"k", b'{"b": 2}', None),
        ("orders", None, b"k", b"v", None),
    ]


def test_headers_are_an_object_or_pairs(connection: psycopg.Connection[Any]) -> None:
    for headers in ('{"a": "x", "b": null, "n": 1.50}', '[["a", "1"], ["a", {"base64": "/w=="}]]', "{}", "null"):
        connection.execute("SELECT moldau.produce('orders', 'k', 'v', %s::jsonb)", (headers,))
    assert [each[4] for each in rows(connection)] == [
        [["a", "x"], ["b", None], ["n", "1.50"]],
        [["a", "1"], ["a", {"base64": "/w=="}]],
        [],
        None,
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("NULL, 'k', 'v'", "invalid topic name NULL"),
        ("'', 'k', 'v'", "invalid topic name ''"),
        ("'..', 'k', 'v'", r"invalid topic name '\.\.'"),
        ("'a b', 'k', 'v'", "invalid topic name 'a b'"),
        ("repeat('a', 250), 'k', 'v'", "invalid topic name 'aaa"),
        ("'orders', 'k', 'v', partition => -1", "invalid partition -1"),
        ("'orders', 'k', 'v', '5'", "headers must be an object"),
        ("'orders', 'k', 'v', '[\"a\"]'", "a header must be a pair"),
        ("'orders', 'k', 'v', '[[\"a\", \"b\", \"c\"]]'", "a header must be a pair"),
        ("'orders', 'k', 'v', '{\"a\": []}'", "the value of the header"),
        ("'orders', 'k', 'v', '{\"a\": {\"base64\": \"?\"}}'", "base64"),
        ("'orders', 'k', 'v', created_at => 'infinity'", "check constraint"),
    ],
)
def test_invalid_arguments_fail_the_transaction(connection: psycopg.Connection[Any], call: str, message: str) -> None:
    with pytest.raises(psycopg.Error, match=message):
        connection.execute(f"SELECT moldau.produce({call})".encode())
    assert rows(connection) == []


def test_a_row_exists_only_if_the_transaction_commits(outbox: str, connection: psycopg.Connection[Any]) -> None:
    with psycopg.connect(outbox) as user:
        user.execute("SELECT moldau.produce('orders', 'k', 'rolled back')")
        user.rollback()
        user.execute("SELECT moldau.produce('orders', 'k', 'kept')")
        user.execute("SAVEPOINT step")
        user.execute("SELECT moldau.produce('orders', 'k', 'rolled back to the savepoint')")
        user.execute("ROLLBACK TO SAVEPOINT step")
        assert rows(connection) == []
        user.commit()
    assert [each[3] for each in rows(connection)] == [b"kept"]


def test_a_transaction_has_its_id_before_its_row_has_one(connection: psycopg.Connection[Any]) -> None:
    """The start of scans relies on this order, also for rows that the owner inserts."""
    names = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'moldau.outbox'::regclass AND attnum > 0 ORDER BY attnum"
    ).fetchall()
    assert [name for (name,) in names][:2] == ["xid", "id"]


def test_other_roles_produce_only_to_their_topics(outbox: str, role: str) -> None:
    with psycopg.connect(as_role(outbox, role), autocommit=True) as user:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            user.execute("SELECT moldau.produce('orders', 'k', 'v')")
        install(outbox, "--grant", f"{role}=orders", "--grant", f"{role}=app.*")
        user.execute("SELECT moldau.produce('orders', 'k', 'v'), moldau.produce('app.clicks', 'k', '\\x00'::bytea)")
        for topic in ("payments", "orders2", "app"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"may not produce to the topic {topic}"):
                user.execute("SELECT moldau.produce(%s, 'k', 'v')", (topic,))
        for table in ("outbox", "outbox_grant", "outbox_state", "outbox_dead"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                user.execute(f"SELECT * FROM moldau.{table}".encode())
    with psycopg.connect(outbox, autocommit=True) as owner:
        owner.execute(f'SET ROLE "{role}"'.encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not produce to the topic payments"):
            owner.execute("SELECT moldau.produce('payments', 'k', 'v')")


def test_the_search_path_of_the_caller_does_not_change_what_runs(outbox: str, role: str) -> None:
    install(outbox, "--grant", f"{role}=orders")
    with psycopg.connect(outbox, autocommit=True) as owner:
        owner.execute(f'CREATE SCHEMA evil AUTHORIZATION "{role}"'.encode())
    with psycopg.connect(as_role(outbox, role), autocommit=True) as user:
        body = "RETURNS boolean LANGUAGE sql AS 'SELECT true'"
        user.execute(f"CREATE FUNCTION evil.pg_has_role(text, name, text) {body}".encode())
        user.execute("SET search_path = evil, pg_temp, pg_catalog")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            user.execute("SELECT moldau.produce('payments', 'k', 'v')")


def test_install_again_changes_nothing(outbox: str) -> None:
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute("SELECT moldau.produce('orders', 'k', 'v')")
        again = moldau("outbox", "install", outbox)
        assert again.returncode == 0
        assert "already installed" in again.stdout
        assert len(rows(connection)) == 1


def test_the_printed_sql_installs_the_outbox(database: str) -> None:
    printed = moldau("outbox", "install", database, "--print-sql")
    assert printed.returncode == 0
    missing = moldau("outbox", "status", database)
    assert missing.returncode == 1
    assert "is not installed: run `moldau outbox install`" in missing.stderr
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(printed.stdout.encode())
    assert moldau("outbox", "status", database).returncode == 0


def test_another_schema_has_an_outbox_of_its_own(outbox: str) -> None:
    install(outbox, "--schema", "events")
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute("SELECT events.produce('orders', 'k', 'v')")
        assert rows(connection) == []
        assert connection.execute("SELECT count(*) FROM events.outbox").fetchone() == (1,)


def test_an_older_version_is_upgraded_and_a_newer_one_refused(outbox: str) -> None:
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute("SELECT moldau.produce('orders', 'k', 'v')")
        step = "ALTER TABLE {schema}.outbox ADD COLUMN extra text DEFAULT 'x';"
        connection.execute(install_sql("moldau", len(STEPS), steps=(*STEPS, step)).encode())
        assert connection.execute("SELECT extra FROM moldau.outbox").fetchall() == [("x",)]
    for command in ("install", "status", "relay"):
        refused = moldau("outbox", command, outbox)
        assert refused.returncode == 1
        assert f"has version {len(STEPS) + 1}, but this Moldau knows only {len(STEPS)}" in refused.stderr


def test_an_unknown_role_is_an_error(outbox: str) -> None:
    refused = moldau("outbox", "install", outbox, "--grant", "nobody-at-all=orders")
    assert refused.returncode == 1
    assert "the role 'nobody-at-all' does not exist" in refused.stderr
