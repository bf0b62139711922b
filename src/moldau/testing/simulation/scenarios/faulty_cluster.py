"""A cluster under fire: its machines die, pause and come back, their disks fail, the network between them is cut in
every way, and in the end all of it is healed.

Scenarios are the stories that are told with it; it knows nothing of what clients do.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from moldau.settings.broker import BrokerSettings
from moldau.testing.simulation.platform.disk import DiskSettings
from moldau.testing.simulation.platform.network import NetworkSettings
from moldau.testing.simulation.platform.simulation import Host, Simulation
from moldau.testing.simulation.scenarios.outcome import Outcome
from moldau.testing.simulation.scenarios.server import Server

PORT = 9092
DATA_DIR = "/var/moldau"
CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZQ"
LOOK_AGAIN_S = 0.1
HEAL_TIMEOUT_S = 60
CLOCK_DRIFT_MAX = 0.03
"""Leases must hold while clocks run this much too fast or too slow."""

ENDINGS = ("power cuts", "silent power cuts", "kills", "restarts", "last copies")
POWER = ("power cuts", "power cuts", "silent power cuts", "power cuts of all", "kills", "restarts")
KILLS = ("kills", "kills", "kills of all", "restarts", "rolling restarts", "power cuts")
CUTS = ("isolations", "halves", "one-way cuts", "bridges", "client cuts", "resets", "delays", "losses")
DISKS = ("sync errors", "append errors", "read errors", "full disks", "power cuts", "kills")

PROFILES: Mapping[str, Sequence[str]] = {
    "power cuts": (*POWER, *POWER, "isolations", "one-way cuts", "pauses"),
    "kills": (*KILLS, *KILLS, "isolations", "resets"),
    "network": (*CUTS, *CUTS, "kills", "power cuts", "pauses", "clock jumps"),
    "pauses": ("pauses", "pauses", "pauses", "isolations", "silent power cuts", "clock jumps", "kills"),
    "bad disks": (*DISKS, "isolations", "pauses"),
    # What is acknowledged is in the memory of two nodes at least: one that ends uncleanly loses nothing, whatever the
    # network does meanwhile.
    "one at a time": (*ENDINGS, "last copies", "pauses", *("isolations", "halves", "bridges") * 2),
    # Just long enough for followers to fall out of the in-sync set, and not for leaders to change.
    "flapping": ("isolations", "halves", "one-way cuts", "bridges", "pauses"),
    # Between elections there is just enough time for the next one.
    "elections": ("kills of all", "power cuts of all", "kills", "power cuts", "isolations"),
    # Followers of the metadata quorum are away for a while, one at a time: no reason for an election.
    "rejoins": ("isolations", "isolations", "pauses"),
    "everything": (*POWER, *KILLS, *CUTS, *DISKS, "pauses", "clock jumps"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How a seed's cluster is treated."""

    nodes: int = 3
    profile: str = "everything"
    faults: int = 20
    gap_s: float = 0.8
    """Between two faults, on average; they may last longer than that, so some overlap."""
    lasting_s_min: float = 0.0
    lasting_s_max: float = 5.0
    sync_ms_max: float = 3.0
    clock_drift_max: float = CLOCK_DRIFT_MAX

    @property
    def one_at_a_time(self) -> bool:
        """No node ends uncleanly before all the others are back and have everything."""
        return self.profile in ("one at a time", "rejoins")

    def must_wait(self, kind: str) -> bool:
        """Whether a fault begins only when all are back and have everything."""
        return self.profile == "rejoins" or (self.profile == "one at a time" and kind in ENDINGS)


class Eyes(Protocol):
    """What faults aim at."""

    def leaders(self) -> Sequence[int]:
        """The ids of those who lead the quorum or a partition."""

    def controller(self) -> int:
        """The id of the one who leads the quorum, or -1."""

    def is_whole(self) -> bool:
        """Whether every replica has everything."""

    def in_sync_of(self, topic: str) -> Sequence[int]:
        """The replicas in sync of its first partition, the leader first; none where nobody leads."""

    def is_registered(self, node_id: int) -> bool:
        """Whether the life of the node is the one that the cluster knows."""


