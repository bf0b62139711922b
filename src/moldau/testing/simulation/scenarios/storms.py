"""Storms: many clients and brokers need the same nodes at the same moment.

The nodes have processors (`platform/cpu.py`), so a busy node is slow. A storm must not fence a broker whose process is
running, and no such broker may lose its lease.
"""

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from moldau.broker_lifecycle.manager import BrokerLifecycleManager
from moldau.broker_lifecycle.state import Event, HeartbeatFailed
from moldau.client.errors import KafkaError
from moldau.client.net.connection import Connection
from moldau.controller import background_tasks
from moldau.controller.cluster_control import fence_broker
from moldau.controller.state import ControllerState
from moldau.coordinator import CoordinatorResult
from moldau.metadata.image import EMPTY_IMAGE, MetadataImage
from moldau.node.node import Node
from moldau.settings.broker import BrokerSettings
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.platform.cpu import CallbackCost
from moldau.testing.simulation.platform.disk import DiskSettings
from moldau.testing.simulation.platform.network import NetworkSettings
from moldau.testing.simulation.platform.simulation import Host, Simulation
from moldau.testing.simulation.platform.trace import Field, Trace
from moldau.testing.simulation.scenarios.outcome import ScenarioError, capture_log
from moldau.testing.simulation.scenarios.server import DATA_DIR, PORT, ServerHost
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

CLUSTER_ID = "c2ltdWxhdGVkLXN0b3Jtcw"
POLL_S = 0.01
QUIET_S = 3.0
"""The time between two storms."""
OBSERVED_S_MIN = 3.0
"""How long heartbeats and leases are observed at least: the session timeout, since later effects are possible."""
LIMIT_S = 300
DOWN_S = 1.0
"""The time after which killed nodes start again. The controller has fenced them by then."""
REQUEST_TIMEOUT_MS = 30_000
RETRY_MS_MIN = 100
RETRY_MS_MAX = 1_000
CALLBACKS_MAX = 2_000_000_000
ALL_TOPICS = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


@dataclass(frozen=True, slots=True)
class StormPlan:
    brokers: int = 50
    """Nodes that are no voters. Storms restart them."""
    voters: int = 3
    clients: int = 1_000
    topics: int = 100
    partitions: int = 10
    """Partitions per topic, each with up to three replicas."""

    @property
    def partition_count(self) -> int:
        return self.topics * self.partitions


@dataclass(frozen=True, slots=True)
class StormFigures:
    """What a storm took. Times are virtual milliseconds since the start of the storm."""

    name: str
    client_ms: Sequence[float]
    """When each client had metadata that names a serving leader for every partition."""
    led_ms: float
    """When every partition had a serving leader."""
    unfenced_ms: float
    """When no broker was fenced."""
    replicated_ms: float
    """When every replica was in sync."""
    heartbeat_ms: float
    """The longest heartbeat, from sending it to its response, of a broker that stayed up."""
    failed_heartbeats: int
    """Heartbeats of such brokers that got an error or no response."""
    fenced: Sequence[int]
    """Brokers that the controller fenced although their process was running."""
    lost_leases: Sequence[int]
    """Brokers whose lease expired although their process was running."""
    fenced_dead: int
    elections: int
    """By how much the leader epochs of all partitions grew."""
    requests: int
    """Requests that the nodes completed, those of other nodes included."""
    metadata_requests: int
    observed_s: float
    """The virtual time from the start of the storm until everything above was reached."""
    cpu_s: float
    """What the processors of all nodes were busy for in this time."""
    idle_cpu_s: float
    """What they were busy for per second before the storm, with fetches and heartbeats of idle nodes."""
    busiest_cpu_s: float
    longest_wait_ms: float
    """How long a callback waited for the processor of its node at most."""


class _NoTrace(Trace):
    """Keeps no events: a storm has tens of millions."""

    def add(self, time_ns: int, kind: str, *fields: Field) -> None:
        pass

    def add_step(self, time_ns: int, host: str, label: str) -> None:
        pass


@dataclass(slots=True)
class _Observed:
    """What the hooks have seen since the start of the storm."""

    heartbeat_ms: float = 0.0
    failed_heartbeats: int = 0
    fenced: list[int] = field(default_factory=list)
    fenced_dead: list[int] = field(default_factory=list)
    lost_leases: list[int] = field(default_factory=list)


