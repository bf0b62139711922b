"""A cluster of three nodes of each broker, started, measured, killed and restarted in the same way."""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import psutil  # type: ignore[import-untyped]
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.interop.apache_kafka import ApacheKafka

from bench.brokers import START_TIMEOUT_S, Broker, BrokerFailed, Durability, Kafka, Moldau
from bench.load import ADMIN_TIMEOUT_S, TOPIC_CONFIG
from moldau.client import Admin
from moldau.client import KafkaError as ClientError

NODES = 3
REPLICAS = 3
MIN_IN_SYNC = 2
CLUSTER_ID = "bW9sZGF1LWJlbmNoLTM"
POLL_INTERVAL_S = 0.02
NO_CONFIGS: Mapping[str, str] = MappingProxyType({})


class Cluster(Broker):
    """To the load generators it is one broker with several addresses; CPU time and memory are sums over its
    processes."""

    ids = range(1, NODES + 1)

    @property
    def pid(self) -> int:
        return next(iter(self.pids().values()))

    @abc.abstractmethod
    def pids(self) -> dict[int, int]:
        """Process ids of the running nodes."""

    @abc.abstractmethod
    def address_of(self, node_id: int) -> str: ...

    @abc.abstractmethod
    def kill(self, node_id: int) -> None:
        """Kills the node with SIGKILL; returns when the process has ended."""

    @abc.abstractmethod
    def stop_node(self, node_id: int) -> None:
        """Stops the node cleanly with SIGTERM; returns when the process has ended."""

    @abc.abstractmethod
    def launch_node(self, node_id: int) -> None: ...

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address_of(node_id) for node_id in self.ids)

    def launch(self) -> None:
        for node_id in self.ids:
            self.launch_node(node_id)

    def wait_for_acknowledgement(self) -> None:
        self.wait_until(self._is_complete, "all nodes are registered", START_TIMEOUT_S)

    def _is_complete(self) -> bool:
        return asyncio.run(self._count_active()) == NODES

    async def _count_active(self) -> int:
        # Unlike Metadata, which librdkafka uses, DescribeCluster does not list a node that was fenced a moment ago.
        try:
            async with Admin(self.bootstrap, request_timeout_ms=2_000) as admin:
                return len((await admin.describe_cluster()).brokers)
        except ClientError:
            return 0

    def alive(self) -> bool:
        return len(self.pids()) == NODES

    def _processes(self) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in self.pids().values()]

    # Queries

    def admin(self) -> AdminClient:
        # No logs about unreachable nodes: some are killed on purpose.
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def metadata(self, admin: AdminClient | None = None) -> Any:
        return (admin or self.admin()).list_topics(timeout=10)

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = ADMIN_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if condition():
                    return
            except KafkaException as error:
                why = str(error)
            else:
                why = "not yet"
            if time.monotonic() > deadline:
                raise BrokerFailed(f"{self.name}: not within {timeout_s:g} s: {what} ({why})")
            time.sleep(POLL_INTERVAL_S)

    def leaders(self, name: str, admin: AdminClient | None = None) -> dict[int, int]:
        """Returns leaders by partition."""
        found = self.metadata(admin).topics[name].partitions
        return {index: found[index].leader for index in sorted(found)}

    def is_in_sync(self, names: Sequence[str], admin: AdminClient | None = None) -> bool:
        """Returns whether every partition of these topics has a leader and a full ISR."""
        topics = self.metadata(admin).topics
        return all(
            name in topics
            and bool(topics[name].partitions)
            and all(
                each.leader > 0 and len(each.isrs) == len(each.replicas) == REPLICAS
                for each in topics[name].partitions.values()
            )
            for name in names
        )

    def wait_in_sync(self, *names: str) -> None:
        admin = self.admin()
        self.wait_until(lambda: self.is_in_sync(names, admin), "all replicas are in sync", 120)

    # Changes

    def restart(self, node_id: int) -> None:
        """Restarts a killed node, and waits until it is registered again."""
        self.launch_node(node_id)
        self.wait_for_acknowledgement()

    def create_topics(self, names: Sequence[str], partitions: int, configs: Mapping[str, str] = NO_CONFIGS) -> None:
        """Creates topics with one request; returns after the response."""
        admin = self.admin()
        wanted = {**TOPIC_CONFIG, **configs}
        new = [NewTopic(name, partitions, REPLICAS, config=wanted) for name in names]
        made = admin.create_topics(new, operation_timeout=ADMIN_TIMEOUT_S, request_timeout=ADMIN_TIMEOUT_S)
        for future in made.values():
            future.result(ADMIN_TIMEOUT_S)

    @contextmanager
    def topic(self, partitions: int, configs: Mapping[str, str] = NO_CONFIGS) -> Iterator[str]:
        name = f"bench-{uuid4().hex[:12]}"
        self.create_topics([name], partitions, configs)
        self.wait_in_sync(name)
        yield name
        admin = self.admin()
        admin.delete_topics([name])[name].result(ADMIN_TIMEOUT_S)


