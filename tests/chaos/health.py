"""Whether the cluster is well, asked as an operator would: who leads, who controls, who is behind."""

import random
import shutil
import time
from collections.abc import Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from chaos.machines import Machine, Machines
from moldau.testing.simulation.history import Partition

WELL_TIMEOUT_S = 90
BACK_TIMEOUT_S = 30
LOOK_AGAIN_S = 0.2


class NotWell(Exception):
    """The cluster did not recover in time."""


class Health:
    def __init__(self, machines: Machines, partitions: Sequence[Partition]) -> None:
        self._machines = machines
        self._partitions = partitions
        self._admin = AdminClient(
            {
                "bootstrap.servers": machines.bootstrap,
                "socket.timeout.ms": 3_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

    def _look(self) -> ClusterMetadata:
        return self._admin.list_topics(timeout=5)

    def leader(self, draw: random.Random) -> int:
        topic, index = draw.choice(self._partitions)
        found: int = self._look().topics[topic].partitions[index].leader
        return found if found > 0 else 1

    def controller(self) -> int:
        found: int = self._look().controller_id
        return found if found > 0 else 1

    def what_is_wrong(self) -> str | None:
        try:
            seen = self._look()
        except KafkaException as error:
            return f"nobody answers: {error}"
        missing = sorted(set(self._machines.machines) - set(seen.brokers))
        if missing:
            return f"nodes {missing} are not there"
        for topic in seen.topics.values():
            for partition in topic.partitions.values():
                if partition.leader < 0 or sorted(partition.isrs) != sorted(partition.replicas):
                    return (
                        f"{topic.topic}-{partition.id} is led by {partition.leader}, "
                        f"in sync are {sorted(partition.isrs)} of {sorted(partition.replicas)}"
                    )
        return None

    def wait(self, timeout_s: float = WELL_TIMEOUT_S) -> float:
        """Until all nodes are there and every replica is in sync; gives the seconds that took."""
        began = time.monotonic()
        while (wrong := self.what_is_wrong()) is not None:
            if time.monotonic() - began > timeout_s:
                raise NotWell(f"after {timeout_s:.0f} s: {wrong}")
            time.sleep(LOOK_AGAIN_S)
        return time.monotonic() - began

    # A node whose files were damaged

    def comes_back(self, machine: Machine) -> bool:
        """Whether it starts, joins and has all its replicas in sync again."""
        deadline = time.monotonic() + BACK_TIMEOUT_S
        while time.monotonic() < deadline:
            if not machine.is_running:
                return False
            if self.what_is_wrong() is None:
                return True
            time.sleep(LOOK_AGAIN_S)
        return False

    def why_not(self, machine: Machine) -> str:
        lines = machine.node.output().strip().splitlines()
        if machine.is_running:
            return self.what_is_wrong() or "it is well now"
        return lines[-1] if lines else "it said nothing"

    def replace_disk(self, machine: Machine) -> None:
        """As after a disk that broke: the node starts with nothing, and fetches everything from the others."""
        machine.kill()
        machine.node.process = None
        shutil.rmtree(machine.data_dir)
        machine.start()
