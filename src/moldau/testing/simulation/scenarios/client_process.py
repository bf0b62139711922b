"""Client programs, each on its own simulated host. A program can be stopped, killed and started again."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from moldau.client.errors import KafkaError
from moldau.testing.simulation.checkers.history_groups import GroupHistory
from moldau.testing.simulation.platform.simulation import Host, Simulation
from moldau.testing.simulation.scenarios.outcome import ScenarioError, format_error
from moldau.testing.simulation.workloads.groups import ClusterFactory, ClusterWorkload, GroupMember, GroupMemberPlan
from moldau.testing.simulation.workloads.recorder import RecordingCluster

T = TypeVar("T")

REQUEST_TIMEOUT_MS = 5_000


async def run_client(host: Host, operation: Coroutine[Any, Any, T]) -> T:
    """Runs a client operation against healthy nodes. Raises ScenarioError if the operation fails."""
    try:
        return await host.run(operation)
    except KafkaError as error:
        raise ScenarioError(f"request to a healthy node failed: {error!r}") from error


@dataclass(eq=False)
class ClientProcess:
    host: Host
    create_program: Callable[[Host], ClusterWorkload]
    _program: ClusterWorkload | None = field(default=None, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _is_stop_requested: bool = field(default=False, init=False)

    @property
    def is_running(self) -> bool:
        if self._task is not None and self._task.done():
            self._raise_failure(self._task)
        return self._task is not None

    @property
    def is_active(self) -> bool:
        """Whether the program is running and `stop` was not called."""
        return self.is_running and not self._is_stop_requested

    def start(self) -> None:
        if not self.is_running:
            self._is_stop_requested = False
            self._program = self.create_program(self.host)
            self._task = self.host.spawn(self._program.run(), name=self._program.name)

    def stop(self) -> None:
        if self._program is not None:
            self._is_stop_requested = True
            self._program.stop()

    def kill(self) -> None:
        self._task = None
        self.host.kill()
        self.host.restart()

    async def wait_stopped(self) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            self._raise_failure(self._task)

    def _raise_failure(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if (error := task.exception()) is not None:
            raise ScenarioError(f"{task.get_name()} failed: {format_error(error)}") from error


@dataclass(eq=False)
class GroupClients:
    """Creates the clients of a scenario. All clients record into one group history."""

    simulation: Simulation
    hosts: list[Host]
    """Client hosts. Each group member adds a host."""
    bootstrap: str
    history: GroupHistory
    metadata_max_age_ms: int

    def open_cluster(self, client_id: str) -> RecordingCluster:
        """Opens a cluster client on the first client host, which is never taken down."""
        return self._open_cluster(self.hosts[0], client_id)

    def member_process(self, name: str, plan: GroupMemberPlan) -> ClientProcess:
        """Adds a host for a group member."""
        return self.process(
            name, lambda label, draw, open_cluster: GroupMember(label, draw, open_cluster, plan, self.history)
        )

    def process(
        self, name: str, create_program: Callable[[str, random.Random, ClusterFactory], ClusterWorkload]
    ) -> ClientProcess:
        """Adds a host for a client program. Each start of the process has a new name, which is its client id, and its
        own random stream."""
        incarnations = itertools.count()

        def create(host: Host) -> ClusterWorkload:
            label = f"{name}-{next(incarnations)}"
            return create_program(label, self.simulation.random_for(label), partial(self._open_cluster, host))

        self.hosts.append(self.simulation.add_host(name))
        return ClientProcess(self.hosts[-1], create)

    def _open_cluster(self, host: Host, client_id: str) -> RecordingCluster:
        return RecordingCluster(
            self.bootstrap,
            self.history,
            client_id=client_id,
            clock=host.platform.clock,
            random=host.platform.random,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            metadata_max_age_ms=self.metadata_max_age_ms,
        )
