"""Replicated writes: throughput, CPU time per gigabyte of all nodes, and the latency of single acknowledgements."""

from __future__ import annotations

from functools import partial

from bench.cluster_nodes import Cluster
from bench.cluster_plan import DURABILITY_CONFIGS, DurabilityConfigs, run_on_leader
from bench.latency import METRICS, at
from bench.load import Run, run
from bench.plan import BATCH_BYTES, Bench, Case, figures
from bench.report import OTHERS, Cell, Metric, Row, Table, decimals
from bench.throughput import CLIENT, RATE

CPU = Metric("CPU-s/GB of all nodes", decimals(2))
LIBRDKAFKA, RAW = "librdkafka", "raw"
CASES = (
    (LIBRDKAFKA, Case(100, BATCH_BYTES[0], 6)),
    (LIBRDKAFKA, Case(1024, BATCH_BYTES[1], 6)),
    (RAW, Case(100, BATCH_BYTES[0], 1)),
    (RAW, Case(1024, BATCH_BYTES[1], 1)),
)
ONE_BY_ONE = Case(100, BATCH_BYTES[0], 1)


def produce(bench: Bench, clusters: list[Cluster], durability: str) -> Table:
    rows = []
    for client, case in CASES:
        taken = bench.interleaved(clusters, partial(_produce_once, bench, client, case, DURABILITY_CONFIGS[durability]))
        cells = (
            Cell(RATE, figures(taken, lambda one: one.records_per_s)),
            Cell(CPU, figures(taken, lambda one: one.cpu_s_per_gb)),
            Cell(CLIENT, figures(taken, lambda one: one.client_cores)),
            Cell(OTHERS, figures(taken, lambda one: one.other_cores)),
        )
        rows.append(Row(f"{client}, {case.name}", cells))
        bench.print_row(f"replicated produce, {durability}", rows[-1])
    return Table(f"Replicated produce, {durability}", tuple(rows))


def _produce_once(bench: Bench, client: str, case: Case, durability: DurabilityConfigs, cluster: Cluster) -> Run:
    with cluster.topic(case.partitions, durability[cluster.name]) as name:
        if client == RAW:
            return run_on_leader(cluster, case, "raw_produce", name, bench.plan.raw_s, 0)
        return run(cluster, case.job("produce", cluster, name, bench.plan.produce_s))


def acknowledgement(bench: Bench, clusters: list[Cluster], durability: str) -> Table:
    rows = []
    for client in (LIBRDKAFKA, RAW):
        taken = bench.interleaved(clusters, partial(_latency_once, bench, client, DURABILITY_CONFIGS[durability]))
        cells = [Cell(metric, figures(taken, partial(at, share))) for share, metric in METRICS.items()]
        others = Cell(OTHERS, figures(taken, lambda one: one.other_cores))
        rows.append(Row(client, (*cells, others)))
        bench.print_row(f"replicated acknowledgement, {durability}", rows[-1])
    note = (
        f"One record of {ONE_BY_ONE.value_bytes} B at a time, {bench.plan.acknowledgements:,} in each run; "
        "acknowledged when all three replicas have it."
    )
    return Table(f"Replicated acknowledgement, {durability}", tuple(rows), note)


def _latency_once(bench: Bench, client: str, durability: DurabilityConfigs, cluster: Cluster) -> Run:
    records = bench.plan.acknowledgements
    with cluster.topic(1, durability[cluster.name]) as name:
        if client == RAW:
            return run_on_leader(cluster, ONE_BY_ONE, "raw_latency", name, 0.0, records)
        return run(cluster, ONE_BY_ONE.job("latency", cluster, name, records=records))
