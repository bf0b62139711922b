"""What exactly-once delivery from Spark to a topic costs over at-least-once, on Moldau and on Apache Kafka:
`python -m bench.spark_delivery [--quick] [--without kafka] [--out FILE]` writes bench/SPARK_DELIVERY.md."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from tests.interop.apache_kafka import KAFKA_VERSION, ApacheKafka

from bench import spark_loop
from bench.brokers import Broker, Kafka, Moldau
from bench.load import topic
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
from bench.spark_jobs import CHECK, MICRO_BATCHES, MOLDAU, STREAM, Job, JobResult
from bench.spark_races import QUICK, Bench, Contestant, ContestantFailed, measured_run

METHOD = Path(__file__).with_name("METHOD_SPARK_DELIVERY.md")
RESULTS = Path(__file__).with_name("SPARK_DELIVERY.md")
EXACTLY_ONCE, AT_LEAST_ONCE = DELIVERIES = ("exactly-once", "at-least-once")
PARTITIONS = 4
VALUE_BYTES = 100
SOURCE_BATCH_BYTES = 16 << 10
AIM_TIME = 1.15
AIM_MICRO_BATCH_MS = 150.0

ELAPSED = Metric("s", decimals(2))
RATE = Metric("rows/s", count, higher_is_better=True, compared=False)
MICRO_BATCH = Metric("p50 ms", decimals(0))
MORE = Metric("difference ms", decimals(0), compared=False)


@dataclass(frozen=True)
class DeliveryPlan:
    rounds: int
    rows: int
    rows_per_batch: int
    micro_batches: int


FULL_PLAN = DeliveryPlan(rounds=4, rows=1_500_000, rows_per_batch=500_000, micro_batches=40)
QUICK_PLAN = DeliveryPlan(rounds=1, rows=400_000, rows_per_batch=200_000, micro_batches=10)


class DeliveryBench:
    """Both deliveries against one broker."""

    def __init__(self, bench: Bench, plan: DeliveryPlan, broker: Broker, spark: Contestant) -> None:
        self._bench = bench
        self._plan = plan
        self._broker = broker
        self._spark = spark

    def tables(self, aim: float | None) -> list[Table]:
        with topic(self._broker, PARTITIONS) as source:
            rows = self._plan.rows
            spark_loop.fill(self._broker.bootstrap, source, PARTITIONS, rows, VALUE_BYTES, SOURCE_BATCH_BYTES)
            self._bench.print_line(f"{rows:,} rows are in {self._broker.name}; warming up")
            return [self._all_rows(source, aim), self._micro_batch(aim is not None)]

    def _all_rows(self, source: str, aim: float | None) -> Table:
        job = Job(STREAM, self._broker.bootstrap, source, PARTITIONS, self._plan.rows)
        job = replace(job, rows_per_batch=self._plan.rows_per_batch)
        taken = self._interleaved(job)
        elapsed = _figures(taken, lambda one: one.elapsed_s)
        rate = _figures(taken, lambda one: self._plan.rows / one.elapsed_s)
        case = f"{self._plan.rows:,} rows in micro-batches of {self._plan.rows_per_batch:,}"
        row = Row(case, (Cell(ELAPSED, elapsed, aim), Cell(RATE, rate), Cell(OTHERS, _others(taken))))
        return self._table("All rows", row)

    def _micro_batch(self, is_aim: bool) -> Table:
        with topic(self._broker, PARTITIONS) as source:
            job = Job(MICRO_BATCHES, self._broker.bootstrap, source, PARTITIONS, self._plan.micro_batches)
            taken = self._interleaved(job)
        figures = _figures(taken, lambda one: median(one.batches_ms))
        more = Figures(tuple(ours - theirs for ours, theirs in zip(figures.moldau, figures.kafka, strict=True)))
        case = f"one row, {self._plan.micro_batches} micro-batches"
        row = Row(case, (Cell(MICRO_BATCH, figures), Cell(MORE, more), Cell(OTHERS, _others(taken))))
        difference_ms = median(more.moldau)
        verdict = "met" if difference_ms <= AIM_MICRO_BATCH_MS else "**not met**"
        note = f"Aim: ≤ {AIM_MICRO_BATCH_MS:.0f} ms more: {verdict} ({difference_ms:.0f} ms)." if is_aim else ""
        return self._table("Micro-batch", row, note)

    def _table(self, what: str, row: Row, note: str = "") -> Table:
        self._bench.print_line(
            f"{what}, {self._broker.name}: "
            + "; ".join(f"{cell.metric.label} {cell.figures.middle}" for cell in row.cells)
        )
        return Table(f"{what}, {self._broker.name}", (row,), note, DELIVERIES)

    def _interleaved(self, job: Job) -> dict[str, list[tuple[JobResult, float]]]:
        """Returns results and the cores that other work used, of each round after the first, which warms up."""
        taken: dict[str, list[tuple[JobResult, float]]] = {delivery: [] for delivery in DELIVERIES}
        for number in range(-1, self._plan.rounds):
            for delivery in DELIVERIES if number % 2 == 0 else reversed(DELIVERIES):
                result = self._once(replace(job, delivery=delivery))
                if number >= 0:
                    taken[delivery].append(result)
        return taken

    def _once(self, job: Job) -> tuple[JobResult, float]:
        with topic(self._broker, PARTITIONS) as into:
            taken = measured_run(self._spark, self._broker, replace(job, into=into))
            if job.kind == STREAM:
                found = self._spark.run(Job(CHECK, self._broker.bootstrap, into, PARTITIONS, job.records))
                if found.records != job.records:
                    raise ContestantFailed(f"{found.records} rows of {job.records} were written {job.delivery}")
            return taken


def _figures(taken: dict[str, list[tuple[JobResult, float]]], value: Callable[[JobResult], float]) -> Figures:
    return Figures(*(tuple(value(result) for result, _ in taken[delivery]) for delivery in DELIVERIES))


def _others(taken: dict[str, list[tuple[JobResult, float]]]) -> Figures:
    return Figures(*(tuple(cores for _, cores in taken[delivery]) for delivery in DELIVERIES))


def page(tables: list[Table], kafka_missing: str | None, plan: DeliveryPlan, took_s: float, command: str) -> str:
    kafka = f"Apache Kafka {KAFKA_VERSION}, 1 GiB of heap" if kafka_missing is None else f"no Kafka: {kafka_missing}"
    facts = [
        f"machine: {machine_line()}",
        f"Moldau {version('moldau')} at commit {commit_line()}, Python {platform.python_version()}",
        f"PySpark {version('pyspark')}, local[2]",
        kafka,
        f"rounds: {plan.rounds}, {time.strftime('%Y-%m-%d', time.gmtime())}, {took_s / 60:.0f} min in all",
    ]
    parts = [
        "# Exactly-once delivery from Spark to a topic",
        f"Written by `{command}`.",
        "\n".join(f"- {fact}" for fact in facts),
        render_disturbed(tables),
        render_summary(tables),
        METHOD.read_text(),
        "## Figures",
        *(render_table(table, with_kafka=True) for table in tables),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_delivery", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of each case, without Apache Kafka")
    parser.add_argument("--without", choices=("kafka",), help="measure Moldau alone")
    parser.add_argument("--out", type=Path, help="default: bench/SPARK_DELIVERY.md for a whole run, else shown")
    options = parser.parse_args()
    plan = QUICK_PLAN if options.quick else FULL_PLAN
    excluded = "not part of --quick" if options.quick else "excluded with --without"
    missing = excluded if options.quick or options.without else ApacheKafka.available()
    console = Console()
    began = time.monotonic()
    tables = []
    with TemporaryDirectory(prefix="moldau-bench-") as directory:
        bench = Bench(QUICK, console, Path(directory), connector_missing="not used here")
        for kind, aim in ((Moldau, AIM_TIME), (Kafka, None)):
            if kind is Kafka and missing is not None:
                continue
            with bench.broker(kind) as broker, bench.contestants([MOLDAU]) as contestants:
                tables += DeliveryBench(bench, plan, broker, contestants[MOLDAU]).tables(aim)
    words = ["--quick"] * options.quick + [f"--without {options.without}"] * bool(options.without)
    command = " ".join(["python -m bench.spark_delivery", *words])
    text = page(tables, missing, plan, time.monotonic() - began, command)
    out = options.out or (None if options.quick else RESULTS)
    if out is None:
        print(text)
    else:
        out.write_text(text)
        console.print(f"written: {out}")


if __name__ == "__main__":
    main()
