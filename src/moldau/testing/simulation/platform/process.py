"""A client's program on a host of its own: it can be asked to end, killed without a word, and started again."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from moldau.testing.simulation.platform.simulation import Host
from moldau.testing.simulation.scenarios.outcome import ScenarioError, format_error


class ClientProgram(Protocol):
    name: str

    async def run(self) -> None:
        """Returns some time after `stop`."""

    def stop(self) -> None: ...


class ClientProcess:
    def __init__(self, host: Host, make: Callable[[Host], ClientProgram]) -> None:
        self._host = host
        self._create_program = make
        self._program: ClientProgram | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stop_requested = False

    @property
    def is_running(self) -> bool:
        if self._task is not None and self._task.done():
            self._raise_failure(self._task)
        return self._task is not None

    @property
    def is_active(self) -> bool:
        """It runs, and has not been told to stop."""
        return self.is_running and not self._is_stop_requested

    def start(self) -> None:
        if not self.is_running:
            self._is_stop_requested = False
            self._program = self._create_program(self._host)
            self._task = self._host.spawn(self._program.run(), name=self._program.name)

    def stop(self) -> None:
        if self._program is not None:
            self._is_stop_requested = True
            self._program.stop()

    def kill(self) -> None:
        self._task = None
        self._host.kill()
        self._host.restart()

    async def wait_stopped(self) -> None:
        """Waits for a program that was told to stop."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            self._raise_failure(self._task)

    def _raise_failure(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if (error := task.exception()) is not None:
            raise ScenarioError(f"{task.get_name()} ended by {format_error(error)}") from error
