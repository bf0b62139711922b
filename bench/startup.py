"""Time from process start to the first acknowledgement, and memory when idle and under load."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.brokers import PAGE_CACHE, Broker, Kafka, let_idle
from bench.load import run, topic
from bench.plan import Bench, Case, figures
from bench.quiet import BackgroundLoad
from bench.report import OTHERS, Cell, Metric, Row, Table, decimals, megabytes

SECONDS = Metric("s", decimals(3))
MEMORY = Metric("resident memory", megabytes)
AIM = 0.15
LOAD = Case(value_bytes=1024, batch_bytes=1 << 20, partitions=16)


@dataclass(frozen=True)
class Start:
    fresh_s: float
    restart_s: float
    idle_bytes: int
    loaded_bytes_peak: int
    format_s: float
    fresh_others: float
    restart_others: float


def start_and_memory(bench: Bench) -> list[Table]:
    taken: dict[str, list[Start]] = {}
    for number in range(bench.plan.repeats):
        with bench.unstarted(PAGE_CACHE) as brokers:
            for broker in brokers if number % 2 == 0 else reversed(brokers):
                taken.setdefault(broker.name, []).append(_once(bench, broker))
    starts = (
        Row(
            "empty data directory",
            (
                Cell(SECONDS, figures(taken, lambda one: one.fresh_s), AIM),
                Cell(OTHERS, figures(taken, lambda one: one.fresh_others)),
            ),
        ),
        Row(
            "after a clean shutdown",
            (
                Cell(SECONDS, figures(taken, lambda one: one.restart_s), AIM),
                Cell(OTHERS, figures(taken, lambda one: one.restart_others)),
            ),
        ),
    )
    memory = (
        Row("idle", (Cell(MEMORY, figures(taken, lambda one: one.idle_bytes), AIM),)),
        Row("peak under load", (Cell(MEMORY, figures(taken, lambda one: one.loaded_bytes_peak)),)),
    )
    for row in starts:
        bench.print_row("start", row)
    for row in memory:
        bench.print_row("memory", row)
    note = "From starting the process to the first acknowledged record of a client that knocks every 2 ms."
    if Kafka.name in taken:
        took_s = figures(taken, lambda one: one.format_s).middle[1]
        note += f" Formatting Kafka's storage beforehand took another {took_s:.2f} s, which is not counted."
    loaded = f"Under load: {LOAD.name}, four connections producing, then a consumer reading it all."
    return [Table("Cold start to first acknowledgement", starts, note), Table("Memory", memory, loaded)]


def _once(bench: Bench, broker: Broker) -> Start:
    broker.prepare()
    format_s = broker.format_s or 0.0 if isinstance(broker, Kafka) else 0.0
    fresh_s, fresh_others = _time_to_acknowledgement(broker)
    time.sleep(bench.plan.idle_s)
    idle_bytes = broker.resident_bytes()
    broker.stop()
    restart_s, restart_others = _time_to_acknowledgement(broker)
    with topic(broker, LOAD.partitions) as name:
        records = run(broker, LOAD.job("raw_produce", broker, name, bench.plan.produce_s)).outcome.records
        run(broker, LOAD.job("consume", broker, name, records=records))
    peak = broker.resident_bytes_peak()
    broker.stop()
    return Start(fresh_s, restart_s, idle_bytes, peak, format_s, fresh_others, restart_others)


def _time_to_acknowledgement(broker: Broker) -> tuple[float, float]:
    let_idle()
    began = time.monotonic()
    broker.launch()
    others = BackgroundLoad(broker, broker_cpu_s=0.0)
    broker.wait_for_acknowledgement()
    return time.monotonic() - began, others.cores()
