"""Connection pools: one connection per key, opened on first use and reopened after a loss.

Responses on one connection arrive in the order of the requests. So a request that waits long at the broker (a fetch or
join) delays all later requests. Such requests use a separate lane, which is a connection for one kind of request.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from moldau.client.errors import ClientClosedError, ConnectionLostError, KafkaError, RequestTimedOutError
from moldau.client.net.api_versions import FinalizedFeatures
from moldau.client.net.connection import Connection
from moldau.client.net.metadata import BrokerInfo
from moldau.client.security.channel_security import ChannelSecurity
from moldau.concurrency.tasks import cancel_and_wait, retrieve_exception
from moldau.observe.logging import get_logger

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

Address = tuple[str, int]

_log = get_logger("client.pool")


class ConnectionPool(Generic[K]):
    """Connections by key. Concurrent callers share the attempts to open a connection."""

    def __init__(self, on_disconnect: Callable[[K], None] | None = None) -> None:
        """`on_disconnect` is called when the other side or the network, and not this pool, closes a connection."""
        self._on_disconnect = on_disconnect
        self._connections: dict[K, Connection] = {}
        self._attempts: dict[tuple[K, Address], asyncio.Task[Connection]] = {}
        self.is_closed = False

    def get(self, key: K) -> Connection | None:
        """Returns the connection of this key, or None if no connection is open."""
        connection = self._connections.get(key)
        return connection if connection is not None and connection.is_open else None

    def put(self, key: K, connection: Connection) -> None:
        """Adds a new connection. The previous connection of this key closes when all its responses have arrived."""
        connection.on_disconnect = lambda: self._handle_disconnect(key, connection)
        previous = self._connections.get(key)
        if previous is not None and previous.is_open:
            previous.close_when_idle()
        self._connections[key] = connection

    def attempt(
        self, key: K, address: Address, connect: Callable[[], Coroutine[Any, Any, Connection]], name: str
    ) -> "asyncio.Task[Connection]":
        """Returns the running attempt to open this connection, or starts one in a task of this name."""
        attempt = self._attempts.get((key, address))
        if attempt is None:
            attempt = asyncio.get_running_loop().create_task(connect(), name=name)
            self._attempts[key, address] = attempt
            attempt.add_done_callback(lambda task: self._on_attempt_done(key, address, task))
        return attempt

    def disconnect(self, key: K) -> None:
        """Closes the connection and cancels the attempts to open it."""
        for (attempted, _), attempt in list(self._attempts.items()):
            if attempted == key:
                attempt.cancel()
        connection = self._connections.pop(key, None)
        if connection is not None:
            connection.close()

    def remove(self, keep: Callable[[K], bool], *, when_idle: bool) -> None:
        """Removes the connections for which `keep` is false. With `when_idle`, closes each after its last response."""
        for key in [key for key in self._connections if not keep(key)]:
            connection = self._connections.pop(key)
            if when_idle:
                connection.close_when_idle()
            else:
                connection.close()

    async def close(self) -> None:
        self.is_closed = True
        await cancel_and_wait(*self._attempts.values())
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()

    def _on_attempt_done(self, key: K, address: Address, attempt: "asyncio.Task[Connection]") -> None:
        del self._attempts[key, address]
        retrieve_exception(attempt)

    def _handle_disconnect(self, key: K, connection: Connection) -> None:
        if self._connections.get(key) is connection:
            del self._connections[key]
            if not self.is_closed:
                _log.debug("connection lost", key=key, address=str(connection))
                if self._on_disconnect is not None:
                    self._on_disconnect(key)


class BrokerConnections:
    """A client's connections to the brokers of its cluster, by address and lane."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str,
        random: random.Random,
        timeout_ms: int,
        channel_security: ChannelSecurity | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._random = random
        self._timeout_ms = timeout_ms
        self._channel_security = channel_security
        self._brokers: Mapping[int, BrokerInfo] = {}
        self._pool: ConnectionPool[tuple[Address, str]] = ConnectionPool()
        self._failed_at: dict[Address, float] = {}
        self.finalized_features = FinalizedFeatures()
        """The latest features that a broker has returned."""

    def set_brokers(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Adopts the brokers of new metadata and closes connections to addresses that are no longer used."""
        self._brokers = brokers
        addresses = self._addresses()
        self._pool.remove(lambda key: key[0] in addresses, when_idle=False)

    def close_lane(self, lane: str) -> None:
        for address in self._addresses():
            self._pool.disconnect((address, lane))

    async def close(self) -> None:
        await self._pool.close()

    @property
    def address_count(self) -> int:
        return len(self._addresses())

    async def connection(self, node_id: int | None, lane: str, timeout_ms: int) -> Connection:
        """Returns an open connection to a node (None: the preferred node). Raises KafkaError."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        if node_id is not None:
            broker = self._brokers.get(node_id)
            if broker is None:
                raise ConnectionLostError(f"node {node_id} is not among the brokers of the cluster")
            return await self._connect((broker.host, broker.port), lane, deadline)
        failure: KafkaError | None = None
        addresses = self._addresses_by_preference(lane)
        for number, address in enumerate(addresses):
            now = asyncio.get_running_loop().time()
            # Divide the remaining time among the addresses, because one of them may hang.
            until = now + (deadline - now) / (len(addresses) - number)
            try:
                return await self._connect(address, lane, until)
            except KafkaError as error:
                failure = error
        raise failure or ConnectionLostError("no broker is known")

    def note_failure(self, connection: Connection) -> None:
        """Makes later calls prefer other addresses for a while, because this connection failed."""
        self._failed_at[connection.address] = asyncio.get_running_loop().time()

    def _addresses(self) -> list[Address]:
        """Returns the addresses of the brokers and of the bootstrap servers, each once."""
        brokers = [(each.host, each.port) for each in self._brokers.values()]
        return list(dict.fromkeys([*brokers, *self._bootstrap]))

    def _addresses_by_preference(self, lane: str) -> list[Address]:
        """Returns all addresses, best first: connected before unconnected, then by requests in flight and last failure.

        Addresses that failed recently come last even if they are connected, because an open connection may not have
        noticed the failure yet. Among equals, brokers come before bootstrap servers.
        """
        brokers = [(each.host, each.port) for each in self._brokers.values()]
        self._random.shuffle(brokers)
        recent = asyncio.get_running_loop().time() - self._timeout_ms / 1000

        def preference(address: Address) -> tuple[float, bool, int, float]:
            connection = self._usable_connection(address, lane)
            failed_at = self._failed_at.get(address, 0.0)
            in_flight = 0 if connection is None else connection.in_flight
            return failed_at if failed_at > recent else 0.0, connection is None, in_flight, failed_at

        return sorted(dict.fromkeys([*brokers, *self._bootstrap]), key=preference)

    def _usable_connection(self, address: Address, lane: str) -> Connection | None:
        connection = self._pool.get((address, lane))
        if connection is None or connection.reauthenticate_at is None:
            return connection
        return connection if asyncio.get_running_loop().time() < connection.reauthenticate_at else None

    async def _connect(self, address: Address, lane: str, deadline: float) -> Connection:
        if self._pool.is_closed:
            raise ClientClosedError
        connection = self._usable_connection(address, lane)
        if connection is not None:
            return connection
        name = f"{self._client_id} connects to {address[0]}:{address[1]}"
        attempt = self._pool.attempt((address, lane), address, lambda: self._open(address, lane), name)
        try:
            async with asyncio.timeout_at(deadline):
                return await await_shared(attempt)
        except TimeoutError:
            # The attempt continues for later callers. Until the attempt succeeds, prefer other addresses for a while.
            self._failed_at[address] = asyncio.get_running_loop().time()
            raise RequestTimedOutError(f"no connection to {address[0]}:{address[1]} in time") from None

    async def _open(self, address: Address, lane: str) -> Connection:
        host, port = address
        try:
            connection = await Connection.open(
                host,
                port,
                client_id=self._client_id,
                timeout_ms=self._timeout_ms,
                channel_security=self._channel_security,
                hints=True,
            )
        except KafkaError:
            self._failed_at[address] = asyncio.get_running_loop().time()
            raise
        self._failed_at.pop(address, None)
        if connection.finalized_features.epoch > self.finalized_features.epoch:
            self.finalized_features = connection.finalized_features
        self._pool.put((address, lane), connection)
        return connection


async def await_shared(task: "asyncio.Task[T]") -> T:
    """Awaits a task that several callers may await. Cancelling one caller does not cancel the task.

    Raises ClientClosedError if the task was cancelled, which happens when the client is closed.
    """
    task.add_done_callback(retrieve_exception)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if task.cancelled() and current is not None and not current.cancelling():
            raise ClientClosedError from None
        raise
