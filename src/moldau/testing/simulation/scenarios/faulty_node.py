"""A node with a fault injector: crashes at any point, disk errors and network faults. `heal` ends all faults.

Scenarios add the workloads.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NoReturn, TypeVar

from moldau.settings.broker import BrokerSettings
from moldau.testing.simulation.checkers.history import LogContent, Partition
from moldau.testing.simulation.platform.disk import DiskSettings
from moldau.testing.simulation.platform.network import NetworkSettings
from moldau.testing.simulation.platform.simulation import HostCrashed, Simulation
from moldau.testing.simulation.scenarios.client_process import run_client
from moldau.testing.simulation.scenarios.outcome import ScenarioError, SimulationOutcome
from moldau.testing.simulation.scenarios.server import DATA_DIR, PORT, ServerHost
from moldau.testing.simulation.workloads.client import LATEST, RawClient

T = TypeVar("T")

BAD_DISK_START_TIMEOUT_S = 30
"""The time after which the bad disk of a starting node is repaired. A node with a full disk waits for free space."""

PROFILES: Mapping[str, Sequence[str]] = {
    "power cuts": ("crash", "crash", "crash", "kill", "restart"),
    "kills": ("kill", "kill", "restart", "crash", "clock"),
    "network": ("cut", "reset", "crash", "delay", "clock"),
    "bad disk": ("sync error", "append error", "read error", "directory error", "crash", "kill"),
    "full disk": ("full", "full", "crash", "kill"),
    "everything": ("crash", "kill", "restart", "clock", "cut", "reset", "sync error", "append error", "full"),
}


class FaultyNode:
    def __init__(self, scenario: str, seed: int, *, sync_ms_max: Sequence[float], ignored_fsync_glob: str) -> None:
        """`sync_ms_max` lists the possible maximum durations of a sync. Syncs of files that match `ignored_fsync_glob`
        make nothing durable."""
        self.random = draw = random.Random(f"{seed}/plan")
        self.simulation = Simulation(
            seed,
            network=NetworkSettings(
                slow_packet_chance=draw.choice((0, 0.01, 0.05)), partial_read_chance=draw.random() / 2
            ),
        )
        self.outcome = SimulationOutcome(scenario, seed, draw.choice(sorted(PROFILES)))
        disk = DiskSettings(
            sync_ms_max=draw.choice(sync_ms_max),
            slow_sync_chance=draw.choice((0, 0.02)),
            ignored_fsync_glob=ignored_fsync_glob,
        )
        host = self.simulation.add_host("server", disk=disk)
        self.clients = [self.simulation.add_host("clients")]
        """Client hosts. The first host is never taken down, so that observers can run on it."""
        self.server = ServerHost(host, BrokerSettings(listen=(f"{host.address}:{PORT}",), data_dir=DATA_DIR), _fail)
        self.partitions: Sequence[Partition] = ()
        """Partitions whose files disk faults may target."""

    # Faults

    async def inject_faults(self, fault_interval_s_max: float = 2) -> None:
        """Injects faults one after the other, and returns when the node is up. The seed selects the faults."""
        for _ in range(self.random.randint(2, 6)):
            await asyncio.sleep(self.random.uniform(0.05, fault_interval_s_max))
            await self._inject_fault(self.random.choice(PROFILES[self.outcome.profile]))

    async def _inject_fault(self, action: str) -> None:
        self.outcome.counts["faults"] += 1
        network, draw = self.simulation.network, self.random
        match action:
            case "crash" | "kill":
                await self._take_down(action)
                await self._boot_with_crashes()
            case "restart":
                await self.restart()
            case "clock":
                self.server.host.clock.jump(draw.choice((-3_600_000, -1000, 1000, 3_600_000)))
            case "cut":
                network.partition({"server"}, self._affected_clients(), one_way=draw.random() < 0.3)
                await asyncio.sleep(draw.uniform(0.01, 15))
                network.heal()
            case "delay":
                network.delay({"server"}, self._affected_clients(), draw.uniform(1, 200))
                await asyncio.sleep(draw.uniform(0.1, 3))
                network.heal()
            case "reset":
                network.reset({"server"}, self._affected_clients())
            case "full":
                self.server.fill_disk(draw.randint(0, 20_000))
                await self._run_on_bad_disk()
            case _:
                operation = {"directory error": "sync_directory"}.get(action, action.split()[0])
                path = draw.choice(("*", "*.log", f"*{draw.choice(self.partitions)[0]}*"))
                times = draw.choice((1, 3, None))
                self.server.inject(operation, path, after=draw.randint(0, 10), times=times)
                await self._run_on_bad_disk()

    def _affected_clients(self) -> Sequence[str]:
        """Returns the names of the clients that a network fault affects: all clients or some of them."""
        names = [host.name for host in self.clients]
        if len(names) == 1 or self.random.random() < 0.5:
            return names
        return self.random.sample(names, self.random.randint(1, len(names) - 1))

    async def _run_on_bad_disk(self) -> None:
        """Lets the node run on a bad disk, then repairs the disk and restarts the node, as an operator would."""
        await asyncio.sleep(self.random.uniform(0.1, 3))
        if self.random.random() < 0.3:
            await self._take_down()
            booting = asyncio.create_task(self._boot_with_crashes())
            await asyncio.wait([booting], timeout=BAD_DISK_START_TIMEOUT_S)
            self.server.repair_disk()
            await booting
        self.server.repair_disk()
        await self._take_down()
        self.server.is_disk_bad = False
        await self.server.boot_and_wait()

    async def _take_down(self, kind: str | None = None) -> None:
        kind = kind or self.random.choice(("crash", "kill"))
        self.outcome.counts["crashes"] += 1
        if kind == "crash":
            self.server.crash()
        else:
            self.server.kill()
        await asyncio.sleep(self.random.choice((0.001, 0.2, 2)))
        self.server.host.restart()

    async def _boot_with_crashes(self) -> None:
        """Starts the node. Sometimes takes it down while it starts, and starts it again."""
        while self.random.random() < 0.3:
            booting = asyncio.create_task(self.server.boot_and_wait())
            await asyncio.sleep(self.random.expovariate(1 / 0.02))
            was_done = booting.done()
            await self._take_down()
            try:
                await booting
            except HostCrashed:
                assert not was_done
        await self.server.boot_and_wait()

    def heal(self) -> None:
        self.simulation.network.heal()
        self.server.repair_disk()

    async def restart(self) -> None:
        """Stops the node cleanly and starts it in a new process."""
        await self.server.stop()
        await self.server.boot_and_wait()

    # Client operations

    async def run_client(self, operation: Callable[[RawClient], Awaitable[T]]) -> T:
        """Runs a client operation against a healthy node."""

        async def run() -> T:
            client = await self.connect("observer")
            try:
                return await operation(client)
            finally:
                client.close()

        return await run_client(self.clients[0], run())

    async def end_offset(self, partition: Partition) -> int:
        return await self.run_client(lambda client: client.list_offset(partition, LATEST))

    async def read_logs(self, partitions: Iterable[Partition]) -> dict[Partition, LogContent]:
        """Returns the records by partition. Reports a violation for a partition that cannot be read, and omits it."""
        logs: dict[Partition, LogContent] = {}
        for partition in partitions:
            try:
                end = await self.end_offset(partition)
                logs[partition] = await self.run_client(partial(RawClient.read_all, partition=partition, until=end))
            except ScenarioError as error:
                self.outcome.add_violation(f"{partition[0]}-{partition[1]} cannot be read: {error}")
        return logs

    async def connect(self, client_id: str) -> RawClient:
        return await RawClient.connect(self.server.name, PORT, client_id)


def _fail(what: str) -> NoReturn:
    raise ScenarioError(what)
