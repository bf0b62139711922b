"""Transactions of Moldau and of Apache Kafka side by side, on one node and on three: `python -m bench.transactions
[--quick] [--nodes N] [--durability NAME] [--out FILE]` writes bench/TRANSACTIONS.md."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.console import Console
from tests.interop.apache_kafka import ApacheKafka

from bench.brokers import Broker, Durability
from bench.client import Job
from bench.cluster_nodes import Cluster, KafkaCluster, MoldauCluster
from bench.load import Run, run, topic
from bench.plan import FULL, QUICK, Bench, Plan, figures
from bench.report import (
    OTHERS,
    Cell,
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
from bench.run import DURABILITIES, facts
from bench.throughput import CLIENT
from bench.transaction_load import CLIENTS

METHOD = Path(__file__).with_name("METHOD_TRANSACTIONS.md")
RESULTS = Path(__file__).with_name("TRANSACTIONS.md")

AIM_RATE = 1.0
AIM_LATENCY = 1.2
AIM_READ_COMMITTED = 0.95

RECORDS = (1, 100)
"""Records in a transaction."""
PRODUCERS = (1, 20)
PARTITIONS = 3
VALUE_BYTES = 100
READ_VALUE_BYTES = 1024
READ_TRANSACTION_RECORDS = 100
READ_PRODUCERS = 8
WARM_UP_ROUNDS = 5

RATE = Metric("transactions/s", count, higher_is_better=True)
P50 = Metric("p50 ms", decimals(2))
P99 = Metric("p99 ms", decimals(2))
CPU = Metric("broker CPU ms per transaction", decimals(3))
READ_COMMITTED = Metric("read_committed MB/s", count, higher_is_better=True)
READ_UNCOMMITTED = Metric("read_uncommitted MB/s", count, higher_is_better=True)
SHARE = Metric("share", decimals(2), higher_is_better=True, compared=False)
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")


class Reads(NamedTuple):
    """Megabytes per second with each isolation level."""

    read_committed: float
    read_uncommitted: float
    other_cores: float


@dataclass(frozen=True)
class TransactionPlan:
    bench: Plan
    seconds: float
    end_to_end: int
    read_bytes: int
    nodes: tuple[int, ...]
    durabilities: tuple[Durability, ...]


FULL_PLAN = TransactionPlan(FULL, 3.0, 400, 200_000_000, (1, 3), tuple(DURABILITIES.values()))
QUICK_PLAN = TransactionPlan(QUICK, 1.5, 100, 50_000_000, (1,), (DURABILITIES["page-cache"],))


def measure(bench: Bench, plan: TransactionPlan) -> list[Table]:
    tables = []
    for nodes in plan.nodes:
        for durability in plan.durabilities:
            with _running(bench, nodes, durability) as brokers:
                tables += TransactionBench(bench, plan, brokers, f"{_nodes(nodes)}, {durability.name}").tables()
    return tables


def _nodes(count: int) -> str:
    return "one node" if count == 1 else f"{count} nodes"


@contextmanager
def _running(bench: Bench, nodes: int, durability: Durability) -> Iterator[Sequence[Broker]]:
    if nodes == 1:
        with bench.running(durability) as brokers:
            yield brokers
        return
    with TemporaryDirectory(prefix="moldau-bench-", dir=bench.directory) as directory, ExitStack() as stack:
        clusters: list[Cluster] = []
        if bench.with_moldau:
            clusters.append(MoldauCluster(Path(directory, "moldau"), durability))
        if bench.with_kafka:
            clusters.append(KafkaCluster(Path(directory, "kafka"), durability))
        for cluster in clusters:
            stack.enter_context(cluster)
        yield clusters


class TransactionBench:
    """All measurements on one set-up of both brokers."""

    def __init__(self, bench: Bench, plan: TransactionPlan, brokers: Sequence[Broker], setup: str) -> None:
        self._bench = bench
        self._plan = plan
        self._brokers = brokers
        self._setup = setup

    def tables(self) -> list[Table]:
        for broker in self._brokers:
            self._bench.print_line(f"{broker.name} is up, {self._setup}; warming up")
            self._warm_up(broker)
        return [self._rates(), self._end_to_end(), self._reads()]

    def _warm_up(self, broker: Broker) -> None:
        """A JVM needs its hot code compiled first."""
        for _ in range(WARM_UP_ROUNDS):
            for client in CLIENTS:
                self._commit_once(client, 100, 5, 1.5, broker)
                self._end_to_end_once(client, 50, broker)

    def _rates(self) -> Table:
        rows = []
        for client in CLIENTS:
            for producers in PRODUCERS:
                for records in RECORDS:
                    taken = self._bench.interleaved(
                        self._brokers, partial(self._commit_once, client, records, producers, self._plan.seconds)
                    )
                    cells = (
                        Cell(RATE, figures(taken, lambda one: one.records_per_s), AIM_RATE),
                        Cell(P50, figures(taken, partial(_at, 0.5))),
                        Cell(CPU, figures(taken, _cpu_ms)),
                        Cell(CLIENT, figures(taken, lambda one: one.client_cores)),
                        Cell(OTHERS, figures(taken, lambda one: one.other_cores)),
                    )
                    case = f"{client}, {_plural(producers, 'producer')}, {_plural(records, 'record')}"
                    rows.append(Row(case, cells))
                    self._bench.print_row(f"transactions, {self._setup}", rows[-1])
        return Table(f"Transactions, {self._setup}", tuple(rows))

    def _end_to_end(self) -> Table:
        rows = []
        for client in CLIENTS:
            once = partial(self._end_to_end_once, client, self._plan.end_to_end)
            taken = self._bench.interleaved(self._brokers, once)
            cells = (
                Cell(P50, figures(taken, partial(_at, 0.5)), AIM_LATENCY),
                Cell(P99, figures(taken, partial(_at, 0.99))),
                Cell(OTHERS, figures(taken, lambda one: one.other_cores)),
            )
            rows.append(Row(client, cells))
            self._bench.print_row(f"end to end, {self._setup}", rows[-1])
        return Table(f"End to end, {self._setup}", tuple(rows))

    def _reads(self) -> Table:
        with ExitStack() as stack:
            filled = {broker.name: self._fill(broker, stack) for broker in self._brokers}
            taken = self._bench.interleaved(self._brokers, partial(self._read_once, filled))
        cells = (
            Cell(READ_COMMITTED, figures(taken, lambda both: both.read_committed)),
            Cell(READ_UNCOMMITTED, figures(taken, lambda both: both.read_uncommitted)),
            Cell(SHARE, figures(taken, lambda both: both.read_committed / both.read_uncommitted)),
            Cell(OTHERS, figures(taken, lambda both: both.other_cores)),
        )
        row = Row("raw client", cells)
        self._bench.print_row(f"read_committed, {self._setup}", row)
        share = cells[2].figures.middle[0]
        verdict = "" if share is None else f": {'met' if round(share, 2) >= AIM_READ_COMMITTED else '**not met**'}"
        note = (
            f"One tenth of the transactions is aborted. Aim for Moldau's share: ≥ {AIM_READ_COMMITTED:g}{verdict}. "
            "The client counts batches and does not drop aborted ones, so both levels read the same bytes."
        )
        return Table(f"Reading with read_committed, {self._setup}", (row,), note)

    # One run

    def _commit_once(self, client: str, records: int, producers: int, seconds: float, broker: Broker) -> Run:
        with _topic(broker, PARTITIONS) as name:
            job = Job("transactions", broker.bootstrap, name, PARTITIONS, VALUE_BYTES, seconds=seconds)
            return run(broker, replace(job, records=records, connections=producers, client=client))

    def _end_to_end_once(self, client: str, transactions: int, broker: Broker) -> Run:
        with _topic(broker, 1) as name:
            job = Job("transaction_end_to_end", broker.bootstrap, name, 1, VALUE_BYTES)
            return run(broker, replace(job, records=transactions, client=client))

    def _fill(self, broker: Broker, stack: ExitStack) -> str:
        name = stack.enter_context(_topic(broker, 1))
        job = Job("transaction_fill", broker.bootstrap, name, 1, READ_VALUE_BYTES, connections=READ_PRODUCERS)
        run(broker, replace(job, records=READ_TRANSACTION_RECORDS, in_flight=self._records_to_read))
        return name

    @property
    def _records_to_read(self) -> int:
        return self._plan.read_bytes // READ_VALUE_BYTES

    def _read_once(self, filled: dict[str, str], broker: Broker) -> Reads:
        name = filled[broker.name]
        leader = broker.address_of(broker.leaders(name)[0]) if isinstance(broker, Cluster) else broker.bootstrap
        job = Job("raw_consume", leader, name, 1, READ_VALUE_BYTES, seconds=self._plan.seconds / 2)
        job = replace(job, records=self._records_to_read)
        runs = {level: run(broker, replace(job, isolation_level=level)) for level in ISOLATION_LEVELS}
        committed, uncommitted = (runs[level].bytes / runs[level].outcome.elapsed_s / 1e6 for level in ISOLATION_LEVELS)
        return Reads(committed, uncommitted, max(one.other_cores for one in runs.values()))


def _topic(broker: Broker, partitions: int) -> AbstractContextManager[str]:
    return broker.topic(partitions) if isinstance(broker, Cluster) else topic(broker, partitions)


def _at(share: float, one: Run) -> float:
    return percentile(one.outcome.latencies_ms, share)


def _cpu_ms(one: Run) -> float:
    return one.broker_cpu_s * 1000 / one.outcome.records


def _plural(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def page(tables: list[Table], bench: Bench, kafka_missing: str | None, took_s: float, command: str) -> str:
    parts = [
        "# Transactions of Moldau and of Apache Kafka side by side",
        f"Written by `{command}`.",
        facts(bench, kafka_missing, took_s),
        render_disturbed(tables),
        render_summary(tables),
        METHOD.read_text(),
        "## Figures",
        *(render_table(table, with_kafka=kafka_missing is None) for table in tables),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _command(options: argparse.Namespace) -> str:
    words = ["--quick"] if options.quick else []
    words += [f"--nodes {options.nodes}"] if options.nodes else []
    words += [f"--durability {options.durability}"] if options.durability else []
    words += [f"--without {options.without}"] if options.without else []
    return " ".join(["python -m bench.transactions", *words])


def main() -> None:
    parser = argparse.ArgumentParser(description="Transactions of Moldau and of Apache Kafka side by side.")
    parser.add_argument("--quick", action="store_true", help="one short run of each case, one node, page cache")
    parser.add_argument("--nodes", choices=(1, 3), type=int, help="one of the two set-ups (--quick: 1)")
    parser.add_argument("--durability", choices=DURABILITIES, help="one of the two (--quick: page-cache)")
    parser.add_argument("--without", choices=("kafka", "moldau"), help="measure the other one alone")
    parser.add_argument("--out", type=Path, help="default: bench/TRANSACTIONS.md for a whole run, else shown")
    parser.add_argument("--dir", type=Path, help="where the nodes keep their data meanwhile")
    options = parser.parse_args()
    console = Console()
    missing = "excluded with --without" if options.without == "kafka" else ApacheKafka.available()
    if missing is not None:
        console.print(f"Apache Kafka is skipped: {missing}")
    plan = QUICK_PLAN if options.quick else FULL_PLAN
    if options.nodes:
        plan = replace(plan, nodes=(options.nodes,))
    if options.durability:
        plan = replace(plan, durabilities=(DURABILITIES[options.durability],))
    bench = Bench(plan.bench, console, options.dir, with_moldau=options.without != "moldau", with_kafka=missing is None)
    began = time.monotonic()
    with console.status("measuring"):
        tables = measure(bench, plan)
    text = page(tables, bench, missing, time.monotonic() - began, _command(options))
    whole = not (options.quick or options.nodes or options.durability or options.without)
    out = options.out or (RESULTS if whole else None)
    if out is None:
        print(text)
    else:
        out.write_text(text)
        console.print(f"written: {out}")


if __name__ == "__main__":
    main()
