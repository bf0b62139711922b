"""Amounts of a run of the cluster benchmarks, and the two running clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.brokers import PAGE_CACHE, Kafka, Moldau
from bench.cluster_nodes import Cluster, KafkaCluster, MoldauCluster
from bench.load import Run, run
from bench.plan import BATCH_BYTES, FULL, QUICK, Bench, Case, Plan, steady

WARM_UP_ROUND_S = 1.5
WARM_UP_ROUNDS_MAX = 10

DurabilityConfigs = Mapping[str, Mapping[str, str]]
"""Topic configs by broker."""
DURABILITY_CONFIGS: Mapping[str, DurabilityConfigs] = {
    "page cache": {Moldau.name: {"write.caching": "true"}, Kafka.name: {}},
    "fsync": {Moldau.name: {"write.caching": "false"}, Kafka.name: {"flush.messages": "1"}},
}
"""When a record counts as replicated, on leaders and followers."""


@dataclass(frozen=True)
class ClusterPlan:
    bench: Plan
    kept: tuple[str, ...]
    partitions: int
    """Number of partitions in the benchmark with many partitions."""
    kills_of_many: int
    idle_s: float
    growth: tuple[int, ...]
    """Total partitions at each step of the growth benchmark."""


FULL_CLUSTER = ClusterPlan(
    bench=replace(FULL, produce_s=1.5, raw_s=1.5, acknowledgements=2000),
    kept=tuple(DURABILITY_CONFIGS),
    partitions=1000,
    kills_of_many=2,
    idle_s=10.0,
    growth=(100, 1000, 10_000),
)
QUICK_CLUSTER = ClusterPlan(
    bench=replace(QUICK, produce_s=1.0, raw_s=1.0, acknowledgements=500),
    kept=("page cache",),
    partitions=300,
    kills_of_many=1,
    idle_s=3.0,
    growth=(100, 1000),
)


@contextmanager
def running(bench: Bench) -> Iterator[list[Cluster]]:
    """Starts both clusters on empty data directories and warms them up; the data is removed afterwards."""
    with TemporaryDirectory(prefix="moldau-bench-", dir=bench.directory) as directory, ExitStack() as stack:
        clusters: list[Cluster] = []
        if bench.with_moldau:
            clusters.append(MoldauCluster(Path(directory, "moldau"), PAGE_CACHE))
        if bench.with_kafka:
            clusters.append(KafkaCluster(Path(directory, "kafka"), PAGE_CACHE))
        for cluster in clusters:
            stack.enter_context(cluster)
            bench.print_line(f"three nodes of {cluster.name} are up")
        yield clusters


def warm_up(bench: Bench, cluster: Cluster) -> None:
    """Runs load until the CPU time per gigabyte has stopped falling: three JVMs take a while to compile hot code."""
    costs: list[float] = []
    while not steady(costs) and len(costs) < WARM_UP_ROUNDS_MAX:
        for case in (Case(100, BATCH_BYTES[0], 6), Case(1024, BATCH_BYTES[1], 6)):
            with cluster.topic(case.partitions) as name:
                sent = run(cluster, case.job("produce", cluster, name, WARM_UP_ROUND_S))
                if case.value_bytes == 100:
                    costs.append(sent.cpu_s_per_gb)
                    run(cluster, case.job("latency", cluster, name, records=300))
    state = "steady" if steady(costs) else "NOT steady"
    bench.warmed.append(f"{cluster.name} {state} after {len(costs)} rounds, CPU-s/GB {costs[0]:.1f} to {costs[-1]:.1f}")
    bench.print_line(bench.warmed[-1])


def run_on_leader(cluster: Cluster, case: Case, kind: str, name: str, seconds: float, records: int) -> Run:
    """Runs the raw generator, which does not look up leaders, against the leader of the only partition."""
    leader = cluster.address_of(cluster.leaders(name)[0])
    return run(cluster, replace(case.job(kind, cluster, name, seconds, records), bootstrap=leader))
