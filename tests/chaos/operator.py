"""What an operator does after a disk has broken: the node gets an empty one, and its vote in the quorum back."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from chaos.cluster import ChaosCluster, Machine
from moldau.client.admin.admin import Admin, QuorumInfo
from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster

T = TypeVar("T")

REQUEST_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 30.0
VOTER_TIMEOUT_S = 60.0
RETRY_INTERVAL_S = 0.3


class OperatorError(Exception):
    """What the operator wanted to do was refused until the end of all patience."""


class Operator:
    def __init__(self, machines: ChaosCluster) -> None:
        self._machines = machines

    def quorum(self) -> QuorumInfo | None:
        """As its leader sees it; None where nobody answers for it."""
        try:
            return call_admin(self._machines.bootstrap, lambda admin: admin.describe_quorum())
        except (KafkaError, TimeoutError):
            return None

    def replace_disk(self, machine: Machine) -> None:
        """The node starts with nothing, fetches everything from the others, and is a voter again."""
        machine.kill()
        shutil.rmtree(machine.data_dir)
        self._change_voters("remove-voter", machine.node_id, is_voter=False)
        machine.start()
        self._change_voters("add-voter", machine.node_id, is_voter=True)

    def give_vote_back(self, machine: Machine) -> None:
        """To a node with another directory than the one that the quorum knows."""
        self._change_voters("remove-voter", machine.node_id, is_voter=False)
        self._change_voters("add-voter", machine.node_id, is_voter=True)

    def _change_voters(self, command: str, node_id: int, *, is_voter: bool) -> None:
        """Until it is so: the controller may be changing, or the node still be starting."""
        deadline = time.monotonic() + VOTER_TIMEOUT_S
        said = "nobody answers for the quorum"
        while time.monotonic() < deadline:
            quorum = self.quorum()
            if quorum is not None:
                if (node_id in [each.node_id for each in quorum.voters]) == is_voter:
                    return
                said = self._moldau("cluster", command, str(node_id))
            time.sleep(RETRY_INTERVAL_S)
        raise OperatorError(f"in {VOTER_TIMEOUT_S:.0f} s: {said}")

    def _moldau(self, *command: str) -> str:
        """What the command said."""
        done = subprocess.run(
            [sys.executable, "-m", "moldau", *command, "--bootstrap", self._machines.bootstrap],
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
            env={name: value for name, value in os.environ.items() if not name.startswith("MOLDAU_")},
        )
        return f"{' '.join(command)}: {(done.stdout + done.stderr).strip()}"


def call_admin(bootstrap: str, question: Callable[[Admin], Awaitable[T]]) -> T:
    async def asked() -> T:
        async with Cluster(bootstrap, request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000)) as cluster:
            return await question(Admin(cluster, timeout_ms=int(REQUEST_TIMEOUT_S * 1000)))

    return asyncio.run(asyncio.wait_for(asked(), REQUEST_TIMEOUT_S + 1))
