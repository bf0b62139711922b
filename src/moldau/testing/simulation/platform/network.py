"""The network between simulated hosts: listeners, partitions and packet delays.

Every host has a name and an address. An incarnation is one run of a host's process. Running code finds its incarnation,
and so its host, in a context variable. `transport.py` transfers the bytes.
"""

import asyncio
import contextvars
import errno
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from moldau.testing.simulation.platform.determinism import DeterminismError
from moldau.testing.simulation.platform.loop import (
    EMPTY_CONTEXT,
    OUTSIDE,
    Incarnation,
    SimulatedLoop,
    current_incarnation,
)
from moldau.testing.simulation.platform.transport import SimulatedTransport

ProtocolFactory = Callable[[], asyncio.BaseProtocol]

EPHEMERAL_PORT_MIN = 32768
SYN_RETRY_MS = 1000
CONNECT_TIMEOUT_MS = 60_000


@dataclass(slots=True)
class NetworkSettings:
    delay_ms_min: float = 0.05
    delay_ms_max: float = 2.0
    slow_packet_chance: float = 0.01
    """Probability that a packet has an additional delay of up to `slow_packet_ms_max`."""
    slow_packet_ms_max: float = 200.0
    loss_chance: float = 0.0
    """Probability that a packet is lost and retransmitted. Later packets of the stream wait for it."""
    retransmit_timeout_ms_min: float = 200.0
    """The first retransmission timeout of a packet. The timeout doubles each time the packet is lost again."""
    duplication_chance: float = 0.0
    """Probability that a packet arrives twice. The receiver of a stream drops the duplicate."""
    window_bytes_min: int = 4 * 1024
    window_bytes_max: int = 256 * 1024
    """The upper limit of a connection's random window. A window is the maximum number of bytes in flight one way."""
    partial_read_chance: float = 0.3
    """Probability that a read returns only part of the received bytes."""