class StormCluster:
    def __init__(self, seed: int, plan: StormPlan, callback_cost: CallbackCost) -> None:
        self.plan = plan
        self.simulation = Simulation(
            seed,
            network=NetworkSettings(partial_read_chance=0.0, window_bytes_min=256 * 1024),
            callback_cost=callback_cost,
            trace=_NoTrace(),
            callbacks_max=CALLBACKS_MAX,
        )
        self._random = self.simulation.random_for("storms")
        self._failures: list[str] = []
        names = [f"node-{number}" for number in range(1, plan.voters + plan.brokers + 1)]
        voters = tuple(f"{number}@{name}:{PORT}" for number, name in enumerate(names[: plan.voters], 1))
        self.servers = [self._add_server(number, name, voters) for number, name in enumerate(names, 1)]
        self._clients = [
            _Client(self.simulation.add_host(f"client-{number}"), self._random.sample(self.servers, len(self.servers)))
            for number in range(plan.clients)
        ]
        self._observed = _Observed()

    def _add_server(self, number: int, name: str, voters: tuple[str, ...]) -> ServerHost:
        host = self.simulation.add_host(name, disk=DiskSettings(slow_sync_chance=0.0), has_cpu=True)
        settings = BrokerSettings(
            node_id=number,
            cluster_id=CLUSTER_ID,
            listen=(f"{host.address}:{PORT}",),
            advertised_listeners=(f"{host.name}:{PORT}",),
            data_dir=DATA_DIR,
            quorum_voters=voters,
            topic_defaults=TopicSettings(min_insync_replicas=2),
        )
        return ServerHost(host, settings, self._failures.append)

    @property
    def restarted(self) -> Sequence[ServerHost]:
        """The nodes that are no voters."""
        return self.servers[self.plan.voters :]

    def run(self, storms: Sequence[str]) -> list[StormFigures]:
        """Runs the storms one after the other on the same cluster."""
        figures: list[StormFigures] = []

        async def main() -> None:
            await self._boot()
            for name in storms:
                figures.append(await self._measure(name, STORMS[name]))
                self._check_failures()
            for server in self.servers:
                server.kill()
            self._check_failures()

        with capture_log(self.simulation.loop, self._failures.append), self._install_hooks():
            self.simulation.run(main, LIMIT_S * 1000 * (len(storms) + 1))
        return figures

    def _check_failures(self) -> None:
        if self._failures:
            raise ScenarioError("\n".join(self._failures))

    async def _boot(self) -> None:
        for server in self.servers:
            server.boot()
        await self._until(lambda: all(server.is_serving for server in self.servers), "all nodes serve")
        await self._create_topics()
        await self._until(self._is_replicated, "all replicas are in sync")
        await self._connect_clients()

    async def _create_topics(self) -> None:
        replicas = min(3, len(self.servers))
        topics = [
            {
                "name": f"topic-{number}",
                "num_partitions": self.plan.partitions,
                "replication_factor": replicas,
                "assignments": [],
                "configs": [],
            }
            for number in range(self.plan.topics)
        ]

        async def create() -> None:
            connection = await Connection.open(self.servers[0].name, PORT, client_id="admin")
            request = {"topics": topics, "timeout": REQUEST_TIMEOUT_MS, "validate_only": False}
            response = await connection.call(ApiKey.CREATE_TOPICS, request, timeout_ms=REQUEST_TIMEOUT_MS)
            if errors := [topic.error_message for topic in response.topics if topic.error_code]:
                raise ScenarioError(f"topics were not created: {errors[0]}")
            connection.close()

        await self._clients[0].host.run(create())

    async def _connect_clients(self) -> None:
        await asyncio.gather(*(each.host.run(each.connect(each.servers[0])) for each in self._clients))

    # Measuring

    async def _measure(self, name: str, storm: "Callable[[StormCluster], Awaitable[None]]") -> StormFigures:
        idle = _Usage(self.servers)
        await asyncio.sleep(QUIET_S)
        idle.add_current()
        self._observed = observed = _Observed()
        before, usage = self._epochs(), _Usage(self.servers)
        start_s = asyncio.get_running_loop().time()

        async def reached(condition: Callable[[], bool], what: str) -> float:
            await self._until(condition, what)
            return (asyncio.get_running_loop().time() - start_s) * 1000

        await storm(self)
        clients = asyncio.gather(*(each.host.run(each.refresh(self._is_complete, start_s)) for each in self._clients))
        led_ms, unfenced_ms, replicated_ms = await asyncio.gather(
            reached(self._is_led, "every partition has a leader"),
            reached(self._is_unfenced, "no broker is fenced"),
            reached(self._is_replicated, "all replicas are in sync"),
        )
        client_ms = await clients
        await asyncio.sleep(max(0.0, start_s + OBSERVED_S_MIN - asyncio.get_running_loop().time()))
        usage.add_current()
        return StormFigures(
            name=name,
            client_ms=client_ms,
            led_ms=led_ms,
            unfenced_ms=unfenced_ms,
            replicated_ms=replicated_ms,
            heartbeat_ms=observed.heartbeat_ms,
            failed_heartbeats=observed.failed_heartbeats,
            fenced=observed.fenced,
            lost_leases=observed.lost_leases,
            fenced_dead=len(observed.fenced_dead),
            elections=self._epochs() - before,
            requests=usage.requests.total(),
            metadata_requests=usage.requests[ApiKey.METADATA],
            observed_s=asyncio.get_running_loop().time() - start_s,
            cpu_s=sum(usage.cpu_s.values()),
            idle_cpu_s=sum(idle.cpu_s.values()) / QUIET_S,
            busiest_cpu_s=max(usage.cpu_s.values()),
            longest_wait_ms=usage.longest_wait_ms,
        )

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = asyncio.get_running_loop().time() + LIMIT_S
        while not condition():
            self._check_failures()
            if asyncio.get_running_loop().time() > deadline_s:
                raise ScenarioError(f"not within {LIMIT_S} s: {what}")
            await asyncio.sleep(POLL_S)

    @property
    def image(self) -> MetadataImage:
        """The latest image of the active controller; of another node if none is active."""
        images = [server.broker.metadata.image for server in self.servers if server.broker is not None]
        return max(images, key=lambda image: image.offset, default=EMPTY_IMAGE)

    @property
    def controller(self) -> ServerHost:
        return next(each for each in self.servers if each.broker is not None and each.broker.controller.is_active)

    def _epochs(self) -> int:
        return sum(each.leader_epoch for topic in self.image.topics.values() for each in topic.partitions)

    def _serving(self) -> set[int]:
        return {server.node_id for server in self.servers if server.is_serving}

    def _is_led(self) -> bool:
        serving, image = self._serving(), self.image
        return len(image.topics) == self.plan.topics and all(
            each.leader in serving for topic in image.topics.values() for each in topic.partitions
        )

    def _is_unfenced(self) -> bool:
        brokers, serving = self.image.brokers, self._serving()
        return len(serving) == len(self.servers) and not any(brokers[each].fenced for each in serving)

    def _is_replicated(self) -> bool:
        image = self.image
        return (
            len(image.topics) == self.plan.topics
            and self._is_unfenced()
            and all(len(each.isr) == len(each.replicas) for topic in image.topics.values() for each in topic.partitions)
        )

    def _is_complete(self, response: Message) -> bool:
        serving = self._serving()
        return len(response.topics) == self.plan.topics and all(
            each.leader_id in serving for topic in response.topics for each in topic.partitions
        )

    # Storms

    async def refresh_metadata(self) -> None:
        """All clients request metadata at once, each from the node that it is connected to."""

    async def use_one_bootstrap_server(self) -> None:
        """All clients connect to the active controller at once, and request metadata there."""
        target = self.controller
        for client in self._clients:
            client.close()
            client.servers = [target, *(each for each in client.servers if each is not target)]

    async def kill_controller(self) -> None:
        """The active controller dies. All brokers turn to the next one, while all clients request metadata."""
        self._restart_later([self.controller])

    async def restart_brokers(self) -> None:
        """All nodes that are no voters die and start again at once, and all clients request metadata."""
        self._restart_later(self.restarted)

    async def restart_all(self) -> None:
        """All nodes lose power and start again at once, and all clients request metadata."""
        self._restart_later(self.servers, power_cut=True)

    def _restart_later(self, servers: Sequence[ServerHost], *, power_cut: bool = False) -> None:
        for server in servers:
            if power_cut:
                server.crash()
            else:
                server.kill()
        loop = asyncio.get_running_loop()
        for server in servers:
            loop.call_later(DOWN_S, server.boot)

    # Hooks

    @contextmanager
    def _install_hooks(self) -> Iterator[None]:
        """Observes heartbeats, leases and decisions to fence a broker."""
        send, step = BrokerLifecycleManager._send_heartbeat, BrokerLifecycleManager._step
        check_lease = BrokerLifecycleManager._check_lease
        leased: set[BrokerLifecycleManager] = set()
        """Brokers whose lease was valid when it was last checked."""

        async def send_heartbeat(manager: BrokerLifecycleManager, effect: Any) -> None:
            loop = asyncio.get_running_loop()
            started_s = loop.time()
            await send(manager, effect)
            self._observed.heartbeat_ms = max(self._observed.heartbeat_ms, (loop.time() - started_s) * 1000)

        def on_event(manager: BrokerLifecycleManager, event: Event) -> None:
            self._observed.failed_heartbeats += isinstance(event, HeartbeatFailed)
            step(manager, event)

        def lease_checked(manager: BrokerLifecycleManager) -> None:
            check_lease(manager)
            if manager.lease.is_valid():
                leased.add(manager)
            elif manager in leased:
                leased.remove(manager)
                self._observed.lost_leases.append(manager._registration.broker_id)

        def fence(state: ControllerState, broker_id: int, broker_epoch: int) -> CoordinatorResult[Any, Any]:
            decision = fence_broker(state, broker_id, broker_epoch)
            if decision.records:
                is_running = self._epoch_of(broker_id) == broker_epoch
                (self._observed.fenced if is_running else self._observed.fenced_dead).append(broker_id)
            return decision

        with (
            mock.patch.object(BrokerLifecycleManager, "_send_heartbeat", send_heartbeat),
            mock.patch.object(BrokerLifecycleManager, "_step", on_event),
            mock.patch.object(BrokerLifecycleManager, "_check_lease", lease_checked),
            mock.patch.object(background_tasks, "fence_broker", fence),
        ):
            yield

    def _epoch_of(self, broker_id: int) -> int:
        """Returns the broker epoch of the running process; -1 if it has not registered."""
        broker = self.servers[broker_id - 1].broker
        return -1 if broker is None else broker.lifecycle.broker_epoch


