"""Health of the cluster as an operator sees it: leaders, controller, in-sync replicas and voters."""

import random
import time
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]

from chaos.cluster import ChaosCluster, Machine
from chaos.operator import Operator
from moldau.testing.simulation.checkers.history import Partition

HEALTHY_TIMEOUT_S = 60
REJOIN_TIMEOUT_S = 10
POLL_INTERVAL_S = 0.1
OFFLINE = "partition is offline"
"""Log text of a node for a corrupted log that it does not serve until an operator acts."""


class ClusterUnhealthy(Exception):
    """The cluster did not recover in time."""


class Health:
    def __init__(self, cluster: ChaosCluster, operator: Operator, partitions: Sequence[Partition]) -> None:
        self._cluster = cluster
        self._operator = operator
        self._partitions = partitions
        self._admin = AdminClient(
            {
                "bootstrap.servers": cluster.bootstrap,
                "socket.timeout.ms": 3_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

    def _metadata(self) -> ClusterMetadata:
        return self._admin.list_topics(timeout=5)

    def leader(self, draw: random.Random) -> int:
        topic, index = draw.choice(self._partitions)
        found: int = self._metadata().topics[topic].partitions[index].leader
        return found if found > 0 else 1

    def controller(self) -> int:
        quorum = self._operator.quorum()
        return quorum.leader_id if quorum is not None and quorum.leader_id > 0 else 1

    def problem(self) -> str | None:
        return self._partition_problem() or self._quorum_problem()

    def _partition_problem(self) -> str | None:
        # Metadata may still list a node that died a moment ago, so check the processes.
        starting = [each.node_id for each in self._cluster.machines.values() if not each.is_ready]
        if starting:
            return f"nodes {starting} are not ready"
        try:
            metadata = self._metadata()
        except KafkaException as error:
            return f"no response to a metadata request: {error}"
        missing = sorted(set(self._cluster.machines) - set(metadata.brokers))
        if missing:
            return f"nodes {missing} are not registered"
        for topic in metadata.topics.values():
            for partition in topic.partitions.values():
                if partition.leader < 0 or sorted(partition.isrs) != sorted(partition.replicas):
                    return (
                        f"{topic.topic}-{partition.id} is led by {partition.leader}, "
                        f"in sync are {sorted(partition.isrs)} of {sorted(partition.replicas)}"
                    )
        return None

    def _quorum_problem(self) -> str | None:
        quorum = self._operator.quorum()
        if quorum is None:
            return "no response from the quorum"
        for node_id in self._cluster.machines:
            voter = next((each for each in quorum.voters if each.node_id == node_id), None)
            if voter is None:
                return f"node {node_id} is not a voter"
            if node_id in [each.node_id for each in quorum.observers]:
                return f"node {node_id} has another directory than the voter of its id"
            if voter.end_offset < quorum.high_watermark:
                return f"voter {node_id} is at {voter.end_offset} of {quorum.high_watermark}"
        return None

    def has_lost_vote(self, machine: Machine) -> bool:
        """Returns whether the node observes the quorum with another directory than its voter has."""
        quorum = self._operator.quorum()
        return quorum is not None and machine.node_id in [each.node_id for each in quorum.observers]

    def wait(self, timeout_s: float = HEALTHY_TIMEOUT_S) -> float:
        """Waits until all nodes are registered and every replica is in sync; returns the seconds that took."""
        return wait_until_none(self.problem, timeout_s)

    # Nodes with corrupted files

    def rejoins(self, machine: Machine) -> bool:
        """Returns whether the node starts, joins, votes and has all its replicas in sync again."""
        deadline = time.monotonic() + REJOIN_TIMEOUT_S
        while time.monotonic() < deadline:
            if not machine.is_running or OFFLINE in machine.node.output():
                return False
            if self._partition_problem() is None:
                return not self.has_lost_vote(machine)
            time.sleep(POLL_INTERVAL_S)
        return False

    def failure_reason(self, machine: Machine) -> str:
        lines = machine.node.output().strip().splitlines()
        offline = [line for line in lines if OFFLINE in line]
        if machine.is_running and not offline:
            return self.problem() or "healthy now"
        return [*lines, *offline][-1] if lines else "no output"


def wait_until_none(find_problem: Callable[[], str | None], timeout_s: float) -> float:
    """Polls until there is no problem; returns the seconds that took."""
    began = time.monotonic()
    while (problem := find_problem()) is not None:
        if time.monotonic() - began > timeout_s:
            raise ClusterUnhealthy(f"after {timeout_s:.0f} s: {problem}")
        time.sleep(POLL_INTERVAL_S)
    return time.monotonic() - began
