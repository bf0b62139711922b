"""The tables of a node in its Postgres schema, and the checks of the server before they are used."""

from typing import Any

import psycopg
from psycopg import sql

from moldau.errors import StorageError

SCHEMA_VERSION = 1
SERVER_VERSION_MIN = 130_000
"""Postgres 13. Earlier versions have no xid8 and are not maintained any more."""

_TABLES = """
create table node (
    only_row boolean primary key default true check (only_row),
    schema_version integer not null,
    incarnation uuid not null,
    commit_number bigint not null default 0,
    had_clean_shutdown boolean not null default true,
    broker_epoch bigint not null default -1
) with (fillfactor = 10);
comment on table node is 'The process that owns this schema. Each of its transactions increases commit_number.';

create table log (
    id bigint generated always as identity primary key,
    topic text not null,
    partition integer not null,
    topic_id uuid not null,
    state text not null default 'live' check (state in ('live', 'stray', 'deleted')),
    start_offset bigint not null default 0,
    end_offset bigint not null default 0,
    cleaned_offset bigint not null default 0,
    high_watermark bigint not null default 0,
    leader_epochs text not null default ''
) with (fillfactor = 50);
create unique index log_name on log (topic, partition) where state = 'live';
comment on table log is 'The log of each partition. Batches outside of start_offset and end_offset are not part of it.';

create table batch (
    log_id bigint not null,
    base_offset bigint not null,
    last_offset bigint not null,
    max_timestamp bigint not null,
    leader_epoch integer not null,
    size integer not null,
    data bytea not null,
    primary key (log_id, base_offset) include (last_offset, max_timestamp, size)
) with (autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_scale_factor = 0.02);
alter table batch alter column data set storage external;
comment on table batch is 'Record batches in the format of Kafka, as producers sent them.';

create table aborted_transaction (
    log_id bigint not null,
    last_offset bigint not null,
    producer_id bigint not null,
    first_offset bigint not null,
    last_stable_offset bigint not null,
    primary key (log_id, last_offset)
);
comment on table aborted_transaction is 'The aborted transactions of each log, by the offset of their marker.';

create table producer_snapshot (
    log_id bigint not null,
    end_offset bigint not null,
    data bytea not null,
    primary key (log_id, end_offset)
);
comment on table producer_snapshot is 'The state of the producers of a log at an offset, in the format of Kafka.';

create table file (
    path text primary key,
    data bytea not null
);
comment on table file is 'Small files of the node: meta.properties, quorum-state, incarnations, metadata snapshots.';
"""

POOLER_MESSAGE = (
    "the connection goes through a pooler such as PgBouncer, which can mix up sessions: connect to the Postgres server "
    "directly"
)
_DURABILITY_SETTINGS = ("fsync", "full_page_writes")
"""With one of these switched off, a power failure of the server loses committed transactions."""


async def check_server(connection: psycopg.AsyncConnection[Any]) -> None:
    """Raises StorageError if the server is too old or not durable, or if a pooler is between."""
    version = connection.info.server_version
    if version < SERVER_VERSION_MIN:
        raise StorageError(
            f"the Postgres server has version {version // 10_000}, and Moldau needs {SERVER_VERSION_MIN // 10_000} or "
            "newer"
        )
    settings = ", ".join(f"current_setting('{name}')" for name in _DURABILITY_SETTINGS)
    row = await (await connection.execute(f"select pg_backend_pid(), {settings}")).fetchone()
    assert row is not None
    if row[0] != connection.info.backend_pid:
        raise StorageError(POOLER_MESSAGE)
    for name, value in zip(_DURABILITY_SETTINGS, row[1:], strict=True):
        if value == "off":
            raise StorageError(
                f"the Postgres server has {name}=off, so a power failure would lose acknowledged records: set it to on"
            )


async def create_or_check_tables(cursor: psycopg.AsyncCursor[Any], schema: str, incarnation: Any) -> None:
    """Creates the schema with its tables at the first start. Raises StorageError if they have another
    version."""
    await cursor.execute("select to_regclass(%s)", (f"{_quoted(schema)}.node",))
    row = await cursor.fetchone()
    if row is None or row[0] is None:
        await cursor.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
        await cursor.execute(_TABLES)
        await cursor.execute(
            "insert into node (schema_version, incarnation) values (%s, %s)", (SCHEMA_VERSION, incarnation)
        )
        return
    await cursor.execute("select schema_version from node")
    version = await cursor.fetchone()
    found = "none" if version is None else version[0]
    if found != SCHEMA_VERSION:
        raise StorageError(
            f"the tables of the schema {schema} have version {found}, and this version of Moldau needs version "
            f"{SCHEMA_VERSION}: start the version of Moldau that wrote them, or use another schema"
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
