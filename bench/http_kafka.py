"""Kafka's Produce with acks=all on three nodes while HTTP connections produce to the same leader, and whether a broker
lost its lease meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self
from uuid import uuid4

from confluent_kafka.cimpl import NewTopic

from bench.brokers import BrokerFailed, Durability
from bench.client import Job
from bench.http_load import SIMPLE_PRODUCE
from bench.http_servers import HttpCluster, get_status, wait_for_status
from bench.load import ADMIN_TIMEOUT_S, TOPIC_CONFIG, LoadFailed, Run, run
from bench.plan import Bench
from bench.report import OTHERS, Cell, Figures, Metric, Row, Table, count, decimals, percentile

AIM_P99 = 2.0
CONNECTIONS = 20
VALUE_BYTES = 100
LEADER = 1
RATES_PER_S = (200.0, 0.0)
"""HTTP requests per second; 0 for as many as the connections can send."""
CLIENTS = {"librdkafka": "latency", "raw": "raw_latency"}
WITH, WITHOUT = "with HTTP", "without"

P50 = Metric("p50 ms", decimals(2))
P99 = Metric("p99 ms", decimals(2))
HTTP_RATE = Metric("HTTP requests/s", count, compared=False)

LOGGED = {
    "broker is fenced": "a broker was fenced",
    "quorum leader changed": "an election was held or a leader was lost",
    "event loop was stalled": "the controller's event loop was stalled",
    "ISRs changed": "an ISR changed",
}
"""Messages in the logs of the nodes that must not appear under load, and what they mean."""
READY_INTERVAL_S = 0.1


class Measured(NamedTuple):
    run: Run
    http_per_s: float
    other_cores: float


def kafka_under_http_load(bench: Bench, durability: Durability, acknowledgements: int) -> list[Table]:
    with (
        TemporaryDirectory(prefix="moldau-bench-", dir=bench.directory) as directory,
        HttpCluster(Path(directory), durability) as cluster,
        _topic(cluster) as kafka_topic,
        _topic(cluster) as http_topic,
    ):
        for address in cluster.http_addresses.values():
            wait_for_status(address, "/readyz", "a node")
        bench.print_line(f"three nodes are up, {durability.name}")
        measure = UnderLoad(cluster, kafka_topic, http_topic)
        for kind in CLIENTS.values():
            for rate_per_s in (None, 0.0):
                measure.once(kind, acknowledgements // 4, rate_per_s)
        with ClusterWatch(cluster) as watch:
            rows = _rows(bench, durability, measure, acknowledgements)
    summary = watch.summary()
    bench.print_line(summary)
    note = (
        f"{CONNECTIONS} connections produce over HTTP, one record of {VALUE_BYTES} B per request, to the broker that "
        f"also leads the partition of the Kafka producer; {acknowledgements:,} records of it in each run. {summary}"
    )
    title = f"Kafka Produce with acks=all under HTTP load, three nodes, {durability.name}"
    return [Table(title, tuple(rows), note, (WITH, WITHOUT))]


def _rows(bench: Bench, durability: Durability, measure: UnderLoad, acknowledgements: int) -> list[Row]:
    rows = []
    for rate_per_s in RATES_PER_S:
        for client, kind in CLIENTS.items():
            taken: dict[str, list[Measured]] = {WITH: [], WITHOUT: []}
            for number in range(bench.plan.repeats):
                for side in (WITH, WITHOUT) if number % 2 == 0 else (WITHOUT, WITH):
                    taken[side].append(measure.once(kind, acknowledgements, rate_per_s if side == WITH else None))
            cells = (
                *(
                    Cell(metric, Figures(*(tuple(_at(share, one) for one in taken[side]) for side in taken)), aim)
                    for metric, share, aim in ((P50, 0.5, None), (P99, 0.99, AIM_P99))
                ),
                Cell(HTTP_RATE, Figures(tuple(one.http_per_s for one in taken[WITH]))),
                Cell(OTHERS, Figures(*(tuple(one.other_cores for one in taken[side]) for side in taken))),
            )
            rows.append(Row(f"{client}, {f'{rate_per_s:g} HTTP requests/s' if rate_per_s else 'no limit'}", cells))
            bench.print_row(f"Kafka Produce under HTTP load, {durability.name}", rows[-1])
    return rows


def _at(share: float, one: Measured) -> float:
    return percentile(one.run.outcome.latencies_ms, share)


@contextmanager
def _topic(cluster: HttpCluster) -> Iterator[str]:
    """Creates a topic with one partition that `LEADER` leads."""
    name = f"bench-{uuid4().hex[:12]}"
    nodes = [LEADER, *(node_id for node_id in cluster.ids if node_id != LEADER)]
    new = NewTopic(name, 1, replica_assignment=[nodes], config=TOPIC_CONFIG)
    admin = cluster.admin()
    admin.create_topics([new])[name].result(ADMIN_TIMEOUT_S)
    cluster.wait_in_sync(name)
    yield name
    admin.delete_topics([name])[name].result(ADMIN_TIMEOUT_S)


class UnderLoad:
    """Runs of a Kafka producer, with HTTP load and without."""

    def __init__(self, cluster: HttpCluster, kafka_topic: str, http_topic: str) -> None:
        self._cluster = cluster
        self._kafka_topic = kafka_topic
        self._http_job = Job(
            "http_until_stopped",
            cluster.http_addresses[LEADER],
            http_topic,
            value_bytes=VALUE_BYTES,
            records=1,
            connections=CONNECTIONS,
            api=SIMPLE_PRODUCE,
        )

    def once(self, kind: str, records: int, rate_per_s: float | None) -> Measured:
        """Measures with this many HTTP requests per second (0 for no limit); None for no HTTP load."""
        # The raw client does not look for the leader.
        bootstrap = self._cluster.bootstrap if kind == "latency" else self._cluster.address_of(LEADER)
        job = Job(kind, bootstrap, self._kafka_topic, value_bytes=VALUE_BYTES, records=records)
        if rate_per_s is None:
            alone = run(self._cluster, job)
            return Measured(alone, 0.0, alone.other_cores)
        with HttpLoad(replace(self._http_job, rate_per_s=rate_per_s)) as load:
            loaded = run(self._cluster, job)
        return Measured(loaded, load.requests_per_s, max(0.0, loaded.other_cores - load.cores))


class HttpLoad:
    """A process that sends HTTP requests for as long as the context is open."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.requests_per_s = self.cores = 0.0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.client", self._job.as_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise LoadFailed(f"the HTTP load failed:\n{self._process.communicate()[1].strip()[-2000:]}")
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._process.kill()
        result, errors = self._process.communicate(timeout=ADMIN_TIMEOUT_S)
        if kind is not None:
            return
        if self._process.returncode != 0:
            raise LoadFailed(f"the HTTP load failed:\n{errors.strip()[-2000:]}")
        outcome = json.loads(result)
        self.requests_per_s = outcome["records"] / outcome["elapsed_s"]
        self.cores = outcome["client_cpu_s"] / outcome["elapsed_s"]


