"""One seed, one run: hosts with clocks, disks and a network between them, all driven by one virtual loop."""

import asyncio
import contextvars
import gc
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from moldau.platform import Platform
from moldau.testing.simulation.platform.clock import SimulatedClock
from moldau.testing.simulation.platform.disk import DiskSettings, SimulatedDisk
from moldau.testing.simulation.platform.guard import forbid_nondeterminism
from moldau.testing.simulation.platform.incarnation import OUTSIDE, Incarnation, current_incarnation
from moldau.testing.simulation.platform.loop import SimulatedLoop
from moldau.testing.simulation.platform.network import NetworkSettings, SimulatedNetwork
from moldau.testing.simulation.platform.trace import Trace

T = TypeVar("T")

TIMER_LATENESS_MS_MAX = 0.5
MONOTONIC_START_MS_MAX = 1_000_000_000
FULL_COLLECTION_INTERVAL_NS = 3_000_000_000


class HostCrashed(Exception):
    """The host went down while somebody outside waited for it."""


class SimulationTimeout(Exception):
    """The run did not come to its end in the virtual time it was given."""


class UnhandledError(Exception):
    """An exception in the program under test reached the event loop: a bug, whatever else the run shows."""


class Host:
    """A machine. Its disk, its address and its clock's error outlive a crash; what ran on it does not."""

    def __init__(
        self,
        simulation: "Simulation",
        name: str,
        settings: DiskSettings,
        wall_error_ms: int,
        clock_rate: float,
    ) -> None:
        self.name = name
        self.address = simulation.network.add_host(name)
        self.clock: SimulatedClock
        self.platform: Platform
        self._simulation = simulation
        self._clock_rate = clock_rate
        self._incarnation = Incarnation(name, 0, clock_rate)
        self._wall_error_ms = wall_error_ms
        self._waiters: list[asyncio.Future[Any]] = []
        self.disk = SimulatedDisk(
            simulation.random_for(f"{name}/disk"), simulation.trace, settings, name=name
        )
        self._boot()

    @property
    def is_up(self) -> bool:
        return self._incarnation.is_alive

    def _boot(self) -> None:
        boot = f"{self.name}/boot-{self._incarnation.boot}"
        randomness = self._simulation.random_for(boot)
        self.clock = SimulatedClock(
            self._simulation.loop,
            monotonic_start_ms=randomness.randrange(MONOTONIC_START_MS_MAX),
            wall_error_ms=self._wall_error_ms,
            rate=self._clock_rate,
        )
        self.platform = Platform(
            clock=self.clock, random=self._simulation.random_for(f"{boot}/world"), disk=self.disk
        )

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Starts a task on this host; it ends without a word when the host crashes."""
        context = contextvars.copy_context()
        context.run(current_incarnation.set, self._incarnation)
        return self._simulation.loop.create_task(coroutine, name=name, context=context)

    async def run(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> T:
        """Runs on this host for somebody outside, who gets HostCrashed if the host goes down first."""
        if not self.is_up:
            coroutine.close()
            raise HostCrashed(self.name)
        waiter: asyncio.Future[T] = self._simulation.loop.create_future()
        task = self.spawn(coroutine, name)

        def done(task: asyncio.Task[T]) -> None:
            if waiter.done():
                return
            if task.cancelled():
                waiter.cancel()
            elif (error := task.exception()) is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(task.result())

        task.add_done_callback(done, context=contextvars.copy_context())
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self._waiters.remove(waiter)

    def crash(self, *, silent: bool = False) -> None:
        """Cuts the power: all that runs here stops between two callbacks, unsynced writes are at stake."""
        self._take_down(self.disk.crash, silent=silent, is_machine_up=False)

    def kill(self) -> None:
        """Ends the process as SIGKILL does: nothing written is lost, and whoever connects is refused."""
        self._take_down(self.disk.kill, silent=False, is_machine_up=True)

    def pause(self) -> None:
        """Stops the process as SIGSTOP does: its sockets stay open, its disk and its clocks go on."""
        self._check_called_from_outside()
        self._simulation.trace.add(self._simulation.loop.now_ns, "pause", self.name)
        self._simulation.loop.pause(self._incarnation)

    def resume(self) -> None:
        self._simulation.trace.add(self._simulation.loop.now_ns, "resume", self.name)
        self._simulation.loop.resume(self._incarnation)

    @property
    def is_paused(self) -> bool:
        return self._incarnation.is_paused

    @property
    def boot(self) -> int:
        """Which of its lives this is."""
        return self._incarnation.boot

    def _check_called_from_outside(self) -> None:
        if current_incarnation.get() is self._incarnation:
            raise RuntimeError("a host cannot crash or pause itself: do it from outside")

    def _take_down(self, end_disk: Callable[[], SimulatedDisk], *, silent: bool, is_machine_up: bool) -> None:
        self._check_called_from_outside()
        if not self.is_up:
            raise RuntimeError(f"{self.name} is down already")
        simulation = self._simulation
        simulation.collect_garbage()
        simulation.trace.add(simulation.loop.now_ns, "down", self.name)
        self._wall_error_ms = self.clock.wall_error_ms
        self._incarnation.is_alive = False
        simulation.network.crash(self.name, silent=silent, is_machine_up=is_machine_up)
        self.disk = end_disk()
        simulation.loop.destroy(self._incarnation)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(HostCrashed(self.name))

    def restart(self) -> None:
        if self.is_up:
            raise RuntimeError(f"{self.name} is up")
        self._incarnation = Incarnation(self.name, self._incarnation.boot + 1, self._clock_rate)
        self._simulation.network.restart(self.name)
        self._boot()


class Simulation:
    def __init__(
        self,
        seed: int,
        *,
        network: NetworkSettings | None = None,
        timer_lateness_ms_max: float = TIMER_LATENESS_MS_MAX,
        keep_trace: bool = False,
    ) -> None:
        self.seed = seed
        self.trace = Trace(keep=keep_trace)
        self.loop = SimulatedLoop(
            self.trace, self.random_for("timers"), timer_lateness_ms_max=timer_lateness_ms_max
        )
        self.network = SimulatedNetwork(self.loop, self.random_for("network"), network)
        self.random = self.random_for("scenario")
        self.hosts: dict[str, Host] = {}
        self._collected_ns = 0

    @property
    def trace_hash(self) -> str:
        return self.trace.digest

    def random_for(self, purpose: str) -> random.Random:
        """A stream of its own for each purpose, so that one more draw here changes nothing there."""
        return random.Random(f"{self.seed}/{purpose}")

    def collect_garbage(self) -> None:
        """Exceptions that nobody took show when they are collected, and only while their host lives. All that there is
        is looked through from time to time only: it takes long."""
        is_due = self.loop.now_ns - self._collected_ns > FULL_COLLECTION_INTERVAL_NS
        gc.collect(2 if is_due else 0)
        if is_due:
            self._collected_ns = self.loop.now_ns

    def add_host(
        self,
        name: str,
        *,
        disk: DiskSettings | None = None,
        wall_error_ms: int = 0,
        clock_rate: float = 1.0,
    ) -> Host:
        if name in self.hosts:
            raise ValueError(f"there is a host {name} already")
        host = self.hosts[name] = Host(self, name, disk or DiskSettings(), wall_error_ms, clock_rate)
        return host

    def run(self, main: Callable[[], Awaitable[T]], timeout_ms: float) -> T:
        """Runs to the end of `main`; whatever else is then still running is ended as by a crash.

        Raises Unfinished when `main` takes more virtual time than it is given, and ProgramError when the
        program under test raised something that nobody took.
        """

        async def in_time() -> T:
            async with asyncio.timeout(timeout_ms / 1000):
                return await main()

        with forbid_nondeterminism():
            try:
                result: T = self.loop.run_until_complete(in_time())
            except TimeoutError as error:
                raise SimulationTimeout(
                    f"not done after {timeout_ms} virtual ms; waiting are:\n{self.loop.pending_tasks()}"
                ) from error
            finally:
                for host in self.hosts.values():
                    if host.is_up:
                        host.kill()
                self.loop.destroy(OUTSIDE)
        if self.loop.errors:
            raise UnhandledError("\n".join(self.loop.errors))
        return result
