"""The HTTP API: its latency and throughput beside Karapace's REST proxy, Kafka clients under HTTP load, and what it
costs at the start: `python -m bench.http [--quick] [--only NAME] [--baseline CHECKOUT] [--out FILE]` writes
bench/HTTP.md."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import confluent_kafka
from rich.console import Console

from bench.brokers import Durability
from bench.client import Job
from bench.http_kafka import kafka_under_http_load
from bench.http_load import FILLED_RECORDS, PROXY_PRODUCE, SIMPLE_CONSUME, SIMPLE_PRODUCE, V1_CONSUME, V1_PRODUCE
from bench.http_servers import HttpNode, Karapace, get_status, install_karapace
from bench.http_start import start_and_memory
from bench.load import Run, run, topic
from bench.plan import FULL, QUICK, Bench, Plan
from bench.report import (
    OTHERS,
    Cell,
    Figures,
    Metric,
    Row,
    Table,
    count,
    decimals,
    percentile,
    render_disturbed,
    render_summary,
    render_table,
)
from bench.run import DURABILITIES, commit_line, machine_line
from bench.throughput import CLIENT

METHOD = Path(__file__).with_name("METHOD_HTTP.md")
RESULTS = Path(__file__).with_name("HTTP.md")
NAMES = ("requests", "kafka", "start")

CONNECTIONS = (1, 20)
BATCH_RECORDS = 100
VALUE_BYTES = 100
WARM_UP_S = 1.0

RATE = Metric("requests/s", count, higher_is_better=True)
P50 = Metric("p50 ms", decimals(2))
P99 = Metric("p99 ms", decimals(2))
CPU = Metric("server CPU ms per request", decimals(3))

SIDES = (HttpNode.name, Karapace.name)
Server = HttpNode | Karapace


@dataclass(frozen=True)
class HttpPlan:
    bench: Plan
    seconds: float
    acknowledgements: int
    starts: int
    durabilities: tuple[Durability, ...]


FULL_PLAN = HttpPlan(FULL, 3.0, 2000, 7, tuple(DURABILITIES.values()))
QUICK_PLAN = HttpPlan(QUICK, 1.0, 500, 1, (DURABILITIES["page-cache"],))


@dataclass(frozen=True)
class Case:
    """Requests to one API, and those to Karapace that do the same."""

    api: str
    records: int
    karapace_api: str | None = None

    @property
    def name(self) -> str:
        return f"`{self.api}`" if self.api.startswith("/data") else self.api

    @property
    def is_consume(self) -> bool:
        return self.api in (SIMPLE_CONSUME, V1_CONSUME)


CASES = (
    Case(SIMPLE_PRODUCE, 1),
    Case(V1_PRODUCE, 1, PROXY_PRODUCE),
    Case(V1_PRODUCE, BATCH_RECORDS, PROXY_PRODUCE),
    Case(SIMPLE_CONSUME, BATCH_RECORDS),
    Case(V1_CONSUME, BATCH_RECORDS),
)


def measure(bench: Bench, plan: HttpPlan, names: set[str], baseline: Path | None, with_karapace: bool) -> list[Table]:
    tables = []
    if "requests" in names:
        for durability in plan.durabilities:
            with _servers(bench, durability, with_karapace) as servers:
                # Consumers read from the page cache, so durability does not affect them.
                reads = durability is plan.durabilities[0]
                cases = [case for case in CASES if reads or not case.is_consume]
                tables += RequestBench(bench, plan, servers, durability).tables(cases)
    if "kafka" in names:
        for durability in plan.durabilities:
            tables += kafka_under_http_load(bench, durability, plan.acknowledgements)
    if "start" in names:
        tables += start_and_memory(bench, plan.starts, baseline)
    return tables


@contextmanager
def _servers(bench: Bench, durability: Durability, with_karapace: bool) -> Iterator[Sequence[Server]]:
    with TemporaryDirectory(prefix="moldau-bench-", dir=bench.directory) as directory, ExitStack() as stack:
        node = stack.enter_context(HttpNode(Path(directory, "moldau"), durability))
        servers: list[Server] = [node]
        if with_karapace:
            servers.append(stack.enter_context(Karapace(Path(directory, "karapace"), node)))
        yield servers


class RequestBench:
    """Produce and consume requests to one node, and to Karapace in front of the same node."""

    def __init__(self, bench: Bench, plan: HttpPlan, servers: Sequence[Server], durability: Durability) -> None:
        self._bench = bench
        self._plan = plan
        self._servers = servers
        self._node = servers[0]
        self._durability = durability
        self._note = ""

    def tables(self, cases: Sequence[Case]) -> list[Table]:
        if get_status(self._node.http_address, "/v1/openapi.json") == 404:
            self._note = "This checkout has no `/v1`, so its cases are left out."
            self._bench.print_line(self._note)
            cases = [case for case in cases if case.api in (SIMPLE_PRODUCE, SIMPLE_CONSUME)]
        tables = []
        for is_consume in (False, True):
            chosen = [case for case in cases if case.is_consume == is_consume]
            if chosen:
                tables.append(self._consume(chosen) if is_consume else self._produce(chosen))
        return tables

    def _produce(self, cases: Sequence[Case]) -> Table:
        with topic(self._node, 1) as name:
            title = f"Produce with acks=all, one node, {self._durability.name}"
            return Table(title, self._rows(title, cases, name), self._note, SIDES)

    def _consume(self, cases: Sequence[Case]) -> Table:
        with topic(self._node, 1) as name:
            fill = Job("raw_fill", self._node.bootstrap, name, value_bytes=VALUE_BYTES, records=FILLED_RECORDS)
            run(self._node, fill)
            title = "Consume, one node"
            note = f"{FILLED_RECORDS:,} records of {VALUE_BYTES} B are read again and again. {self._note}".strip()
            return Table(title, self._rows(title, cases, name), note, SIDES)

    def _rows(self, title: str, cases: Sequence[Case], name: str) -> tuple[Row, ...]:
        rows = []
        for case in cases:
            for connections in CONNECTIONS:
                servers = [each for each in self._servers if case.karapace_api or each is self._node]
                for server in servers:
                    self._once(case, name, connections, WARM_UP_S, server)
                taken = self._bench.interleaved(servers, partial(self._once, case, name, connections, None))
                label = f"{case.name}, {_plural(case.records, 'record')}, {_plural(connections, 'connection')}"
                rows.append(Row(label, _cells(taken)))
                self._bench.print_row(title, rows[-1])
        return tuple(rows)

    def _once(self, case: Case, name: str, connections: int, seconds: float | None, server: Server) -> Run:
        api = case.karapace_api if isinstance(server, Karapace) else case.api
        job = Job("http", server.http_address, name, value_bytes=VALUE_BYTES, records=case.records)
        job = replace(job, connections=connections, seconds=seconds or self._plan.seconds, api=api or "")
        return run(server, job)


def _cells(taken: dict[str, list[Run]]) -> tuple[Cell, ...]:
    def figures(value: Callable[[Run], float]) -> Figures:
        return Figures(*(tuple(value(one) for one in taken.get(side, ())) for side in SIDES))

    return (
        Cell(RATE, figures(lambda one: one.records_per_s)),
        Cell(P50, figures(lambda one: percentile(one.outcome.latencies_ms, 0.5))),
        Cell(P99, figures(lambda one: percentile(one.outcome.latencies_ms, 0.99))),
        Cell(CPU, figures(lambda one: one.broker_cpu_s * 1000 / one.outcome.records)),
        Cell(CLIENT, figures(lambda one: one.client_cores)),
        Cell(OTHERS, figures(lambda one: one.other_cores)),
    )


def _plural(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


# The page


def _facts(plan: HttpPlan, names: set[str], karapace_missing: str | None, baseline: Path | None, took_s: float) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("fastapi", "uvicorn", "httptools", "uvloop"))
    lines = [
        f"machine: {machine_line()}",
        f"Moldau {version('moldau')} at commit {commit_line()}, Python {platform.python_version()}, {packages}",
    ]
    if "requests" in names:
        lines.append("Karapace in front of the same node" if karapace_missing is None else _left_out(karapace_missing))
    if "kafka" in names:
        lines.append(f"confluent-kafka {confluent_kafka.version()} with librdkafka {confluent_kafka.libversion()[0]}")
    if "start" in names and baseline is None:
        lines.append("start and memory are not compared: no `--baseline`")
    runs = f"{_plural(plan.bench.repeats, 'run')} of each case, {_plural(plan.starts, 'start')}"
    lines.append(f"{runs}, {time.strftime('%Y-%m-%d', time.gmtime())}, {took_s / 60:.0f} min in all")
    return "\n".join(f"- {line}" for line in lines)


def _left_out(why: str) -> str:
    return f"Karapace is left out: {why}"


def page(tables: Sequence[Table], facts: str, command: str) -> str:
    parts = [
        "# The HTTP API",
        f"Written by `{command}`.",
        facts,
        render_disturbed(tables),
        render_summary(tables),
        METHOD.read_text(),
        "## Figures",
        *(render_table(table, with_kafka=_is_compared(table)) for table in tables),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _is_compared(table: Table) -> bool:
    return any(cell.figures.kafka for row in table.rows for cell in row.cells)


def _command(options: argparse.Namespace) -> str:
    words = ["--quick"] if options.quick else []
    words += [f"--only {name}" for name in options.only or ()]
    words += ["--baseline CHECKOUT"] if options.baseline else []
    words += ["--without karapace"] if options.without else []
    return " ".join(["python -m bench.http", *words])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.http", description="Measures the HTTP API.")
    parser.add_argument("--quick", action="store_true", help="one short run of each case, page cache")
    parser.add_argument("--only", choices=NAMES, action="append", help="leave out the other parts")
    parser.add_argument("--baseline", type=Path, help="checkout without the HTTP API to compare start and memory with")
    parser.add_argument("--without", choices=("karapace",), help="do not install and measure it")
    parser.add_argument("--out", type=Path, help="default: bench/HTTP.md for a whole run, else shown")
    parser.add_argument("--dir", type=Path, help="where the nodes keep their data meanwhile")
    options = parser.parse_args()
    console = Console()
    names = set(options.only or NAMES)
    missing: str | None = "excluded with --without"
    if "requests" in names and not options.without:
        missing = install_karapace()
    if "requests" in names and missing is not None:
        console.print(_left_out(missing))
    plan = QUICK_PLAN if options.quick else FULL_PLAN
    bench = Bench(plan.bench, console, options.dir)
    baseline = options.baseline.resolve() if options.baseline else None
    began = time.monotonic()
    with console.status("measuring"):
        tables = measure(bench, plan, names, baseline, with_karapace=missing is None)
    facts = _facts(plan, names, missing, baseline, time.monotonic() - began)
    text = page(tables, facts, _command(options))
    whole = not (options.quick or options.only or options.without)
    out = options.out or (RESULTS if whole else None)
    if out is None:
        print(text)
    else:
        out.write_text(text)
        console.print(f"written: {out}")


if __name__ == "__main__":
    main()
