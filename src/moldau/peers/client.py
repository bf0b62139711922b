"""A client for requests to other nodes, with one connection per node and lane.

A lane is a connection for one kind of request. A connection returns responses in the order of the requests, so requests
that may wait long use a separate lane.

The client does not retry. A request that times out closes its connection, because later responses wait behind the
missing one.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from moldau.client.errors import ConnectionLostError, KafkaError, UnsupportedVersionError
from moldau.client.net.connection import Connection
from moldau.client.net.connection_pool import ConnectionPool
from moldau.concurrency.notifier import resolve
from moldau.errors import PeerUnreachableError
from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.peers.probe import ProbeResult, probe_address
from moldau.platform.clock import Clock
from moldau.wire.api_keys import ApiKey
from moldau.wire.client_ids import node_client_id
from moldau.wire.codec import Message

PROBE_TIMEOUT_MS = 1_000
"""The timeout for probing all addresses of a host name that has several."""
_CLOSED_BY_PEER = (None, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE)
"""The error numbers of a connection that the peer accepted and then closed."""


class Connect(Protocol):
    """Opens a connection: `Connection.open`, or a replacement in tests."""

    def __call__(self, host: str, port: int, *, client_id: str, timeout_ms: int) -> Awaitable[Connection]: ...


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


_ConnectionKey = tuple[int, str]


class PeerClient:
    def __init__(self, node_id: int, clock: Clock, *, request_timeout_ms: int, connect: Connect | None = None) -> None:
        self.node_id = node_id
        self._clock = clock
        self._request_timeout_ms = request_timeout_ms
        self._connect = Connection.open if connect is None else connect
        self._client_id = node_client_id(node_id)
        self.addresses: dict[int, Address] = {}
        """The latest address of each node, from its broker registration or from the quorum."""
        self._quorum_addresses: dict[int, Address] = {}
        """The latest address of each voter, from the quorum."""
        self.on_disconnect: Callable[[int], None] | None = None
        """Called with the id of a node that has closed a connection."""
        self._pool: ConnectionPool[_ConnectionKey] = ConnectionPool(self._handle_disconnect)

    # Addresses

    def update_endpoint(self, node_id: int, host: str, port: int) -> None:
        """Sets a voter's address if the address in the quorum has changed since the last call.

        Otherwise the node may have a newer address from its registration. Requests to an old address continue.
        """
        address = Address(host, port)
        if self._quorum_addresses.get(node_id) != address:
            self._quorum_addresses[node_id] = address
            self.update_broker_endpoint(node_id, host, port)

    def update_broker_endpoint(self, node_id: int, host: str, port: int) -> None:
        """Sets a broker's address from its registration."""
        address = Address(host, port)
        if self.addresses.get(node_id) != address:
            self.addresses[node_id] = address
            self._drain_connections(node_id)

    def remove_broker(self, node_id: int) -> None:
        """Removes the address of an unregistered broker. For a voter, restores the address from the quorum."""
        voter = self._quorum_addresses.get(node_id)
        if voter is not None:
            self.update_broker_endpoint(node_id, *voter)
        elif self.addresses.pop(node_id, None) is not None:
            self._drain_connections(node_id)

    # Requests

    async def call(
        self,
        node_id: int,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        lane: str,
        timeout_ms: int | None = None,
        version: int | None = None,
    ) -> Message:
        """Sends a request and returns the response, whatever error codes the response contains.

        Raises PeerUnreachableError if there is no response. If `was_sent` of the error is set, the other node may have
        executed the request.
        """
        if timeout_ms is None:
            timeout_ms = self._request_timeout_ms
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        connection = await self._get_connection(node_id, lane, deadline_ms)
        left_ms = max(1, deadline_ms - self._clock.monotonic_ms())
        try:
            return await connection.call(api, tree, timeout_ms=left_ms, version=version)
        except KafkaError as error:
            was_sent = not isinstance(error, UnsupportedVersionError)
            raise _unreachable_error(f"node {node_id}", error, was_sent=was_sent) from None

    async def call_address(
        self, host: str, port: int, api: ApiKey, tree: Mapping[str, Any], *, version: int | None = None
    ) -> Message:
        """Sends a request to a node of unknown id, on a new connection that is closed afterwards."""
        if self._pool.is_closed:
            raise PeerUnreachableError("this node is closing")
        deadline_ms = self._clock.monotonic_ms() + self._request_timeout_ms
        address = Address(host, port)
        connection = await asyncio.get_running_loop().create_task(self._open(address, self._request_timeout_ms))
        try:
            left_ms = max(1, deadline_ms - self._clock.monotonic_ms())
            return await connection.call(api, tree, timeout_ms=left_ms, version=version)
        except KafkaError as error:
            raise _unreachable_error(str(address), error) from None
        finally:
            connection.close()

    async def probe(self, node_id: int, timeout_ms: int) -> ProbeResult:
        """Probes the node with a new connection. Returns UNKNOWN if the node's address is unknown."""
        address = self.addresses.get(node_id)
        if address is None:
            return ProbeResult.UNKNOWN
        return await asyncio.get_running_loop().create_task(probe_address(*address, timeout_ms))

    async def handshake(self, node_id: int, timeout_ms: int) -> ProbeResult:
        """Probes the node with a new connection and a request. Returns REACHABLE only if the node responds.

        Unlike `probe`, this detects a process that is ending. The operating system accepts connections for such a
        process until its sockets are closed.
        """
        address = self.addresses.get(node_id)
        if address is None:
            return ProbeResult.UNKNOWN
        loop = asyncio.get_running_loop()
        try:
            # In a task, because `Connection.open` uses `asyncio.timeout`.
            connection = await loop.create_task(self._dial(address, timeout_ms))
        except ConnectionLostError as error:
            if await _is_connection_refused(address, error):
                return ProbeResult.REFUSED
            # Other errors, such as an unreachable network or too many open files, prove nothing about the peer.
            return ProbeResult.CLOSED if error.errno in _CLOSED_BY_PEER else ProbeResult.UNKNOWN
        except KafkaError:
            return ProbeResult.UNKNOWN
        connection.close()
        return ProbeResult.REACHABLE

    def disconnect(self, node_id: int, lane: str) -> None:
        """Closes a connection or cancels the attempt to open it. Its pending requests raise PeerUnreachableError."""
        self._pool.disconnect((node_id, lane))

    async def close(self) -> None:
        await self._pool.close()

    # Connections

    async def _get_connection(self, node_id: int, lane: str, deadline_ms: int) -> Connection:
        key = (node_id, lane)
        while True:
            if self._pool.is_closed:
                raise PeerUnreachableError("this node is closing")
            address = self.addresses.get(node_id)
            if address is None:
                raise PeerUnreachableError(f"no address of node {node_id} is known")
            connection = self._pool.get(key)
            if connection is not None:
                return connection
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise PeerUnreachableError(f"node {node_id} ({address}) could not be connected to in time")
            # Limit the attempt to the request timeout: when a network partition ends, a new attempt succeeds at once,
            # but an old attempt succeeds only at TCP's next retransmission.
            opening = partial(self._open_and_store, key, address, min(left_ms, self._request_timeout_ms))
            name = f"{self._client_id} connects to {address}"
            await _wait_for_attempt(self._pool.attempt(key, address, opening, name), left_ms)

    async def _open_and_store(self, key: _ConnectionKey, address: Address, timeout_ms: int) -> Connection:
        node_id = key[0]
        connection = await self._open(address, timeout_ms)
        if self.addresses.get(node_id) != address:
            connection.close()
            raise PeerUnreachableError(f"node {node_id} is no longer at {address}")
        if not connection.is_open:
            raise PeerUnreachableError(f"node {node_id} ({address}) closed the connection at once")
        self._pool.put(key, connection)
        return connection

    async def _dial(self, address: Address, timeout_ms: int) -> Connection:
        return await self._connect(address.host, address.port, client_id=self._client_id, timeout_ms=timeout_ms)

    async def _open(self, address: Address, timeout_ms: int) -> Connection:
        try:
            return await self._dial(address, timeout_ms)
        except KafkaError as error:
            is_refused = await _is_connection_refused(address, error)
            raise _unreachable_error(str(address), error, is_connection_refused=is_refused) from None

    def _handle_disconnect(self, key: _ConnectionKey) -> None:
        if self.on_disconnect is not None:
            self.on_disconnect(key[0])

    def _drain_connections(self, node_id: int) -> None:
        self._pool.remove(lambda key: key[0] != node_id, when_idle=True)


