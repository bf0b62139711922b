"""The state of an outbox: backlog, dead letters, the relay, and the oldest open transactions."""

from datetime import datetime
from typing import NamedTuple

from moldau.outbox.batches import lock_name
from moldau.outbox.database import Connection, check_installed, execute, fetch_one, translate_errors
from moldau.outbox.schema import quote


class RelayStatus(NamedTuple):
    name: str
    since: datetime
    pid: int
    """The process id of its session in Postgres."""


class OpenTransaction(NamedTuple):
    """A transaction that has written and is still open, or is prepared."""

    pid: int | None
    """None for a prepared transaction."""
    prepared_id: str | None
    user: str | None
    application: str | None
    database: str | None
    age_s: float | None
    state: str | None
    query_age_s: float | None
    query: str | None

    @property
    def end_command(self) -> str:
        """The SQL that ends the transaction."""
        if self.pid is None:
            escaped = (self.prepared_id or "").replace("'", "''")
            return f"ROLLBACK PREPARED '{escaped}'"
        return f"SELECT pg_terminate_backend({self.pid})"


class OutboxStatus(NamedTuple):
    outbox_id: str
    version: int
    backlog_rows: int
    backlog_s: float
    """How long the oldest row has been in the outbox; a retried dead letter, since the retry."""
    failed_rows: int
    waiting_rows: int
    """Rows in the dead-letter table that wait for a failed row with the same key."""
    relay: RelayStatus | None
    """The relay that is connected; None if none is."""
    standbys: int
    batch: int
    """The number of the last batch that was recorded."""
    oldest_writer: OpenTransaction | None
    """The oldest open transaction on the server that has written something."""
    has_hidden_writers: bool
    """Whether there are open writing transactions that this role may not see."""


async def read_status(connection: Connection, schema: str) -> OutboxStatus:
    name = quote(schema)
    with translate_errors():
        await check_installed(connection, schema)
        outbox_id, version, batch, relay_name, relay_since = await fetch_one(
            connection, f"SELECT outbox_id::text, version, batch, relay, relay_since FROM {name}.outbox_state"
        )
        rows, age_s = await fetch_one(
            connection,
            "SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(inserted_at)), 0)::float8 "
            f"FROM {name}.outbox",
        )
        failed, waiting = await fetch_one(
            connection, f"SELECT count(error), count(*) - count(error) FROM {name}.outbox_dead"
        )
        lock = await (
            await execute(
                connection,
                """SELECT pid FROM pg_locks, (SELECT hashtextextended(%s, 0) AS key) AS k
                WHERE locktype = 'advisory' AND granted AND objsubid = 1
                  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                  AND classid::bigint = (k.key >> 32) & 4294967295 AND objid::bigint = k.key & 4294967295""",
                (lock_name(schema),),
            )
        ).fetchone()
        (relays,) = await fetch_one(
            connection,
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s",
            ("moldau outbox relay",),
        )
        writer, hidden = await _find_oldest_writer(connection)
    relay = None if lock is None else RelayStatus(relay_name, relay_since, lock[0])
    return OutboxStatus(
        outbox_id,
        version,
        rows,
        max(0.0, age_s),
        failed,
        waiting,
        relay,
        max(0, relays - (relay is not None)),
        batch,
        writer,
        hidden,
    )


async def _find_oldest_writer(connection: Connection) -> tuple[OpenTransaction | None, bool]:
    cursor = await execute(
        connection,
        """SELECT pid, NULL, usename::text, application_name, datname::text,
            extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_s, state,
            extract(epoch FROM clock_timestamp() - query_start)::float8, left(query, 200), age(backend_xid) AS xid_age
        FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
        UNION ALL
        SELECT NULL, gid, owner::text, NULL, database::text, extract(epoch FROM clock_timestamp() - prepared)::float8,
            'prepared', NULL, NULL, age(transaction)
        FROM pg_prepared_xacts
        ORDER BY xid_age DESC LIMIT 1""",
    )
    found = await cursor.fetchone()
    if found is not None:
        return OpenTransaction(*found[:9]), False
    # Only members of pg_read_all_stats see the transactions of others.
    (has_writers,) = await fetch_one(
        connection,
        """SELECT s.snapshot IS NOT NULL AND pg_snapshot_xmin(s.snapshot) < pg_snapshot_xmax(s.snapshot)
            AND NOT pg_has_role('pg_read_all_stats', 'USAGE')
        FROM (SELECT pg_current_snapshot() AS snapshot) AS s""",
    )
    return None, bool(has_writers)