class ClusterUnderFire:
    def __init__(
        self,
        scenario: str,
        seed: int,
        plan: Plan,
        settings: BrokerSettings,
        *,
        syncs_lie: str = "",
        keep_trace: bool = False,
    ) -> None:
        """`settings` are what all nodes have in common."""
        self.random = draw = random.Random(f"{seed}/faults")
        self.plan = plan
        self.simulation = Simulation(
            seed,
            network=NetworkSettings(
                hiccup_chance=draw.choice((0, 0.01, 0.05)),
                cut_up_chance=draw.choice((0, 0.02, 0.2)),
                loss_chance=0 if plan.profile == "rejoins" else draw.choice((0, 0.001, 0.01)),
                duplication_chance=draw.choice((0, 0.01)),
            ),
            keep_trace=keep_trace,
        )
        self.outcome = Outcome(scenario, seed, plan.profile)
        names = [f"node-{number}" for number in range(1, plan.nodes + 1)]
        hosts = [self._add_host(name, syncs_lie) for name in names]
        voters = tuple(f"{number}@{name}:{PORT}" for number, name in enumerate(names, 1))
        self.servers = [
            Server(
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
                host.disk.settings,
                self.outcome.violated,
            )
            for number, host in enumerate(hosts, 1)
        ]
        self.clients = [self.simulation.add_host("clients")]
        """The hosts at the other end of the network. The first is never taken down: observers ask from there."""
        self.eyes: Eyes
        """Somebody who sees into the nodes."""
        self.squeezed: Sequence[str] = ()
        """Topics whose last copies are worth hitting."""
        self._under_way: list[asyncio.Task[None]] = []

    def _add_host(self, name: str, syncs_lie: str) -> Host:
        draw, drift = self.random, self.plan.clock_drift_max
        disk = DiskSettings(
            sync_ms_max=self.plan.sync_ms_max, slow_sync_chance=draw.choice((0, 0.02)), syncs_lie=syncs_lie
        )
        return self.simulation.add_host(name, disk=disk, clock_rate=1 + draw.uniform(-drift, drift))

    def add_client(self, name: str) -> Host:
        host = self.simulation.add_host(name)
        self.clients.append(host)
        return host

    def wall_ms(self) -> int:
        return self.servers[0].host.clock.wall_ms()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{server.name}:{PORT}" for server in self.servers)

    def server(self, node_id: int) -> Server:
        return self.servers[node_id - 1]

    def note(self, kind: str, *fields: str | int) -> None:
        """Adds to the story of the run."""
        self.simulation.trace.add(self.simulation.loop.now_ns, kind, *fields)

    # Start and end

    async def boot(self) -> None:
        for server in self.servers:
            server.boot()
        await self.wait_until(
            lambda: all(server.is_serving for server in self.servers), lambda: "all nodes serve"
        )

    async def heal(self) -> None:
        """Ends all faults and starts what is down."""
        await asyncio.gather(*self._under_way)
        self._under_way.clear()
        self.simulation.network.heal()
        self.simulation.network.settings.loss_chance = 0
        for server in self.servers:
            if server.host.is_up and server.host.is_paused:
                server.host.resume()
            server.mend_disk()
            if server.is_disk_bad and server.host.is_up:
                server.kill()
            server.is_disk_bad = False
            if not server.is_up:
                server.boot()
        await self.wait_until(
            lambda: all(server.is_serving for server in self.servers), lambda: "all nodes serve"
        )

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self.servers))

    async def wait_until(
        self, is_so: Callable[[], bool], what: Callable[[], str], timeout_s: float = HEAL_TIMEOUT_S
    ) -> bool:
        """Waits for what a healthy cluster does in this time; that it does not is a violation."""
        if await self._comes_true(is_so, timeout_s):
            return True
        if not self.outcome.violations:
            waiting = self.simulation.loop.waiting()
            self.outcome.violated(f"not after {timeout_s} s: {what()}; waiting are:\n{waiting}")
        return False

    async def _comes_true(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Looks again and again; once something was violated there is no point in waiting."""
        deadline = self.simulation.loop.time() + timeout_s
        while not (is_true := is_so()) and not self.outcome.violations:
            if self.simulation.loop.time() > deadline:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        return is_true

    # Faults

    async def endure(self) -> None:
        """The faults of the plan. Some begin before those before them have ended."""
        for _ in range(self.plan.faults):
            await asyncio.sleep(self.random.expovariate(1 / self.plan.gap_s))
            if self.outcome.violations:
                return
            kind = self.random.choice(PROFILES[self.plan.profile])
            self._under_way = [task for task in self._under_way if not _is_over(task)]
            if self.plan.must_wait(kind) and not await self._comes_true(self._is_undisturbed, HEAL_TIMEOUT_S):
                continue
            self._under_way.append(asyncio.create_task(self._act(kind), name=kind))
            if self.plan.profile == "rejoins":
                await self._under_way[-1]

    def _is_undisturbed(self) -> bool:
        return (
            all(server.is_serving and not server.is_taken for server in self.servers) and self.eyes.is_whole()
        )

    async def _act(self, kind: str) -> None:
        if kind in CUTS:
            self._note(kind)
            await self._disturb(kind)
            return
        if kind in ("power cuts of all", "kills of all"):
            await self._take_down_all(kind)
            return
        if kind == "last copies":
            self._note(kind)
            await self._squeeze(self.random.choice(self.squeezed))
            return
        if kind == "rolling restarts":
            self._note(kind)
            for server in self.servers:
                if not server.is_taken:
                    await self._hit(server, "restarts")
            return
        free = [server for server in self.servers if not server.is_taken]
        if not free:
            # All machines are in trouble: the network is left.
            kind = self.random.choice(CUTS)
            self._note(kind)
            await self._disturb(kind)
            return
        self._note(kind)
        await self._hit(self._choose(free), kind)

    def _note(self, kind: str) -> None:
        self.outcome.counts["faults"] += 1
        self.outcome.counts[kind] += 1
        self.note("fault", kind)

    def _choose(self, servers: Sequence[Server]) -> Server:
        if self.plan.profile == "rejoins":
            return self.random.choice([each for each in servers if each.node_id != self.eyes.controller()])
        leading = [self.server(node_id) for node_id in self.eyes.leaders()]
        worthwhile = [server for server in leading if server in servers]
        if worthwhile and self.random.random() < 0.6:
            return self.random.choice(worthwhile)
        return self.random.choice(servers)

    def _lasting_s(self) -> float:
        chosen = self.random.choice((0.05, 0.5, 2.0, self.random.uniform(0, self.plan.lasting_s_max)))
        return max(chosen, self.plan.lasting_s_min)

    # Machines

    async def _hit(self, server: Server, kind: str) -> None:
        server.is_taken = True
        self.note("hits", server.name, kind)
        try:
            await self._suffer(server, kind)
        finally:
            server.is_taken = False

    async def _suffer(self, server: Server, kind: str) -> None:
        draw = self.random
        match kind:
            case "power cuts" | "silent power cuts" | "kills":
                self._take_down(server, kind)
                await asyncio.sleep(self._lasting_s())
                await self._boot_under_fire(server)
            case "restarts":
                await server.stop()
                await asyncio.sleep(draw.choice((0.01, 0.5, 2)))
                await self._boot_under_fire(server)
                # Within reason: others may be away for long.
                await self._comes_true(lambda: server.is_serving, 5)
            case "pauses":
                if server.host.is_up:
                    server.host.pause()
                    await asyncio.sleep(draw.choice((0.5, 2.0, 4.0, draw.uniform(0, 8))))
                    server.host.resume()
            case "clock jumps":
                server.host.clock.jump(draw.choice((-3_600_000, -1000, 1000, 3_600_000)))
            case _:
                await self._spoil_disk(server, kind)

    def _take_down(self, server: Server, kind: str) -> None:
        if not server.host.is_up:
            return
        if kind == "kills":
            server.kill()
        else:
            server.crash(silent=kind == "silent power cuts" or self.random.random() < 0.3)

    async def _boot_under_fire(self, server: Server) -> None:
        """Starts the node, which may be cut short by the next crash at any point of its recovery."""
        server.boot()
        while self.random.random() < 0.2:
            await asyncio.sleep(self.random.expovariate(1 / 0.05))
            self._take_down(server, "power cuts")
            await asyncio.sleep(0.01)
            server.boot()

    async def _take_down_all(self, kind: str) -> None:
        """At once, and back one after the other."""
        free = [server for server in self.servers if not server.is_taken]
        self._note(kind)
        for server in free:
            server.is_taken = True
            self._take_down(server, "kills" if kind == "kills of all" else "power cuts")
        for server in self.random.sample(free, len(free)):
            await asyncio.sleep(self.random.choice((0, 0.01, 0.5, 2.0)))
            await self._boot_under_fire(server)
            server.is_taken = False

    async def _spoil_disk(self, server: Server, kind: str) -> None:
        """A disk that goes bad, is replaced after a while by one with the same content, and the node is started
        again, as an operator does."""
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
        server.mend_disk()
        self._take_down(server, draw.choice(("power cuts", "kills")))
        server.is_disk_bad = False
        server.boot()

    async def _squeeze(self, topic: str) -> None:
        """The in-sync set becomes smaller and smaller: a follower is cut off, another one loses its memory and comes
        back, and then the leader is cut off. Nobody else has all that is committed, and nobody else may lead."""
        in_sync = [self.server(node_id) for node_id in self.eyes.in_sync_of(topic)]
        if len(in_sync) < 3:
            return
        leader, away, doomed = in_sync[:3]
        names = [server.name for server in self.servers]
        self.simulation.network.partition([away.name], names)
        try:
            doomed.is_taken = True
            if await self._comes_true(lambda: away.node_id not in self.eyes.in_sync_of(topic), 10):
                self._take_down(doomed, "power cuts")
                await asyncio.sleep(self.random.choice((0.01, 0.5)))
                doomed.boot()
                await self._comes_true(lambda: self.eyes.is_registered(doomed.node_id), 10)
                self.simulation.network.partition([leader.name], names)
        finally:
            self.simulation.network.mend([away.name], [name for name in names if name != leader.name])
            doomed.is_taken = False
        await asyncio.sleep(5)
        self.simulation.network.mend([leader.name], names)
        self.simulation.network.mend([away.name], names)

    # The network

    async def _disturb(self, kind: str) -> None:
        network, draw = self.simulation.network, self.random
        names = [server.name for server in self.servers]
        shuffled = draw.sample(names, len(names))
        clients = [host.name for host in self.clients]
        one = self._choose(self.servers).name
        others = [name for name in names if name != one]
        match kind:
            case "isolations":
                with_clients = draw.choice(([], clients))
                await self._cut([one], [*others, *with_clients])
            case "halves":
                middle = len(names) // 2
                await self._cut(shuffled[:middle], shuffled[middle:])
            case "one-way cuts":
                pair = draw.choice((([one], others), (others, [one]), ([one], others[:1])))
                await self._cut(*pair, one_way=True)
            case "bridges":
                # The first one sees both halves.
                middle = 1 + (len(names) - 1) // 2
                await self._cut(shuffled[1:middle], shuffled[middle:])
            case "client cuts":
                await self._cut([one], clients, one_way=draw.random() < 0.3)
            case "resets":
                network.reset([one], [*others, *clients])
            case "delays":
                network.delay([one], [*others, *clients], draw.uniform(1, 200))
                await asyncio.sleep(self._lasting_s())
                network.mend([one], [*others, *clients])
            case _:
                usual, network.settings.loss_chance = network.settings.loss_chance, draw.choice((0.05, 0.2))
                await asyncio.sleep(self._lasting_s())
                network.settings.loss_chance = min(usual, network.settings.loss_chance)

    async def _cut(self, one: Sequence[str], other: Sequence[str], *, one_way: bool = False) -> None:
        self.simulation.network.partition(one, other, one_way=one_way)
        await asyncio.sleep(max(0.2, self._lasting_s()))
        self.simulation.network.mend(one, other)


def _is_over(task: "asyncio.Task[None]") -> bool:
    if not task.done():
        return False
    task.result()
    return True
