"""The brokers and Spark masters of a run with kills: what can be killed there, and how it recovers."""

import asyncio
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kills.driver_program import TRIES
from moldau.client.net.cluster import TRANSACTION, Cluster
from moldau.wire.transaction_group_id import group_coordinator_key
from spark.standalone import StandaloneCluster
from support.broker_process_cluster import BrokerProcessCluster
from support.topics import unique

BROKER, LEADER, COORDINATOR, EXECUTOR = "broker", "leader", "coordinator", "executor"
WORKER_HOSTS = ("127.0.0.1", "127.0.0.2")
"""Spark does not run a second attempt on a host that runs the first one, so each worker has its own."""


TASK_START, SPECULATIVE = '"Event":"SparkListenerTaskStart"', '"Speculative":true'


class Brokers(Protocol):
    targets: tuple[str, ...]
    """What can be killed."""
    serves_without_victim: bool
    """Whether queries go on before `recover`."""

    @property
    def bootstrap(self) -> str: ...

    def create_topic(self, partitions: int) -> str: ...

    def kill(self, target: str, chance: random.Random, topic: str, group_id: str) -> str:
        """Kills a broker and returns which one. `group_id` is the transaction group that writes to `topic`."""

    def recover(self, topics: Iterable[str]) -> None:
        """Starts the killed broker and waits until it is in sync."""


class MoldauNodes:
    """Three nodes with three replicas of everything."""

    targets = (BROKER, LEADER, COORDINATOR)
    serves_without_victim = True

    def __init__(self, nodes: BrokerProcessCluster) -> None:
        self._nodes = nodes
        self._killed: int | None = None

    @property
    def bootstrap(self) -> str:
        return self._nodes.bootstrap

    def create_topic(self, partitions: int) -> str:
        topic = unique()
        self._nodes.create_topic(topic, partitions)
        self._nodes.wait_in_sync(topic)
        return topic

    def kill(self, target: str, chance: random.Random, topic: str, group_id: str) -> str:
        if target == BROKER:
            victim = chance.choice(sorted(self._nodes.nodes))
        elif target == LEADER:
            partitions = sorted(self._nodes.metadata().topics[topic].partitions)
            victim = self._nodes.leader_of(topic, chance.choice(partitions))
        else:
            victim = asyncio.run(_coordinator(self.bootstrap, group_id))
        self._nodes.kill(victim)
        self._killed = victim
        return f"node {victim}"

    def recover(self, topics: Iterable[str]) -> None:
        assert self._killed is not None, "no node was killed"
        self._nodes.start(self._killed)
        self._killed = None
        for topic in (*topics, "__transaction_state", "__consumer_offsets"):
            self._nodes.wait_in_sync(topic)


async def _coordinator(bootstrap: str, group_id: str) -> int:
    async with Cluster(bootstrap) as cluster:
        return await cluster.coordinator_of(group_coordinator_key(group_id), TRANSACTION)


@dataclass(frozen=True)
class Master:
    """Where queries run."""

    url: str
    settings: Mapping[str, str] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()
    """The processes of a cluster; executors are below them."""
    slow_s: float = 0.0
    event_log: Path | None = None
    """The directory of Spark's event logs, if tasks may run twice because they are slow (speculation)."""

    def speculative_attempts(self) -> int:
        """Counts the attempts that Spark has started beside a slow one."""
        assert self.event_log is not None
        lines = [line for log in self.event_log.iterdir() for line in log.read_text(errors="replace").splitlines()]
        return sum(TASK_START in line and SPECULATIVE in line for line in lines)


LOCAL = Master(f"local[2,{TRIES}]")

STANDALONE_SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    # The machine may be slow because of other tests, and executors of a killed driver end a little later.
    "spark.moldau.masterTimeout": "120s",
    "spark.moldau.executorTimeout": "120s",
    # A second attempt starts as soon as another task of the stage has ended.
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.interval": "50ms",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}


@contextmanager
def standalone_master(directory: Path) -> Iterator[Master]:
    """Starts a cluster of two workers with one core each; some tasks are slow enough for speculation."""
    event_log = directory / "events"
    event_log.mkdir(parents=True)
    settings = {**STANDALONE_SETTINGS, "spark.eventLog.dir": event_log.as_uri()}
    with StandaloneCluster(directory, workers=2, hosts=WORKER_HOSTS) as cluster:
        yield Master(cluster.url, settings, (EXECUTOR,), cluster.pids, slow_s=1.0, event_log=event_log)
