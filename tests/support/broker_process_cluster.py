"""A cluster of node processes on local ports, which tests kill, pause and restart one by one."""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic  # type: ignore[attr-defined]

from support.broker_process import BrokerProcess
from support.ports import free_port
from support.wire import WireClient

CLUSTER_ID = "c3lzdGVtLXVuZGVyLXRlc3Q"[:22]
RECOVERY_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05
DESCRIBE_QUORUM, DESCRIBE_CLUSTER = 55, 60


def as_environment(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"MOLDAU_{name.upper().replace('.', '_')}": value for name, value in settings.items()}


class BrokerProcessCluster:
    """`nodes` are by id, from 1 on. Entering the context starts all of them, leaving it kills those that still run."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        settings: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        with_http: bool = False,
        node_settings: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        ports = {node_id: free_port() for node_id in range(1, count + 1)}
        self.http_ports = {node_id: free_port() for node_id in ports} if with_http else {}
        voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in ports.items())
        wanted = {
            "cluster.id": CLUSTER_ID,
            "controller.quorum.voters": voters,
            "default.replication.factor": str(min(3, count)),
            "offsets.topic.replication.factor": str(min(3, count)),
            "transaction.state.log.replication.factor": str(min(3, count)),
            "offsets.topic.num.partitions": "4",
            "min.insync.replicas": "2" if count >= 3 else "1",
            "group.initial.rebalance.delay.ms": "0",
            **(settings or {}),
        }
        self.nodes = {
            node_id: BrokerProcess(
                directory / f"node-{node_id}",
                port=port,
                environment=as_environment(
                    {
                        **wanted,
                        "node.id": str(node_id),
                        "broker.rack": (racks or {}).get(node_id, ""),
                        **({"http.port": str(self.http_ports[node_id])} if with_http else {}),
                        **(node_settings or {}).get(node_id, {}),
                    }
                ),
            )
            for node_id, port in ports.items()
        }
        self._ending = ExitStack()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def __enter__(self) -> "BrokerProcessCluster":
        for node in self.nodes.values():
            self._ending.callback(self._end, node)
            node.spawn()
        for node in self.nodes.values():
            node.wait_ready()
        self.wait_until(lambda: len(self.metadata().brokers) == len(self.nodes), "all nodes are in the cluster")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()

    @staticmethod
    def _end(node: BrokerProcess) -> None:
        if node.process is not None:
            node.process.send_signal(signal.SIGCONT)
            node.kill()

    # Queries

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "socket.timeout.ms": 5000})

    def metadata(self) -> ClusterMetadata:
        return self.admin().list_topics(timeout=10)

    def quorum(self) -> tuple[int, int]:
        """Returns leader and epoch of the metadata quorum. The leader is the active controller."""
        tree = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
        found = self._request(DESCRIBE_QUORUM, 0, tree)["topics"][0]["partitions"][0]
        return found["leader_id"], found["leader_epoch"]

    def fenced_brokers(self) -> list[int]:
        tree = {"include_fenced_brokers": True, "endpoint_type": 1}
        brokers = self._request(DESCRIBE_CLUSTER, 2, tree)["brokers"]
        return [each["broker_id"] for each in brokers if each["is_fenced"]]

    def _request(self, api_key: int, version: int, tree: dict[str, Any]) -> dict[str, Any]:
        """Sends a request to the first node that is running."""
        running = next(node for node in self.nodes.values() if node.process is not None)
        with WireClient(running.bootstrap) as wire:
            return wire.request(api_key, version, tree)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        found: int = self.metadata().topics[topic].partitions[partition].leader
        return found

    def isr(self, topic: str, partition: int = 0) -> list[int]:
        return sorted(self.metadata().topics[topic].partitions[partition].isrs)

    def wait_until(self, condition: Callable[[], Any], what: str, timeout_s: float = RECOVERY_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if condition():
                    return
            except Exception as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not within {timeout_s} s: {what}") from error
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout_s} s: {what}")
            time.sleep(POLL_INTERVAL_S)

    def wait_in_sync(self, topic: str) -> None:
        """Waits until every replica of every partition is in sync."""

        def acks_all() -> bool:
            partitions = self.metadata().topics[topic].partitions.values()
            return all(sorted(each.isrs) == sorted(each.replicas) and each.leader > 0 for each in partitions)

        self.wait_until(acks_all, f"all replicas of {topic} are in sync")

    # Changes

    def create_topic(self, topic: str, partitions: int = 1, replicas: int = 3, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        new = NewTopic(topic, partitions, replicas, config=named)
        # The client must exist until the response arrives.
        admin = self.admin()
        admin.create_topics([new], operation_timeout=30, request_timeout=30)[topic].result(40)

    def kill(self, node_id: int) -> None:
        self.nodes[node_id].kill()

    def start(self, node_id: int) -> None:
        self.nodes[node_id].start()

    def pause(self, node_id: int) -> None:
        self._process(node_id).send_signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        self._process(node_id).send_signal(signal.SIGCONT)

    def _process(self, node_id: int) -> Any:
        process = self.nodes[node_id].process
        assert process is not None, f"node {node_id} does not run"
        return process
