"""One machine of a cluster with the node on it: started, stopped, killed, cut off from power, paused, given a bad
disk."""

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress

from moldau.errors import MoldauError
from moldau.node.node import Node
from moldau.settings.broker import BrokerSettings
from moldau.testing.simulation.platform.disk import DiskSettings
from moldau.testing.simulation.platform.simulation import Host, HostCrashed
from moldau.testing.simulation.scenarios.outcome import format_error

STOP_TIMEOUT_S = 60


class ServerHost:
    def __init__(
        self, host: Host, settings: BrokerSettings, disk: DiskSettings, report: Callable[[str], None]
    ) -> None:
        """`report` hears of what a node must not do, as seen from outside the protocol."""
        self.host = host
        self.settings = settings
        self.node: Node | None = None
        """The node of this life, from the moment it begins to start."""
        self.is_serving = False
        self.is_stopping = False
        """It was told to stop, and gives up its leadership by itself."""
        self.has_fault = False
        """Some fault has its hands on this machine: others leave it alone."""
        self.is_disk_bad = False
        self._disk_settings = disk
        self._report = report

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def node_id(self) -> int:
        return self.settings.node_id

    @property
    def is_up(self) -> bool:
        return self.host.is_up and self.node is not None

    # Life and death

    def boot(self) -> None:
        """Begins to start the node, which may take as long as the others are away."""
        if not self.host.is_up:
            self.host.restart()
        self.is_stopping = False
        self.node = Node(self.host.platform, self.settings)
        self.host.spawn(self._start(self.node), name=f"boot of {self.name}")

    async def _start(self, node: Node) -> None:
        try:
            await node.start()
        except Exception as error:
            self.node = None
            if not self.is_disk_bad or not isinstance(error, MoldauError | OSError):
                self._report(f"{self.name} does not start: {format_error(error)}")
        else:
            self.is_serving = True

    def crash(self, *, silent: bool) -> None:
        self._check()
        self.host.crash(silent=silent)

    def kill(self) -> None:
        self._check()
        self.host.kill()

    async def stop(self) -> None:
        """A clean stop; one that is not done in time is ended as an operator would."""
        node = self.node
        if node is not None and self.is_serving:
            self.is_serving, self.is_stopping = False, True
            try:
                with suppress(HostCrashed):
                    async with asyncio.timeout(STOP_TIMEOUT_S):
                        await self.host.run(node.stop(), name=f"stop of {self.name}")
            except TimeoutError:
                self._report(f"{self.name} did not stop in {STOP_TIMEOUT_S} s")
            except Exception as error:
                if not self.is_disk_bad:
                    self._report(f"{self.name} does not stop: {format_error(error)}")
        if self.host.is_up:
            self.kill()

    def _check(self) -> None:
        """Before the node goes: afterwards nobody could tell."""
        node, self.node, self.is_serving = self.node, None, False
        if node is not None and not self.is_disk_bad:
            if node.unexpected_errors:
                self._report(
                    f"{self.name}: {node.unexpected_errors} requests ended in an unplanned exception"
                )
            if node.failure is not None:
                self._report(f"{self.name} gave up: {format_error(node.failure)}")

    # The disk

    def inject(self, operation: str, path: str, *, after: int, times: int | None) -> None:
        self.is_disk_bad = True
        self.host.disk.inject(operation, path, error=errno.EIO, after=after, times=times)

    def fill_disk(self, room_bytes: int) -> None:
        self.is_disk_bad = True
        self._disk_settings.capacity_bytes = self.host.disk.volume.used_bytes() + room_bytes

    def repair_disk(self) -> None:
        """The errors end; a node that has met any still has to be started again."""
        self.host.disk.faults.clear()
        self._disk_settings.capacity_bytes = DiskSettings().capacity_bytes
