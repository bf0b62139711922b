"""The connections of a client: one for each node and lane, made when first needed and made again when lost.

Answers on one connection come in the order of its requests. So whatever may wait long at the broker (fetches,
joins) has a lane, that is a connection, of its own.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from moldau.client.errors import ClientClosedError, ConnectionLostError, KafkaError, RequestTimedOutError
from moldau.client.net.connection import Connection
from moldau.client.net.metadata import BrokerInfo
from moldau.client.security.channel_security import ChannelSecurity

T = TypeVar("T")

Address = tuple[str, int]
_ConnectionKey = tuple[Address, str]


class ConnectionPool:
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
        self._securing = channel_security
        self._brokers: Mapping[int, BrokerInfo] = {}
        self._connections: dict[_ConnectionKey, Connection] = {}
        self._connecting: dict[_ConnectionKey, asyncio.Task[Connection]] = {}
        self._failed_at: dict[Address, float] = {}
        self._is_closed = False

    def set_brokers(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Takes over the brokers of new metadata; connections to addresses that are gone are closed."""
        self._brokers = brokers
        addresses = self._addresses()
        for key in [key for key in self._connections if key[0] not in addresses]:
            self._connections.pop(key).close()

    async def close(self) -> None:
        self._is_closed = True
        opening = list(self._connecting.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def address_count(self) -> int:
        return len(self._addresses())

    async def connection(self, node_id: int | None, lane: str, timeout_ms: int) -> Connection:
        """An open connection to a node, or to the best one; raises ConnectionLostError or RequestTimedOutError."""
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
            # One that hangs has its share of the time and no more.
            until = now + (deadline - now) / (len(addresses) - number)
            try:
                return await self._connect(address, lane, until)
            except KafkaError as error:
                failure = error
        raise failure or ConnectionLostError("no broker is known")

    def note_failure(self, connection: Connection) -> None:
        """Other nodes come before this one for a while."""
        self._failed_at[connection.address] = asyncio.get_running_loop().time()

    def _addresses(self) -> list[Address]:
        """All that may be asked, each once: the brokers, then the servers that the client was given."""
        brokers = [(each.host, each.port) for each in self._brokers.values()]
        return list(dict.fromkeys([*brokers, *self._bootstrap]))

    def _addresses_by_preference(self, lane: str) -> list[Address]:
        """Connected and idle, then by how long ago they failed; among equals brokers before bootstrap servers. Those
        that failed a moment ago come last, connected or not: another connection may not have noticed yet."""
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
        connection = self._connections.get((address, lane))
        if connection is None or not connection.is_open:
            return None
        if (
            connection.reauthenticate_at is not None
            and asyncio.get_running_loop().time() >= connection.reauthenticate_at
        ):
            return None
        return connection

    async def _connect(self, address: Address, lane: str, deadline: float) -> Connection:
        if self._is_closed:
            raise ClientClosedError
        connection = self._usable_connection(address, lane)
        if connection is not None:
            return connection
        key = (address, lane)
        opening = self._connecting.get(key)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(
                self._open_connection(key), name=f"{self._client_id} connects to {address[0]}:{address[1]}"
            )
            self._connecting[key] = opening
            opening.add_done_callback(lambda task: self._connecting.pop(key, None))
        try:
            async with asyncio.timeout_at(deadline):
                return await await_shared(opening)
        except TimeoutError:
            # It is still being opened, for whoever comes later; until then others are asked first.
            self._failed_at[address] = asyncio.get_running_loop().time()
            raise RequestTimedOutError(f"no connection to {address[0]}:{address[1]} in time") from None

    async def _open_connection(self, key: _ConnectionKey) -> Connection:
        (host, port), _ = key
        try:
            connection = await Connection.open(
                host,
                port,
                client_id=self._client_id,
                timeout_ms=self._timeout_ms,
                channel_security=self._securing,
            )
        except KafkaError:
            self._failed_at[key[0]] = asyncio.get_running_loop().time()
            raise
        self._failed_at.pop(key[0], None)
        before = self._connections.get(key)
        if before is not None and before.is_open:
            before.close_when_idle()
        self._connections[key] = connection
        return connection


async def await_shared(task: "asyncio.Task[T]") -> T:
    """What a task gives that several may wait for: cancelling one of them does not end it. When the client is closed,
    which does, they hear of that."""
    task.add_done_callback(_retrieve_exception)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        waiting = asyncio.current_task()
        if task.cancelled() and waiting is not None and not waiting.cancelling():
            raise ClientClosedError from None
        raise


def _retrieve_exception(task: "asyncio.Task[Any]") -> None:
    """Whoever waited has heard of a failure; if nobody waits any more, nobody needs to."""
    if not task.cancelled():
        task.exception()
