"""Produce and consume throughput and the broker's CPU time per gigabyte, with librdkafka and with the raw load
generator."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from bench.brokers import FSYNC, Broker, Durability
from bench.load import Run, run, topic
from bench.plan import BATCH_BYTES, Bench, Case, figures
from bench.report import OTHERS, Cell, Metric, Row, Table, count, decimals

RATE = Metric("records/s", count, higher_is_better=True)
CPU = Metric("broker CPU-s/GB", decimals(2))
CLIENT = Metric("client cores busy", decimals(2), compared=False)

AIM_RATE = 1.0
AIM_RATE_SHARED_SYNC = 2.0
AIM_CPU_IN = 0.6
AIM_CPU_OUT = 1.0
NO_AIMS = (None, None)

LIBRDKAFKA, RAW = "librdkafka", "raw"


def produce(bench: Bench, brokers: list[Broker], durability: Durability) -> list[Table]:
    clients = ((LIBRDKAFKA, "produce", bench.plan.produce_s), (RAW, "raw_produce", bench.plan.raw_s))
    return [
        _produce(bench, brokers, durability, client, kind, seconds)
        for client, kind, seconds in clients
        if client == LIBRDKAFKA or bench.plan.raw
    ]


def _produce(
    bench: Bench, brokers: list[Broker], durability: Durability, client: str, kind: str, seconds: float
) -> Table:
    rows = []
    for case in bench.cases():
        taken = bench.interleaved(brokers, partial(_produce_once, case, kind, seconds))
        aims = (_rate_aim(case, durability), AIM_CPU_IN) if client == LIBRDKAFKA else NO_AIMS
        rows.append(_row(case, taken, aims))
        bench.print_row(f"produce, {durability.name}, {client}", rows[-1])
    return Table(f"Produce, {durability.name}, {client}", tuple(rows))


def _rate_aim(case: Case, durability: Durability) -> float:
    """Small batches on one partition gain most from sharing a sync between requests."""
    shared_sync = durability is FSYNC and case.partitions == 1 and case.batch_bytes == BATCH_BYTES[0]
    return AIM_RATE_SHARED_SYNC if shared_sync else AIM_RATE


def _produce_once(case: Case, kind: str, seconds: float, broker: Broker) -> Run:
    with topic(broker, case.partitions) as name:
        return run(broker, case.job(kind, broker, name, seconds))


def consume(bench: Bench, brokers: list[Broker]) -> list[Table]:
    kinds = {LIBRDKAFKA: "consume", RAW: "raw_consume"} if bench.plan.raw else {LIBRDKAFKA: "consume"}
    rows: dict[str, list[Row]] = {client: [] for client in kinds}
    for case in bench.cases():
        with ExitStack() as stack:
            filled = {broker.name: _fill(bench, case, broker, stack) for broker in brokers}
            for client, kind in kinds.items():
                taken = bench.interleaved(brokers, partial(_consume_once, case, kind, bench.plan.raw_s, filled))
                rows[client].append(_row(case, taken, (AIM_RATE, AIM_CPU_OUT) if client == LIBRDKAFKA else NO_AIMS))
                bench.print_row(f"consume, {client}", rows[client][-1])
    return [Table(f"Consume, {client}", tuple(found)) for client, found in rows.items()]


def _fill(bench: Bench, case: Case, broker: Broker, stack: ExitStack) -> tuple[str, int]:
    """Fills a topic that is removed with the stack; returns its name and number of records."""
    name = stack.enter_context(topic(broker, case.partitions))
    wanted = bench.plan.consume_bytes[case.value_bytes] // case.value_bytes
    return name, run(broker, case.job("raw_fill", broker, name, records=wanted)).outcome.records


def _consume_once(case: Case, kind: str, seconds: float, filled: dict[str, tuple[str, int]], broker: Broker) -> Run:
    name, records = filled[broker.name]
    return run(broker, case.job(kind, broker, name, seconds, records))


def _row(case: Case, taken: dict[str, list[Run]], aims: tuple[float | None, float | None]) -> Row:
    rate_aim, cpu_aim = aims
    return Row(
        case.name,
        (
            Cell(RATE, figures(taken, lambda one: one.records_per_s), rate_aim),
            Cell(CPU, figures(taken, lambda one: one.cpu_s_per_gb), cpu_aim),
            Cell(CLIENT, figures(taken, lambda one: one.client_cores)),
            Cell(OTHERS, figures(taken, lambda one: one.other_cores)),
        ),
    )
