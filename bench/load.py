"""Runs a client process against a broker, and returns what both used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import raw
from bench.brokers import Broker, let_idle
from bench.client import Job, Outcome
from bench.quiet import BackgroundLoad

ADMIN_TIMEOUT_S = 60

# The same for both brokers: batches up to 1 MB fit, and deleted data leaves the disk soon.
TOPIC_CONFIG = {"max.message.bytes": str(2 << 20), "file.delete.delay.ms": "1000"}


class LoadFailed(Exception):
    """A client process failed; the message is its output."""


@dataclass(frozen=True)
class Run:
    """One run of a job against a broker."""

    outcome: Outcome
    broker_cpu_s: float
    bytes: int
    other_cores: float

    @property
    def records_per_s(self) -> float:
        return self.outcome.records / self.outcome.elapsed_s

    @property
    def cpu_s_per_gb(self) -> float:
        return self.broker_cpu_s / (self.bytes / 1e9)

    @property
    def client_cores(self) -> float:
        return self.outcome.client_cpu_s / self.outcome.elapsed_s


def run(broker: Broker, job: Job) -> Run:
    """Runs a job; the broker's CPU time counts from the client's start signal to its result."""
    let_idle()
    client = subprocess.Popen(
        [sys.executable, "-m", "bench.client", job.as_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert client.stdin is not None
    assert client.stdout is not None
    try:
        ready = client.stdout.readline()
        others = BackgroundLoad(broker)
        cpu = broker.cpu_s()
        result = ""
        if ready.strip() == "ready":
            client.stdin.write("go\n")
            client.stdin.flush()
            result = client.stdout.readline()
        used = broker.cpu_s() - cpu
        other_cores = others.cores(json.loads(result)["client_cpu_s"] if result else 0.0)
        _, errors = client.communicate(timeout=120)
    finally:
        if client.poll() is None:
            client.kill()
            client.wait()
    if client.returncode != 0 or not result:
        raise LoadFailed(f"{job.kind} against {broker.name} failed:\n{errors.strip()[-2000:]}")
    outcome = Outcome(**json.loads(result))
    return Run(outcome, used, outcome.records * job.value_bytes, other_cores)


def admin_of(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 4})


def create_topic(broker: Broker, partitions: int) -> str:
    name = f"bench-{uuid4().hex[:12]}"
    admin = admin_of(broker)
    admin.create_topics([NewTopic(name, partitions, 1, config=TOPIC_CONFIG)])[name].result(ADMIN_TIMEOUT_S)
    raw.wait_until_served(broker.bootstrap, name, partitions, ADMIN_TIMEOUT_S)
    return name


def delete_topic(broker: Broker, name: str) -> None:
    admin = admin_of(broker)
    admin.delete_topics([name])[name].result(ADMIN_TIMEOUT_S)


@contextmanager
def topic(broker: Broker, partitions: int) -> Iterator[str]:
    name = create_topic(broker, partitions)
    yield name
    delete_topic(broker, name)
