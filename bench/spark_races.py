"""The contestants of the Spark benchmarks as processes, and the measurements that they run in turn."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil  # type: ignore[import-untyped]
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console

from bench import spark_loop
from bench.brokers import PAGE_CACHE, Broker, Kafka, Moldau, let_idle
from bench.load import topic
from bench.quiet import BackgroundLoad
from bench.report import count, decimals
from bench.spark_jobs import (
    CHECK,
    CONNECTOR,
    CONNECTOR_HERE,
    FIRST_RESULT,
    INSIDE,
    LOOP,
    MICRO_BATCHES,
    MOLDAU,
    NOOP,
    PARQUET,
    SINKS,
    TOPIC,
    Job,
    JobResult,
)
from bench.spark_report import Aim, Case, Measured, Rates, Times, spread_of

PARTITIONS = 4
BATCH_BYTES = 16 << 10
END_TIMEOUT_S = 60
AIMS = {NOOP: (Aim(LOOP, 1.5), Aim(CONNECTOR, 2.0)), PARQUET: (), TOPIC: (Aim(CONNECTOR, 1.5),)}
AIM_MICRO_BATCH_MS = 150.0
AIM_START_S = 7.0


@dataclass(frozen=True)
class Plan:
    rounds: int
    rounds_kafka: int
    """Rounds with Apache Kafka as the broker; 0 for none."""
    records: dict[int, int]
    """Rows of a topic by value size."""
    micro_batches: int
    starts: int


FULL = Plan(rounds=3, rounds_kafka=2, records={100: 1_500_000, 1024: 300_000}, micro_batches=80, starts=3)
QUICK = Plan(rounds=1, rounds_kafka=0, records={100: 500_000, 1024: 100_000}, micro_batches=20, starts=1)


class ContestantFailed(Exception):
    """A contestant's process exited; the message is its output."""


def cpu_of_tree_s(pid: int) -> float:
    """Returns CPU seconds of a process and its descendants, including ended ones."""
    total = 0.0
    process = psutil.Process(pid)
    for one in (process, *process.children(recursive=True)):
        try:
            used = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system + used.children_user + used.children_system
    return total


class Contestant:
    """A process that stays up between its runs, like a session."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self._log_path = directory / f"{name}.log"
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.spark_jobs", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def wait_until_ready(self) -> None:
        if self._read_result() != "ready":
            raise ContestantFailed(f"{self.name} did not start:\n{self._output()}")

    def run(self, job: Job) -> JobResult:
        assert self._process.stdin is not None
        self._process.stdin.write(job.as_json() + "\n")
        self._process.stdin.flush()
        response = self._read_result()
        if not response:
            raise ContestantFailed(f"{self.name} failed at {job.kind}:\n{self._output()}")
        return JobResult(**json.loads(response))

    def _read_result(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def cpu_s(self) -> float:
        return cpu_of_tree_s(self._process.pid)

    def stop(self) -> None:
        """Closes its input, which ends the process and its JVM."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(30)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()

    def _output(self) -> str:
        return self._log_path.read_text(errors="replace")[-3000:]


class Bench:
    """Shared by all measurements."""

    def __init__(self, plan: Plan, console: Console, directory: Path, connector_missing: str | None) -> None:
        self.plan = plan
        self.console = console
        self.directory = directory
        self.connector_missing = connector_missing

    def print_line(self, text: str) -> None:
        self.console.print(f"{time.strftime('%H:%M:%S')} {text}", highlight=False, soft_wrap=True)

    def present(self, names: Sequence[str]) -> list[str]:
        there = self.connector_missing is None
        return [name for name in names if there or name not in (CONNECTOR, CONNECTOR_HERE)]

    @contextmanager
    def contestants(self, names: Sequence[str]) -> Iterator[dict[str, Contestant]]:
        """Starts contestants one after the other, which is faster than all at once."""
        with ExitStack() as stack:
            started = {}
            for name in self.present(names):
                started[name] = Contestant(name, self.directory)
                stack.callback(started[name].stop)
                started[name].wait_until_ready()
            self.print_line(f"ready: {', '.join(started)}")
            yield started

    @contextmanager
    def broker(self, kind: type[Moldau] | type[Kafka]) -> Iterator[Broker]:
        data = self.directory / kind.name
        try:
            with kind(data, PAGE_CACHE) as started:
                yield started
        finally:
            shutil.rmtree(data, ignore_errors=True)


