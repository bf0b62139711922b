"""Amounts of a benchmark run, and what the benchmarks share while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from rich.console import Console

from bench.brokers import FSYNC, PAGE_CACHE, Broker, Durability, Kafka, Moldau
from bench.client import Job
from bench.load import run, topic
from bench.report import Figures, Row

T = TypeVar("T")
B = TypeVar("B", bound=Broker)


@dataclass(frozen=True)
class Plan:
    repeats: int
    partitions: tuple[int, ...]
    durabilities: tuple[Durability, ...]
    raw: bool
    """Whether the raw load generator is used besides librdkafka."""
    produce_s: float
    raw_s: float
    consume_bytes: Mapping[int, int]
    """Bytes to read by value size: enough for about 1.5 seconds of librdkafka."""
    acknowledgements: int
    idle_s: float
    topics: int
    connections: int
    rebalances: int
    groups: int


FULL = Plan(
    repeats=3,
    partitions=(1, 16),
    durabilities=(PAGE_CACHE, FSYNC),
    raw=True,
    produce_s=2.0,
    raw_s=1.5,
    consume_bytes={100: 250_000_000, 1024: 1_000_000_000},
    acknowledgements=4000,
    idle_s=3.0,
    topics=1000,
    connections=1000,
    rebalances=40,
    groups=1000,
)
QUICK = Plan(
    repeats=1,
    partitions=(1,),
    durabilities=(PAGE_CACHE,),
    raw=False,
    produce_s=1.0,
    raw_s=0.7,
    consume_bytes={100: 60_000_000, 1024: 300_000_000},
    acknowledgements=1000,
    idle_s=1.0,
    topics=200,
    connections=1000,
    rebalances=10,
    groups=1000,
)

WARM_UP_ROUND_S = 2.0
WARM_UP_ROUNDS_MAX = 15
STEADY_ROUNDS = 3
STEADY_GAIN = 0.1

VALUE_BYTES = (100, 1024)
BATCH_BYTES = (16 << 10, 1 << 20)


def steady(costs: Sequence[float]) -> bool:
    """Returns whether the cost has stopped falling by more than a tenth in the last rounds."""
    before, last = costs[:-STEADY_ROUNDS], costs[-STEADY_ROUNDS:]
    return bool(before) and min(last) >= (1 - STEADY_GAIN) * min(before)


@dataclass(frozen=True)
class Case:
    """A shape of the load."""

    value_bytes: int
    batch_bytes: int
    partitions: int

    @property
    def name(self) -> str:
        value = f"{self.value_bytes} B" if self.value_bytes < 1024 else f"{self.value_bytes >> 10} KB"
        batch = f"{self.batch_bytes >> 10} KB" if self.batch_bytes < 1 << 20 else f"{self.batch_bytes >> 20} MB"
        return f"{value}, {batch} batches, {self.partitions} partition{'s' if self.partitions > 1 else ''}"

    def job(self, kind: str, broker: Broker, topic: str, seconds: float = 0.0, records: int = 0) -> Job:
        """Returns a job. With several partitions the raw generator gets several connections, so that a broker with
        threads can use them."""
        return Job(
            kind,
            broker.bootstrap,
            topic,
            self.partitions,
            self.value_bytes,
            self.batch_bytes,
            seconds,
            records,
            connections=1 if self.partitions == 1 else 4,
        )


@dataclass(frozen=True)
class Bench:
    plan: Plan
    console: Console
    directory: Path | None = None
    """Parent of the brokers' data directories; None for the system's temporary directory."""
    with_moldau: bool = True
    with_kafka: bool = True

    warmed: list[str] = field(default_factory=list)
    """How each warm-up ended, for the page: a broker that never became steady is not at its best."""

    def cases(self) -> list[Case]:
        return [Case(*shape) for shape in product(VALUE_BYTES, BATCH_BYTES, self.plan.partitions)]

    def print_line(self, text: str) -> None:
        self.console.print(f"{time.strftime('%H:%M:%S')} {text}", highlight=False, soft_wrap=True)

    def print_row(self, what: str, row: Row) -> None:
        parts = []
        for cell in row.cells:
            middles = ["-" if middle is None else cell.metric.show(middle) for middle in cell.figures.middle]
            ratio = "" if cell.figures.ratio is None else f" = {cell.figures.ratio:.2f}"
            parts.append(f"{cell.metric.label} {' : '.join(middles)}{ratio}")
        self.print_line(f"{what}, {row.case}: {'; '.join(parts)}")

    @contextmanager
    def unstarted(self, durability: Durability) -> Iterator[list[Broker]]:
        """Creates both brokers on empty data directories, not running; the data is removed afterwards."""
        with TemporaryDirectory(prefix="moldau-bench-", dir=self.directory) as directory:
            brokers: list[Broker] = []
            if self.with_moldau:
                brokers.append(Moldau(Path(directory, "moldau"), durability))
            if self.with_kafka:
                brokers.append(Kafka(Path(directory, "kafka"), durability))
            with ExitStack() as stack:
                for broker in brokers:
                    stack.callback(broker.stop)
                yield brokers

    @contextmanager
    def running(self, durability: Durability) -> Iterator[list[Broker]]:
        with self.unstarted(durability) as brokers:
            for broker in brokers:
                broker.start()
            yield brokers

    @contextmanager
    def warm(self, durability: Durability) -> Iterator[list[Broker]]:
        """Starts both brokers and warms them up with the measured kinds of work: a JVM needs its hot paths compiled."""
        with self.running(durability) as brokers:
            for broker in brokers:
                self.print_line(f"{broker.name} is up, {durability.name}; warming up")
                self._warm_up(broker)
            yield brokers

    def _warm_up(self, broker: Broker) -> None:
        """Runs load until the broker's CPU time per gigabyte has stopped falling in both directions. A JVM starts at
        eight times its later cost, so a fixed short warm-up would favour Moldau."""
        into: list[float] = []
        out: list[float] = []
        while not (steady(into) and steady(out)) and len(into) < WARM_UP_ROUNDS_MAX:
            case = Case(100, BATCH_BYTES[0], 1)
            with topic(broker, case.partitions) as name:
                sent = run(broker, case.job("produce", broker, name, WARM_UP_ROUND_S))
                into.append(sent.cpu_s_per_gb)
                read = case.job("consume", broker, name, records=sent.outcome.records)
                out.append(run(broker, read).cpu_s_per_gb)
                run(broker, case.job("latency", broker, name, records=300))
            case = Case(1024, BATCH_BYTES[1], 4)
            with topic(broker, case.partitions) as name:
                sent = run(broker, case.job("raw_produce", broker, name, WARM_UP_ROUND_S / 4))
                run(broker, case.job("raw_consume", broker, name, WARM_UP_ROUND_S / 4, sent.outcome.records))
        state = "steady" if steady(into) and steady(out) else "NOT steady"
        self.warmed.append(
            f"{broker.name} {state} after {len(into)} rounds, CPU-s/GB in {into[0]:.1f} to {into[-1]:.1f}, "
            f"out {out[0]:.2f} to {out[-1]:.2f}"
        )
        self.print_line(self.warmed[-1])

    def interleaved(self, brokers: Sequence[B], measure: Callable[[B], T]) -> dict[str, list[T]]:
        """Measures each broker `repeats` times in turn, with alternating order, so that drift of the machine affects
        both."""
        taken: dict[str, list[T]] = {broker.name: [] for broker in brokers}
        for number in range(self.plan.repeats):
            for broker in brokers if number % 2 == 0 else reversed(brokers):
                taken[broker.name].append(measure(broker))
        return taken


def figures(taken: Mapping[str, list[T]], value: Callable[[T], float]) -> Figures:
    return Figures(
        tuple(value(one) for one in taken.get(Moldau.name, ())), tuple(value(one) for one in taken.get(Kafka.name, ()))
    )
