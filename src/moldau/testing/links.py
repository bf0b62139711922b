"""Network links between the nodes of a test cluster. A blocked link drops data silently and keeps connections open."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from moldau.client.errors import RequestTimedOutError
from moldau.client.net.connection import Connection

CONNECT_POLL_INTERVAL_S = 0.02
"""The interval at which a new connection checks whether its link is still blocked, in seconds."""

Direction = tuple[int, int]
"""The ids of the sending node and the receiving node."""


class _BlockableConnection(Connection):
    """A connection that can be blocked. A blocked connection discards writes or pauses reads, but looks open."""

    is_blocked = False

    def block(self, *, sending: bool, receiving: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.is_blocked = True
        if receiving:
            transport.pause_reading()
        if sending:
            dropping_transport = SimpleNamespace(write=lambda data: None, abort=transport.abort)
            self._transport = dropping_transport  # type: ignore[assignment]

    def close_if_blocked(self) -> None:
        if self.is_blocked:
            self.close()


class NodeLinks:
    """Links between all nodes of a cluster. Public methods may be called from any thread."""

    def __init__(self, node_of_port: dict[int, int]) -> None:
        self._node_of_port = node_of_port
        self._lock = threading.Lock()
        self._blocked: set[Direction] = set()
        self._open: dict[int, list[tuple[int, asyncio.AbstractEventLoop, _BlockableConnection]]] = {}
        """Open connections by the id of the opening node, each with the target node id and the event loop."""

    def connector_for(self, node_id: int) -> Callable[..., Any]:
        """Returns the function with which a node opens connections to other nodes."""

        async def connect(host: str, port: int, *, client_id: str, timeout_ms: int) -> Connection:
            target = self._node_of_port.get(port, -1)
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_ms / 1000
            while self._is_blocked(node_id, target) or self._is_blocked(target, node_id):
                if loop.time() > deadline:
                    raise RequestTimedOutError(f"no connection to {host}:{port} within {timeout_ms} ms")
                await asyncio.sleep(CONNECT_POLL_INTERVAL_S)
            remaining_ms = max(1, round((deadline - loop.time()) * 1000))
            connection = await _BlockableConnection.open(host, port, client_id=client_id, timeout_ms=remaining_ms)
            assert isinstance(connection, _BlockableConnection)
            with self._lock:
                still_open = [each for each in self._open.get(node_id, []) if each[2].is_open]
                self._open[node_id] = [*still_open, (target, loop, connection)]
            self._apply_faults(node_id, target, connection)
            return connection

        return connect

    def block(self, directions: list[Direction]) -> None:
        with self._lock:
            self._blocked.update(directions)
            connections = [(node_id, *each) for node_id, opened in self._open.items() for each in opened]
        for node_id, target, loop, connection in connections:
            if (node_id, target) in directions or (target, node_id) in directions:
                _call_in_loop(loop, partial(self._apply_faults, node_id, target, connection))

    def heal(self) -> None:
        """Unblocks all links. Closes the connections that were blocked, because they have lost data."""
        with self._lock:
            self._blocked.clear()
            connections = [each for opened in self._open.values() for each in opened]
        for _, loop, connection in connections:
            _call_in_loop(loop, connection.close_if_blocked)

    def close_connections(self, node_id: int) -> None:
        """Closes the connections that a killed node had opened. Must be called in the event loop of this node."""
        with self._lock:
            opened = self._open.pop(node_id, [])
        for _, _, connection in opened:
            connection.close()

    def _is_blocked(self, sender: int, receiver: int) -> bool:
        with self._lock:
            return (sender, receiver) in self._blocked

    def _apply_faults(self, node_id: int, target: int, connection: _BlockableConnection) -> None:
        sending, receiving = self._is_blocked(node_id, target), self._is_blocked(target, node_id)
        if sending or receiving:
            connection.block(sending=sending, receiving=receiving)


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        # The node's loop is closed, so the node's connections are closed, too.
        return