STORMS: dict[str, Callable[[StormCluster], Awaitable[None]]] = {
    "metadata refresh": StormCluster.refresh_metadata,
    "one bootstrap server": StormCluster.use_one_bootstrap_server,
    "controller dies": StormCluster.kill_controller,
    "brokers restart": StormCluster.restart_brokers,
    "all nodes restart": StormCluster.restart_all,
}


class _Usage:
    """Requests and CPU time of all nodes since the start of a storm. A restarted node counts from zero."""

    def __init__(self, servers: Sequence[ServerHost]) -> None:
        self.requests: Counter[int] = Counter()
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        self.longest_wait_ms = 0.0
        self._servers = servers
        self._before: dict[Node | None, tuple[Counter[int], int]] = {}
        for server in servers:
            self._before[server.node] = _requests(server), _cpu_ns(server)
            if server.host.cpu is not None:
                server.host.cpu.longest_wait_ns = 0

    def add_current(self) -> None:
        for server in self._servers:
            requests, cpu_ns = self._before.get(server.node, (Counter(), 0))
            self.requests += _requests(server) - requests
            self.cpu_s[server.name] += (_cpu_ns(server) - cpu_ns) / 1e9
            if server.host.cpu is not None:
                self.longest_wait_ms = max(self.longest_wait_ms, server.host.cpu.longest_wait_ns / 1e6)


