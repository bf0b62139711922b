"""The Postgres log store beside bare COPY and SELECT, and a node on Postgres beside one with files:
`python -m bench.postgres [--quick] [--out FILE]` writes bench/POSTGRES.md."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from struct import Struct
from uuid import UUID, uuid4

import psycopg
import uvloop
from rich.console import Console
from tests.support.postgres import HOW_TO_GET_ONE, PostgresServer, find_servers

from bench import postgres_nodes
from bench.plan import FULL, QUICK, Bench
from bench.report import (
    Cell,
    Figures,
    Metric,
    Row,
    Table,
    count,
    decimals,
    render_disturbed,
    render_summary,
    render_table,
)
from bench.run import commit_line, machine_line
from moldau.logs.postgres.database import Database
from moldau.logs.postgres.log import PostgresLog
from moldau.logs.postgres.store import PostgresLogStore
from moldau.logs.store import LogName
from moldau.platform.clock import SystemClock
from moldau.records.batch import HEADER_SIZE, Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from moldau.settings.topic import TopicSettings

METHOD = Path(__file__).with_name("METHOD_POSTGRES.md")
RESULTS = Path(__file__).with_name("POSTGRES.md")

AIM = 0.8
READ_BYTES = 1024 * 1024
SIDES = ("store", "bare psycopg")
SERVER_SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "8GB"}

RATE = Metric("MB/s", count, higher_is_better=True)
CLIENT_CPU = Metric("client CPU s per GB", decimals(2))
CALL = Metric("ms per call", decimals(2))

_COPY_HEADER, _COPY_TRAILER = b"PGCOPY\n\xff\r\n\x00" + bytes(8), b"\xff\xff"
_COPY_ROW = Struct(">hiqiqiqiqiiiii")
_BARE_TABLE = """
create table bare (
    log_id bigint not null, base_offset bigint not null, last_offset bigint not null, max_timestamp bigint not null,
    leader_epoch integer not null, size integer not null, data bytea not null, primary key (log_id, base_offset)
);
alter table bare alter column data set storage external
"""


@dataclass(frozen=True)
class Case:
    batch_bytes: int
    batches_per_commit: int
    logs: int

    @property
    def name(self) -> str:
        size = f"{self.batch_bytes // 1024} KB" if self.batch_bytes < 2**20 else f"{self.batch_bytes // 2**20} MB"
        return f"{size} batches, {self.batches_per_commit} per commit, {self.logs} log{'s' * (self.logs > 1)}"


CASES = (
    Case(16 * 1024, 1, 1),
    Case(16 * 1024, 64, 1),
    Case(16 * 1024, 64, 16),
    Case(1024 * 1024, 1, 1),
    Case(1024 * 1024, 8, 8),
)


@dataclass(frozen=True)
class Plan:
    runs: int
    bytes_per_run: int


FULL_PLAN = Plan(runs=7, bytes_per_run=256 * 1024 * 1024)
QUICK_PLAN = Plan(runs=3, bytes_per_run=64 * 1024 * 1024)


@dataclass(frozen=True)
class Measurement:
    bytes: int
    calls: int
    seconds: float
    cpu_s: float

    @property
    def figures(self) -> tuple[float, float, float]:
        return self.bytes / 1e6 / self.seconds, self.cpu_s / (self.bytes / 1e9), self.seconds * 1e3 / self.calls


async def _measured(work: Callable[[], Awaitable[tuple[int, int]]]) -> Measurement:
    cpu, began = time.process_time(), time.perf_counter()
    size, calls = await work()
    return Measurement(size, calls, time.perf_counter() - began, time.process_time() - cpu)


def _batch(batch_bytes: int) -> bytes:
    """Returns a batch with one record of random bytes."""
    overhead = (
        len(build_batch([Record(timestamp=1, key=None, value=os.urandom(batch_bytes - 100))])) - batch_bytes + 100
    )
    data = build_batch([Record(timestamp=1, key=None, value=os.urandom(batch_bytes - overhead))])
    assert len(data) == batch_bytes > HEADER_SIZE
    return data


class StoreSide:
    """Logs in the store. Nothing that is committed stays in memory, so that reads are queries."""

    def __init__(self, case: Case, logs: Sequence[PostgresLog]) -> None:
        self._case = case
        self._logs = logs
        self._data = _batch(case.batch_bytes)

    async def write(self, total: int) -> tuple[int, int]:
        case, written, calls = self._case, 0, 0
        while written < total:
            for number in range(case.batches_per_commit):
                log = self._logs[number % case.logs]
                batch = Batch(self._data)
                batch.base_offset = log.end_offset
                await log.append([batch])
                written += case.batch_bytes
            await asyncio.gather(*(log.flush() for log in self._logs))
            calls += 1
        return written, calls

    async def read(self, total: int) -> tuple[int, int]:
        log = self._logs[0]
        size = calls = offset = 0
        while size < total:
            found = await log.read(offset, READ_BYTES, log.end_offset)
            offset = 0 if not found.size else offset + found.size // self._case.batch_bytes
            size += found.size
            calls += 1
        return size, calls


class BareSide:
    """One table of the same columns, COPY and SELECT on one connection."""

    def __init__(self, case: Case, connection: psycopg.AsyncConnection) -> None:
        self._case = case
        self._connection = connection
        self._data = _batch(case.batch_bytes)
        self._end = 0

    async def write(self, total: int) -> tuple[int, int]:
        case, size, written, calls = self._case, self._case.batch_bytes, 0, 0
        connection = self._connection
        while written < total:
            async with (
                connection.transaction(),
                connection.cursor() as cursor,
                cursor.copy("copy bare from stdin (format binary)") as copy,
            ):
                await copy.write(_COPY_HEADER)
                for _ in range(case.batches_per_commit):
                    row = _COPY_ROW.pack(7, 8, 1, 8, self._end, 8, self._end, 8, 1, 4, 0, 4, size, size)
                    if size > 100_000:
                        await copy.write(row)
                        await copy.write(memoryview(self._data))
                    else:
                        await copy.write(row + self._data)
                    self._end += 1
                    written += size
                await copy.write(_COPY_TRAILER)
            calls += 1
        return written, calls

    async def read(self, total: int) -> tuple[int, int]:
        rows = max(1, READ_BYTES // self._case.batch_bytes)
        size = calls = offset = 0
        statement = "select data from bare where log_id = 1 and base_offset >= %s order by base_offset limit %s"
        while size < total:
            async with self._connection.cursor(binary=True) as cursor:
                await cursor.execute(statement, (offset, rows))
                found = await cursor.fetchall()
            offset = offset + len(found) if found else 0
            size += sum(len(data) for (data,) in found)
            calls += 1
        return size, calls


async def _measure_case(url: str, case: Case, plan: Plan) -> tuple[Row, Row]:
    schema = f"bench_{uuid4().hex[:12]}"
    store = PostgresLogStore(Database(url, schema, uuid4()), SystemClock(), recent_bytes_max=0)
    await store.start()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=2) as connection:
        await connection.execute(f"set search_path to {schema}")
        await connection.execute(_BARE_TABLE)
        names = [LogName("bench", number) for number in range(case.logs)]
        logs = [await store.open(name, UUID(int=9), TopicSettings(retention_ms=-1)) for name in names]
        sides = (StoreSide(case, logs), BareSide(case, connection))
        # A commit of one small batch is mostly the fsync, so fewer of them are needed.
        total = plan.bytes_per_run if case.batch_bytes * case.batches_per_commit >= 2**20 else plan.bytes_per_run // 16
        rows = []
        for operation in ("write", "read"):
            taken: tuple[list[Measurement], list[Measurement]] = ([], [])
            for number in range(-1, plan.runs):
                for side in (0, 1) if number % 2 == 0 else (1, 0):
                    work = getattr(sides[side], operation)
                    result = await _measured(lambda work=work: work(total))  # type: ignore[misc]
                    if number >= 0:  # The first run of each side warms up.
                        taken[side].append(result)
            columns = [tuple(zip(*(each.figures for each in side), strict=True)) for side in taken]
            figures = [Figures(ours, theirs) for ours, theirs in zip(*columns, strict=True)]
            cells = (Cell(RATE, figures[0], AIM), Cell(CLIENT_CPU, figures[1]), Cell(CALL, figures[2]))
            rows.append(Row(case.name, cells))
        await store.close()
        await connection.execute(f"drop schema {schema} cascade")
    return rows[0], rows[1]


async def measure(url: str, plan: Plan, console: Console) -> tuple[Table, ...]:
    writes, reads = [], []
    for case in CASES:
        write, read = await _measure_case(url, case, plan)
        for what, row in (("write", write), ("read", read)):
            ours, theirs = row.cells[0].figures.middle
            console.print(
                f"{what}, {case.name}: {ours:,.0f} MB/s, bare {theirs:,.0f} = {row.cells[0].figures.ratio:.2f}"
            )
        writes.append(write)
        if case.logs == 1 and case.batches_per_commit in (1, 64):
            reads.append(read)
    return (
        Table("Append and flush, beside COPY and COMMIT of the same bytes", tuple(writes), sides=SIDES),
        Table("Reads of 1 MiB, beside SELECT of the same rows", tuple(reads), sides=SIDES),
    )


def page(tables: Sequence[Table], facts: str, command: str) -> str:
    parts = [
        "# Postgres",
        f"Written by `{command}`.",
        facts,
        render_disturbed(tables),
        render_summary(tables),
        METHOD.read_text(),
        "## Figures",
        *(render_table(table, with_kafka=True) for table in tables),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _facts(server: str, plan: Plan, took_s: float) -> str:
    lines = (
        f"machine: {machine_line(' shared by server and client')}",
        f"{server}, psycopg {version('psycopg')}",
        f"Moldau {version('moldau')} at commit {commit_line()}, Python {platform.python_version()}",
        f"{plan.runs} runs of each side, {time.strftime('%Y-%m-%d', time.gmtime())}, {took_s / 60:.0f} min in all",
    )
    return "\n".join(f"- {line}" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.postgres", description="Measures the Postgres log store.")
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--out", type=Path, help="default: bench/POSTGRES.md for a whole run, else shown")
    options = parser.parse_args()
    console = Console()
    plan = QUICK_PLAN if options.quick else FULL_PLAN
    began = time.monotonic()
    found = find_servers()
    if not found:
        parser.error(HOW_TO_GET_ONE)
    with PostgresServer(found[max(found, key=int)], settings=SERVER_SETTINGS) as running:
        with psycopg.connect(running.url) as connection:
            server = f"Postgres {connection.execute('show server_version').fetchone()[0]}"  # type: ignore[index]
        tables: list[Table] = list(uvloop.run(measure(running.url, plan, console)))
        tables += postgres_nodes.measure(Bench(QUICK if options.quick else FULL, console), running)
    command = "python -m bench.postgres" + " --quick" * options.quick
    text = page(tables, _facts(server, plan, time.monotonic() - began), command)
    out = options.out or (None if options.quick else RESULTS)
    if out is None:
        print(text)
    else:
        out.write_text(text)
        console.print(f"written: {out}")


if __name__ == "__main__":
    main()