class _MoldauNode(Moldau):
    def add(self, *arguments: str) -> None:
        self._command += arguments

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class MoldauCluster(Cluster):
    name = Moldau.name

    def __init__(
        self,
        data_dir: Path,
        durability: Durability,
        commands: Mapping[int, tuple[str, ...]] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`commands` replace the program of some nodes; `settings` are added."""
        self.data_dir = data_dir
        self._nodes = {
            node_id: _MoldauNode(data_dir / f"node-{node_id}", durability, (commands or {}).get(node_id))
            for node_id in self.ids
        }
        voters = ",".join(f"{node_id}@{node.bootstrap}" for node_id, node in self._nodes.items())
        for node_id, node in self._nodes.items():
            wanted = {
                "node.id": str(node_id),
                "cluster.id": CLUSTER_ID,
                "controller.quorum.voters": voters,
                "min.insync.replicas": str(MIN_IN_SYNC),
                "offsets.topic.replication.factor": str(REPLICAS),
                "group.initial.rebalance.delay.ms": "0",
                **(settings or {}),
            }
            for name, value in wanted.items():
                node.add(f"--{name.replace('.', '-')}", value)

    def pids(self) -> dict[int, int]:
        return {node_id: node.pid for node_id, node in self._nodes.items() if node.is_running}

    def address_of(self, node_id: int) -> str:
        return self._nodes[node_id].bootstrap

    def prepare(self) -> None:
        for node in self._nodes.values():
            node.prepare()

    def launch_node(self, node_id: int) -> None:
        self._nodes[node_id].launch()

    def kill(self, node_id: int) -> None:
        self._nodes[node_id].kill()

    def stop_node(self, node_id: int) -> None:
        self._nodes[node_id].stop()

    def stop(self) -> None:
        """Kills the nodes, as for Kafka."""
        for node_id in self.ids:
            self.kill(node_id)


class KafkaCluster(Cluster):
    name = Kafka.name

    def __init__(self, data_dir: Path, durability: Durability) -> None:
        self.data_dir = data_dir
        self._nodes = {node_id: ApacheKafka(data_dir / f"node-{node_id}") for node_id in self.ids}
        voters = ",".join(f"{node}@127.0.0.1:{each.controller_port}" for node, each in self._nodes.items())
        for node_id, node in self._nodes.items():
            node.properties.update(
                {
                    "node.id": str(node_id),
                    "controller.quorum.voters": voters,
                    "min.insync.replicas": str(MIN_IN_SYNC),
                    "offsets.topic.replication.factor": str(REPLICAS),
                    **dict(durability.kafka_properties),
                }
            )
        self._running: set[int] = set()

    def pids(self) -> dict[int, int]:
        return {node_id: self._nodes[node_id].pid for node_id in sorted(self._running)}

    def address_of(self, node_id: int) -> str:
        return self._nodes[node_id].bootstrap

    def prepare(self) -> None:
        with ThreadPoolExecutor(NODES) as threads:
            list(threads.map(ApacheKafka.format, self._nodes.values()))

    def launch_node(self, node_id: int) -> None:
        self._nodes[node_id].start(wait=False)
        self._running.add(node_id)

    def kill(self, node_id: int) -> None:
        self._running.discard(node_id)
        self._nodes[node_id].kill()

    def stop_node(self, node_id: int) -> None:
        self._running.discard(node_id)
        self._nodes[node_id].stop()

    def stop(self) -> None:
        """Kills the nodes: the controlled shutdown of the last one would wait for a missing majority."""
        for node_id in self.ids:
            self.kill(node_id)


def cores(cluster: Cluster, seconds: float) -> float:
    """Returns how many cores all nodes use together during the wait."""
    cpu, began = cluster.cpu_s(), time.monotonic()
    time.sleep(seconds)
    return (cluster.cpu_s() - cpu) / (time.monotonic() - began)
