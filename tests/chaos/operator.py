"""What an operator does after a disk failure: replaces the disk and adds the node as voter again."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from chaos.cluster import ChaosCluster, Machine
from moldau.client.admin.admin import Admin
from moldau.client.admin.types import QuorumInfo
from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster

T = TypeVar("T")

REQUEST_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 30.0
VOTER_TIMEOUT_S = 60.0
RETRY_INTERVAL_S = 0.3


class OperatorError(Exception):
    """A command of the operator did not succeed in time."""


class Operator:
    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster

    def quorum(self) -> QuorumInfo | None:
        """Returns the quorum as its leader describes it, or None without a response."""
        try:
            return call_admin(self._cluster.bootstrap, lambda admin: admin.describe_quorum())
        except (KafkaError, TimeoutError):
            return None

    def replace_disk(self, machine: Machine) -> None:
        """Restarts the node with an empty disk; it fetches everything and becomes a voter again."""
        machine.kill()
        shutil.rmtree(machine.data_dir)
        self._change_voters("remove-voter", machine.node_id, is_voter=False)
        machine.start()
        self._change_voters("add-voter", machine.node_id, is_voter=True)

    def restore_vote(self, machine: Machine) -> None:
        """Makes a node voter again whose directory is not the one that the quorum knows."""
        self._change_voters("remove-voter", machine.node_id, is_voter=False)
        self._change_voters("add-voter", machine.node_id, is_voter=True)

    def _change_voters(self, command: str, node_id: int, *, is_voter: bool) -> None:
        """Repeats the command until it has taken effect: the controller may be changing, or the node starting."""
        deadline = time.monotonic() + VOTER_TIMEOUT_S
        output = "no response from the quorum"
        while time.monotonic() < deadline:
            quorum = self.quorum()
            if quorum is not None:
                if (node_id in [each.node_id for each in quorum.voters]) == is_voter:
                    return
                output = self._moldau("cluster", command, str(node_id))
            time.sleep(RETRY_INTERVAL_S)
        raise OperatorError(f"in {VOTER_TIMEOUT_S:.0f} s: {output}")

    def _moldau(self, *command: str) -> str:
        """Runs a command; returns its output."""
        done = subprocess.run(
            [sys.executable, "-m", "moldau", *command, "--bootstrap", self._cluster.bootstrap],
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
            env={name: value for name, value in os.environ.items() if not name.startswith("MOLDAU_")},
        )
        return f"{' '.join(command)}: {(done.stdout + done.stderr).strip()}"


def call_admin(bootstrap: str, operation: Callable[[Admin], Awaitable[T]]) -> T:
    async def call() -> T:
        async with Cluster(bootstrap, request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000)) as cluster:
            return await operation(Admin(cluster, timeout_ms=int(REQUEST_TIMEOUT_S * 1000)))

    return asyncio.run(asyncio.wait_for(call(), REQUEST_TIMEOUT_S + 1))
