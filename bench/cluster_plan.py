"""How much of everything a run of the cluster's benchmarks does, and the two clusters while it runs."""

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
"""Settings of a topic for each of the brokers."""
DURABILITY_CONFIGS: Mapping[str, DurabilityConfigs] = {
    "page cache": {Moldau.name: {"write.caching": "true"}, Kafka.name: {}},
    "fsync": {Moldau.name: {"write.caching": "false"}, Kafka.name: {"flush.messages": "1"}},
}
"""When a replica has a record, for a leader and for its followers."""


@dataclass(frozen=True)
class ClusterPlan:
    bench: Plan
    kept: tuple[str, ...]
    kills: int
    """How often a leader is killed, another node each time."""
    partitions: int
    """So many are many."""
    kills_of_many: int
    idle_s: float
    growth: tuple[int, ...]
    """Partitions, at each step, whose metadata is weighed."""


FULL_CLUSTER = ClusterPlan(
    bench=replace(FULL, produce_s=1.5, raw_s=1.5, acknowledgements=2000),
    kept=tuple(DURABILITY_CONFIGS),
    kills=3,
    partitions=1000,
    kills_of_many=2,
    idle_s=10.0,
    growth=(100, 1000, 10_000),
)
QUICK_CLUSTER = ClusterPlan(
    bench=replace(QUICK, produce_s=1.0, raw_s=1.0, acknowledgements=500),
    kept=("page cache",),
    kills=1,
    partitions=300,
    kills_of_many=1,
    idle_s=3.0,
    growth=(100, 1000),
)


@contextmanager
def running(bench: Bench) -> Iterator[list[Cluster]]:
    """Both clusters on empty data directories, warm; their data is thrown away afterwards."""
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
    """Until the CPU time per gigabyte of all nodes together has stopped falling: three JVMs on a small machine take
    their time to compile what is hot."""
    costs: list[float] = []
    while not steady(costs) and len(costs) < WARM_UP_ROUNDS_MAX:
        for case in (Case(100, BATCH_BYTES[0], 6), Case(1024, BATCH_BYTES[1], 6)):
            with cluster.topic(case.partitions) as name:
                sent = run(cluster, case.job("produce", cluster, name, WARM_UP_ROUND_S))
                if case.value_bytes == 100:
                    costs.append(sent.cpu_s_per_gb)
                    run(cluster, case.job("latency", cluster, name, records=300))
    state = "steady" if steady(costs) else "NOT steady"
    bench.warmed.append(
        f"{cluster.name} {state} after {len(costs)} rounds, CPU-s/GB {costs[0]:.1f} to {costs[-1]:.1f}"
    )
    bench.print_line(bench.warmed[-1])


def run_on_leader(cluster: Cluster, case: Case, kind: str, name: str, seconds: float, records: int) -> Run:
    """The raw generator goes where it is told to: to the leader of the only partition."""
    leader = cluster.address_of(cluster.leaders(name)[0])
    return run(cluster, replace(case.job(kind, cluster, name, seconds, records), bootstrap=leader))