def measured_run(contestant: Contestant, broker: Broker, job: Job) -> tuple[JobResult, float]:
    """Returns the result, and how many cores were busy with anything else."""
    let_idle()
    cpu_s = contestant.cpu_s()
    others = BackgroundLoad(broker)
    taken = contestant.run(job)
    return taken, others.cores(contestant.cpu_s() - cpu_s)


def rates(bench: Bench, broker: Broker, sinks: Sequence[str], rounds: int) -> list[Measured]:
    cases: dict[str, list[Case]] = {sink: [] for sink in sinks}
    with bench.contestants((MOLDAU, LOOP, INSIDE, CONNECTOR)) as contestants:
        for value_bytes, records in bench.plan.records.items():
            name = f"{value_bytes} B" if value_bytes < 1024 else f"{value_bytes >> 10} KB"
            with topic(broker, PARTITIONS) as filled:
                spark_loop.fill(broker.bootstrap, filled, PARTITIONS, records, value_bytes, BATCH_BYTES)
                bench.print_line(f"{records:,} rows of {name} are in {broker.name}; warming up")
                _warm_up(contestants, broker, filled, records, value_bytes, sinks, bench.directory)
                for sink in sinks:
                    cases[sink].append(_case(bench, contestants, broker, filled, records, sink, name, rounds))
    title = "" if isinstance(broker, Moldau) else f", from {broker.name}"
    # The aims are for one broker; with another the figures are only for comparison.
    aims = AIMS if isinstance(broker, Moldau) else dict.fromkeys(SINKS, ())
    return [Rates(f"Topic → {sink}{title}", cases[sink], aims[sink]) for sink in sinks]


def _warm_up(
    contestants: dict[str, Contestant],
    broker: Broker,
    filled: str,
    records: int,
    value_bytes: int,
    sinks: Sequence[str],
    directory: Path,
) -> None:
    """Runs everything once, and checks that each contestant reads all rows."""
    for contestant in contestants.values():
        found = contestant.run(Job(CHECK, broker.bootstrap, filled, PARTITIONS, records))
        if (found.records, found.value_bytes) != (records, records * value_bytes):
            raise ContestantFailed(f"{contestant.name} read {found.records} rows of {records}")
        for sink in sinks:
            _once(contestant, broker, filled, records, sink, directory)


def _case(
    bench: Bench,
    contestants: dict[str, Contestant],
    broker: Broker,
    filled: str,
    records: int,
    sink: str,
    name: str,
    rounds: int,
) -> Case:
    runs: dict[str, list[float]] = {one: [] for one in contestants}
    worst = 0.0
    names = list(contestants)
    for number in range(rounds):
        # Another contestant starts each round, so that drift of the machine affects all.
        for one in names[number % len(names) :] + names[: number % len(names)]:
            taken, others = _once(contestants[one], broker, filled, records, sink, bench.directory)
            runs[one].append(records / taken.elapsed_s)
            worst = max(worst, others)
    shown = ", ".join(f"{one} {count(median(values))}" for one, values in runs.items())
    bench.print_line(f"{name} → {sink}: {shown} rows/s")
    return Case(name, runs, worst)


def _once(
    contestant: Contestant, broker: Broker, filled: str, records: int, sink: str, directory: Path
) -> tuple[JobResult, float]:
    job = Job(sink, broker.bootstrap, filled, PARTITIONS, records)
    if sink == NOOP:
        return measured_run(contestant, broker, job)
    if sink == PARQUET:
        with TemporaryDirectory(prefix="parquet-", dir=directory) as parent:
            into = Path(parent, "rows")
            taken = measured_run(contestant, broker, replace(job, into=str(into)))
            _check_parquet(contestant, into, records)
            return taken
    with topic(broker, PARTITIONS) as name:
        taken = measured_run(contestant, broker, replace(job, into=name))
        _check_topic(contestant, broker, name, records)
        return taken


