"""A client's program on a host of its own: it can be asked to end, killed without a word, and started again."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from moldau.testing.simulation.platform.simulation import Host
from moldau.testing.simulation.scenarios.outcome import Broken, told


class Program(Protocol):
    name: str

    async def run(self) -> None:
        """Returns some time after `stop`."""

    def stop(self) -> None: ...


class Process:
    def __init__(self, host: Host, make: Callable[[Host], Program]) -> None:
        self._host = host
        self._make = make
        self._program: Program | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_told = False

    @property
    def is_running(self) -> bool:
        if self._task is not None and self._task.done():
            self._take_outcome(self._task)
        return self._task is not None

    @property
    def is_staying(self) -> bool:
        """It runs, and has not been told to stop."""
        return self.is_running and not self._is_told

    def start(self) -> None:
        if not self.is_running:
            self._is_told = False
            self._program = self._make(self._host)
            self._task = self._host.spawn(self._program.run(), name=self._program.name)

    def stop(self) -> None:
        if self._program is not None:
            self._is_told = True
            self._program.stop()

    def kill(self) -> None:
        self._task = None
        self._host.kill()
        self._host.restart()

    async def ended(self) -> None:
        """Waits for a program that was told to stop."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            self._take_outcome(self._task)

    def _take_outcome(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if (error := task.exception()) is not None:
            raise Broken(f"{task.get_name()} ended by {told(error)}") from error
