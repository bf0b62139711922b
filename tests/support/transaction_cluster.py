"""A transactional producer of a cluster: its coordinator may be any node, and may change."""

import time
from collections.abc import Callable
from typing import Any

from moldau.coordinator.java_hash import partition_for
from moldau.testing import Cluster
from moldau.transactions.state_topic import TRANSACTION_STATE_TOPIC
from support.topics import unique
from support.transaction_wire import NONE, NOT_AVAILABLE, NOT_COORDINATOR, Coordinator, Producer
from support.wire import ConnectionClosedError, WireClient

STATE_PARTITIONS = 3
"""transaction.state.log.num.partitions of the cluster."""
PATIENCE_S = 40


class ClusterProducer:
    """A transactional producer that finds its coordinator again after errors."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.id = unique("tx")
        self._coordinator: Coordinator | None = None

    @property
    def coordinator_id(self) -> int:
        return self.cluster.leader_of(TRANSACTION_STATE_TOPIC, partition_for(self.id, STATE_PARTITIONS))

    def run(self, request: Callable[[Coordinator], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < deadline, "no coordinator"
            try:
                if self._coordinator is None:
                    self._coordinator = self._connect()
                result = request(self._coordinator)
            except (OSError, ConnectionClosedError, AssertionError):
                self._coordinator = None
                time.sleep(0.05)
                continue
            if result in (NOT_COORDINATOR, NOT_AVAILABLE):
                self._coordinator = None
                time.sleep(0.05)
                continue
            return result

    def _connect(self) -> Coordinator:
        if not self.coordinator_id >= 0:
            # The first lookup creates the topic.
            with WireClient(self.cluster.address(next(iter(self.cluster.nodes))), 5) as wire:
                Coordinator(wire)
        leader = self.coordinator_id
        assert leader in self.cluster.nodes
        coordinator = Coordinator(WireClient(self.cluster.address(leader), 5))
        coordinator.id = self.id
        return coordinator

    def begin(self, *partitions: tuple[str, int], version: int = 5) -> Producer:
        """Starts a producer, and a transaction with these partitions."""
        producer: Producer = self.run(lambda coordinator: coordinator.init())
        if partitions:
            self.run(lambda coordinator: coordinator.add(producer, *partitions, version=version))
        return producer

    def reconnect(self) -> None:
        """Looks up the coordinator again for the next request."""
        self._coordinator = None

    def end(self, producer: Producer, *, commit: bool, version: int) -> None:
        """Ends the transaction and waits until all markers are written."""
        assert self.run(lambda coordinator: coordinator.end_code(producer, commit=commit, version=version)) == NONE
        self.wait_for("CompleteCommit" if commit else "CompleteAbort")

    def end_once(self, producer: Producer, *, commit: bool) -> int:
        """Returns the error code of the first response."""
        return int(
            self.run(lambda coordinator: coordinator.end_response(producer, commit=commit, version=5)["error_code"])
        )

    def wait_for(self, state: str) -> dict[str, Any]:
        def described(coordinator: Coordinator) -> Any:
            found = coordinator.describe()
            return found if found["transaction_state"] == state else NOT_AVAILABLE

        description: dict[str, Any] = self.run(described)
        return description
