"""A node and its host. The node can be started, stopped, killed and crashed, and its disk can fail."""

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from moldau.errors import MoldauError
from moldau.node.node import Node
from moldau.server.api import Broker
from moldau.settings.broker import BrokerSettings
from moldau.testing.simulation.platform.disk import CAPACITY_BYTES
from moldau.testing.simulation.platform.simulation import Host, HostCrashed
from moldau.testing.simulation.scenarios.outcome import format_error

PORT = 9092
DATA_DIR = "/var/moldau"


@dataclass(eq=False)
class ServerHost:
    host: Host
    settings: BrokerSettings
    report: Callable[[str], None]
    """A function that is called with errors that the histories of clients do not show."""
    stop_timeout_s: float | None = None
    bad_disk_fails_requests: bool = False
    """Whether requests may fail with an unexpected error while the disk is bad. In a cluster, read errors of the
    metadata log fail the fetches of other nodes."""
    node: Node | None = field(default=None, init=False)
    """The node of the current boot. It is set when the node begins to start, and None if no node runs."""
    is_serving: bool = field(default=False, init=False)
    is_stopping: bool = field(default=False, init=False)
    """Whether the node is stopping. A stopping node resigns its leaderships."""
    has_fault: bool = field(default=False, init=False)
    """Whether a node fault is active on this host. If so, no other node fault is injected here."""
    is_disk_bad: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def node_id(self) -> int:
        return self.settings.node_id

    @property
    def broker(self) -> Broker | None:
        """The components of the node. None if no node runs, or before the node has created its components."""
        return None if self.node is None or self.node._dispatcher is None else self.node.broker

    # Start and stop

    def boot(self) -> None:
        """Starts the node in the background. The start may take as long as the other nodes are down."""
        self.host.spawn(self._start(self._create_node()), name=f"boot of {self.name}")

    async def boot_and_wait(self) -> None:
        """Starts the node and returns when it serves requests. Raises HostCrashed if the host crashes first."""
        await self.host.run(self._start(self._create_node()), name=f"boot of {self.name}")

    def _create_node(self) -> Node:
        if not self.host.is_up:
            self.host.restart()
        self.is_stopping = False
        self.node = Node(self.host.platform, self.settings)
        return self.node

    async def _start(self, node: Node) -> None:
        try:
            await node.start()
        except Exception as error:
            self.node = None
            if not self.is_disk_bad or not isinstance(error, MoldauError | OSError):
                self.report(f"{self.name} failed to start: {format_error(error)}")
        else:
            self.is_serving = True

    def crash(self, *, silent: bool = False) -> None:
        self._check()
        self.host.crash(silent=silent)

    def kill(self) -> None:
        self._check()
        self.host.kill()

    async def stop(self) -> None:
        """Stops the node cleanly, then ends its process. Reports a node that does not stop within the timeout."""
        node = self.node
        if node is not None and self.is_serving:
            self.is_serving, self.is_stopping = False, True
            try:
                with suppress(HostCrashed):
                    async with asyncio.timeout(self.stop_timeout_s):
                        await self.host.run(node.stop(), name=f"stop of {self.name}")
            except TimeoutError:
                self.report(f"{self.name} did not stop in {self.stop_timeout_s} s")
            except Exception as error:
                if not self.is_disk_bad:
                    self.report(f"{self.name} failed to stop: {format_error(error)}")
        if self.host.is_up:
            self.kill()

    def _check(self) -> None:
        """Reports the errors of a node before it is discarded."""
        node, self.node, self.is_serving = self.node, None, False
        if node is None:
            return
        if node.unexpected_errors and not (self.is_disk_bad and self.bad_disk_fails_requests):
            self.report(f"{self.name}: {node.unexpected_errors} requests failed with an unexpected error")
        if node.failure is not None and not self.is_disk_bad:
            self.report(f"{self.name} failed: {format_error(node.failure)}")

    # Disk

    def inject(self, operation: str, path: str, *, after: int, times: int | None) -> None:
        self.is_disk_bad = True
        self.host.disk.inject(operation, path, error=errno.EIO, after=after, times=times)

    def fill_disk(self, room_bytes: int) -> None:
        self.is_disk_bad = True
        self.host.disk.settings.capacity_bytes = self.host.disk.volume.used_bytes() + room_bytes

    def repair_disk(self) -> None:
        """Ends disk errors. A node that has seen a disk error must still be restarted."""
        self.host.disk.faults.clear()
        self.host.disk.settings.capacity_bytes = CAPACITY_BYTES
