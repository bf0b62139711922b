"""The dead-letter table: rows that could not be sent, and later rows with the same key, which wait for them."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from moldau.outbox.database import Connection, check_installed, execute, fetch_one, translate_errors
from moldau.outbox.schema import quote

_KEY_BYTES_MAX = 1000
_CHOSEN = "(%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s))"


class DeadRow(NamedTuple):
    id: int
    topic: str
    partition: int | None
    key: bytes | None
    """At most the first thousand bytes."""
    value_bytes: int | None
    created_at: datetime
    """Within the years of Python, which has fewer than Postgres."""
    error: str
    waiting: int
    """How many later rows with the same key wait."""


async def list_dead(connection: Connection, schema: str) -> list[DeadRow]:
    """Returns the rows that failed, in order."""
    name = quote(schema)
    with translate_errors():
        await check_installed(connection, schema)
        cursor = await execute(
            connection,
            f"""SELECT d.id, d.topic, d.partition, substr(d.key, 1, {_KEY_BYTES_MAX}),
                octet_length(d.value),
                greatest('0001-01-02 00:00+00', least('9999-12-30 00:00+00', d.created_at)), d.error,
                (SELECT count(*) FROM {name}.outbox_dead AS w
                 WHERE w.error IS NULL AND w.topic = d.topic AND w.key = d.key)
            FROM {name}.outbox_dead AS d WHERE d.error IS NOT NULL ORDER BY d.id""",
        )
        return [DeadRow(*each) for each in await cursor.fetchall()]


async def retry_dead(connection: Connection, schema: str, ids: Sequence[int] | None) -> int:
    """Moves failed rows (None: all) back to the outbox with all other dead rows of their keys. Returns how many."""
    name = quote(schema)
    query = _move_back(
        name,
        f"""(d.error IS NOT NULL AND {_CHOSEN}) OR EXISTS (
                SELECT FROM (SELECT topic, key FROM {name}.outbox_dead WHERE error IS NOT NULL AND {_CHOSEN}) AS c
                WHERE c.topic = d.topic AND c.key = d.key)""",
    )
    return await _change(connection, schema, [query], ids)


async def discard_dead(connection: Connection, schema: str, ids: Sequence[int] | None) -> int:
    """Deletes failed rows (None: all). Rows that waited only for them return to the outbox. Returns how many were
    deleted."""
    name = quote(schema)
    delete = f"DELETE FROM {name}.outbox_dead WHERE error IS NOT NULL AND {_CHOSEN}"
    release = _move_back(
        name,
        f"""d.error IS NULL AND NOT EXISTS (
                SELECT FROM {name}.outbox_dead AS f
                WHERE f.error IS NOT NULL AND f.topic = d.topic AND f.key = d.key)""",
    )
    return await _change(connection, schema, [delete, release], ids)


def _move_back(name: str, condition: str) -> str:
    """Returns SQL that moves rows back to the outbox. They keep their ids, and with them their order."""
    return f"""
        WITH moved AS (DELETE FROM {name}.outbox_dead AS d WHERE {condition} RETURNING d.*)
        INSERT INTO {name}.outbox (id, topic, partition, key, value, headers, created_at)
        SELECT id, topic, partition, key, value, headers, created_at FROM moved"""


async def _change(connection: Connection, schema: str, queries: Sequence[str], ids: Sequence[int] | None) -> int:
    """Runs queries while no relay reads, and lets it load the dead-letter table again. Returns the rows of the first
    one."""
    with translate_errors():
        await check_installed(connection, schema)
        async with connection.transaction():
            await fetch_one(
                connection, f"UPDATE {quote(schema)}.outbox_state SET requeues = requeues + 1 RETURNING requeues"
            )
            changed = [
                (await execute(connection, query, {"ids": None if ids is None else list(ids)})).rowcount
                for query in queries
            ]
    return changed[0]
