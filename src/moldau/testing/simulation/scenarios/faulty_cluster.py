"""A cluster with a fault injector. Nodes crash, pause and restart, disks fail, and the network is partitioned. `heal`
ends all faults.

Scenarios add the workloads.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moldau.settings.broker import BrokerSettings
from moldau.testing.simulation.checkers.invariants import InvariantChecker
from moldau.testing.simulation.platform.disk import DiskSettings
from moldau.testing.simulation.platform.network import NetworkSettings
from moldau.testing.simulation.platform.simulation import Host, Simulation
from moldau.testing.simulation.scenarios.outcome import SimulationOutcome
from moldau.testing.simulation.scenarios.server import DATA_DIR, PORT, ServerHost

CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZQ"
STOP_TIMEOUT_S = 60
CLOCK_DRIFT_MAX = 0.03
"""The maximum share by which a clock runs faster or slower. Leases must be safe with such clocks."""

NODE_DOWN_FAULTS = ("power cuts", "silent power cuts", "kills", "restarts", "last copies")
POWER_FAULTS = ("power cuts", "power cuts", "silent power cuts", "power cuts of all", "kills", "restarts")
KILL_FAULTS = ("kills", "kills", "kills of all", "restarts", "rolling restarts", "power cuts")
NETWORK_FAULTS = ("isolations", "halves", "one-way cuts", "bridges", "client cuts", "resets", "delays", "losses")
CLUSTER_FAULTS = (*NETWORK_FAULTS, "power cuts of all", "kills of all", "last copies", "rolling restarts")
"""Faults that can be injected even if every node already has a fault."""
DISK_FAULTS = ("sync errors", "append errors", "read errors", "full disks", "power cuts", "kills")

PROFILES: Mapping[str, Sequence[str]] = {
    "power cuts": (*POWER_FAULTS, *POWER_FAULTS, "isolations", "one-way cuts", "pauses"),
    "kills": (*KILL_FAULTS, *KILL_FAULTS, "isolations", "resets"),
    "network": (*NETWORK_FAULTS, *NETWORK_FAULTS, "kills", "power cuts", "pauses", "clock jumps"),
    "pauses": ("pauses", "pauses", "pauses", "isolations", "silent power cuts", "clock jumps", "kills"),
    "bad disks": (*DISK_FAULTS, "isolations", "pauses"),
    # Nodes go down one at a time, so that unsynced records survive in the memory of another node.
    "one at a time": (*NODE_DOWN_FAULTS, "last copies", "pauses", *("isolations", "halves", "bridges") * 2),
    # No node goes down, so that followers often leave and rejoin the ISR under the same leader.
    "flapping": ("isolations", "halves", "one-way cuts", "bridges", "pauses"),
    # Nodes often go down together, so that the metadata quorum has many elections.
    "elections": ("kills of all", "power cuts of all", "kills", "power cuts", "isolations"),
    # One follower of the metadata quorum at a time is isolated or paused. This must not cause an election.
    "rejoins": ("isolations", "isolations", "pauses"),
    "everything": (*POWER_FAULTS, *KILL_FAULTS, *NETWORK_FAULTS, *DISK_FAULTS, "pauses", "clock jumps"),
}


@dataclass(frozen=True, slots=True)
class FaultPlan:
    nodes: int = 3
    profile: str = "everything"
    faults: int = 20
    fault_interval_s: float = 0.8
    """The mean interval between faults. A fault may last longer than this interval, so some faults overlap."""
    fault_duration_s_min: float = 0.0
    fault_duration_s_max: float = 5.0
    sync_ms_max: float = 3.0

    @property
    def is_one_at_a_time(self) -> bool:
        """Whether a node ends uncleanly only after all other nodes have recovered."""
        return self.profile in ("one at a time", "rejoins")

    def needs_healthy_cluster(self, kind: str) -> bool:
        """Returns whether a fault of this kind is injected only when all nodes have recovered."""
        return self.profile == "rejoins" or (self.profile == "one at a time" and kind in NODE_DOWN_FAULTS)


class FaultyCluster:
    def __init__(
        self,
        scenario: str,
        seed: int,
        plan: FaultPlan,
        settings: BrokerSettings,
        lossy_topics: Mapping[str, str],
        durable_topics: Sequence[str],
    ) -> None:
        """`settings` are common to all nodes. `lossy_topics` may lose committed records, for the reason in the value.
        The ISR of `durable_topics` may be shrunk to the leader."""
        self.random = draw = random.Random(f"{seed}/faults")
        self.plan = plan
        self.simulation = Simulation(
            seed,
            network=NetworkSettings(
                slow_packet_chance=draw.choice((0, 0.01, 0.05)),
                partial_read_chance=draw.choice((0, 0.02, 0.2)),
                loss_chance=0 if plan.profile == "rejoins" else draw.choice((0, 0.001, 0.01)),
                duplication_chance=draw.choice((0, 0.01)),
            ),
        )
        self.outcome = SimulationOutcome(scenario, seed, plan.profile)
        names = [f"node-{number}" for number in range(1, plan.nodes + 1)]
        hosts = [self._add_host(name) for name in names]
        voters = tuple(f"{number}@{name}:{PORT}" for number, name in enumerate(names, 1))
        self.servers = [
            ServerHost(
                host,
                replace(
                    settings,
                    node_id=number,
                    cluster_id=CLUSTER_ID,
                    listen=(f"{host.address}:{PORT}",),
                    advertised_listeners=(f"{host.name}:{PORT}",),
                    data_dir=DATA_DIR,
                    quorum_voters=voters if plan.nodes > 1 else (),
                ),
                self.outcome.add_violation,
                STOP_TIMEOUT_S,
                bad_disk_fails_requests=True,
            )
            for number, host in enumerate(hosts, 1)
        ]
        self.clients = [self.simulation.add_host("clients")]
        """Client hosts. The first host is never taken down, so that observers can run on it."""
        self.invariants = InvariantChecker(
            self.servers, self.outcome.add_violation, self.outcome.counts, lossy_topics, self._trace_event
        )
        self.simulation.loop.on_iteration = self.invariants.on_iteration
        self._durable_topics = durable_topics
        self._fault_tasks: list[asyncio.Task[None]] = []

    def _add_host(self, name: str) -> Host:
        draw = self.random
        disk = DiskSettings(sync_ms_max=self.plan.sync_ms_max, slow_sync_chance=draw.choice((0, 0.02)))
        clock_rate = 1 + draw.uniform(-CLOCK_DRIFT_MAX, CLOCK_DRIFT_MAX)
        return self.simulation.add_host(name, disk=disk, clock_rate=clock_rate)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{server.name}:{PORT}" for server in self.servers)

    def server(self, node_id: int) -> ServerHost:
        return self.servers[node_id - 1]

    def _trace_event(self, kind: str, *fields: str | int) -> None:
        self.simulation.trace.add(self.simulation.loop.now_ns, kind, *fields)

    # Start and stop

    async def boot(self) -> None:
        for server in self.servers:
            server.boot()
        await self._wait_until_serving()

    async def heal(self) -> None:
        """Ends all faults and starts the nodes that are down."""
        await asyncio.gather(*self._fault_tasks)
        self._fault_tasks.clear()
        self.simulation.network.heal()
        self.simulation.network.settings.loss_chance = 0
        for server in self.servers:
            if server.host.is_up and server.host.is_paused:
                server.host.resume()
            server.repair_disk()
            if server.is_disk_bad and server.host.is_up:
                server.kill()
            server.is_disk_bad = False
            if server.node is None:
                server.boot()
        await self._wait_until_serving()

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self.servers))

    async def _wait_until_serving(self) -> None:
        await self.outcome.wait_until(
            lambda: all(server.is_serving for server in self.servers), lambda: "all nodes are serving"
        )

    # Faults

    async def inject_faults(self) -> None:
        """Injects the faults of the plan. Some faults start before earlier faults have ended."""
        for _ in range(self.plan.faults):
            await asyncio.sleep(self.random.expovariate(1 / self.plan.fault_interval_s))
            if self.outcome.violations:
                return
            kind = self.random.choice(PROFILES[self.plan.profile])
            for task in self._fault_tasks:
                if task.done():
                    task.result()
            self._fault_tasks = [task for task in self._fault_tasks if not task.done()]
            if self.plan.needs_healthy_cluster(kind) and not await self.outcome.poll_until(self._is_healthy):
                continue
            self._fault_tasks.append(asyncio.create_task(self._inject_fault(kind), name=kind))
            if self.plan.profile == "rejoins":
                await self._fault_tasks[-1]

    def _is_healthy(self) -> bool:
        is_serving = all(server.is_serving and not server.has_fault for server in self.servers)
        return is_serving and self.invariants.is_fully_replicated()

    async def _inject_fault(self, kind: str) -> None:
        available = [server for server in self.servers if not server.has_fault]
        if kind not in CLUSTER_FAULTS and not available:
            # Inject a network fault, because every node already has a fault.
            kind = self.random.choice(NETWORK_FAULTS)
        self.outcome.counts["faults"] += 1
        self.outcome.counts[kind] += 1
        self._trace_event("fault", kind)
        if kind in NETWORK_FAULTS:
            await self._inject_network_fault(kind)
        elif kind in ("power cuts of all", "kills of all"):
            await self._take_down_all(available, "kills" if kind == "kills of all" else "power cuts")
        elif kind == "last copies":
            await self._shrink_isr_to_leader(self.random.choice(self._durable_topics))
        elif kind == "rolling restarts":
            for server in self.servers:
                if not server.has_fault:
                    await self._inject_server_fault(server, "restarts")
        else:
            await self._inject_server_fault(self._choose_target(available), kind)

    def _choose_target(self, servers: Sequence[ServerHost]) -> ServerHost:
        if self.plan.profile == "rejoins":
            return self.random.choice([each for each in servers if each.node_id != self.invariants.controller()])
        leaders = [self.server(node_id) for node_id in self.invariants.leaders()]
        candidates = [server for server in leaders if server in servers]
        if candidates and self.random.random() < 0.6:
            return self.random.choice(candidates)
        return self.random.choice(servers)

    def _draw_duration_s(self) -> float:
        duration_s = self.random.choice((0.05, 0.5, 2.0, self.random.uniform(0, self.plan.fault_duration_s_max)))
        return max(duration_s, self.plan.fault_duration_s_min)

    # Node faults

    async def _inject_server_fault(self, server: ServerHost, kind: str) -> None:
        server.has_fault = True
        self._trace_event("hits", server.name, kind)
        try:
            await self._apply_server_fault(server, kind)
        finally:
            server.has_fault = False

    async def _apply_server_fault(self, server: ServerHost, kind: str) -> None:
        draw = self.random
        match kind:
            case "power cuts" | "silent power cuts" | "kills":
                self._take_down(server, kind)
                await asyncio.sleep(self._draw_duration_s())
                await self._boot_with_crashes(server)
            case "restarts":
                await server.stop()
                await asyncio.sleep(draw.choice((0.01, 0.5, 2)))
                await self._boot_with_crashes(server)
                # Wait only for a short time, because this node cannot serve while too many other nodes are down.
                await self.outcome.poll_until(lambda: server.is_serving, 5)
            case "pauses":
                if server.host.is_up:
                    server.host.pause()
                    await asyncio.sleep(draw.choice((0.5, 2.0, 4.0, draw.uniform(0, 8))))
                    server.host.resume()
            case "clock jumps":
                server.host.clock.jump(draw.choice((-3_600_000, -1000, 1000, 3_600_000)))
            case _:
                await self._inject_disk_fault(server, kind)

    def _take_down(self, server: ServerHost, kind: str) -> None:
        if not server.host.is_up:
            return
        if kind == "kills":
            server.kill()
        else:
            server.crash(silent=kind == "silent power cuts" or self.random.random() < 0.3)

    async def _boot_with_crashes(self, server: ServerHost) -> None:
        """Starts the node. Sometimes crashes it again during its recovery."""
        server.boot()
        while self.random.random() < 0.2:
            await asyncio.sleep(self.random.expovariate(1 / 0.05))
            self._take_down(server, "power cuts")
            await asyncio.sleep(0.01)
            server.boot()

    async def _take_down_all(self, servers: Sequence[ServerHost], kind: str) -> None:
        """Takes the nodes down at once, and starts them one after the other."""
        for server in servers:
            server.has_fault = True
            self._take_down(server, kind)
        for server in self.random.sample(servers, len(servers)):
            await asyncio.sleep(self.random.choice((0, 0.01, 0.5, 2.0)))
            await self._boot_with_crashes(server)
            server.has_fault = False

    async def _inject_disk_fault(self, server: ServerHost, kind: str) -> None:
        """Makes a disk fail. Later repairs the disk and restarts the node, as an operator would."""
        draw = self.random
        if kind == "full disks":
            server.fill_disk(draw.randint(0, 20_000))
        else:
            path = draw.choice(("*", "*.log", "*/__cluster_metadata-0/*"))
            server.inject(kind.split()[0], path, after=draw.randint(0, 10), times=draw.choice((1, 3, None)))
        await asyncio.sleep(draw.uniform(0.1, 3))
        if draw.random() < 0.3:
            self._take_down(server, draw.choice(("power cuts", "kills")))
            await asyncio.sleep(0.1)
            server.boot()
            await asyncio.sleep(draw.uniform(0.1, 1))
        server.repair_disk()
        self._take_down(server, draw.choice(("power cuts", "kills")))
        server.is_disk_bad = False
        server.boot()

    async def _shrink_isr_to_leader(self, topic: str) -> None:
        """Shrinks the ISR of a topic to its leader, then isolates the leader.

        One follower leaves the ISR because it is isolated. Another follower restarts after a power cut. No node except
        the leader has all committed records, so no other node may become leader.
        """
        isr = [self.server(node_id) for node_id in self.invariants.isr_of(topic)]
        if len(isr) < 3:
            return
        leader, isolated, restarted = isr[:3]
        names = [server.name for server in self.servers]
        self.simulation.network.partition([isolated.name], names)
        try:
            restarted.has_fault = True
            if await self.outcome.poll_until(lambda: isolated.node_id not in self.invariants.isr_of(topic), 10):
                self._take_down(restarted, "power cuts")
                await asyncio.sleep(self.random.choice((0.01, 0.5)))
                restarted.boot()
                await self.outcome.poll_until(lambda: self.invariants.is_registered(restarted.node_id), 10)
                self.simulation.network.partition([leader.name], names)
        finally:
            self.simulation.network.heal_between([isolated.name], [name for name in names if name != leader.name])
            restarted.has_fault = False
        await asyncio.sleep(5)
        self.simulation.network.heal_between([leader.name], names)
        self.simulation.network.heal_between([isolated.name], names)

    # Network faults

    async def _inject_network_fault(self, kind: str) -> None:
        network, draw = self.simulation.network, self.random
        names = [server.name for server in self.servers]
        shuffled = draw.sample(names, len(names))
        clients = [host.name for host in self.clients]
        one = self._choose_target(self.servers).name
        others = [name for name in names if name != one]
        match kind:
            case "isolations":
                with_clients = draw.choice(([], clients))
                await self._partition_network([one], [*others, *with_clients])
            case "halves":
                middle = len(names) // 2
                await self._partition_network(shuffled[:middle], shuffled[middle:])
            case "one-way cuts":
                pair = draw.choice((([one], others), (others, [one]), ([one], others[:1])))
                await self._partition_network(*pair, one_way=True)
            case "bridges":
                # The first shuffled node reaches both sides of the partition.
                middle = 1 + (len(names) - 1) // 2
                await self._partition_network(shuffled[1:middle], shuffled[middle:])
            case "client cuts":
                await self._partition_network([one], clients, one_way=draw.random() < 0.3)
            case "resets":
                network.reset([one], [*others, *clients])
            case "delays":
                network.delay([one], [*others, *clients], draw.uniform(1, 200))
                await asyncio.sleep(self._draw_duration_s())
                network.heal_between([one], [*others, *clients])
            case _:
                normal_chance, network.settings.loss_chance = (network.settings.loss_chance, draw.choice((0.05, 0.2)))
                await asyncio.sleep(self._draw_duration_s())
                network.settings.loss_chance = min(normal_chance, network.settings.loss_chance)

    async def _partition_network(self, one: Sequence[str], other: Sequence[str], *, one_way: bool = False) -> None:
        self.simulation.network.partition(one, other, one_way=one_way)
        await asyncio.sleep(max(0.2, self._draw_duration_s()))
        self.simulation.network.heal_between(one, other)
