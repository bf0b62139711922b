"""URLs of the Postgres sink, which may contain passwords, and which errors are tried again."""

import psycopg
import pytest

from moldau.spark.errors import OptionError, SparkSourceError
from moldau.spark.sink import postgres_connection
from moldau.spark.sink.postgres_connection import is_transient, parse_table, with_retries


def test_the_label_names_the_place_without_user_and_password() -> None:
    table = parse_table("postgresql://app:sesame@db.example.com:5433/shop?sslmode=require", "public.Orders")
    assert (table.schema, table.name) == ("public", "Orders")
    assert table.label == "the table public.Orders at db.example.com:5433/shop"
    assert parse_table("postgres://", "orders").label == "the table orders at the default host"
    assert "sesame" not in repr(table)


@pytest.mark.parametrize(
    ("url", "table", "said"),
    [
        ("", "orders", "needs the database"),
        ("mysql://u:sesame@h/db", "orders", "must begin with postgresql://"),
        ("postgresql://u:x@sesame@h/db", "orders", "percent-encoded"),
        ("postgresql://u:sesame/x@h/db", "orders", "percent-encoded"),
        ("postgresql://u:sesame%zz@h/db", "orders", "percent-encoded"),
        ("postgresql://u@h/db", "a.b.c", "'a.b.c' is not a table"),
        ("postgresql://u@h/db", "a.", "'a.' is not a table"),
    ],
)
def test_what_is_not_a_table_is_refused_without_a_password(url: str, table: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_table(url, table)
    assert said in str(caught.value)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (psycopg.OperationalError("connection failed: Connection refused"), True),
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (psycopg.OperationalError("connection failed: FATAL:  the database system is starting up"), True),
        (psycopg.OperationalError("FATAL:  the database system is not yet accepting connections"), True),
        (psycopg.OperationalError("FATAL:  sorry, too many clients already"), True),
        (psycopg.OperationalError('FATAL:  password authentication failed for user "app"'), False),
        (psycopg.OperationalError('FATAL:  database "shop" does not exist'), False),
        (psycopg.errors.AdminShutdown("terminating connection"), True),
        (psycopg.errors.DeadlockDetected("deadlock detected"), True),
        (psycopg.errors.DiskFull("could not extend file"), True),
        (psycopg.errors.ReadOnlySqlTransaction("cannot execute INSERT in a read-only transaction"), True),
        (psycopg.errors.QueryCanceled("canceling statement due to statement timeout"), False),
        (psycopg.errors.NotNullViolation("null value"), False),
        (psycopg.ProgrammingError("the connection is misused"), False),
    ],
)
def test_errors_that_can_pass_are_told_apart(error: psycopg.Error, transient: bool) -> None:
    assert is_transient(error) is transient


def test_an_attempt_is_repeated_until_it_succeeds_or_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connection:
        def __enter__(self) -> "Connection":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    results = [psycopg.errors.AdminShutdown("ended"), psycopg.errors.DeadlockDetected("deadlock"), 7]
    waits: list[float] = []
    monkeypatch.setattr(postgres_connection, "connect", lambda _: Connection())
    monkeypatch.setattr(postgres_connection.time, "sleep", waits.append)
    table = parse_table("postgresql://u:sesame@h/db", "orders")

    def attempt(_: object) -> int:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    assert with_retries(table, attempt) == 7
    assert waits == [0.1, 0.2]
    results[:] = [psycopg.errors.AdminShutdown("ended")]
    with pytest.raises(SparkSourceError, match=r"the table orders at h/db cannot be written to: ended\. It was tried"):
        with_retries(table, attempt, retry_s=0)
    results[:] = [psycopg.errors.CheckViolation("no")]
    with pytest.raises(SparkSourceError, match=r"^the table orders at h/db: no$"):
        with_retries(table, attempt)
