"""Calls to other nodes: one connection for each node and lane, opened when first needed and again when lost.

Answers on one connection come in the order of its requests, so whatever may wait long at the other node has a lane
of its own. Nothing is retried here: who calls knows whether the call is still wanted. A call that is not answered in
time ends its connection, because the answers behind it cannot come either.
"""

import asyncio
import errno
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, Protocol

from moldau.client.errors import ConnectionLostError, KafkaError, UnsupportedVersionError
from moldau.client.net.connection import Connection
from moldau.errors import PeerUnreachableError
from moldau.observe.logging import get_logger
from moldau.peers.probe import ProbeResult, probe_address
from moldau.platform.clock import Clock
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

__all__ = ["PeerClient", "ProbeResult"]

log = get_logger(__name__)

PROBE_TIMEOUT_MS = 1_000
"""How long it is tried to find out whether a name with several addresses refuses at all of them."""


class Connect(Protocol):
    """How connections are made: `Connection.open`, or a test's own way."""

    def __call__(self, host: str, port: int, *, client_id: str, timeout_ms: int) -> Awaitable[Connection]: ...


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


_ConnectionKey = tuple[int, str]


class PeerClient:
    def __init__(
        self,
        node_id: int,
        clock: Clock,
        *,
        request_timeout_ms: int,
        connect: Connect | None = None,
    ) -> None:
        self.node_id = node_id
        self._clock = clock
        self._request_timeout_ms = request_timeout_ms
        self._connect = Connection.open if connect is None else connect
        self._client_id = f"node-{node_id}"
        self._addresses: dict[int, Address] = {}
        """As they were last told."""
        self._quorum_addresses: dict[int, Address] = {}
        """Of those, what the quorum told."""
        self._connections: dict[_ConnectionKey, Connection] = {}
        self._opening: dict[tuple[_ConnectionKey, Address], asyncio.Task[Connection]] = {}
        self._is_closed = False

    # Who is where

    def update_endpoint(self, node_id: int, host: str, port: int) -> None:
        """The quorum says that the node is called at this address from now on. What was asked at another one is still
        waited for. What the quorum has said before is no news: the node may have registered elsewhere since."""
        address = Address(host, port)
        if self._quorum_addresses.get(node_id) != address:
            self._quorum_addresses[node_id] = address
            self.update_broker_endpoint(node_id, host, port)

    def update_broker_endpoint(self, node_id: int, host: str, port: int) -> None:
        """As `update_endpoint`, by what the node registered as a broker."""
        address = Address(host, port)
        if self._addresses.get(node_id) != address:
            self._addresses[node_id] = address
            self._drain_connections(node_id)

    def remove_broker(self, node_id: int) -> None:
        """The node is no broker any more. It may still be a voter."""
        voter = self._quorum_addresses.get(node_id)
        if voter is not None:
            self.update_broker_endpoint(node_id, *voter)
        elif self._addresses.pop(node_id, None) is not None:
            self._drain_connections(node_id)

    def address(self, node_id: int) -> tuple[str, int] | None:
        return self._addresses.get(node_id)

    # Calling

    async def call(
        self,
        node_id: int,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        lane: str,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        version: int | None = None,
    ) -> Message:
        """The answer, whatever error codes are in it; raises PeerUnreachableError where there is none. Where that says
        `was_sent`, the other node may have done what was asked."""
        if timeout_ms is None:
            timeout_ms = self._request_timeout_ms
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        connection = await self._get_connection(node_id, lane, deadline_ms)
        left_ms = max(1, deadline_ms - self._clock.monotonic_ms())
        try:
            return await connection.send(
                api, tree, timeout_ms=left_ms, version_max=version_max, version=version
            )
        except KafkaError as error:
            was_sent = not isinstance(error, UnsupportedVersionError)
            raise _unreachable_error(f"node {node_id}", error, was_sent=was_sent) from None

    async def call_address(
        self,
        host: str,
        port: int,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        version: int | None = None,
    ) -> Message:
        """As `call`, for a node of which nothing but its address is known: a connection for this call alone."""
        if timeout_ms is None:
            timeout_ms = self._request_timeout_ms
        if self._is_closed:
            raise PeerUnreachableError("this node is closing")
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        address = Address(host, port)
        connection = await asyncio.get_running_loop().create_task(self._open(address, timeout_ms))
        try:
            left_ms = max(1, deadline_ms - self._clock.monotonic_ms())
            return await connection.call(
                api, tree, timeout_ms=left_ms, version_max=version_max, version=version
            )
        except KafkaError as error:
            raise _unreachable_error(str(address), error) from None
        finally:
            connection.close()

    async def probe(self, node_id: int, timeout_ms: int) -> ProbeResult:
        """Tries a new connection to the node; an unknown one is SILENT."""
        address = self._addresses.get(node_id)
        if address is None:
            return ProbeResult.UNKNOWN
        return await asyncio.get_running_loop().create_task(probe_address(*address, timeout_ms))

    def disconnect(self, node_id: int, lane: str) -> None:
        """Ends a connection, or the attempt to open it: whoever waits for an answer on it gets PeerUnreachableError."""
        key = (node_id, lane)
        for (opened, _), attempt in list(self._opening.items()):
            if opened == key:
                attempt.cancel()
        connection = self._connections.pop(key, None)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        self._is_closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()

    # Connections

    async def _get_connection(self, node_id: int, lane: str, deadline_ms: int) -> Connection:
        key = (node_id, lane)
        while True:
            if self._is_closed:
                raise PeerUnreachableError("this node is closing")
            address = self._addresses.get(node_id)
            if address is None:
                raise PeerUnreachableError(f"no address of node {node_id} is known")
            connection = self._connections.get(key)
            if connection is not None and connection.is_open:
                return connection
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise PeerUnreachableError(f"node {node_id} ({address}) could not be connected to in time")
            await self._wait_until_open(key, address, left_ms)

    async def _wait_until_open(self, key: _ConnectionKey, address: Address, timeout_ms: int) -> None:
        """Waits for the one attempt to open this connection, no longer than it was given; raises as `call` does."""
        opening = self._opening.get((key, address))
        if opening is None:
            # No longer than the call has: after a network has healed, a new attempt comes through at once, and an old
            # one only when TCP tries again.
            limit_ms = min(timeout_ms, self._request_timeout_ms)
            opening = asyncio.get_running_loop().create_task(
                self._open_and_store(key, address, limit_ms), name=f"{self._client_id} connects to {address}"
            )
            self._opening[key, address] = opening
            opening.add_done_callback(lambda task: self._on_attempt_done(key, address, task))
        await _wait_for_attempt(opening, timeout_ms)

    def _on_attempt_done(
        self, key: _ConnectionKey, address: Address, attempt: "asyncio.Task[Connection]"
    ) -> None:
        del self._opening[key, address]
        if not attempt.cancelled():
            # All who waited for it may have given up before it failed.
            attempt.exception()

    async def _open_and_store(self, key: _ConnectionKey, address: Address, timeout_ms: int) -> Connection:
        node_id = key[0]
        connection = await self._open(address, timeout_ms)
        if self._addresses.get(node_id) != address:
            connection.close()
            raise PeerUnreachableError(f"node {node_id} is no longer at {address}")
        if not connection.is_open:
            raise PeerUnreachableError(f"node {node_id} ({address}) has hung up at once")
        connection.on_disconnect = lambda: self._on_connection_lost(key, connection)
        before = self._connections.get(key)
        if before is not None:
            before.close_when_idle()
        self._connections[key] = connection
        return connection

    async def _open(self, address: Address, timeout_ms: int) -> Connection:
        try:
            return await self._connect(
                address.host, address.port, client_id=self._client_id, timeout_ms=timeout_ms
            )
        except KafkaError as error:
            is_connection_refused = await _is_connection_refused(address, error)
            raise _unreachable_error(
                str(address), error, is_connection_refused=is_connection_refused
            ) from None

    def _on_connection_lost(self, key: _ConnectionKey, connection: Connection) -> None:
        if self._connections.get(key) is connection:
            del self._connections[key]
            if not self._is_closed:
                log.debug("connection lost", node=key[0], lane=key[1], address=str(connection))

    def _drain_connections(self, node_id: int) -> None:
        for key in [key for key in self._connections if key[0] == node_id]:
            self._connections.pop(key).close_when_idle()


