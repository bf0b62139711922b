"""The relay's side of the database: one batch of rows at a time, recorded before it is sent and deleted after.

The ids of the batch are in `outbox_state`. Ids become visible out of order, so a batch is a set of ids and not a range.
Each change is one transaction that also checks the relay's epoch: a relay whose successor has begun changes nothing.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from moldau.observe.logging import get_logger
from moldau.outbox.database import Connection, execute, fetch_one, is_pooled
from moldau.outbox.errors import OutboxError, PostgresUnavailableError
from moldau.outbox.rows import OrderKey, OutboxRow, Scan, ScanStart, SplitRows, split_rows
from moldau.outbox.schema import quote
from moldau.settings.postgres_keepalives import SERVER_KEEPALIVES

FIELD_BYTES_MAX = 32 * 1024 * 1024
"""A row with a larger key or value or larger headers never reaches the relay, which could run out of memory."""

# As text, one byte of a header can take six, and a text of more than 1 GB is an error. So the text of headers that are
# large in memory is never made. The element with an empty path is all of them, decompressed.
_HEADERS_BYTES = f"""CASE WHEN pg_column_size(headers #> '{{}}') > {4 * FIELD_BYTES_MAX}
    THEN pg_column_size(headers #> '{{}}') ELSE octet_length(headers::text) END"""
_ROW_COLUMNS = f"""topic, partition,
    CASE WHEN octet_length(key) <= {FIELD_BYTES_MAX} THEN key END,
    CASE WHEN octet_length(value) <= {FIELD_BYTES_MAX} THEN value END,
    CASE WHEN {_HEADERS_BYTES} <= {FIELD_BYTES_MAX} THEN headers::text END,
    (extract(epoch FROM created_at) * 1000)::bigint,
    greatest(octet_length(key), octet_length(value), {_HEADERS_BYTES})"""

_SESSION_SETTINGS = (
    # The plan must always follow the primary key; statistics of a queue are always outdated.
    "SET enable_seqscan = off",
    "SET jit = off",
    "SET statement_timeout = 0",
    "SET lock_timeout = 0",
    "SET idle_in_transaction_session_timeout = 0",
    # If the relay's machine is gone, another relay soon gets its lock.
    *(f"SET {name} = {value}" for name, value in SERVER_KEEPALIVES.items()),
)

WHOLE_SCAN_S = 60.0

_log = get_logger("outbox.relay")


class RelayState(NamedTuple):
    outbox_id: str
    batch: int
    token: str
    """The token of the batch."""
    sent_token: str | None
    """The token of the last batch that Kafka is known to have; None before the first one."""
    ids: list[int]


class NextBatch(NamedTuple):
    rows: list[OutboxRow]
    newly_failed: int
    """Rows that were moved to the dead-letter table with an error."""
    newly_waiting: int
    """Rows that were moved to the dead-letter table, because a row with the same key is there."""


class OutboxBatches:
    """The batches of one relay session."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self.number = 0
        """The number of the current batch."""
        self.token = ""
        """The token of the current batch."""
        self._sent_token: str | None = None
        """The token of the position in Kafka."""
        self._connection = connection
        self._schema = quote(schema)
        self._lock_name = lock_name(schema)
        self._epoch = 0
        self._ids: list[int] = []
        """The rows of the current batch."""
        self.requeues = -1
        """Changes when rows have left the dead-letter table."""
        self._blocked: set[OrderKey] = set()
        """Keys of rows in the dead-letter table."""
        self._start = ScanStart()
        self._whole_scan_s = asyncio.get_running_loop().time()

    # The session

    async def prepare_session(self) -> None:
        """Checks the server and sets up the session. Raises OutboxError if the relay cannot work with it."""
        if await is_pooled(self._connection):
            raise OutboxError(
                "there is a connection pooler such as PgBouncer between the relay and Postgres. The relay holds a lock "
                "of its session: connect it to Postgres directly"
            )
        is_standby, commit = await fetch_one(
            self._connection, "SELECT pg_is_in_recovery(), current_setting('synchronous_commit')"
        )
        if is_standby:
            # A standby may become the primary, so the relay waits for that once it has begun.
            raise PostgresUnavailableError("this server is a standby, and the relay needs the primary")
        for each in _SESSION_SETTINGS:
            await execute(self._connection, each)
        if self._connection.info.server_version >= 170000:
            await execute(self._connection, "SET transaction_timeout = 0")
        if commit == "off":
            # A batch must be durable before it is sent; the transactions of its rows then are, too.
            await execute(self._connection, "SET synchronous_commit = on")

    async def try_lock(self) -> bool:
        """Takes the lock of the only relay, which ends with the connection."""
        query = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
        (is_locked,) = await fetch_one(self._connection, query, (self._lock_name,))
        return bool(is_locked)

    async def begin(self, relay: str) -> RelayState:
        """Starts a new epoch and returns the state that the previous relay left."""
        outbox_id, self.number, self.token, self._sent_token, self._ids, self._epoch = await fetch_one(
            self._connection,
            f"UPDATE {self._schema}.outbox_state SET epoch = epoch + 1, relay = %s, relay_since = clock_timestamp() "
            "RETURNING outbox_id::text, batch, token::text, sent_token::text, ids, epoch",
            (relay,),
        )
        return RelayState(outbox_id, self.number, self.token, self._sent_token, list(self._ids))

    # Batches

    def mark_sent(self) -> None:
        """Records that the position in Kafka is the current batch. The next transaction stores that."""
        self._sent_token = self.token

    async def has_work(self) -> bool:
        """Returns whether rows are visible or have returned. This is cheap, because it takes no transaction id."""
        self._reset_start()
        query = (
            f"SELECT EXISTS (SELECT FROM {self._schema}.outbox WHERE id >= %s) "
            f"OR (SELECT requeues <> %s FROM {self._schema}.outbox_state)"
        )
        (found,) = await fetch_one(self._connection, query, (self._start.id, self.requeues))
        return bool(found)

    async def read_current(self) -> list[OutboxRow]:
        """Returns the rows of the current batch, in order."""
        query = f"SELECT id, {_ROW_COLUMNS} FROM {self._schema}.outbox WHERE id = ANY(%s) ORDER BY id"
        cursor = await execute(self._connection, query, (self._ids,))
        return [_to_row(each) for each in await cursor.fetchall()]

    async def next(self, rows_max: int, bytes_max: int) -> NextBatch:
        """Deletes the rows of the current batch, which Kafka has, and returns those of the next one."""
        self._reset_start()
        async with self._transaction() as (last_id, own_xid):
            await self._delete(self._ids)
            scan = await self._scan(rows_max, bytes_max, last_id, own_xid)
            split = await self._split(scan.rows, {})
            ids = [each.id for each in split.sendable]
            await self._set_current(self.number + 1 if ids else self.number, ids)
        self._start.advance(scan)
        return NextBatch(split.sendable, len(split.failed), len(split.waiting))

    async def finish(self) -> None:
        """Deletes the rows of the current batch, which Kafka has, so that no later relay has to ask whether it does."""
        async with self._transaction():
            await self._delete(self._ids)
            await self._set_current(self.number, [])

    async def replace(self, rows: Sequence[OutboxRow], failures: dict[int, str]) -> NextBatch:
        """Replaces the current batch, which Kafka does not have, by these of its rows under a new number.

        Rows with an error in `failures` go to the dead-letter table with the later rows of their keys. All other rows
        of the batch are read again.
        """
        async with self._transaction():
            split = await self._split(rows, failures)
            ids = [each.id for each in split.sendable]
            await self._set_current(self.number + 1, ids)
        self._start.reset()
        return NextBatch(split.sendable, len(split.failed), len(split.waiting))

    async def restart_history(self, number: int) -> str:
        """Gives the current batch another number and token, because the position in Kafka is that of another history.
        Returns the token of the batch before, which the position must get."""
        self._sent_token = str(uuid.uuid4())
        async with self._transaction():
            await self._set_current(number, self._ids)
        return self._sent_token

    def _reset_start(self) -> None:
        """Looks at the whole table from time to time, for rows that were inserted with an old id."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._whole_scan_s > WHOLE_SCAN_S:
            self._whole_scan_s = now_s
            self._start.reset()

    async def _split(self, rows: Sequence[OutboxRow], failures: dict[int, str]) -> SplitRows:
        """Moves rows that cannot be sent, and rows that wait for them, to the dead-letter table."""
        failures = failures | {each.id: error for each in rows if (error := _size_error(each)) is not None}
        split = split_rows(rows, failures, self._blocked)
        for each in split.failed:
            _log.warning("a row cannot be sent", id=each.id, topic=each.topic, error=failures[each.id])
            await self._move_to_dead([each.id], failures[each.id])
        await self._move_to_dead([each.id for each in split.waiting], None)
        # If the transaction fails, the session ends and nothing of this is used.
        self._blocked.update(key for each in split.failed if (key := each.order_key) is not None)
        return split

    # Statements

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[tuple[int, int]]:
        """Opens a transaction, locks the state and yields the last id of the outbox and the own transaction id."""
        async with self._connection.transaction():
            # In this order: see Scan.
            (last_id,) = await fetch_one(
                self._connection,
                f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {self._schema}.outbox_id_seq",
            )
            cursor = await execute(
                self._connection,
                f"SELECT requeues, pg_current_xact_id()::text::bigint FROM {self._schema}.outbox_state "
                "WHERE epoch = %s FOR UPDATE",
                (self._epoch,),
            )
            state = await cursor.fetchone()
            if state is None:
                raise PostgresUnavailableError("another relay has taken over")
            requeues, own_xid = state
            if requeues != self.requeues:
                # Rows may have left the dead-letter table. Who moves them locks the state, too.
                await self._load_blocked_keys()
                self._start.reset()
                self.requeues = requeues
            yield last_id, own_xid

    async def _load_blocked_keys(self) -> None:
        # All rows with a larger key fail, so none of them waits.
        query = (
            f"SELECT DISTINCT topic, key FROM {self._schema}.outbox_dead WHERE octet_length(key) <= {FIELD_BYTES_MAX}"
        )
        cursor = await execute(self._connection, query)
        self._blocked = {(topic, key) for topic, key in await cursor.fetchall()}

    async def _delete(self, ids: Sequence[int]) -> None:
        if ids:
            query = f"DELETE FROM {self._schema}.outbox WHERE id = ANY(%s)"
            await execute(self._connection, query, (list(ids),))

    async def _scan(self, rows_max: int, bytes_max: int, last_id: int, own_xid: int) -> Scan:
        query = f"""
            SELECT s.xmin, r.visible, r.id, {_ROW_COLUMNS}
            FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin) AS s
            LEFT JOIN (
                SELECT *, count(*) OVER () AS visible,
                       sum(coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)
                           + coalesce({_HEADERS_BYTES}, 0) + 64)
                           OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
                FROM (SELECT * FROM {self._schema}.outbox WHERE id >= %s ORDER BY id LIMIT %s) AS oldest
            ) AS r ON r.bytes_before IS NULL OR r.bytes_before < %s
            ORDER BY r.id"""
        cursor = await self._connection.cursor(binary=True).execute(
            query.encode(), (self._start.id, rows_max, bytes_max)
        )
        found = await cursor.fetchall()
        xmin, visible = found[0][:2]
        rows = [_to_row(each[2:]) for each in found if each[2] is not None]
        is_limited = bool(rows) and (visible == rows_max or len(rows) < visible)
        return Scan(rows, is_limited, last_id, own_xid, xmin)

    async def _move_to_dead(self, ids: Iterable[int], error: str | None) -> None:
        """Moves rows to the dead-letter table; without an error they wait for an earlier row with the same key."""
        query = f"""
            WITH moved AS (DELETE FROM {self._schema}.outbox WHERE id = ANY(%s) RETURNING *)
            INSERT INTO {self._schema}.outbox_dead (id, topic, partition, key, value, headers, created_at, error)
            SELECT id, topic, partition, key, value, headers, created_at, %s FROM moved"""
        if moved := list(ids):
            await execute(self._connection, query, (moved, error))

    async def _set_current(self, number: int, ids: list[int]) -> None:
        """Records the current batch as the last step of a transaction. A new number gets a new token."""
        token = self.token if number == self.number else str(uuid.uuid4())
        query = f"UPDATE {self._schema}.outbox_state SET batch = %s, ids = %s, token = %s, sent_token = %s"
        await execute(self._connection, query, (number, ids, token, self._sent_token))
        # If the commit fails, the session ends and nothing of this is used.
        self.number, self._ids, self.token = number, ids, token


def lock_name(schema: str) -> str:
    """Returns the text whose hash is the advisory lock of the relay. Advisory locks belong to one database."""
    return f"moldau outbox {schema}"


def _to_row(columns: Sequence[Any]) -> OutboxRow:
    number, topic, partition, key, value, headers, timestamp_ms, field_bytes_max = columns
    return OutboxRow(number, topic, partition, key, value, headers, timestamp_ms, field_bytes_max or 0)


def _size_error(row: OutboxRow) -> str | None:
    if row.field_bytes_max <= FIELD_BYTES_MAX:
        return None
    return f"a key, value or headers of {row.field_bytes_max:,} bytes; at most {FIELD_BYTES_MAX:,} bytes can be sent"
