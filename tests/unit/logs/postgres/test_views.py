"""The views over a node's tables show what the Python decoders read, on real servers of every installed version."""

import asyncio
import base64
import random
import re
import struct
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from moldau.groups.formats import encode
from moldau.groups.records import CommittedOffset, GroupMetadataRecord, GroupMetadataValue, OffsetCommitRecord
from moldau.logs.postgres.schema import create_or_check_tables
from moldau.logs.postgres.views import RECORDS_MAX, create_views
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch, encode_batch
from moldau.records.control_records import EndTransaction, encode_key, encode_value
from moldau.records.record import Record, iterate_records
from support.postgres import HOW_TO_GET_ONE, PostgresServer, find_servers

TIME_MS = 1_700_000_000_123
SERVERS = find_servers()
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


@pytest.fixture(scope="module", params=sorted(SERVERS) or [pytest.param("", marks=pytest.mark.skip(HOW_TO_GET_ONE))])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with PostgresServer(SERVERS[request.param]) as running:
        yield running


class Node:
    """The tables of a node."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._connection = connection
        self._schema = sql.Identifier(schema)

    def create_log(self, topic: str, partition: int = 0, *, start: int = 0, end: int = 0, state: str = "live") -> int:
        row = self._connection.execute(
            sql.SQL(
                "insert into {}.log (topic, partition, topic_id, start_offset, end_offset, state) "
                "values (%s, %s, %s, %s, %s, %s) returning id"
            ).format(self._schema),
            (topic, partition, uuid.uuid5(uuid.NAMESPACE_DNS, topic), start, end, state),
        ).fetchone()
        assert row is not None
        return int(row[0])

    def append(self, log_id: int, *batches: bytes) -> None:
        """Stores batches as the node does."""
        for data in batches:
            batch = Batch(data)
            last, size = batch.base_offset + batch.last_offset_delta, len(data)
            self._connection.execute(
                sql.SQL("insert into {}.batch values (%s, %s, %s, %s, %s, %s, %s)").format(self._schema),
                (log_id, batch.base_offset, last, batch.max_timestamp, batch.leader_epoch, size, data),
            )
            self._connection.execute(
                sql.SQL("update {}.log set end_offset = greatest(end_offset, %s) where id = %s").format(self._schema),
                (last + 1, log_id),
            )

    def __call__(self, statement: str, *parameters: object) -> list[dict[str, Any]]:
        cursor = self._connection.execute(statement, parameters or None)
        if cursor.description is None:
            return []
        names = [each.name for each in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def records(self, arguments: str, columns: str = "*") -> list[dict[str, Any]]:
        return self(f'select {columns} from "Moldau 1".records({arguments})')

    def offsets(self) -> dict[tuple[str, str, int], int]:
        rows = self('select * from "Moldau 1".group_offsets')
        found = {(row["group"], row["topic"], row["partition"]): row["offset"] for row in rows}
        assert len(found) == len(rows)
        return found


@pytest.fixture
def node(server: PostgresServer) -> Iterator[Node]:
    """A node in a schema whose name must be quoted."""
    with node_in(server, "Moldau 1") as node:
        yield node


@contextmanager
def node_in(server: PostgresServer, schema: str, database: str = "moldau") -> Iterator[Node]:
    url = server.database_url(database)
    asyncio.run(_create_schema(url, schema))
    with psycopg.connect(url, autocommit=True) as connection:
        # As users of the views may have it: nothing of the node is in the search_path.
        connection.execute("set search_path = ''")
        yield Node(connection, schema)
        connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(schema)))


async def _create_schema(url: str, schema: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = connection.cursor()
        await cursor.execute(sql.SQL("create schema {0}; set search_path = {0}").format(sql.Identifier(schema)))
        await create_or_check_tables(cursor, schema, uuid.uuid4())
        await cursor.execute("reset search_path")
        await create_views(cursor, schema)


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    control = EndTransaction(commit, 0)
    return build_batch(
        [Record(timestamp=TIME_MS, key=encode_key(control), value=encode_value(control))],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )


# Records


def test_records_of_every_kind_are_decoded(node: Node) -> None:
    log = node.create_log("orders", 3)
    records = [
        Record(timestamp=TIME_MS, key=b"key", value="číslo".encode()),
        Record(timestamp=TIME_MS - 5_000_000_000_000, key=None, value=None),
        Record(timestamp=TIME_MS + 70, key=b"", value=b"\xff\x00"),
        Record(timestamp=TIME_MS, value=b"x" * 70_000),
        Record(timestamp=TIME_MS, key=b"nul\0", headers=[("a", b"1"), ("a", None), ("raw", b"\xfe"), ("", b"")]),
    ]
    node.append(log, build_batch(records, base_offset=2**40))
    node('update "Moldau 1".log set start_offset = 2::bigint ^ 40')
    first, deleted, raw, large, last = node.records("'orders', 3")
    at = datetime.fromtimestamp(TIME_MS / 1000, UTC)
    assert first == {
        "offset": 2**40,
        "timestamp": at,
        "key": b"key",
        "value": "číslo".encode(),
        "key_text": "key",
        "value_text": "číslo",
        "headers": [],
        "producer_id": None,
        "is_transactional": False,
        "is_aborted": False,
        "is_control": False,
        "note": None,
    }
    assert (deleted["key"], deleted["value"], deleted["value_text"], deleted["timestamp"]) == (None, None, None, None)
    assert (raw["key"], raw["key_text"], raw["value"], raw["value_text"]) == (b"", "", b"\xff\x00", None)
    assert raw["timestamp"].microsecond == 193_000
    assert len(large["value"]) == 70_000
    assert last["key_text"] is None
    assert last["headers"] == [
        {"key": "a", "value": "1"},
        {"key": "a", "value": None},
        {"key": "raw", "value": None, "base64": "/g=="},
        {"key": "", "value": ""},
    ]


def test_a_batch_with_log_append_time_has_one_timestamp(node: Node) -> None:
    log = node.create_log("orders")
    node.append(log, build_batch([Record(timestamp=1), Record(timestamp=2)], append_time_ms=TIME_MS))
    times = {row["timestamp"] for row in node.records("'orders', 0")}
    assert times == {datetime.fromtimestamp(TIME_MS / 1000, UTC)}


@pytest.mark.parametrize("seed", range(5))
def test_random_batches_are_decoded_as_in_python(node: Node, seed: int) -> None:
    chance = random.Random(seed)
    log, offset, batches = node.create_log("orders"), chance.choice([0, 2**33]), []
    node('update "Moldau 1".log set start_offset = %s', offset)
    for _ in range(20):
        records = []
        for _ in range(chance.choice([1, 3, 200])):
            records.append(
                Record(
                    offset, TIME_MS + chance.randint(-(2**40), 2**40), _bytes(chance), _bytes(chance), _headers(chance)
                )
            )
            offset += chance.choice([1, 1, 1, 100, 70_000])
        batches.append(
            build_batch(
                records,
                base_offset=records[0].offset - chance.choice([0, 5]) * bool(batches),
                keep_offsets=True,
                producer_id=chance.choice([-1, 2**45]),
            )
        )
        offset += 10
    node.append(log, *batches)
    expected = [record for batch in batches for record in iterate_records(Batch(batch))]
    found = node.records(f"'orders', 0, 0, {offset}")
    assert [row["offset"] for row in found] == [record.offset for record in expected]
    for row, record in zip(found, expected, strict=True):
        assert (row["key"], row["value"], row["note"]) == (record.key, record.value, None)
        assert round(row["timestamp"].timestamp() * 1000) == record.timestamp
        assert [each["key"] for each in row["headers"]] == [name for name, _ in record.headers]
        for column in ("key", "value"):
            assert row[f"{column}_text"] == _text(row[column])
        for header, (_, value) in zip(row["headers"], record.headers, strict=True):
            assert header["value"] == _text(value)
            if value is not None and header["value"] is None:
                assert base64.b64decode(header["base64"], validate=True) == value
    some = chance.randrange(expected[0].offset, offset), chance.randrange(expected[0].offset, offset)
    ranged = node.records(f"""'orders', 0, {min(some)}, "to" => {max(some)}""", '"offset"')
    assert [row["offset"] for row in ranged] == [
        each.offset for each in expected if min(some) <= each.offset < max(some)
    ]


def _bytes(chance: random.Random) -> bytes | None:
    return chance.choice(
        [None, b"", b"text", "šč".encode(), b"a\0", chance.randbytes(chance.choice([1, 63, 64, 9000]))]
    )


def _headers(chance: random.Random) -> Sequence[tuple[str, bytes | None]]:
    return [(chance.choice(["a", "š", ""]), _bytes(chance)) for _ in range(chance.choice([0, 0, 1, 70]))]


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None or 0 in value else value.decode()
    except UnicodeDecodeError:
        return None


def test_only_offsets_of_the_log_and_of_the_range_are_shown(node: Node) -> None:
    log = node.create_log("orders", start=7)
    for base in range(0, 3000, 5):
        node.append(log, build_batch([Record(value=str(base + n).encode()) for n in range(5)], base_offset=base))
    node('update "Moldau 1".log set end_offset = 2998')

    def offsets(arguments: str) -> list[int]:
        return [row["offset"] for row in node.records(arguments, '"offset"')]

    assert offsets("'orders', 0") == list(range(7, 7 + RECORDS_MAX))
    assert offsets("'orders', 0, 3") == list(range(7, 7 + RECORDS_MAX))
    assert offsets("'orders', 0, 2990") == list(range(2990, 2998))
    assert offsets("'orders', 0, 13, 21") == list(range(13, 21))
    assert offsets("'orders', 0, 13, 13") == []
    assert offsets("'orders', 0, 5000") == []
    assert len(offsets("'orders', 0, 0, 1000000")) == 2991


def test_a_missing_partition_is_an_error(node: Node) -> None:
    node.create_log("orders")
    node.create_log("orders", 1, state="deleted")
    for arguments in ("'orders', 1", "'oders', 0"):
        with pytest.raises(psycopg.errors.NoDataFound, match="this node has no partition"):
            node.records(arguments)


@pytest.mark.parametrize(("codec", "name"), [(GZIP, "gzip"), (SNAPPY, "snappy"), (LZ4, "lz4"), (ZSTD, "zstd")])
def test_a_compressed_batch_is_one_row_with_a_note(node: Node, codec: int, name: str) -> None:
    log = node.create_log("orders")
    records = [Record(timestamp=TIME_MS, value=b"v")] * 3
    node.append(log, build_batch(records, compression=codec), build_batch(records, base_offset=3))
    for arguments, first in (("'orders', 0", 0), ("'orders', 0, 2", 0), ("'orders', 0, 3", 3)):
        rows = node.records(arguments)
        assert [row["offset"] for row in rows] == [each for each in (0, 3, 4, 5) if each >= first]
        if first == 0:
            assert (rows[0]["value"], rows[0]["key"]) == (None, None)
            assert rows[0]["note"] == f"3 records, compressed with {name}: read them with moldau consume"
            assert rows[0]["timestamp"] is not None


def test_compacted_batches_have_gaps_or_no_records(node: Node) -> None:
    log = node.create_log("orders")
    kept = build_batch([Record(2, TIME_MS, b"k", b"v"), Record(9, TIME_MS, b"l", b"w")], keep_offsets=True)
    empty = encode_batch(
        b"", base_offset=10, leader_epoch=0, attributes=0, last_offset_delta=4, base_timestamp=TIME_MS,
        max_timestamp=TIME_MS, producer_id=5, producer_epoch=0, base_sequence=0, count=0,
    )  # fmt: skip
    compressed_and_empty = encode_batch(
        b"", base_offset=15, leader_epoch=0, attributes=ZSTD, last_offset_delta=4, base_timestamp=TIME_MS,
        max_timestamp=TIME_MS, producer_id=5, producer_epoch=0, base_sequence=0, count=0,
    )  # fmt: skip
    node.append(log, kept, empty, compressed_and_empty, build_batch([Record(value=b"x")], base_offset=20))
    assert [row["offset"] for row in node.records("'orders', 0")] == [2, 9, 20]


def test_transactions_and_their_markers_are_told_apart(node: Node) -> None:
    log = node.create_log("orders")
    for base, producer_id in ((0, 7), (1, 8)):
        node.append(
            log, build_batch([Record(value=b"v")], base_offset=base, producer_id=producer_id, transactional=True)
        )
    node.append(log, marker(2, 7, commit=False), marker(3, 8, commit=True))
    node('insert into "Moldau 1".aborted_transaction values (%s, 2, 7, 0, 1)', log)
    columns = '"offset", producer_id, is_transactional, is_aborted, is_control, note'
    assert [tuple(row.values()) for row in node.records("'orders', 0", columns)] == [
        (0, 7, True, True, False, None),
        (1, 8, True, False, False, None),
        (2, 7, True, False, True, "abort marker"),
        (3, 8, True, False, True, "commit marker"),
    ]


def test_a_corrupt_batch_is_a_note_and_the_next_one_is_shown(node: Node) -> None:
    log = node.create_log("orders")
    good = build_batch([Record(value=b"abc"), Record(value=b"def")])
    for base, damage in enumerate([good[:-3], good[:-9] + b"\x7f" * 9, good[:61], good[:61] + b"\xff" * 40]):
        changed = struct.pack(">q", base * 10) + damage[8:]
        node('insert into "Moldau 1".batch values (%s, %s, %s, 0, 0, 1, %s)', log, base * 10, base * 10 + 1, changed)
    node.append(log, build_batch([Record(value=b"last")], base_offset=50))
    rows = node.records("'orders', 0")
    assert [row["note"] is not None for row in rows if row["value"] is None] == [True] * 4
    assert all("cannot be decoded" in row["note"] for row in rows if row["value"] is None)
    assert rows[-1]["value_text"] == "last"


def test_a_hundred_thousand_records_are_decoded_in_seconds(node: Node) -> None:
    log = node.create_log("orders")
    for base in range(0, 100_000, 500):
        records = [Record(timestamp=TIME_MS + n, key=b"k%d" % n, value=b"x" * 100) for n in range(500)]
        node.append(log, build_batch(records, base_offset=base))
    began = time.monotonic()
    (row,) = node.records("'orders', 0, 0, 100000", "count(*), sum(length(value_text))")
    took_s = time.monotonic() - began
    print(f"100,000 records in {took_s:.1f} s")
    assert (row["count"], row["sum"]) == (100_000, 10_000_000)
    # Tests assert no speed, but a mistake such as fetching a value from TOAST for each byte takes minutes.
    assert took_s < 60


# Topics


def test_a_start_replaces_views_only_if_they_have_changed(server: PostgresServer) -> None:
    async def start() -> None:
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
            await connection.execute("set statement_timeout = '5s'")
            await create_views(connection.cursor(), "it's")

    with node_in(server, "it's") as node, psycopg.connect(server.url) as reader:
        reader.execute("""select * from "it's".topics""")
        # The transaction of the reader is open, which would block a change of the view.
        asyncio.run(start())
        reader.rollback()
        node("""drop view "it's".topics""")
        asyncio.run(start())
        assert node("""select * from "it's".topics""") == []
        node("""comment on function "it's"._find_log is 'Version 0 of the views.'""")
        reader.execute("""select * from "it's".topics""")
        with pytest.raises(psycopg.errors.QueryCanceled):
            asyncio.run(start())
        reader.rollback()
        asyncio.run(start())


def test_topics_are_summed_over_their_partitions(node: Node) -> None:
    sizes = 0
    for partition in range(2):
        log = node.create_log("orders", partition, start=1)
        for number in range(3):
            batch = build_batch(
                [Record(timestamp=TIME_MS + 1000 * number + partition)] * 2, base_offset=2 * number, compression=ZSTD
            )
            node.append(log, batch)
            sizes += len(batch)
    node.create_log("empty")
    node.append(node.create_log("gone", state="deleted"), build_batch([Record(value=b"v")]))
    empty, orders = node('select * from "Moldau 1".topics order by topic')
    assert (empty["topic"], empty["partitions"], empty["records"], empty["bytes"]) == ("empty", 1, 0, 0)
    assert empty["newest_timestamp"] is None
    assert orders == {
        "topic": "orders",
        "topic_id": uuid.uuid5(uuid.NAMESPACE_DNS, "orders"),
        "partitions": 2,
        "records": 10,
        "bytes": sizes,
        "oldest_timestamp": datetime.fromtimestamp(TIME_MS / 1000, UTC),
        "newest_timestamp": datetime.fromtimestamp((TIME_MS + 2001) / 1000, UTC),
    }


# Committed offsets


def commit(
    group: str, offset: int | None, topic: str = "orders", partition: int = 0, **more: Any
) -> OffsetCommitRecord:
    committed = None
    if offset is not None:
        committed = CommittedOffset(offset, more.pop("leader_epoch", 4), more.pop("metadata", ""), TIME_MS, **more)
    return OffsetCommitRecord(group, topic, partition, committed)


def offsets_batch(offset: int, *records: OffsetCommitRecord | GroupMetadataRecord, producer_id: int = -1) -> bytes:
    pairs = [encode(record) for record in records]
    return build_batch(
        [Record(timestamp=TIME_MS, key=key, value=value) for key, value in pairs],
        base_offset=offset,
        producer_id=producer_id,
        transactional=producer_id >= 0,
    )


def test_the_last_commit_of_a_key_counts_and_tombstones_remove_it(node: Node) -> None:
    log = node.create_log("__consumer_offsets", 7)
    node.create_log("__consumer_offsets", 8)
    group = GroupMetadataRecord("group", GroupMetadataValue("consumer", 1, "range", "leader", TIME_MS, ()))
    node.append(
        log,
        offsets_batch(0, commit("group", 1), commit("group", 2, partition=1), group),
        offsets_batch(3, commit("skupina-č", 2**50, "téma", metadata="m" * 200, topic_id=uuid.uuid4())),
        offsets_batch(4, commit("group", 5, leader_epoch=-1), commit("other", 6), GroupMetadataRecord("group", None)),
        offsets_batch(7, commit("group", None, partition=1), commit("never", None)),
        offsets_batch(9, commit("old", 8, expire_timestamp_ms=TIME_MS, metadata="é", leader_epoch=-1)),
    )
    assert node.offsets() == {
        ("group", "orders", 0): 5,
        ("skupina-č", "téma", 0): 2**50,
        ("other", "orders", 0): 6,
        ("old", "orders", 0): 8,
    }
    rows = {row["group"]: row for row in node('select * from "Moldau 1".group_offsets')}
    assert {row["commit_time"] for row in rows.values()} == {datetime.fromtimestamp(TIME_MS / 1000, UTC)}
    assert (rows["group"]["leader_epoch"], rows["other"]["leader_epoch"]) == (None, 4)
    assert [rows[name]["metadata"] for name in ("group", "skupina-č", "old")] == ["", "m" * 200, "é"]


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
def test_commits_with_text_that_postgres_cannot_store_are_read(server: PostgresServer, encoding: str) -> None:
    """A client chooses its group and its metadata, and must not break the view for others."""
    program = ["--host=127.0.0.1", f"--port={server.port}", "--username=moldau"]
    server.run_program("createdb", *program, f"--encoding={encoding}", "--template=template0", encoding.lower())
    with node_in(server, "Moldau 1", encoding.lower()) as node:
        node.append(
            node.create_log("__consumer_offsets"),
            offsets_batch(0, commit("good", 1, metadata="fine"), commit("a\0b", 2, topic="t\0"), commit("ř", 3)),
            offsets_batch(3, commit("nul", 4, metadata="a\0b"), commit("ř in metadata", 5, metadata="ř")),
        )
        rows = {row["offset"]: row for row in node('select * from "Moldau 1".group_offsets')}
    r = "ř" if encoding == "UTF8" else r"\305\231"
    assert {offset: row["group"] for offset, row in rows.items()} == {
        1: "good", 2: r"a\000b", 3: r, 4: "nul", 5: f"{r} in metadata",
    }  # fmt: skip
    assert rows[2]["topic"] == r"t\000"
    assert [rows[offset]["metadata"] for offset in (1, 4, 5)] == ["fine", None, "ř" if encoding == "UTF8" else None]


def test_all_versions_of_committed_offsets_are_read(node: Node) -> None:
    log = node.create_log("__consumer_offsets")
    start, text, at = struct.pack(">q", 42), b"\0\x01m", struct.pack(">q", TIME_MS)
    epoch = struct.pack(">i", 9)
    values = [start + text + at, start + text + at + at, start + text + at, start + epoch + text + at]
    values.append(start + epoch + b"\x02m" + at + b"\0")
    for version, value in enumerate(values):
        key, _ = encode(commit(f"group-{version}", None))
        key = struct.pack(">h", version % 2) + key[2:]
        record = Record(timestamp=TIME_MS, key=key, value=struct.pack(">h", version) + value)
        node.append(log, build_batch([record], base_offset=version))
    rows = node('select * from "Moldau 1".group_offsets order by "group"')
    assert [row["offset"] for row in rows] == [42] * 5
    assert [row["leader_epoch"] for row in rows] == [None, None, None, 9, 9]
    assert {(row["metadata"], row["commit_time"]) for row in rows} == {
        ("m", datetime.fromtimestamp(TIME_MS / 1000, UTC))
    }


def test_offsets_in_transactions_count_after_the_commit_marker_of_their_producer(node: Node) -> None:
    log = node.create_log("__consumer_offsets")
    node.append(
        log,
        offsets_batch(0, commit("aborted", 1), commit("open", 2), commit("later", 3)),
        offsets_batch(3, commit("committed", 10), producer_id=1),
        offsets_batch(4, commit("aborted", 20), producer_id=2),
        offsets_batch(5, commit("later", 30), producer_id=3),
        offsets_batch(6, commit("later", 31)),
        offsets_batch(7, commit("removed", 40), producer_id=3),
        offsets_batch(8, commit("removed", None)),
        marker(9, 1, commit=True),
        marker(10, 2, commit=False),
        marker(11, 3, commit=True),
        offsets_batch(12, commit("aborted", 21), producer_id=2),
        offsets_batch(13, commit("open", 50), producer_id=1),
        marker(14, 9, commit=True),
    )
    expected = {"aborted": 1, "open": 2, "later": 31, "committed": 10}
    assert node.offsets() == {(group, "orders", 0): offset for group, offset in expected.items()}
    node.append(log, marker(15, 2, commit=True), marker(16, 1, commit=True))
    assert node.offsets() == {
        (group, "orders", 0): offset for group, offset in (expected | {"aborted": 21, "open": 50}).items()
    }


@pytest.mark.parametrize("seed", range(5))
def test_random_commits_give_the_offsets_of_the_coordinator(node: Node, seed: int) -> None:
    chance = random.Random(seed)
    log = node.create_log("__consumer_offsets")
    state: dict[str, tuple[int, int | None]] = {}
    pending: dict[int, list[tuple[str, int, int]]] = {}
    for offset in range(300):
        producer_id = chance.randrange(4)
        group, value = f"group-{chance.randrange(6)}", chance.choice([None, chance.randrange(1000)])
        if producer_id == 0:
            node.append(log, offsets_batch(offset, commit(group, value)))
            state[group] = offset, value
        elif chance.random() < 0.2:
            is_commit = chance.random() < 0.5
            node.append(log, marker(offset, producer_id, commit=is_commit))
            for name, at, committed in pending.pop(producer_id, []):
                if is_commit and state.get(name, (-1, None))[0] < at:
                    state[name] = at, committed
        else:
            node.append(log, offsets_batch(offset, commit(group, value or 0), producer_id=producer_id))
            pending.setdefault(producer_id, []).append((group, offset, value or 0))
    expected = {(group, "orders", 0): value for group, (_, value) in state.items() if value is not None}
    assert node.offsets() == expected


def test_a_compressed_batch_of_commits_is_an_error_and_not_a_wrong_offset(node: Node) -> None:
    log = node.create_log("__consumer_offsets")
    node.append(log, offsets_batch(0, commit("group", 1)))
    key, value = encode(commit("group", 2))
    node.append(log, build_batch([Record(key=key, value=value)], base_offset=1, compression=GZIP))
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=r"at offset 1 of __consumer_offsets-0.*gzip"):
        node.offsets()


def test_the_page_about_the_views_is_true(server: PostgresServer) -> None:
    page = (Path(__file__).parents[4] / "docs" / "postgres_sql.md").read_text()
    queries = re.findall(r"^```sql\n(.*?)^```", page, flags=re.M | re.S)
    outputs = re.findall(r"^```text\n(.*?)^```", page, flags=re.M | re.S)
    noon_ms = round(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)
    with node_in(server, "moldau") as node:
        records = [
            Record(timestamp=noon_ms, key=b"ada", value=b'{"total": "12.50"}'),
            Record(timestamp=noon_ms + 700, key=b"bob", value=b'{"total": "1.00"}', headers=[("trace", b"t-1")]),
            Record(timestamp=noon_ms + 1500, key=b"ada", value=b'{"total": "3.00"}'),
        ]
        node.append(node.create_log("orders"), build_batch(records))
        node.append(node.create_log("__consumer_offsets"), offsets_batch(0, commit("billing", 2)))
        node("set time zone 'UTC'")
        for query, output in zip(queries, outputs, strict=False):
            header, _, *lines = [[cell.strip() for cell in line.split("|")] for line in output.splitlines()]
            columns = ", ".join(f't."{name}"::text' for name in header)
            rows = node(f"select {columns} from ({query.strip().rstrip(';')}) t")
            assert [list(row.values()) for row in rows] == lines
        topics, records_query = queries[2].split(";", 1)
        assert [tuple(row.values()) for row in node(f"{topics} order by topic")] == [
            ("__consumer_offsets", 1, 1, True),
            ("orders", 1, 3, True),
        ]
        assert [tuple(row.values()) for row in node(records_query)] == [(1, "t-1", None), (2, None, None)]
        node("create role analyst")
        node(queries[3])
        try:
            node("set role analyst")
            assert len(node(queries[0])) == 2
            assert len(node(queries[1])) == 1
            assert len(node("select * from moldau.topics")) == 2
        finally:
            node("reset role")
            node("drop owned by analyst; drop role analyst")