class ClusterWatch:
    """Watches for lost leases, fenced brokers and elections: `/readyz` of each node all the time, and the logs."""

    def __init__(self, cluster: HttpCluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._polls = 0
        self._unready: Counter[int] = Counter()
        self._found: Counter[str] = Counter()

    def __enter__(self) -> Self:
        logs = {node_id: self._cluster.log_of(node_id).read_text(errors="replace") for node_id in self._cluster.ids}
        if not all("quorum leader changed" in text for text in logs.values()):
            # Otherwise a changed message would look like a quiet cluster.
            raise BrokerFailed("the logs of the nodes do not tell their first election")
        self._begin = {node_id: len(text) for node_id, text in logs.items()}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for node_id, begin in self._begin.items():
            text = self._cluster.log_of(node_id).read_text(errors="replace")[begin:]
            self._found.update(
                meaning for line in text.splitlines() for message, meaning in LOGGED.items() if message in line
            )

    def _poll(self) -> None:
        while not self._stop.wait(READY_INTERVAL_S):
            for node_id, address in self._cluster.http_addresses.items():
                self._polls += 1
                try:
                    status = get_status(address, "/readyz")
                except (OSError, HTTPException):
                    status = 0
                if status != 200:
                    self._unready[node_id] += 1

    def summary(self) -> str:
        unready = sum(self._unready.values())
        polled = f"`/readyz` was asked {self._polls:,} times"
        if not unready and not self._found:
            return (
                f"No broker lost its lease or was fenced, no ISR changed, and no election was held: {polled} and was "
                "always 200, and the logs of the nodes have no such message."
            )
        found = ", ".join(f"{meaning} ({number} lines)" for meaning, number in self._found.items())
        return f"**Not quiet: {polled} and was {unready} times not 200; in the logs: {found or 'nothing'}.**"