class SimulatedNetwork:
    def __init__(self, loop: SimulatedLoop, randomness: random.Random, settings: NetworkSettings | None = None) -> None:
        self.loop = loop
        self.random = randomness
        self.settings = settings or NetworkSettings()
        self.addresses: dict[str, str] = {}
        self.listeners: dict[tuple[str, int], SimulatedServer] = {}
        self._next_port: dict[str, int] = {}
        self._partitioned: set[tuple[str, str]] = set()
        self._extra_delay_ms: dict[tuple[str, str], float] = {}
        self._transports: dict[int, SimulatedTransport] = {}
        self._transports_created = 0
        self._held_packets: list[tuple[str, str, Callable[[], None]]] = []
        self.down: set[str] = set()
        self.counts: Counter[str] = Counter()
        """The numbers of lost packets and dropped duplicates."""
        self.add_host(OUTSIDE.host)
        loop.network = self

    # Hosts and paths

    def add_host(self, name: str) -> str:
        """Assigns an address to the host and returns it. The host keeps its address across restarts."""
        if name not in self.addresses:
            number = len(self.addresses) + 1
            self.addresses[name] = f"10.0.{number // 250}.{number % 250}"
        return self.addresses[name]

    def partition(self, one: Collection[str], other: Collection[str], *, one_way: bool = False) -> None:
        """Blocks every path between the two sides. With `one_way`, blocks only the paths from `one` to `other`.

        Packets are not lost but arrive after `heal`, because TCP would retransmit them.
        """
        for a, b in _pairs(one, other):
            if a != b:
                self._partitioned.update([(a, b)] if one_way else [(a, b), (b, a)])
        self.loop.trace.add(self.loop.now_ns, "partition", *sorted(one), "|", *sorted(other), int(one_way))

    def delay(self, one: Collection[str], other: Collection[str], milliseconds: float) -> None:
        """Delays every packet between the two sides, in both directions."""
        for a, b in _pairs(one, other):
            self._extra_delay_ms[a, b] = self._extra_delay_ms[b, a] = milliseconds

    def heal_between(self, one: Collection[str], other: Collection[str]) -> None:
        """Ends partitions and delays between the two sides, in both directions."""
        for a, b in _pairs(one, other):
            for path in ((a, b), (b, a)):
                self._partitioned.discard(path)
                self._extra_delay_ms.pop(path, None)
        self.loop.trace.add(self.loop.now_ns, "heal-between", *sorted(one), "|", *sorted(other))
        self._send_held_packets()

    def heal(self) -> None:
        """Ends all partitions and delays."""
        self._partitioned.clear()
        self._extra_delay_ms.clear()
        self.loop.trace.add(self.loop.now_ns, "heal")
        self._send_held_packets()

    def _send_held_packets(self) -> None:
        held, self._held_packets = self._held_packets, []
        for source, target, packet in held:
            self.send(source, target, packet)

    def reset(self, one: Collection[str], other: Collection[str]) -> None:
        """Resets every connection between the two sides. Both ends of a connection see the reset."""
        for transport in list(self._transports.values()):
            if transport.host in one and transport.peer.host in other:
                transport.reset()
                transport.peer.reset()

    def crash(self, host: str, *, silent: bool = False, is_machine_up: bool = False) -> None:
        """Removes the listeners and connections of a host.

        Peers see a reset. With `silent`, peers see the reset only when the host is up again. With `is_machine_up`, only
        the program has ended, so the host refuses new connections. Otherwise the host does not respond.
        """
        if not is_machine_up:
            self.down.add(host)
        for key in [key for key in self.listeners if key[0] == host]:
            del self.listeners[key]
        for transport in list(self._transports.values()):
            if transport.host == host:
                transport.vanish(reset_peer=not silent)

    def restart(self, host: str) -> None:
        self.down.discard(host)
        for transport in list(self._transports.values()):
            if transport.peer.host == host and transport.peer.is_vanished:
                self.send(host, transport.host, transport.reset)

    def send(self, source: str, target: str, packet: Callable[[], None]) -> None:
        """Calls `packet` when the packet arrives at the target. Packets may overtake each other."""
        settings, draw = self.settings, self.random.random
        if source == target:
            delay_ms = 0.005 + 0.045 * draw()
        else:
            delay_ms = settings.delay_ms_min + (settings.delay_ms_max - settings.delay_ms_min) * draw()
            if self._extra_delay_ms:
                delay_ms += self._extra_delay_ms.get((source, target), 0.0)
            if draw() < settings.slow_packet_chance:
                delay_ms += settings.slow_packet_ms_max * draw()
            if settings.loss_chance:
                delay_ms += self._retransmissions_ms()
        self.loop.call_later(delay_ms / 1000, self._arrive, source, target, packet, context=EMPTY_CONTEXT)

    def _retransmissions_ms(self) -> float:
        total_ms, timeout_ms = 0.0, self.settings.retransmit_timeout_ms_min
        while self.random.random() < self.settings.loss_chance:
            self.counts["packets lost"] += 1
            total_ms += timeout_ms
            timeout_ms *= 2
        return total_ms

    def send_in_stream(self, source: str, target: str, packet: Callable[[], None]) -> None:
        """Sends a numbered packet, sometimes twice. The receiver drops the duplicate."""
        self.send(source, target, packet)
        if self.settings.duplication_chance and self.random.random() < self.settings.duplication_chance:
            self.send(source, target, packet)

    def _arrive(self, source: str, target: str, packet: Callable[[], None]) -> None:
        if (source, target) in self._partitioned:
            self._held_packets.append((source, target, packet))
        else:
            packet()

    # Listening

    async def create_server(
        self,
        protocol_factory: ProtocolFactory,
        host: str | list[str] | None,
        port: int | None,
        *,
        sock: object = None,
        ssl: object = None,
        start_serving: bool = True,
        **options: Any,
    ) -> "SimulatedServer":
        if sock is not None or ssl:
            raise DeterminismError("simulated servers take neither a socket nor TLS")
        owner = self._running_incarnation()
        for name in [host] if isinstance(host, str) or host is None else host:
            if self._resolve(name or owner.host) != owner.host and name not in ("", "0.0.0.0", "::"):
                raise OSError(errno.EADDRNOTAVAIL, f"{name} is not an address of {owner.host}")
        port = port or self._allocate_port(owner.host)
        if (owner.host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} of {owner.host} is in use")
        server = SimulatedServer(  # type: ignore[abstract]
            self, owner, protocol_factory, port, contextvars.copy_context()
        )
        if start_serving:
            await server.start_serving()
        return server

    # Connecting

    async def create_connection(
        self,
        protocol_factory: ProtocolFactory,
        host: str | None,
        port: int | None,
        *,
        sock: object = None,
        ssl: object = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if sock is not None or ssl:
            raise DeterminismError("simulated connections take neither a socket nor TLS")
        if host is None or port is None:
            raise ValueError("a connection needs a host and a port")
        owner = self._running_incarnation()
        target = self._resolve(host)
        server = await self._handshake(owner, target, port)
        context = contextvars.copy_context()
        local = (self.addresses[owner.host], self._allocate_port(owner.host))
        remote = (self.addresses[target], port)
        protocol = protocol_factory()
        client_end = SimulatedTransport(self, owner, context, local, remote)
        server_end = SimulatedTransport(self, server.incarnation, server.context.copy(), remote, local)
        client_end.peer, server_end.peer = server_end, client_end
        self.loop.trace.add(self.loop.now_ns, "connect", owner.host, target, port)
        self.loop.call_soon(server.accept, server_end, context=server_end.context)
        opened = self.loop.create_future()
        client_end.open(protocol, opened)
        await opened
        return client_end, protocol

    async def _handshake(self, owner: Incarnation, target: str, port: int) -> "SimulatedServer":
        """Makes one round trip to the listener. Sends the packet again while no response arrives."""
        # The times can be compared, because both are read from the clock of the host that runs this method.
        deadline = self.loop.time() + CONNECT_TIMEOUT_MS / 1000
        while self.loop.time() < deadline:
            response = self._send_syn(owner.host, target, port)
            retry = self.loop.call_later(SYN_RETRY_MS / 1000, _fail_with_timeout, response)
            try:
                server = await response
            except TimeoutError:
                continue
            finally:
                retry.cancel()
            if server is None or not server.is_serving():
                raise ConnectionRefusedError(errno.ECONNREFUSED, f"nothing listens on {target}:{port}")
            return server
        raise TimeoutError(errno.ETIMEDOUT, f"no response from {target}:{port}")

    def _send_syn(self, owner: str, target: str, port: int) -> "asyncio.Future[SimulatedServer | None]":
        response: asyncio.Future[SimulatedServer | None] = self.loop.create_future()

        def at_target() -> None:
            if target not in self.down:
                server = self.listeners.get((target, port))
                self.send(target, owner, lambda: None if response.done() else response.set_result(server))

        self.send(owner, target, at_target)
        return response

    # Bookkeeping

    def register(self, transport: SimulatedTransport) -> int:
        self._transports_created += 1
        self._transports[self._transports_created] = transport
        return self._transports_created

    def unregister(self, number: int) -> None:
        self._transports.pop(number, None)

    def _running_incarnation(self) -> Incarnation:
        incarnation = current_incarnation.get()
        if not incarnation.is_alive:
            raise OSError(errno.ENETDOWN, f"{incarnation.host} has crashed")
        return incarnation

    def _resolve(self, host: str) -> str:
        if host in ("localhost", "127.0.0.1", "::1", "", "0.0.0.0", "::"):
            return current_incarnation.get().host
        if host in self.addresses:
            return host
        for name, address in self.addresses.items():
            if address == host:
                return name
        raise OSError(errno.EHOSTUNREACH, f"no such host: {host}")

    def _allocate_port(self, host: str) -> int:
        port = self._next_port.get(host, EPHEMERAL_PORT_MIN)
        while (host, port) in self.listeners:
            port += 1
        self._next_port[host] = port + 1
        return port


def _pairs(one: Collection[str], other: Collection[str]) -> Iterator[tuple[str, str]]:
    return itertools.product(sorted(one), sorted(other))


def _fail_with_timeout(response: "asyncio.Future[SimulatedServer | None]") -> None:
    if not response.done():
        response.set_exception(TimeoutError())


@dataclass(frozen=True, slots=True)
class SimulatedSocket:
    """A socket that only has an address. Servers use it to show their port."""

    address: tuple[str, int]

    def getsockname(self) -> tuple[str, int]:
        return self.address


class SimulatedServer(asyncio.AbstractServer):
    def __init__(
        self,
        network: SimulatedNetwork,
        incarnation: Incarnation,
        protocol_factory: ProtocolFactory,
        port: int,
        context: contextvars.Context,
    ) -> None:
        self.incarnation = incarnation
        self.port = port
        self._network = network
        self._protocol_factory = protocol_factory
        self.context = context
        """The context that accepted connections copy."""
        self._serving = False
        self._closed = False
        self._connections: dict[int, SimulatedTransport] = {}
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def sockets(self) -> tuple[SimulatedSocket, ...]:
        if self._closed:
            return ()
        return (SimulatedSocket((self._network.addresses[self.incarnation.host], self.port)),)

    def accept(self, transport: SimulatedTransport) -> None:
        self._connections[transport.number] = transport
        transport.on_lost = self._connection_lost
        transport.open(self._protocol_factory(), None)

    def _connection_lost(self, transport: SimulatedTransport) -> None:
        self._connections.pop(transport.number, None)
        self._wake_if_closed()

    def _wake_if_closed(self) -> None:
        if self._closed and not self._connections:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    def is_serving(self) -> bool:
        return self._serving and self.incarnation.is_alive

    async def start_serving(self) -> None:
        if not self._serving and not self._closed:
            self._network.listeners[self.incarnation.host, self.port] = self
            self._serving = True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._serving = False
            key = self.incarnation.host, self.port
            if self._network.listeners.get(key) is self:
                del self._network.listeners[key]
            self._wake_if_closed()

    async def wait_closed(self) -> None:
        """Returns when the server is closed and its last connection has ended, as in Python 3.12 and later."""
        if not (self._closed and not self._connections):
            waiter = self._network.loop.create_future()
            self._waiters.append(waiter)
            await waiter
