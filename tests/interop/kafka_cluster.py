"""A cluster of Apache Kafka nodes on local ports, which tests kill and restart one by one."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from apache_kafka import ApacheKafka


class KafkaCluster:
    """Nodes with broker and controller roles, by id from 1. Entering the context starts all of them, leaving it kills
    those that still run."""

    def __init__(self, directory: Path, count: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self.nodes = {node: ApacheKafka(directory / f"node-{node}", heap="256m") for node in range(1, count + 1)}
        voters = ",".join(f"{node}@127.0.0.1:{each.controller_port}" for node, each in self.nodes.items())
        for node, each in self.nodes.items():
            each.properties.update(
                {
                    "node.id": str(node),
                    "controller.quorum.voters": voters,
                    "default.replication.factor": "3",
                    "min.insync.replicas": "2",
                    "offsets.topic.replication.factor": "3",
                    "transaction.state.log.replication.factor": "3",
                    "transaction.state.log.min.isr": "2",
                    "broker.session.timeout.ms": "3000",
                    "broker.heartbeat.interval.ms": "500",
                    "controlled.shutdown.enable": "true",
                    **(settings or {}),
                }
            )

    @property
    def bootstrap(self) -> str:
        return ",".join(each.bootstrap for each in self.nodes.values())

    def __enter__(self) -> Self:
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(ApacheKafka.format, self.nodes.values()))
        try:
            for each in self.nodes.values():
                each.start(wait=False)
            for each in self.nodes.values():
                each.wait_until_open()
        except BaseException:
            self._kill_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_all()

    def _kill_all(self) -> None:
        for each in self.nodes.values():
            each.kill()

    def kill(self, node_id: int) -> None:
        self.nodes[node_id].kill()

    def start(self, node_id: int) -> None:
        self.nodes[node_id].start()