def _requests(server: ServerHost) -> Counter[int]:
    if server.broker is None:
        return Counter()
    return Counter({key: each.count for key, each in server.broker.request_metrics._durations.items()})


def _cpu_ns(server: ServerHost) -> int:
    return 0 if server.host.cpu is None else server.host.cpu.used_ns


@dataclass(eq=False)
class _Client:
    """A client that keeps a connection to a node and wants metadata of all topics."""

    host: Host
    servers: Sequence[ServerHost]
    """The bootstrap servers, in the order in which the client tries them."""
    _connection: Connection | None = None
    _attempts: "itertools.count[int]" = field(default_factory=itertools.count)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def connect(self, server: ServerHost) -> Connection:
        self._connection = await Connection.open(
            server.name, PORT, client_id=self.host.name, timeout_ms=REQUEST_TIMEOUT_MS
        )
        return self._connection

    async def refresh(self, is_complete: Callable[[Message], bool], start_s: float) -> float:
        """Requests metadata until it is complete. Returns the milliseconds since `start_s`. After an error the client
        turns to the next node, with a growing delay."""
        retry_ms = RETRY_MS_MIN
        while True:
            with suppress(KafkaError):
                connection = self._connection
                if connection is None or not connection.is_open:
                    connection = await self.connect(self.servers[next(self._attempts) % len(self.servers)])
                response = await connection.call(ApiKey.METADATA, ALL_TOPICS, timeout_ms=REQUEST_TIMEOUT_MS)
                if is_complete(response):
                    return (asyncio.get_running_loop().time() - start_s) * 1000
            await asyncio.sleep(self.host.platform.random.uniform(0.8, 1.2) * retry_ms / 1000)
            retry_ms = min(2 * retry_ms, RETRY_MS_MAX)
