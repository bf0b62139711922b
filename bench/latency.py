"""Latency of single acknowledgements with acks=all."""

from __future__ import annotations

from functools import partial

from bench.brokers import FSYNC, Broker, Durability
from bench.load import Run, run, topic
from bench.plan import BATCH_BYTES, Bench, Case, figures
from bench.report import OTHERS, Cell, Metric, Row, Table, decimals, percentile

METRICS = {share: Metric(f"p{share * 100:g} ms", decimals(3)) for share in (0.5, 0.99, 0.999)}
AIMED = (0.5, 0.99)
AIM_PAGE_CACHE = 1.0
AIM_FSYNC = 0.8
CASE = Case(value_bytes=100, batch_bytes=BATCH_BYTES[0], partitions=1)


def acknowledgement(bench: Bench, brokers: list[Broker], durability: Durability) -> list[Table]:
    rows = []
    for client, kind in (("librdkafka", "latency"), ("raw", "raw_latency")):
        taken = bench.interleaved(brokers, partial(once, kind, bench.plan.acknowledgements))
        aim = AIM_FSYNC if durability is FSYNC else AIM_PAGE_CACHE
        aimed = AIMED if client == "librdkafka" else ()
        cells = (
            Cell(metric, figures(taken, partial(at, share)), aim if share in aimed else None)
            for share, metric in METRICS.items()
        )
        others = Cell(OTHERS, figures(taken, lambda one: one.other_cores))
        rows.append(Row(client, (*cells, others)))
        bench.print_row(f"acknowledgement, {durability.name}", rows[-1])
    note = f"One record of {CASE.value_bytes} B at a time, {bench.plan.acknowledgements:,} in each run."
    return [Table(f"Acknowledgement, {durability.name}", tuple(rows), note)]


def once(kind: str, records: int, broker: Broker) -> Run:
    with topic(broker, CASE.partitions) as name:
        return run(broker, CASE.job(kind, broker, name, records=records))


def at(share: float, one: Run) -> float:
    return percentile(one.outcome.latencies_ms, share)
