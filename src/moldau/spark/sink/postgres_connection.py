"""Connections of the Postgres sink: the URL, retries while the server is away, and errors for users.

No message contains the URL or a password.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from moldau.observe.logging import get_logger
from moldau.settings.postgres_keepalives import CLIENT_KEEPALIVES
from moldau.spark.errors import OptionError, SparkSourceError

R = TypeVar("R")

RETRY_S = 60.0
"""The time for which a micro-batch is tried again while the server cannot be reached or ends its sessions."""
BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 5.0
CONNECT_TIMEOUT_S = 10

_SCHEMES = ("postgresql://", "postgres://")
_URL_EXAMPLE = "postgresql://user:${PASSWORD}@host:5432/database"
_TRANSIENT_STATES = ("08", "25006", "25P03", "40001", "40P01", "53", "57P01", "57P02", "57P03", "57P05")
"""SQLSTATEs that can pass: connection lost, not yet promoted, deadlock, disk full, server or session ended."""
_TRANSIENT_FATALS = ("starting up", "shutting down", "recovery", "yet accepting", "too many", "remaining connection")
"""Pieces of the reasons with which a server refuses connections for a while. libpq gives no SQLSTATE for them."""
_DETAIL_LENGTH_MAX = 400

_log = get_logger("spark.sink.postgres")


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """A table in a database. The URL may contain a password, so it is not in the `repr`."""

    url: str = field(repr=False)
    schema: str | None
    """The schema as it is written in the option; None searches the search_path."""
    name: str

    @property
    def label(self) -> str:
        """The table and its place, for messages."""
        parts = conninfo_to_dict(self.url)
        host, port, database = (parts.get(each) for each in ("host", "port", "dbname"))
        place = f"{host or 'the default host'}{f':{port}' if port else ''}{f'/{database}' if database else ''}"
        return f"the table {self.name if self.schema is None else f'{self.schema}.{self.name}'} at {place}"


def parse_table(url: str, table: str) -> PostgresTable:
    """Returns the table. Raises OptionError, without the URL in the message because it may contain a password."""
    if not url:
        raise OptionError(f"a Postgres sink needs the database: url: {_URL_EXAMPLE}")
    if not url.startswith(_SCHEMES):
        raise OptionError(f"url must begin with postgresql://, such as {_URL_EXAMPLE}")
    advice = (
        f"url is not a valid Postgres URL such as {_URL_EXAMPLE}. Special characters in a password are "
        "percent-encoded (@ is %40, / is %2F, % is %25); or leave it out and set the environment variable PGPASSWORD"
    )
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        raise OptionError(advice) from None
    ports = str(parts.get("port") or "")
    # A password that is not encoded makes libpq take a part of it for the host or the port.
    if "@" in str(parts.get("host") or "") or not all(each.isdigit() for each in ports.split(",") if each):
        raise OptionError(advice)
    names = [each.strip() for each in table.split(".")]
    if len(names) > 2 or not all(names):
        raise OptionError(f"{table!r} is not a table: write table or schema.table; names are taken as written")
    return PostgresTable(url, names[0] if len(names) == 2 else None, names[-1])


def connect(table: PostgresTable) -> psycopg.Connection[Any]:
    """Connects in autocommit mode, so that only explicit transactions are open."""
    defaults: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": "moldau pipeline",
        **CLIENT_KEEPALIVES,
    }
    # A pooler such as PgBouncer can hand each transaction to another session, which lacks prepared statements.
    return psycopg.connect(
        make_conninfo(**(defaults | conninfo_to_dict(table.url))), autocommit=True, prepare_threshold=None
    )


def with_retries(
    table: PostgresTable, attempt: Callable[[psycopg.Connection[Any]], R], *, retry_s: float | None = None
) -> R:
    """Calls `attempt` with a new connection until no transient error occurs. Raises SparkSourceError after a while.

    `attempt` must be repeatable: an error of a commit does not tell whether the server has committed. The time counts
    from the first error, because an attempt can include Spark's work on the rows.
    """
    limit_s = RETRY_S if retry_s is None else retry_s
    deadline: float | None = None
    backoff_s = BACKOFF_MIN_S
    while True:
        try:
            with connect(table) as connection:
                return attempt(connection)
        except psycopg.Error as error:
            if not is_transient(error):
                raise SparkSourceError(f"{table.label}: {_describe(error)}") from None
            now = time.monotonic()
            deadline = now + limit_s if deadline is None else deadline
            if now + backoff_s > deadline:
                raise SparkSourceError(
                    f"{table.label} cannot be written to: {_describe(error)}. It was tried for {limit_s:g} seconds: "
                    "check that the server runs and that this machine reaches it, then run the pipeline again; "
                    "nothing is lost or written twice"
                ) from None
            _log.warning("retrying a micro-batch", table=table.label, error=_describe(error))
        time.sleep(backoff_s)
        backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)


def is_transient(error: psycopg.Error) -> bool:
    """Returns whether the same statements may succeed later."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_TRANSIENT_STATES)
    if not isinstance(error, psycopg.OperationalError):
        return False
    text = str(error)
    # Without a SQLSTATE it is an error of libpq: the server is away, or it has refused the connection (FATAL).
    return "FATAL:" not in text or any(each in text for each in _TRANSIENT_FATALS)


def _describe(error: psycopg.Error) -> str:
    """Returns the server's message with its detail, or libpq's message, in one line."""
    found = error.diag
    text = found.message_primary or str(error) or type(error).__name__
    parts = [text, found.message_detail, found.message_hint]
    # The context of COPY names the line and the column of a value that the server cannot read.
    if found.context is not None and found.context.startswith("COPY "):
        parts.append(found.context)
    line = ". ".join(" ".join(each.split()).rstrip(".") for each in parts if each)
    return line if len(line) <= _DETAIL_LENGTH_MAX else line[: _DETAIL_LENGTH_MAX - 3] + "..."
