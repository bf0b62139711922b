"""Writes micro-batches to a Postgres table, each exactly once.

    query = frame.writeStream.foreachBatch(
        lambda batch, batch_id: write_batch(batch, batch_id, "postgresql://…", "public.orders", "orders", key=["id"])
    )

The transaction that writes the rows also stores the number of the batch in the table `moldau_batches`, in the schema of
the target. A repeated batch is therefore skipped, whether its driver was killed before or after the commit, or the
answer to the commit was lost.

Executors encode the rows for COPY, and only the driver connects to Postgres. Encoded rows of a large batch are kept on
the executors' disks and pass through the driver's memory a part at a time.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructType
from pyspark.storagelevel import StorageLevel

from moldau.observe.logging import get_logger
from moldau.settings.postgres_keepalives import SERVER_KEEPALIVES
from moldau.spark.errors import OptionError, SparkSourceError
from moldau.spark.sink.postgres_columns import check_rows, check_rows_fit_table, create_table_statement, identifiers
from moldau.spark.sink.postgres_connection import PostgresTable, parse_table, with_retries
from moldau.spark.sink.postgres_copy import encoded_chunks
from moldau.spark.sink.upsert_rows import (
    DELETES_COLUMN,
    RANK_COLUMN,
    check_upsert_columns,
    last_rows,
    null_key_message,
    repeated_key_message,
)

BATCHES_TABLE = "moldau_batches"
CHUNKS_AT_A_TIME = 64
"""The maximum number of chunks of `CHUNK_BYTES` that one Spark partition passes to the driver."""
CHECK_RETRY_S = 5.0

_STAGED_ROWS = sql.Identifier("moldau_rows")
_CREATE_LOCK = 0x6D6F6C64_61750001
"""The advisory lock under which tables are created. Several queries of a pipeline start at the same time, and
`create table if not exists` fails if another session creates the table at that moment."""

_log = get_logger("spark.sink.postgres")


def write_batch(
    frame: DataFrame,
    batch_id: int,
    url: str,
    table: str,
    query_id: str,
    *,
    key: Sequence[str] = (),
    order_by: Sequence[str] = (),
    delete_when: str | None = None,
    leave_out: Sequence[str] = (),
) -> bool:
    """Writes the rows of a batch to the table, which is created if needed. Returns False for a repeated batch.

    Without `key` the rows are appended. With `key` they are upserted: a row sets its columns in the table row with the
    same key, or is inserted. If several rows have the same key, the last row by `order_by` is used. Without `order_by`,
    keys must be unique. Columns of the table that the rows lack keep their values, or get their defaults.

    `delete_when` is an SQL condition of Spark. A row for which it is true deletes the table row with the same key.
    Columns in `leave_out` are not stored; they can be used in `order_by` and `delete_when`. `query_id` identifies the
    query's checkpoint: a query with a new checkpoint needs another one, because its batch numbers start at 0 again.
    """
    target = parse_table(url, table)
    schema = stored_schema(frame.schema, key, order_by, delete_when, leave_out)
    if key:
        # Texts that differ can be equal in a column of type uuid or citext. Other types have one text for each value.
        has_texts = any(isinstance(frame.schema[name].dataType, StringType) for name in key)
        rows = last_rows(frame, key, order_by, delete_when, leave_out, numbers_rows=has_texts)
    else:
        rows = frame.drop(*leave_out)
    chunks = _Chunks(encoded_chunks(rows))

    def attempt(connection: psycopg.Connection[Any]) -> bool:
        writer = _BatchWriter(connection, target, schema, key, is_ordered=bool(order_by))
        writer.prepare_tables()
        if writer.is_committed(query_id, batch_id):
            return False
        # Spark's work is done before the transaction begins, which would keep the server from cleaning up.
        chunks.compute()
        with connection.transaction():
            writer.begin()
            if writer.claim(query_id, batch_id):
                return False
            if key:
                writer.upsert(chunks, has_deletes=delete_when is not None)
            else:
                writer.append(chunks)
        return True

    try:
        return with_retries(target, attempt)
    finally:
        chunks.discard()


def check_table(url: str, table: str, schema: StructType, key: Sequence[str]) -> None:
    """Raises SparkSourceError if the server cannot be reached, or if the table exists and the rows do not fit it."""
    target = parse_table(url, table)

    def attempt(connection: psycopg.Connection[Any]) -> None:
        writer = _BatchWriter(connection, target, schema, key, is_ordered=True)
        if (oid := writer.find_table()) is not None:
            writer.check(oid)

    with_retries(target, attempt, retry_s=CHECK_RETRY_S)


def stored_schema(
    schema: StructType,
    key: Sequence[str] = (),
    order_by: Sequence[str] = (),
    delete_when: str | None = None,
    leave_out: Sequence[str] = (),
) -> StructType:
    """Returns the schema of the stored columns. Raises OptionError or SparkSourceError if it cannot be stored."""
    if key:
        check_upsert_columns(schema, key, order_by, leave_out)
    elif order_by or delete_when is not None:
        raise OptionError("order_by and delete_when are for upserts: set key=[…] too")
    stored = StructType([field for field in schema.fields if field.name not in leave_out])
    check_rows(stored)
    return stored


class _Chunks:
    """The encoded rows of a batch, computed once and kept on the executors' disks."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._counts: Counter[str] | None = None
        """The number of chunks of each evaluation of a partition."""

    def compute(self) -> None:
        if self._counts is None:
            self._frame = self._frame.persist(StorageLevel.DISK_ONLY)
            self._counts = Counter(dict(self._frame.groupBy("evaluation").count().collect()))

    def __iter__(self) -> Iterator[bytes]:
        """Raises SparkSourceError if chunks were lost with an executor, and parts of both evaluations were passed."""
        assert self._counts is not None, "chunks are computed first"
        count = self._counts.total()
        if count <= CHUNKS_AT_A_TIME:
            # One job: Spark takes each partition from one evaluation.
            for row in self._frame.collect():
                yield bytes(row.chunk)
            return
        parts = -(-count // CHUNKS_AT_A_TIME)
        found: Counter[str] = Counter()
        for row in self._frame.repartition(parts).toLocalIterator(prefetchPartitions=True):
            found[row.evaluation] += 1
            yield bytes(row.chunk)
        if found != self._counts:
            raise SparkSourceError(
                "an executor was lost while its rows were written, and Spark computed them again, perhaps in another "
                "order. Nothing of the micro-batch is written: run the query again"
            )

    def discard(self) -> None:
        self._frame.unpersist()


class _BatchWriter:
    """The statements of one attempt to write a batch."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        table: PostgresTable,
        schema: StructType,
        key: Sequence[str],
        *,
        is_ordered: bool,
    ) -> None:
        self._connection = connection
        self._table = table
        self._schema = schema
        self._key = key
        self._is_ordered = is_ordered
        self._place = ""
        """The schema in which the table is, or will be created."""

    @property
    def _target(self) -> sql.Identifier:
        return sql.Identifier(self._place, self._table.name)

    @property
    def _batches(self) -> sql.Identifier:
        return sql.Identifier(self._place, BATCHES_TABLE)

    def find_table(self) -> int | None:
        """Returns the table's oid, or None if it is missing. Finds out its schema."""
        given = [] if self._table.schema is None else [self._table.schema]
        name = sql.Identifier(*given, self._table.name).as_string(self._connection)
        row = self._one(
            "select c.oid, n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where c.oid = to_regclass(%s)",
            (name,),
        )
        if row is not None:
            self._place = row[1]
            return int(row[0])
        found = self._one(
            "select nspname from pg_namespace where nspname = coalesce(%s, current_schema())", (self._table.schema,)
        )
        if found is None:
            raise SparkSourceError(
                f"{self._table.label}: its schema does not exist: create schema "
                f"{sql.Identifier(self._table.schema or 'public').as_string(self._connection)}"
            )
        self._place = found[0]
        return None

    def check(self, oid: int) -> None:
        check_rows_fit_table(self._connection, self._table, oid, self._target, self._schema, self._key)

    def prepare_tables(self) -> None:
        """Creates missing tables, and checks the table if it exists."""
        oid = self.find_table()
        if oid is None or not self._has_batches_table():
            with self._connection.transaction():
                self._connection.execute("select pg_advisory_xact_lock(%s)", (_CREATE_LOCK,))
                oid = self.find_table()
                if not self._has_batches_table():
                    self._connection.execute(
                        sql.SQL("create table {} (query_id text primary key, batch_id bigint not null)").format(
                            self._batches
                        )
                    )
                    self._connection.execute(
                        sql.SQL("comment on table {} is {}").format(
                            self._batches,
                            sql.Literal("The last micro-batch of each Moldau query that writes to this schema."),
                        )
                    )
                if oid is None:
                    self._connection.execute(create_table_statement(self._target, self._schema, self._key))
                    _log.info("created a table", table=self._table.label)
        if oid is not None:
            self.check(oid)

    def _has_batches_table(self) -> bool:
        name = self._batches.as_string(self._connection)
        return bool(self._one("select to_regclass(%s) is not null", (name,))[0])

    def begin(self) -> None:
        """Sets what the transaction needs, whatever the defaults of the database are."""
        self._connection.execute("set transaction isolation level read committed")
        # Spark does not send a batch again once it is committed, so Postgres may not lose it in a crash.
        self._connection.execute(
            "select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'"
        )
        # If the driver's machine is gone, the driver that replaces it soon gets the lock of `claim`.
        for name, value in SERVER_KEEPALIVES.items():
            self._connection.execute("select set_config(%s, %s, true)", (name, value))

    def is_committed(self, query_id: str, batch_id: int) -> bool:
        """Returns whether the database has this batch. Raises SparkSourceError if it does not fit the checkpoint."""
        row = self._one(sql.SQL("select batch_id from {} where query_id = %s").format(self._batches), (query_id,))
        return self._compare(query_id, batch_id, -1 if row is None else int(row[0]))

    def claim(self, query_id: str, batch_id: int) -> bool:
        """Locks the query's row until the end of the transaction and sets its batch. Returns `is_committed`.

        A driver that was replaced but still runs waits here, and then finds that the batch is committed.
        """
        self._connection.execute(
            sql.SQL("insert into {} values (%s, -1) on conflict (query_id) do nothing").format(self._batches),
            (query_id,),
        )
        row = self._one(
            sql.SQL("select batch_id from {} where query_id = %s for update").format(self._batches), (query_id,)
        )
        if self._compare(query_id, batch_id, int(row[0])):
            return True
        self._connection.execute(
            sql.SQL("update {} set batch_id = %s where query_id = %s").format(self._batches), (batch_id, query_id)
        )
        return False

    def _compare(self, query_id: str, batch_id: int, last: int) -> bool:
        if last == batch_id:
            _log.info("skipped a batch that the table already has", table=self._table.label, batch=batch_id)
            return True
        if last == batch_id - 1:
            return False
        batches = f"{self._place}.{BATCHES_TABLE}"
        if last > batch_id:
            raise SparkSourceError(
                f"{self._table.label} has batch {last} of {query_id!r}, but this write is at {batch_id}: its "
                "checkpoint is new or an older copy. Use the checkpoint that belongs to the table, or another query "
                "id (for a pipeline: moldau pipeline replay), which may write rows again"
            )
        has = f"batch {last} is the last" if last >= 0 else "there is none"
        raise SparkSourceError(
            f"{self._table.label} lacks batches of {query_id!r} before {batch_id} ({has} in {batches}): the database "
            "is another one or was restored from a backup. Write the missing rows with moldau pipeline replay; to "
            f"continue without them, set batch_id to {batch_id - 1} in {batches}"
        )

    def append(self, chunks: _Chunks) -> None:
        self._copy(self._target, self._schema.names, chunks)

    def upsert(self, chunks: _Chunks, *, has_deletes: bool) -> None:
        names, key = self._schema.names, self._key
        # The staged columns have the types of the table, so that COPY reads texts as these types.
        self._connection.execute(
            sql.SQL(
                "create temporary table {} on commit drop as select {}, false as {}, 0::bigint as {} from {} "
                "with no data"
            ).format(
                _STAGED_ROWS,
                identifiers(names),
                sql.Identifier(DELETES_COLUMN),
                sql.Identifier(RANK_COLUMN),
                self._target,
            )
        )
        self._copy(_STAGED_ROWS, [*names, DELETES_COLUMN, RANK_COLUMN], chunks)
        self._check_keys()
        last = sql.SQL("(select distinct on ({}) * from {} order by {}, {} desc)").format(
            identifiers(key), _STAGED_ROWS, identifiers(key), sql.Identifier(RANK_COLUMN)
        )
        if has_deletes:
            self._connection.execute(
                sql.SQL("delete from {} t using {} r where r.{} and {}").format(
                    self._target,
                    last,
                    sql.Identifier(DELETES_COLUMN),
                    sql.SQL(" and ").join(sql.SQL("t.{0} = r.{0}").format(sql.Identifier(name)) for name in key),
                )
            )
        others = [name for name in names if name not in key]
        action = (
            sql.SQL("update set {}").format(
                sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
            )
            if others
            else sql.SQL("nothing")
        )
        # Sorted by key, so that writers of the same rows lock them in the same order instead of a deadlock.
        self._connection.execute(
            sql.SQL(
                "insert into {} ({}) select {} from {} r where not {} order by {} on conflict ({}) do {}"
            ).format(
                self._target,
                identifiers(names),
                identifiers(names),
                last,
                sql.Identifier(DELETES_COLUMN),
                identifiers(key),
                identifiers(key),
                action,
            )
        )  # fmt: skip

    def _check_keys(self) -> None:
        """Raises SparkSourceError for rows without a key, and for keys whose last row is not defined."""
        for name in self._key:
            count = self._one(
                sql.SQL("select count(*) from {} where {} is null").format(_STAGED_ROWS, sql.Identifier(name))
            )[0]
            if count:
                raise SparkSourceError(null_key_message(count, name))
        if self._is_ordered:
            return
        row = self._one(
            sql.SQL("select 1 from {} group by {} having count(*) > 1 limit 1").format(
                _STAGED_ROWS, identifiers(self._key)
            )
        )
        if row is not None:
            raise SparkSourceError(repeated_key_message(self._key))

    def _copy(self, into: sql.Identifier, names: Sequence[str], chunks: _Chunks) -> None:
        statement = sql.SQL("copy {} ({}) from stdin with (format text, encoding 'UTF8')").format(
            into, identifiers(names)
        )
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for chunk in chunks:
                copy.write(chunk)

    def _one(self, query: LiteralString | sql.Composed, parameters: Sequence[object] = ()) -> Any:
        return self._connection.execute(query, parameters or None).fetchone()
