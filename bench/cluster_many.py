"""Many partitions in one cluster: the cost of creating and keeping them, and how long they accept no writes after
`kill -9` of their leader."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import ElectionType, KafkaException, Producer

from bench.brokers import let_idle
from bench.cluster_nodes import NODES, Cluster, cores
from bench.cluster_plan import ClusterPlan
from bench.load import ADMIN_TIMEOUT_S, LoadFailed
from bench.plan import Bench, figures
from bench.report import Cell, Metric, Row, Table, decimals, megabytes

RESUME_TIMEOUT_S = 120.0
TOPICS_OF_MANY = 10

SECONDS = Metric("s", decimals(2))
CORES = Metric("cores", decimals(3))
MEMORY = Metric("memory", megabytes)


def _producer(cluster: Cluster) -> Producer:
    """Creates a producer with default settings, except for a timeout that is longer than a failover."""
    return Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
    )


def _restore_leaders(cluster: Cluster, names: Sequence[str]) -> None:
    """Makes the preferred replica leader of every partition again, so that each node leads its share."""
    admin = cluster.admin()

    def is_restored() -> bool:
        try:
            admin.elect_leaders(ElectionType.PREFERRED, None).result(ADMIN_TIMEOUT_S)
        except KafkaException:
            return False
        topics = cluster.metadata(admin).topics
        return all(each.leader == each.replicas[0] for name in names for each in topics[name].partitions.values())

    cluster.wait_until(is_restored, "every partition is led by its preferred replica")


@dataclass
class Many:
    """Cost of many partitions in one cluster."""

    response_s: float = 0.0
    in_sync_s: float = 0.0
    cpu_s: float = 0.0
    memory_bytes: float = 0.0
    idle_cores: float = 0.0
    first_s: list[float] = field(default_factory=list)
    half_s: list[float] = field(default_factory=list)
    all_s: list[float] = field(default_factory=list)
    rejoined_s: list[float] = field(default_factory=list)


def many(bench: Bench, plan: ClusterPlan, clusters: list[Cluster]) -> Table:
    taken = {cluster.name: [_many(bench, plan, cluster)] for cluster in clusters}

    def row(what: str, metric: Metric, value: Callable[[Many], float]) -> Row:
        return Row(what, (Cell(metric, figures(taken, value)),))

    def kills(what: str, value: Callable[[Many], list[float]]) -> Row:
        each = {name: value(runs[0]) for name, runs in taken.items()}
        return Row(what, (Cell(SECONDS, figures(each, float)),))

    rows = (
        row("created: until the response, s", SECONDS, lambda one: one.response_s),
        row("created: until all replicas are in sync, s", SECONDS, lambda one: one.in_sync_s),
        row("CPU of all nodes meanwhile, s", SECONDS, lambda one: one.cpu_s),
        row("memory added on all nodes", MEMORY, lambda one: one.memory_bytes),
        row("cores of all nodes while idle", CORES, lambda one: one.idle_cores),
        kills("leader killed: first of its partitions written to, s", lambda one: one.first_s),
        kills("leader killed: half of its partitions written to, s", lambda one: one.half_s),
        kills("leader killed: all of its partitions written to, s", lambda one: one.all_s),
        kills("restarted: until all replicas are in sync, s", lambda one: one.rejoined_s),
    )
    for each in rows:
        bench.print_row(f"{plan.partitions:,} partitions", each)
    note = (
        f"{TOPICS_OF_MANY} topics of {plan.partitions // TOPICS_OF_MANY} partitions in one request. Then "
        f"{plan.kills_of_many} times `kill -9` of a node, which leads a third of them; right after it one record is "
        "sent to each of that third, through librdkafka with its defaults."
    )
    return Table(f"{plan.partitions:,} partitions with three replicas", rows, note)


def _many(bench: Bench, plan: ClusterPlan, cluster: Cluster) -> Many:
    found = Many()
    names = [f"many-{index}" for index in range(TOPICS_OF_MANY)]
    admin = cluster.admin()
    cluster.metadata(admin)
    let_idle()
    memory, cpu, began = cluster.resident_bytes(), cluster.cpu_s(), time.monotonic()
    cluster.create_topics(names, plan.partitions // TOPICS_OF_MANY)
    found.response_s = time.monotonic() - began
    cluster.wait_until(lambda: cluster.is_in_sync(names, admin), "all replicas are in sync", RESUME_TIMEOUT_S)
    found.in_sync_s = time.monotonic() - began
    found.cpu_s = cluster.cpu_s() - cpu
    found.memory_bytes = cluster.resident_bytes() - memory
    found.idle_cores = cores(cluster, plan.idle_s)
    for number in range(plan.kills_of_many):
        _kill_leader_of_many(cluster, names, 1 + number % NODES, found)
        bench.print_line(f"{cluster.name}: node {1 + number % NODES} killed, all written to in {found.all_s[-1]:.2f} s")
    admin.delete_topics(names)
    return found


def _kill_leader_of_many(cluster: Cluster, names: Sequence[str], victim: int, found: Many) -> None:
    _restore_leaders(cluster, names)
    topics = cluster.metadata().topics
    every = [(name, index) for name in names for index in sorted(topics[name].partitions)]
    led = [(name, index) for name, index in every if topics[name].partitions[index].leader == victim]
    producer = _producer(cluster)
    # Connections and partitions are warmed up before the measurement.
    _write(producer, every)
    cluster.kill(victim)
    acknowledged = _write(producer, led)
    found.first_s.append(acknowledged[0])
    found.half_s.append(acknowledged[len(led) // 2])
    found.all_s.append(acknowledged[-1])
    began = time.monotonic()
    cluster.launch_node(victim)
    admin = cluster.admin()
    cluster.wait_until(lambda: cluster.is_in_sync(names, admin), "all replicas are in sync", RESUME_TIMEOUT_S)
    found.rejoined_s.append(time.monotonic() - began)


def _write(producer: Producer, partitions: Sequence[tuple[str, int]]) -> list[float]:
    """Sends a record to each partition; returns the sorted seconds until each was acknowledged."""
    began = time.monotonic()
    acknowledged: list[float] = []
    refused: list[str] = []

    def told(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.append(time.monotonic() - began)
        else:
            refused.append(str(error))

    for topic, partition in partitions:
        producer.produce(topic, b"record", partition=partition, on_delivery=told)
    if producer.flush(RESUME_TIMEOUT_S) > 0 or refused:
        raise LoadFailed(f"a record was not acknowledged: {refused[:1] or 'some are pending'}")
    return acknowledged