async def _wait_for_attempt(opening: "asyncio.Task[Connection]", timeout_ms: int) -> None:
    """Waits for an attempt that others may wait for too; cancelling one of them does not end it.

    Without `asyncio.timeout`, because requests that are forwarded come here before they have a task of their own.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(timeout_ms / 1000, _wake, waiting)
    opening.add_done_callback(lambda _: _wake(waiting))
    try:
        await waiting
    finally:
        timer.cancel()
    if not opening.done():
        raise PeerUnreachableError(f"it was not connected to within {timeout_ms} ms")
    if opening.cancelled():
        raise PeerUnreachableError("the attempt to connect was given up")
    error = opening.exception()
    if isinstance(error, PeerUnreachableError):
        # A fresh one: one exception object raised in many tasks would mix up their tracebacks.
        raise PeerUnreachableError(str(error), is_connection_refused=error.is_connection_refused)
    opening.result()


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


async def _is_connection_refused(address: Address, error: KafkaError) -> bool:
    if not isinstance(error, ConnectionLostError):
        return False
    if error.errno is None:
        # A name with several addresses gives no single number.
        return await probe_address(*address, PROBE_TIMEOUT_MS) is ProbeResult.REFUSED
    return error.errno == errno.ECONNREFUSED


def _unreachable_error(
    who: str, error: KafkaError, *, is_connection_refused: bool = False, was_sent: bool = False
) -> PeerUnreachableError:
    return PeerUnreachableError(
        f"{who}: {error.message or error}", is_connection_refused=is_connection_refused, was_sent=was_sent
    )