async def _wait_for_attempt(opening: "asyncio.Task[Connection]", timeout_ms: int) -> None:
    """Waits for an attempt that concurrent requests share. Raises PeerUnreachableError if it fails or times out.

    Does not use `asyncio.timeout`, because that needs a task, and a forwarded request may not have its own task yet.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(timeout_ms / 1000, resolve, waiter)
    opening.add_done_callback(lambda _: resolve(waiter))
    try:
        await waiter
    finally:
        timer.cancel()
    if not opening.done():
        raise PeerUnreachableError(f"could not connect within {timeout_ms} ms")
    if opening.cancelled():
        raise PeerUnreachableError("the attempt to connect was cancelled")
    error = opening.exception()
    if isinstance(error, PeerUnreachableError):
        # Raise a copy, because one exception that is raised in several tasks would mix their tracebacks.
        raise PeerUnreachableError(str(error), is_connection_refused=error.is_connection_refused)
    opening.result()


async def _is_connection_refused(address: Address, error: KafkaError) -> bool:
    if not isinstance(error, ConnectionLostError):
        return False
    if error.errno is None:
        # A host name with several addresses has no single errno, so probe each address.
        return await probe_address(*address, PROBE_TIMEOUT_MS) is ProbeResult.REFUSED
    return error.errno == errno.ECONNREFUSED


def _unreachable_error(who: str, error: KafkaError, **flags: bool) -> PeerUnreachableError:
    return PeerUnreachableError(f"{who}: {error.message or error}", **flags)


def publish_broker_endpoints(peers: PeerClient, listener: str, delta: MetadataDelta, image: MetadataImage) -> None:
    """Updates the addresses of the brokers whose registrations have changed."""
    for broker_id in delta.brokers_changed:
        broker = image.brokers.get(broker_id)
        if broker is None:
            peers.remove_broker(broker_id)
            continue
        for endpoint in broker.endpoints:
            if endpoint.listener == listener:
                peers.update_broker_endpoint(broker_id, endpoint.host, endpoint.port)
                break
