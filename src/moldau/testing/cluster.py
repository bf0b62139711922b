"""An in-process cluster for tests: several nodes, each in its own thread, with real TCP between them and data in files.

with Cluster(3, topics={"orders": 6}) as cluster:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    cluster.kill(cluster.controller_id)
    ...
    cluster.restart(1)

Node ids start at 1. Faults affect nodes and the network between them; clients reach every running node. With three
nodes or more, topics have three replicas and min.insync.replicas is 2. Other settings are those of `Broker`.
"""

import shutil
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType

from moldau.node.meta_properties import new_cluster_id
from moldau.node.node import Node
from moldau.platform.system import system_platform
from moldau.settings.broker import BrokerSettings
from moldau.settings.sources import build_settings
from moldau.testing.broker import create_topics
from moldau.testing.links import NodeLinks
from moldau.testing.node_thread import NodeThread

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class Cluster:
    def __init__(
        self,
        nodes: int = 3,
        topics: Iterable[str] | Mapping[str, int] = (),
        settings: Mapping[str, str] | None = None,
        *,
        data_dir: str | Path | None = None,
        racks: Sequence[str] | None = None,
    ) -> None:
        """`topics` are names, or a mapping of names to partition counts. `settings` use Kafka's names and apply to all
        nodes. Without `data_dir`, the data is in a temporary directory, which is removed when the cluster stops."""
        self._topics = topics if isinstance(topics, str | Mapping) else tuple(topics)
        self._overrides = dict(settings or {})
        self._racks = racks
        self._is_temporary_directory = data_dir is None
        self._directory = Path(tempfile.mkdtemp(prefix="moldau-")) if data_dir is None else Path(data_dir)
        self._ports = _free_ports(nodes)
        self._cluster_id = new_cluster_id(system_platform().random)
        self._links = NodeLinks({port: node_id for node_id, port in self._ports.items()})
        self._running: dict[int, NodeThread] = {}
        self._paused: set[int] = set()

    @property
    def bootstrap(self) -> str:
        """Bootstrap addresses of all nodes, comma-separated."""
        return ",".join(f"{HOST}:{port}" for port in self._ports.values())

    @property
    def nodes(self) -> dict[int, Node]:
        """Running nodes by node id."""
        return {node_id: thread.node for node_id, thread in sorted(self._running.items())}

    def address(self, node_id: int) -> str:
        return f"{HOST}:{self._ports[node_id]}"

    @property
    def controller_id(self) -> int:
        """The id of the active controller according to most running nodes. -1 if they know no controller."""
        views = [node.broker.quorum.leader_id for node in self._responsive_nodes()]
        return max(views, key=views.count, default=-1)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Returns the leader according to the newest metadata of the running nodes, or -1 if there is no leader."""
        images = [node.broker.metadata.image for node in self._responsive_nodes()]
        found = max(images, key=lambda image: image.offset).partition(topic, partition)
        return -1 if found is None else found.leader

    def _responsive_nodes(self) -> list[Node]:
        return [node for node_id, node in self.nodes.items() if node_id not in self._paused]

    # Faults

    def kill(self, node_id: int) -> None:
        """Ends the node as SIGKILL would. The node's files are kept for `restart`."""
        self._paused.discard(node_id)
        self._running.pop(node_id).kill()

    def stop(self, node_id: int) -> None:
        """Shuts the node down cleanly. The node hands over its leaderships. A paused node is resumed first."""
        self.resume(node_id)
        thread = self._running.pop(node_id)
        try:
            thread.stop().result(STOP_TIMEOUT_S)
        finally:
            thread.join()

    def restart(self, node_id: int) -> None:
        """Starts a node with its data and returns when it serves requests. A running node is stopped first."""
        if node_id in self._running:
            self.stop(node_id)
        self._start_nodes([node_id])

    def pause(self, node_id: int) -> None:
        """Suspends the node as SIGSTOP would."""
        if node_id not in self._paused:
            self._running[node_id].pause()
            self._paused.add(node_id)

    def resume(self, node_id: int) -> None:
        self._paused.discard(node_id)
        self._running[node_id].resume()

    def partition(self, node_id: int, *others: int, one_way: bool = False) -> None:
        """Drops all traffic between a node and other nodes without closing connections.

        Without `others`, all other nodes are affected. With `one_way`, only traffic that the node sends is dropped.
        """
        for other in others or [each for each in self._ports if each != node_id]:
            directions = [(node_id, other)] if one_way else [(node_id, other), (other, node_id)]
            self._links.block(directions)

    def heal(self) -> None:
        """Ends all network partitions."""
        self._links.heal()

    # Start and stop

    def __enter__(self) -> "Cluster":
        try:
            self._start_nodes(list(self._ports))
            thread = self._running[1]
            thread.submit(create_topics(thread.node, self._topics)).result()
        except BaseException:
            self._kill_all()
            self._remove_data()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unexpected_errors = 0
        try:
            self.heal()
            for node_id in list(self._paused):
                self.resume(node_id)
            stopping = [(thread, thread.stop()) for thread in self._running.values()]
            for thread, stopped in stopping:
                stopped.result(STOP_TIMEOUT_S)
                unexpected_errors += thread.node.unexpected_errors
            for thread in self._running.values():
                thread.join()
            self._running.clear()
        finally:
            self._kill_all()
            self._remove_data()
        if kind is None and unexpected_errors:
            raise AssertionError(f"{unexpected_errors} requests failed with an unexpected error: see the nodes' log")

    def _start_nodes(self, node_ids: Iterable[int]) -> None:
        starting: list[Future[None]] = []
        for node_id in node_ids:
            thread = NodeThread(
                self._settings(node_id),
                self._links.connector_for(node_id),
                partial(self._links.close_connections, node_id),
            )
            self._running[node_id] = thread
            starting.append(thread.start())
        for started in starting:
            started.result(START_TIMEOUT_S)

    def _settings(self, node_id: int) -> BrokerSettings:
        count = len(self._ports)
        replicas = str(min(3, count))
        settings = {
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "default.replication.factor": replicas,
            "min.insync.replicas": "2" if count >= 3 else "1",
            **self._overrides,
            "node.id": str(node_id),
            "cluster.id": self._cluster_id,
            "listen": self.address(node_id),
            "data.dir": str(self._directory / f"node-{node_id}"),
            "controller.quorum.voters": ",".join(
                f"{voter}@{self.address(voter)}" for voter in list(self._ports)[: min(5, count)]
            ),
        }
        if self._racks is not None:
            settings["broker.rack"] = self._racks[(node_id - 1) % len(self._racks)]
        return build_settings(flags=settings)

    def _kill_all(self) -> None:
        for node_id in list(self._running):
            self.kill(node_id)

    def _remove_data(self) -> None:
        if self._is_temporary_directory:
            shutil.rmtree(self._directory, ignore_errors=True)


def _free_ports(count: int) -> dict[int, int]:
    """Returns free ports by node id. All sockets stay bound until the end, so that no port is chosen twice."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return {number: each.getsockname()[1] for number, each in enumerate(sockets, start=1)}
    finally:
        for each in sockets:
            each.close()
