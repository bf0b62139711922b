"""How long steady producers pause when the leader of their partitions is killed or stopped, per client library: `python
-m bench.failover [--faults N] [--kafka-faults N] [--client NAME] [--fault NAME] [--without BROKER] [--out FILE]` writes
bench/FAILOVER.md."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self
from uuid import uuid4

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from tests.interop.apache_kafka import KAFKA_VERSION, ApacheKafka

from bench.brokers import FSYNC, PAGE_CACHE, Kafka, Moldau
from bench.cluster_nodes import NODES, Cluster, KafkaCluster, MoldauCluster
from bench.failover_producers import LIBRARIES, ProducerSettings
from bench.load import ADMIN_TIMEOUT_S, TOPIC_CONFIG, LoadFailed
from bench.report import markdown_table, percentile
from bench.run import commit_line, machine_line, output

JAVA = "Java"
CLIENTS = ("confluent-kafka", JAVA, "moldau.client", "aiokafka")
KILL, STOP = "kill", "stop"
FAULTS = {KILL: "killed (SIGKILL)", STOP: "stopped (SIGTERM)"}
JAVA_SOURCE = Path(__file__).with_name("java") / "FailoverProducers.java"
JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
METHOD = Path(__file__).with_name("METHOD_FAILOVER.md")
RESULTS = Path(__file__).with_name("FAILOVER.md")

INTERVAL_S = 0.001
SETTLE_S = 0.5
"""How long the producers run before a fault, and after all partitions have resumed: a second pause counts too."""
PRODUCERS_TOGETHER = 2
"""How many producers run at the same time: two cores carry no more of them next to three nodes."""

AIMS = {KILL: ((0.5, 0.4), (0.99, 1.0)), STOP: ((1.0, 0.2),)}
"""By fault: percentiles and the longest pause in seconds that Moldau aims at."""
AIMED_CLIENTS = CLIENTS[:3]


@dataclass(frozen=True)
class Configuration:
    """A configuration of a producer."""

    partitions: int
    idempotent: bool
    linger_ms: int

    @property
    def name(self) -> str:
        partitions = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"{partitions}, {'idempotent' if self.idempotent else 'not idempotent'}, linger {self.linger_ms} ms"


CONFIGURATIONS = tuple(Configuration(*each) for each in product((1, 6), (True, False), (0, 5)))


@dataclass
class Pauses:
    """The pauses of producers of one configuration, in seconds, and how many of their records failed."""

    seconds: list[float] = field(default_factory=list)
    failed_records: int = 0

    def add(self, other: Pauses) -> None:
        self.seconds += other.seconds
        self.failed_records += other.failed_records


Results = dict[tuple[str, str, str, Configuration], Pauses]
"""By broker, client, fault and configuration."""


class ProducerProcess:
    """The process with the producers of one client library, see `failover_producers.py`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def execute(self, *words: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline().strip()
        if not line or line.startswith("failed"):
            raise LoadFailed(f"{words[0]}: {line or 'the process of the producers has ended'}")
        return line

    def pauses(self) -> list[Pauses]:
        """Returns the pauses of the producers when all partitions have resumed."""
        pairs = (each.split(",") for each in self.execute("report").split())
        return [Pauses([float(seconds)], int(failed)) for seconds, failed in pairs]


@dataclass(frozen=True)
class FailoverBench:
    console: Console
    work_dir: Path
    clients: tuple[str, ...]
    faults: tuple[str, ...]

    def print_line(self, text: str) -> None:
        self.console.print(f"{time.strftime('%H:%M:%S')} {text}", highlight=False, soft_wrap=True)

    def measure(self, cluster: Cluster, count: int, results: Results) -> None:
        """Measures `count` faults of each kind for each client and each group of configurations."""
        groups = [
            CONFIGURATIONS[first : first + PRODUCERS_TOGETHER]
            for first in range(0, len(CONFIGURATIONS), PRODUCERS_TOGETHER)
        ]
        for client, fault in product(self.clients, self.faults):
            with self._producers(client) as producers:
                for group in groups:
                    for number in range(count):
                        victim = 1 + number % NODES
                        pauses = self._measure_fault(cluster, producers, group, fault, victim)
                        for configuration, each in zip(group, pauses, strict=True):
                            key = (cluster.name, client, fault, configuration)
                            results.setdefault(key, Pauses()).add(each)
                        texts = ", ".join(f"{each.seconds[0]:.3f}" for each in pauses)
                        names = " and ".join(each.name for each in group)
                        self.print_line(f"{cluster.name}, {client}, {fault} of node {victim}: {texts} s ({names})")

    @contextmanager
    def _producers(self, client: str) -> Iterator[ProducerProcess]:
        if client in LIBRARIES:
            command = [sys.executable, "-m", "bench.failover_producers", client]
        else:
            classpath = f"{self._java_classes()}:{ApacheKafka.classpath()}"
            command = ["java", *JAVA_OPTIONS, "-cp", classpath, "moldau.bench.FailoverProducers"]
        with ProducerProcess(command) as producers:
            yield producers

    def _java_classes(self) -> Path:
        classes = self.work_dir / "classes"
        if not classes.exists():
            command = ["javac", "-nowarn", "-d", str(classes), "-cp", ApacheKafka.classpath(), str(JAVA_SOURCE)]
            subprocess.run(command, check=True)
        return classes

    def _measure_fault(
        self,
        cluster: Cluster,
        producers: ProducerProcess,
        configurations: Sequence[Configuration],
        fault: str,
        victim: int,
    ) -> list[Pauses]:
        """Returns the pause of one producer of each configuration. The victim leads their first partitions."""
        settings = [
            ProducerSettings(f"failover-{uuid4().hex[:8]}", each.partitions, each.idempotent, each.linger_ms)
            for each in configurations
        ]
        with _topics(cluster, settings, victim):
            producers.execute("start", cluster.bootstrap, str(INTERVAL_S), *map(str, settings))
            time.sleep(SETTLE_S)
            producers.execute("mark")
            if fault == KILL:
                cluster.kill(victim)
            else:
                cluster.stop_node(victim)
            producers.pauses()
            time.sleep(SETTLE_S)
            pauses = producers.pauses()
            cluster.launch_node(victim)
            producers.execute("stop")
        return pauses


@contextmanager
def _topics(cluster: Cluster, settings: Sequence[ProducerSettings], leader: int) -> Iterator[None]:
    """Creates a topic for each producer. The node `leader` leads partition 0 and every third after it."""
    nodes = [1 + (leader - 1 + offset) % NODES for offset in range(NODES)]
    admin = cluster.admin()
    created = admin.create_topics(
        [
            NewTopic(
                each.topic,
                each.partitions,
                replica_assignment=[
                    nodes[index % NODES :] + nodes[: index % NODES] for index in range(each.partitions)
                ],
                config=TOPIC_CONFIG,
            )
            for each in settings
        ]
    )
    for future in created.values():
        future.result(ADMIN_TIMEOUT_S)
    names = [each.topic for each in settings]
    cluster.wait_in_sync(*names)
    yield
    cluster.wait_for_acknowledgement()
    cluster.wait_until(partial(_delete_topics, cluster, names), "the topics are deleted")


def _delete_topics(cluster: Cluster, names: list[str]) -> bool:
    # A new client, because the previous one may have lost its connection to the controller.
    admin = cluster.admin()
    for future in admin.delete_topics(names).values():
        try:
            future.result(ADMIN_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return True


# The page


def describe(pauses: Pauses | None) -> list[str]:
    if pauses is None or not pauses.seconds:
        return ["-"] * 3
    return [f"{percentile(pauses.seconds, share):.2f}" for share in (0.5, 0.99, 1.0)]


def pooled(results: Results, broker: str, client: str, fault: str) -> Pauses | None:
    """Returns the pauses of all configurations together."""
    pauses = Pauses()
    for configuration in CONFIGURATIONS:
        found = results.get((broker, client, fault, configuration))
        if found is not None:
            pauses.add(found)
    return pauses if pauses.seconds else None


def verdict(results: Results, client: str, fault: str) -> str:
    """Returns whether every configuration reaches the aims."""
    configurations = [
        pauses.seconds
        for (broker, *key, _), pauses in results.items()
        if broker == Moldau.name and key == [client, fault]
    ]
    if client not in AIMED_CLIENTS or not configurations:
        return "-"
    texts = []
    for share, seconds in AIMS[fault]:
        label = "max" if share == 1.0 else f"p{share * 100:g}"
        is_met = all(percentile(each, share) <= seconds for each in configurations)
        texts.append(f"{label} ≤ {seconds:g}: {'met' if is_met else '**not met**'}")
    return ", ".join(texts)


HEAD = ("Moldau p50", "p99", "max", "Kafka p50", "p99", "max")


def render_summary(results: Results, clients: Sequence[str], faults: Sequence[str]) -> str:
    body = []
    for fault, client in product(faults, clients):
        moldau, kafka = (pooled(results, broker, client, fault) for broker in (Moldau.name, Kafka.name))
        failed = " / ".join("-" if each is None else str(each.failed_records) for each in (moldau, kafka))
        label = f"{client}, leader {FAULTS[fault]}"
        body.append([label, *describe(moldau), *describe(kafka), verdict(results, client, fault), failed])
    head = ["all configurations, s", *HEAD, "aim of Moldau, each configuration", "failed records, Moldau / Kafka"]
    return "## Pauses\n\n" + markdown_table(head, body)


def render_configurations(results: Results, client: str, fault: str) -> str:
    body = [
        [
            each.name,
            *describe(results.get((Moldau.name, client, fault, each))),
            *describe(results.get((Kafka.name, client, fault, each))),
        ]
        for each in CONFIGURATIONS
    ]
    return f"### {client}, leader {FAULTS[fault]}\n\n" + markdown_table(["s", *HEAD], body)


def facts(counts: dict[str, int], missing: str | None, took_s: float) -> str:
    kafka = f"Apache Kafka {KAFKA_VERSION}, 1 GiB of heap for each node" if missing is None else f"no Kafka: {missing}"
    faults = ", ".join(f"{count} on {name}" for name, count in counts.items())
    java = output("java", "-version").splitlines()[0]
    day = time.strftime("%Y-%m-%d", time.gmtime())
    lines = (
        f"machine: {machine_line()}",
        f"Moldau {version('moldau')} at commit {commit_line()}, Python {platform.python_version()}",
        kafka,
        f"confluent-kafka {confluent_kafka.version()} with librdkafka {confluent_kafka.libversion()[0]}",
        f"Kafka's Java client {KAFKA_VERSION} on {java}; aiokafka {version('aiokafka')}",
        f"faults for each client and configuration: {faults}; {day}, {took_s / 60:.0f} min in all",
    )
    return "\n".join(f"- {line}" for line in lines)


def page(results: Results, clients: Sequence[str], faults: Sequence[str], head: str, command: str) -> str:
    parts = ["# Pauses of producers when a leader dies or stops", f"Written by `{command}`.", head]
    parts += [render_summary(results, clients, faults), METHOD.read_text(), "## By configuration"]
    parts += [render_configurations(results, client, fault) for client, fault in product(clients, faults)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _command(options: argparse.Namespace) -> str:
    words = [f"--faults {options.faults}", f"--kafka-faults {options.kafka_faults}"]
    words += [f"--client {name}" for name in options.client or ()]
    words += [f"--fault {name}" for name in options.fault or ()]
    words += [f"--without {options.without}"] if options.without else []
    return " ".join(["python -m bench.failover", *words])


def main() -> None:
    parser = argparse.ArgumentParser(description="Pauses of producers when a leader is killed or stopped.")
    parser.add_argument("--faults", type=int, default=20, help="of each kind, per client and configuration")
    parser.add_argument("--kafka-faults", type=int, default=5, help="the same for Apache Kafka, which needs longer")
    parser.add_argument("--client", choices=CLIENTS, action="append", help="leave out the other clients")
    parser.add_argument("--fault", choices=tuple(FAULTS), action="append", help="leave out the other kind of fault")
    parser.add_argument("--without", choices=("kafka", "moldau"), help="measure the other broker alone")
    parser.add_argument("--out", type=Path, help="default: bench/FAILOVER.md for a whole run, else shown")
    parser.add_argument("--dir", type=Path, help="where the nodes keep their data meanwhile")
    options = parser.parse_args()
    console = Console()
    missing = "excluded with --without" if options.without == "kafka" else ApacheKafka.available()
    clients, faults = tuple(options.client or CLIENTS), tuple(options.fault or FAULTS)
    began, results = time.monotonic(), Results()
    with TemporaryDirectory(prefix="moldau-bench-", dir=options.dir) as directory:
        bench = FailoverBench(console, Path(directory), clients, faults)
        brokers: list[tuple[Callable[[], Cluster], int]] = []
        if options.without != "moldau":
            brokers.append((lambda: MoldauCluster(Path(directory, "moldau"), FSYNC), options.faults))
        if missing is None:
            brokers.append((lambda: KafkaCluster(Path(directory, "kafka"), PAGE_CACHE), options.kafka_faults))
        counts = {}
        for create, count in brokers:
            with create() as cluster:
                bench.print_line(f"three nodes of {cluster.name} are up")
                counts[cluster.name] = count
                bench.measure(cluster, count, results)
    head = facts(counts, missing, time.monotonic() - began)
    text = page(results, clients, faults, head, _command(options))
    whole = not (options.client or options.fault or options.without)
    out = options.out or (RESULTS if whole else None)
    if out is None:
        print(text)
    else:
        out.write_text(text)
        console.print(f"written: {out}")


if __name__ == "__main__":
    main()