def _check_parquet(contestant: Contestant, into: Path, records: int) -> None:
    import pyarrow.parquet as pq

    found = sum(pq.read_metadata(path).num_rows for path in into.glob("*.parquet"))
    if found != records:
        raise ContestantFailed(f"{contestant.name} wrote {found} rows of {records} into Parquet")


def _check_topic(contestant: Contestant, broker: Broker, name: str, records: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "bench", "log_level": 3})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=30)[1]
        for partition in range(PARTITIONS)
    ]
    consumer.close()
    if sum(ends) != records:
        raise ContestantFailed(f"{contestant.name} wrote {sum(ends)} rows of {records} into a topic")


def micro_batches(bench: Bench, broker: Broker) -> list[Measured]:
    rows: dict[str, list[float]] = {}
    worst = 0.0
    for name in bench.present((MOLDAU, CONNECTOR, CONNECTOR_HERE)):
        with bench.contestants([name]) as contestants, topic(broker, PARTITIONS) as empty:
            job = Job(MICRO_BATCHES, broker.bootstrap, empty, PARTITIONS, bench.plan.micro_batches)
            taken, others = measured_run(contestants[name], broker, job)
        worst = max(worst, others)
        rows[name] = [*spread_of(taken.batches_ms), *spread_of(taken.rows_ms)]
        bench.print_line(f"micro-batch, {name}: p50 {rows[name][0]:.0f} ms, from the row on {rows[name][2]:.0f} ms")
    labels = ("batch p50, ms", "batch p99, ms", "row to end of batch p50, ms", "p99, ms")
    measures = [(label, decimals(0)) for label in labels]
    note = f"One row at a time to noop, {bench.plan.micro_batches} micro-batches, four partitions."
    return [Times("Micro-batch", measures, rows, AIM_MICRO_BATCH_MS, note, worst)]


def starts(bench: Bench, broker: Broker) -> list[Measured]:
    names = bench.present((MOLDAU, CONNECTOR, CONNECTOR_HERE))
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    worst = 0.0
    with topic(broker, PARTITIONS) as filled:
        spark_loop.fill(broker.bootstrap, filled, PARTITIONS, 1000, 100, BATCH_BYTES)
        job = Job(FIRST_RESULT, broker.bootstrap, filled, PARTITIONS, 10)
        for number in range(-1, bench.plan.starts):
            for name in names if number % 2 == 0 else reversed(names):
                found, others = _start(name, job, broker)
                worst = max(worst, others)
                # The first start fills caches: the disk's, and Moldau's Java class cache.
                if number >= 0:
                    taken[name].append(found)
                bench.print_line(f"start, {name}: {found['elapsed_s']:.1f} s{' (cold)' if number < 0 else ''}")
    rows = {
        name: [median(one[what] for one in found) for what in ("elapsed_s", "session_s", "process_s")]
        for name, found in taken.items()
    }
    labels = ("session to first result, s", "of which the session, s", "process to first result, s")
    measures = [(label, decimals(1)) for label in labels]
    note = f"A fresh process each time, {bench.plan.starts} of each, caches warm; ten rows of a topic."
    return [Times("Start", measures, rows, AIM_START_S, note, worst)]


def _start(name: str, job: Job, broker: Broker) -> tuple[dict[str, float], float]:
    let_idle()
    others = BackgroundLoad(broker)
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.spark_jobs", name, job.as_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process_s = time.perf_counter() - began
    other_cores = others.cores(cpu_of_tree_s(process.pid)) if line else 0.0
    _, output = process.communicate(timeout=END_TIMEOUT_S)
    if process.returncode != 0 or not line:
        raise ContestantFailed(f"{name} did not start:\n{output[-3000:]}")
    return {**json.loads(line), "process_s": process_s}, other_cores
