"""Many topics created through one admin client, and many open idle connections."""

from __future__ import annotations

import resource
import time
from contextlib import ExitStack
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import latency, raw
from bench.brokers import PAGE_CACHE, Broker, let_idle
from bench.load import ADMIN_TIMEOUT_S, LoadFailed, admin_of
from bench.plan import Bench, figures
from bench.report import Cell, Metric, Row, Table, decimals, megabytes

TOPICS_PER_REQUEST = 100
SECONDS = Metric("s", decimals(2))
MILLISECONDS = Metric("ms", decimals(3))
MEMORY = Metric("memory", megabytes)
IDLE_WINDOW_S = 5.0


@dataclass(frozen=True)
class ManyTopics:
    created_s: float
    cpu_s: float
    listed_s: float
    memory_bytes: int


@dataclass(frozen=True)
class ManyConnections:
    opened_s: float
    idle_cpu_s: float
    memory_bytes: int
    ack_p50_ms: float
    ack_p99_ms: float


def topics(bench: Bench) -> list[Table]:
    taken: dict[str, list[ManyTopics]] = {}
    with bench.running(PAGE_CACHE) as brokers:
        for broker in brokers:
            taken[broker.name] = [_create_topics(broker, bench.plan.topics)]
    rows = (
        Row("until all requests are answered, s", (Cell(SECONDS, figures(taken, lambda one: one.created_s)),)),
        Row("broker CPU meanwhile, s", (Cell(SECONDS, figures(taken, lambda one: one.cpu_s)),)),
        Row("until all are listed with their leaders, s", (Cell(SECONDS, figures(taken, lambda one: one.listed_s)),)),
        Row("memory added", (Cell(MEMORY, figures(taken, lambda one: one.memory_bytes)),)),
    )
    for row in rows:
        bench.print_row(f"{bench.plan.topics:,} topics", row)
    note = f"One partition each, {TOPICS_PER_REQUEST} in a request, one request after the other."
    return [Table(f"{bench.plan.topics:,} topics", rows, note)]


def _create_topics(broker: Broker, number: int) -> ManyTopics:
    admin = admin_of(broker)
    admin.list_topics(timeout=ADMIN_TIMEOUT_S)
    let_idle()
    memory, cpu, began = broker.resident_bytes(), broker.cpu_s(), time.monotonic()
    names = [f"many-{index:04}" for index in range(number)]
    for first in range(0, number, TOPICS_PER_REQUEST):
        some = [NewTopic(name, 1, 1) for name in names[first : first + TOPICS_PER_REQUEST]]
        for future in admin.create_topics(some, operation_timeout=ADMIN_TIMEOUT_S).values():
            future.result(ADMIN_TIMEOUT_S)
    created_s = time.monotonic() - began
    while not _all_led(admin, names):
        if time.monotonic() - began > created_s + ADMIN_TIMEOUT_S:
            raise LoadFailed(f"{broker.name} does not list the {number} topics it created")
    listed_s = time.monotonic() - began
    return ManyTopics(created_s, broker.cpu_s() - cpu, listed_s, broker.resident_bytes() - memory)


def _all_led(admin: AdminClient, names: list[str]) -> bool:
    found = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
    return all(name in found and 0 in found[name].partitions for name in names) and all(
        found[name].partitions[0].leader >= 0 for name in names
    )


def connections(bench: Bench) -> list[Table]:
    _allow_open_files(bench.plan.connections + 200)
    taken: dict[str, list[ManyConnections]] = {}
    with bench.running(PAGE_CACHE) as brokers:
        for broker in brokers:
            taken[broker.name] = [_open_connections(bench, broker)]
    watched = f"broker CPU in {IDLE_WINDOW_S:g} idle s, s"
    rows = (
        Row("until all are open, s", (Cell(SECONDS, figures(taken, lambda one: one.opened_s)),)),
        Row(watched, (Cell(SECONDS, figures(taken, lambda one: one.idle_cpu_s)),)),
        Row("memory added", (Cell(MEMORY, figures(taken, lambda one: one.memory_bytes)),)),
        Row("acknowledgement meanwhile, p50 ms", (Cell(MILLISECONDS, figures(taken, lambda one: one.ack_p50_ms)),)),
        Row("acknowledgement meanwhile, p99 ms", (Cell(MILLISECONDS, figures(taken, lambda one: one.ack_p99_ms)),)),
    )
    for row in rows:
        bench.print_row(f"{bench.plan.connections:,} connections", row)
    note = "Opened one after the other; each asks for ApiVersions, is answered, and then says nothing more."
    return [Table(f"{bench.plan.connections:,} idle connections", rows, note)]


def _open_connections(bench: Bench, broker: Broker) -> ManyConnections:
    latency.once("raw_latency", bench.plan.acknowledgements, broker)
    memory, began = broker.resident_bytes(), time.monotonic()
    with ExitStack() as stack:
        for _ in range(bench.plan.connections):
            sock = stack.enter_context(raw.connect(broker.bootstrap))
            sock.sendall(raw.api_versions_frame())
            raw.Responses(sock).next()
        opened_s = time.monotonic() - began
        cpu = broker.cpu_s()
        time.sleep(IDLE_WINDOW_S)
        idle_cpu_s = broker.cpu_s() - cpu
        memory_bytes = broker.resident_bytes() - memory
        taken = latency.once("raw_latency", bench.plan.acknowledgements, broker)
    return ManyConnections(opened_s, idle_cpu_s, memory_bytes, latency.at(0.5, taken), latency.at(0.99, taken))


def _allow_open_files(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, hard), hard))
