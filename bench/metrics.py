"""What `/metrics` costs: `python -m bench.metrics [--quick] [--only NAME] [--out FILE]` writes bench/METRICS.md."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]
from rich.console import Console

from bench import raw
from bench.brokers import FSYNC, PAGE_CACHE, Durability, let_idle
from bench.client import Job
from bench.http_servers import REQUEST_TIMEOUT_S, HttpNode
from bench.load import ADMIN_TIMEOUT_S, LoadFailed, Run, admin_of, create_topic, run
from bench.metrics_node import RESULT
from bench.plan import FULL, QUICK, Bench, Plan
from bench.quiet import BackgroundLoad
from bench.report import (
    OTHERS,
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
from bench.throughput import CLIENT

METHOD = Path(__file__).with_name("METHOD_METRICS.md")
RESULTS = Path(__file__).with_name("METRICS.md")
PROJECT = Path(__file__).resolve().parents[1]
NAMES = ("scrape", "cost", "throughput")

AIM_SCRAPE_MS = 250.0
AIM_PAUSE_MS = 5.0
AIM_CORES = 0.01
PARTITIONS_PER_TOPIC = 100
GROUPS_IN_PARALLEL = 50
LAG_TIMEOUT_S = 120.0
LOADED_PARTITIONS = 4
SETTLE_S, WARM_UP_S = 2.0, 2.0
SCRAPES_FOR_COST = 4

SCRAPE = Metric("ms", decimals(1))
PAUSE = Metric("longest pause of the event loop, ms", decimals(1))
SIZE = Metric("kB", lambda size: f"{size / 1e3:,.0f}", compared=False)
SAMPLES = Metric("samples", count, compared=False)
CPU = Metric("node CPU ms", decimals(1), compared=False)
RATE = Metric("records/s", count, higher_is_better=True)
CORES = Metric("cores", decimals(4))
CPU_PER_RECORD = Metric("node CPU µs per record", decimals(3))

ON, OFF = "with metrics", "without"


@dataclass(frozen=True)
class MetricsPlan:
    bench: Plan
    partitions: int
    groups: int
    partitions_per_group: int
    scrapes: int
    durabilities: tuple[Durability, ...]
    loaded_partitions: int
    """Partitions of the node whose throughput is measured."""
    loaded_groups: int
    scrape_interval_s: float
    seconds: float
    """How long one run of the throughput takes."""
    runs: int


FULL_PLAN = MetricsPlan(FULL, 10_000, 1_000, 10, 20, (PAGE_CACHE, FSYNC), 1_000, 100, 15.0, 30.0, 4)
QUICK_PLAN = MetricsPlan(QUICK, 1_000, 50, 2, 3, (PAGE_CACHE,), 100, 10, 1.0, 3.0, 2)


def measure(bench: Bench, plan: MetricsPlan, names: set[str]) -> list[Table]:
    tables = []
    if "scrape" in names:
        tables.append(_scrapes(bench, plan))
    if "cost" in names:
        tables.append(_costs(bench, plan))
    if "throughput" in names:
        tables += [_throughput(bench, plan, durability) for durability in plan.durabilities]
    return tables


# The node


@contextmanager
def _node(bench: Bench, durability: Durability, partitions: int, groups: int, per_group: int) -> Iterator[HttpNode]:
    """Runs a node with topics and groups that have committed offsets."""
    # `env` replaces itself by the node, so the process id is the node's.
    command = ("env", f"PYTHONPATH={PROJECT}", sys.executable, "-m", "bench.metrics_node")
    with (
        TemporaryDirectory(prefix="moldau-bench-", dir=bench.directory) as directory,
        HttpNode(Path(directory, "moldau"), durability, command) as node,
    ):
        began = time.monotonic()
        topics = _create_topics(node, partitions)
        _commit(node, topics, groups, per_group)
        bench.print_line(
            f"{partitions:,} partitions and {groups:,} groups were created in {time.monotonic() - began:.0f} s"
        )
        # A restart, as after an upgrade: the objects of all partitions exist when the node becomes ready.
        node.stop()
        node.start()
        yield node


def _create_topics(node: HttpNode, partitions: int) -> list[str]:
    admin = admin_of(node)
    names = [f"many-{index:04}" for index in range(-(-partitions // PARTITIONS_PER_TOPIC))]
    for name in names:
        admin.create_topics([NewTopic(name, min(partitions, PARTITIONS_PER_TOPIC), 1)], operation_timeout=60)[
            name
        ].result(ADMIN_TIMEOUT_S)
    return names


def _commit(node: HttpNode, topics: Sequence[str], groups: int, per_group: int) -> None:
    admin = admin_of(node)
    for first in range(0, groups, GROUPS_IN_PARALLEL):
        pending = []
        for number in range(first, min(first + GROUPS_IN_PARALLEL, groups)):
            name = topics[number % len(topics)]
            offsets = [TopicPartition(name, index, 0) for index in range(per_group)]
            request = ConsumerGroupTopicPartitions(f"group-{number:04}", offsets)
            pending += admin.alter_consumer_group_offsets([request], request_timeout=ADMIN_TIMEOUT_S).values()
        for future in pending:
            future.result(ADMIN_TIMEOUT_S)


def _wait_for_lag(node: HttpNode, groups: int) -> None:
    deadline = time.monotonic() + LAG_TIMEOUT_S
    while _scrape(node).count(b"kafka_consumergroup_members{") < groups:
        if time.monotonic() > deadline:
            raise LoadFailed(f"the lag of {groups} groups was not sampled in {LAG_TIMEOUT_S:.0f} s")
        time.sleep(1)


def _scrape(node: HttpNode) -> bytes:
    connection = HTTPConnection(node.http_address, timeout=REQUEST_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise LoadFailed(f"/metrics returned {response.status}")
        return body
    finally:
        connection.close()


# Scrapes


class Pause(NamedTuple):
    ms: float
    cpu_ms: float


@dataclass(frozen=True)
class Scrape:
    ms: float
    bytes: int
    samples: int
    cpu_ms: float
    longest_pause: Pause
    idle_pause: Pause
    other_cores: float


def _scrapes(bench: Bench, plan: MetricsPlan) -> Table:
    with _node(bench, PAGE_CACHE, plan.partitions, plan.groups, plan.partitions_per_group) as node:
        _wait_for_lag(node, plan.groups)
        let_idle(bench.plan.idle_s)
        taken = [_measure_scrape(bench, node) for _ in range(plan.scrapes)]

    def cells(metric: Metric, value: Callable[[Scrape], float], aim: float | None = None) -> Cell:
        figures = Figures(tuple(map(value, taken)), () if aim is None else (aim,) * len(taken))
        return Cell(metric, figures, None if aim is None else 1.0)

    rows = (
        Row("time of a scrape", (cells(SCRAPE, lambda one: one.ms, AIM_SCRAPE_MS),)),
        Row(
            "longest pause of the event loop during a scrape",
            (cells(SCRAPE, lambda one: one.longest_pause.ms, AIM_PAUSE_MS),),
        ),
        Row("most CPU time of the event loop at once", (cells(SCRAPE, lambda one: one.longest_pause.cpu_ms),)),
        Row("longest pause in as long a time without a scrape", (cells(SCRAPE, lambda one: one.idle_pause.ms),)),
        Row("CPU time of the node for a scrape", (cells(SCRAPE, lambda one: one.cpu_ms),)),
    )
    for row in rows:
        bench.print_row("scrape", row)
    sizes = f"{taken[-1].samples:,} samples, {taken[-1].bytes / 1e6:.1f} MB"
    worst = max(one.longest_pause.ms for one in taken)
    note = (
        f"{plan.partitions:,} partitions, {plan.groups:,} groups with {plan.partitions_per_group} partitions each: "
        f"{sizes}. Medians of {len(taken)} scrapes; the longest pause of all was {worst:.1f} ms. Other cores busy: "
        f"up to {max(one.other_cores for one in taken):.2f}."
    )
    return Table("Scrape", rows, note, ("Moldau", "aim"))


def _measure_scrape(bench: Bench, node: HttpNode) -> Scrape:
    others, cpu_s, began_s = BackgroundLoad(node), node.cpu_s(), time.perf_counter()
    body = _scrape(node)
    ms = (time.perf_counter() - began_s) * 1000
    cpu_ms = (node.cpu_s() - cpu_s) * 1000
    other_cores = others.cores()
    # The monitor needs CPU time itself, so it does not run while the time is measured.
    longest = _longest_pause(node, lambda: _scrape(node))
    idle = _longest_pause(node, lambda: time.sleep(ms / 1000))
    time.sleep(bench.plan.idle_s)
    samples = sum(1 for line in body.splitlines() if not line.startswith(b"#"))
    return Scrape(ms, len(body), samples, cpu_ms, longest, idle, other_cores)


def _longest_pause(node: HttpNode, work: Callable[[], object]) -> Pause:
    log = node.data_dir / "server.log"
    known = log.read_text(errors="replace").count(RESULT)
    os.kill(node.pid, signal.SIGUSR1)
    work()
    os.kill(node.pid, signal.SIGUSR2)
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        found = log.read_text(errors="replace").split(RESULT)
        if len(found) - 1 > known and "\n" in found[-1]:
            return Pause(*map(float, found[-1].splitlines()[0].split()))
        if time.monotonic() > deadline:
            raise LoadFailed("the node did not print its longest pause")
        time.sleep(0.01)


# Cost


def _costs(bench: Bench, plan: MetricsPlan) -> Table:
    sizes = ((plan.loaded_partitions, plan.loaded_groups, 2), (plan.partitions, plan.groups, plan.partitions_per_group))
    seconds = SCRAPES_FOR_COST * plan.scrape_interval_s
    rows = []
    for partitions, groups, per_group in sizes:
        with _node(bench, PAGE_CACHE, partitions, groups, per_group) as node:
            time.sleep(SETTLE_S)
            before = _cores(node, seconds, None)
            _wait_for_lag(node, groups)
            time.sleep(SETTLE_S)
            scraped = _cores(node, seconds, plan.scrape_interval_s)
        what = f"{partitions:,} partitions, {groups:,} groups with {per_group} partitions each"
        rows.append(Row(what, (Cell(CORES, Figures((scraped - before,), (AIM_CORES,)), 1.0),)))
        bench.print_row("cost", rows[-1])
    note = (
        f"What an idle node uses more, in cores, when it is scraped every {plan.scrape_interval_s:g} s and samples the "
        "lag of all groups. A node uses one core, so this is the share of its throughput."
    )
    return Table("Cost of scrapes and samples", tuple(rows), note, ("Moldau", "aim"))


def _cores(node: HttpNode, seconds: float, scrape_interval_s: float | None) -> float:
    """Returns how many cores a node uses."""
    cpu_s, began_s = node.cpu_s(), time.monotonic()
    while (left_s := began_s + seconds - time.monotonic()) > 0:
        if scrape_interval_s is not None:
            _scrape(node)
        time.sleep(min(left_s, scrape_interval_s or seconds))
    return (node.cpu_s() - cpu_s) / (time.monotonic() - began_s)


# Throughput


class _Side:
    """A node with or without a Prometheus server that scrapes it. It is stopped while the other side is measured,
    because it would go on sampling groups."""

    def __init__(self, name: str, node: HttpNode, topic_name: str, scrape_interval_s: float | None) -> None:
        self.name = name
        self.node = node
        self._topic = topic_name
        self._interval_s = scrape_interval_s

    def produce(self, seconds: float) -> Run:
        os.kill(self.node.pid, signal.SIGCONT)
        raw.wait_until_served(self.node.bootstrap, self._topic, LOADED_PARTITIONS, ADMIN_TIMEOUT_S)
        time.sleep(SETTLE_S)
        job = Job("raw_produce", self.node.bootstrap, self._topic, LOADED_PARTITIONS, 1024, 1 << 14, seconds)
        with self._scraped():
            taken = run(self.node, replace(job, connections=LOADED_PARTITIONS))
        os.kill(self.node.pid, signal.SIGSTOP)
        return taken

    @contextmanager
    def _scraped(self) -> Iterator[None]:
        if self._interval_s is None:
            yield
            return
        stop, errors = threading.Event(), list[Exception]()

        def scrape_until_stopped(interval_s: float) -> None:
            try:
                while not stop.is_set():
                    _scrape(self.node)
                    stop.wait(interval_s)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=scrape_until_stopped, args=(self._interval_s,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if errors:
            raise errors[0]


def _throughput(bench: Bench, plan: MetricsPlan, durability: Durability) -> Table:
    title = f"Produce while Prometheus scrapes, {durability.name}"
    taken: dict[str, list[Run]] = {ON: [], OFF: []}
    with ExitStack() as stack:
        sides = []
        for name, interval_s in ((ON, plan.scrape_interval_s), (OFF, None)):
            node = stack.enter_context(_node(bench, durability, plan.loaded_partitions, plan.loaded_groups, 2))
            # A stopped process does not end.
            stack.callback(os.kill, node.pid, signal.SIGCONT)
            sides.append(_Side(name, node, create_topic(node, LOADED_PARTITIONS), interval_s))
            if name == ON:
                _wait_for_lag(node, plan.loaded_groups)
            sides[-1].produce(WARM_UP_S)
        for number in range(plan.runs):
            for side in sides if number % 2 == 0 else reversed(sides):
                taken[side.name].append(side.produce(plan.seconds))
    row = Row("1 KB, 16 KB batches, 4 connections", _cells(taken))
    bench.print_row(title, row)
    note = (
        f"Two nodes, each with {plan.loaded_partitions:,} partitions and {plan.loaded_groups:,} groups; one is scraped "
        f"every {plan.scrape_interval_s:g} s. The node that is not "
        "measured is stopped meanwhile."
    )
    return Table(title, (row,), note, (ON, OFF))


def _cells(taken: dict[str, list[Run]]) -> tuple[Cell, ...]:
    def figures(value: Callable[[Run], float]) -> Figures:
        return Figures(tuple(map(value, taken[ON])), tuple(map(value, taken[OFF])))

    return (
        Cell(RATE, figures(lambda one: one.records_per_s)),
        Cell(CPU_PER_RECORD, figures(lambda one: one.broker_cpu_s * 1e6 / one.outcome.records)),
        Cell(CLIENT, figures(lambda one: one.client_cores)),
        Cell(OTHERS, figures(lambda one: one.other_cores)),
    )


# The page


def _facts(plan: MetricsPlan, took_s: float) -> str:
    amounts = f"{plan.scrapes} scrapes, {plan.runs} runs of each side"
    lines = (
        f"machine: {machine_line()}",
        f"Moldau {version('moldau')} at commit {commit_line()}, Python {platform.python_version()}",
        f"{amounts}, {time.strftime('%Y-%m-%d', time.gmtime())}, {took_s / 60:.0f} min in all",
    )
    return "\n".join(f"- {line}" for line in lines)


def page(tables: Sequence[Table], facts: str, command: str) -> str:
    parts = [
        "# Metrics",
        f"Written by `{command}`.",
        facts,
        render_disturbed(tables),
        render_summary(tables),
        METHOD.read_text(),
        "## Figures",
        *(render_table(table, with_kafka=True) for table in tables),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _command(options: argparse.Namespace) -> str:
    words = ["--quick"] if options.quick else []
    words += [f"--only {name}" for name in options.only or ()]
    return " ".join(["python -m bench.metrics", *words])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.metrics", description="Measures what /metrics costs.")
    parser.add_argument("--quick", action="store_true", help="few partitions, short runs")
    parser.add_argument("--only", choices=NAMES, action="append", help="leave out the other part")
    parser.add_argument("--out", type=Path, help="default: bench/METRICS.md for a whole run, else shown")
    parser.add_argument("--dir", type=Path, help="where the node keeps its data meanwhile")
    options = parser.parse_args()
    console = Console()
    plan = QUICK_PLAN if options.quick else FULL_PLAN
    bench = Bench(plan.bench, console, options.dir)
    began = time.monotonic()
    with console.status("measuring"):
        tables = measure(bench, plan, set(options.only or NAMES))
    text = page(tables, _facts(plan, time.monotonic() - began), _command(options))
    out = options.out or (None if options.quick or options.only else RESULTS)
    if out is None:
        print(text)
    else:
        out.write_text(text)
        console.print(f"written: {out}")


if __name__ == "__main__":
    main()
