"""One simulated run: hosts with clocks and disks, a network between them and the event loop, all driven by one seed."""

import asyncio
import contextvars
import gc
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from moldau.platform import Platform
from moldau.testing.simulation.platform.cpu import CallbackCost, SimulatedCpu
from moldau.testing.simulation.platform.determinism import forbid_nondeterminism
from moldau.testing.simulation.platform.disk import DiskSettings, SimulatedDisk
from moldau.testing.simulation.platform.loop import (
    CALLBACK_NS,
    CALLBACKS_MAX,
    OUTSIDE,
    Incarnation,
    SimulatedLoop,
    current_incarnation,
)
from moldau.testing.simulation.platform.network import NetworkSettings, SimulatedNetwork
from moldau.testing.simulation.platform.trace import Trace

T = TypeVar("T")

TIMER_LATENESS_MS_MAX = 0.5
CALLBACK_BESIDE_CPUS_NS = 10
"""The virtual time that a callback of the network or of a client takes, if nodes have processors."""
MONOTONIC_START_MS_MAX = 1_000_000_000
WALL_START_MS = 1_767_225_600_000
"""1 January 2026, in milliseconds since the Unix epoch."""
FULL_COLLECTION_INTERVAL_NS = 3_000_000_000


class SimulatedClock:
    """The clocks of a host on virtual time: a monotonic clock with a random start, and a wall clock that may jump."""

    def __init__(
        self, loop: SimulatedLoop, *, monotonic_start_ms: int = 0, wall_error_ms: int = 0, rate: float = 1.0
    ) -> None:
        self._loop = loop
        self._rate = rate
        self._monotonic_start_ms = monotonic_start_ms
        self.wall_error_ms = wall_error_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_start_ms + self._elapsed_ms()

    def monotonic_us(self) -> int:
        return self.monotonic_ms() * 1_000

    def wall_ms(self) -> int:
        return WALL_START_MS + self.wall_error_ms + self._elapsed_ms()

    def _elapsed_ms(self) -> int:
        if self._rate == 1.0:
            return self._loop.now_ns // 1_000_000
        return int(self._loop.now_ns * self._rate / 1_000_000)

    def jump(self, milliseconds: int) -> None:
        """Moves the wall clock forwards or back, as an operator or a time server would."""
        self.wall_error_ms += milliseconds


class HostCrashed(Exception):
    """The host crashed while code outside of the host waited for a result."""


class SimulationTimeout(Exception):
    """The run did not finish within its limit of virtual time."""


class UnhandledError(Exception):
    """An exception of the program under test reached the event loop, which is a bug."""


class Host:
    """A machine. The disk, the address and the wall clock error of a host survive a crash. The tasks do not survive."""

    def __init__(
        self,
        simulation: "Simulation",
        name: str,
        settings: DiskSettings,
        wall_error_ms: int,
        clock_rate: float,
        callback_cost: CallbackCost | None,
    ) -> None:
        self.name = name
        self.address = simulation.network.add_host(name)
        self.clock: SimulatedClock
        self.platform: Platform
        self._simulation = simulation
        self._clock_rate = clock_rate
        self._callback_cost = callback_cost
        self._incarnation = self._create_incarnation(boot=0)
        self._wall_error_ms = wall_error_ms
        self._waiters: list[asyncio.Future[Any]] = []
        self.disk = SimulatedDisk(simulation.random_for(f"{name}/disk"), simulation.trace, settings, name=name)
        self._boot()

    @property
    def is_up(self) -> bool:
        return self._incarnation.is_alive

    @property
    def callbacks(self) -> int:
        """The number of callbacks that have run since the boot."""
        return self._incarnation.callbacks

    @property
    def cpu(self) -> SimulatedCpu | None:
        """The processor since the boot; None if callbacks take no time of this host."""
        return self._incarnation.cpu

    def _create_incarnation(self, boot: int) -> Incarnation:
        cpu = None if self._callback_cost is None else SimulatedCpu(self._callback_cost)
        return Incarnation(self.name, boot, self._clock_rate, cpu)

    def _boot(self) -> None:
        boot = f"{self.name}/boot-{self._incarnation.boot}"
        randomness = self._simulation.random_for(boot)
        self.clock = SimulatedClock(
            self._simulation.loop,
            monotonic_start_ms=randomness.randrange(MONOTONIC_START_MS_MAX),
            wall_error_ms=self._wall_error_ms,
            rate=self._clock_rate,
        )
        self.platform = Platform(clock=self.clock, random=self._simulation.random_for(f"{boot}/world"), disk=self.disk)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Starts a task on this host. The task ends silently when the host crashes."""
        context = contextvars.copy_context()
        context.run(current_incarnation.set, self._incarnation)
        return self._simulation.loop.create_task(coroutine, name=name, context=context)

    async def run(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> T:
        """Runs a coroutine on this host and returns its result. Raises HostCrashed if the host crashes first."""
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
        """Cuts the power: all tasks stop between two callbacks, and writes that were not synced may be lost."""
        self._take_down(self.disk.crash, silent=silent, is_machine_up=False)

    def kill(self) -> None:
        """Ends the process as SIGKILL would: no write is lost, and new connections are refused."""
        self._take_down(self.disk.kill, silent=False, is_machine_up=True)

    def pause(self) -> None:
        """Suspends the process as SIGSTOP would. Sockets stay open, and the disk and the clocks continue."""
        self._check_called_from_outside()
        self._simulation.trace.add(self._simulation.loop.now_ns, "pause", self.name)
        self._simulation.loop.pause(self._incarnation)

    def resume(self) -> None:
        self._simulation.trace.add(self._simulation.loop.now_ns, "resume", self.name)
        self._simulation.loop.resume(self._incarnation)

    @property
    def is_paused(self) -> bool:
        return self._incarnation.is_paused

    def _check_called_from_outside(self) -> None:
        if current_incarnation.get() is self._incarnation:
            raise RuntimeError("a host cannot crash or pause itself: call this from outside")

    def _take_down(self, end_disk: Callable[[], SimulatedDisk], *, silent: bool, is_machine_up: bool) -> None:
        self._check_called_from_outside()
        if not self.is_up:
            raise RuntimeError(f"{self.name} is already down")
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
        self._incarnation = self._create_incarnation(self._incarnation.boot + 1)
        self._simulation.network.restart(self.name)
        self._boot()


class Simulation:
    def __init__(
        self,
        seed: int,
        *,
        network: NetworkSettings | None = None,
        callback_cost: CallbackCost | None = None,
        trace: Trace | None = None,
        callbacks_max: int = CALLBACKS_MAX,
    ) -> None:
        """With `callback_cost`, hosts can have processors."""
        self.seed = seed
        self.trace = trace or Trace()
        self._callback_cost = callback_cost
        self.loop = SimulatedLoop(  # type: ignore[abstract]
            self.trace,
            self.random_for("timers"),
            timer_lateness_ms_max=TIMER_LATENESS_MS_MAX,
            callbacks_max=callbacks_max,
            callback_ns=CALLBACK_NS if callback_cost is None else CALLBACK_BESIDE_CPUS_NS,
        )
        self.network = SimulatedNetwork(self.loop, self.random_for("network"), network)
        self.hosts: dict[str, Host] = {}
        self._collected_ns = 0

    @property
    def trace_hash(self) -> str:
        return self.trace.digest

    def random_for(self, purpose: str) -> random.Random:
        """Returns the random stream of a purpose. A draw from one stream does not change the other streams."""
        return random.Random(f"{self.seed}/{purpose}")

    def collect_garbage(self) -> None:
        """Collects garbage while the host is alive, so that exceptions that were never retrieved are reported. Full
        collections are rare, because they are slow."""
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
        has_cpu: bool = False,
    ) -> Host:
        if name in self.hosts:
            raise ValueError(f"host {name} already exists")
        callback_cost = self._callback_cost if has_cpu else None
        host = self.hosts[name] = Host(self, name, disk or DiskSettings(), wall_error_ms, clock_rate, callback_cost)
        return host

    def run(self, main: Callable[[], Awaitable[T]], timeout_ms: float) -> T:
        """Runs `main` to its end, then kills every host.

        Raises SimulationTimeout if `main` takes more virtual time than `timeout_ms`, and UnhandledError if an exception
        of the program under test reached the event loop.
        """

        async def run_with_timeout() -> T:
            async with asyncio.timeout(timeout_ms / 1000):
                return await main()

        with forbid_nondeterminism():
            try:
                result: T = self.loop.run_until_complete(run_with_timeout())
            except TimeoutError as error:
                raise SimulationTimeout(
                    f"not done after {timeout_ms} virtual ms; pending tasks:\n{self.loop.pending_tasks()}"
                ) from error
            finally:
                for host in self.hosts.values():
                    if host.is_up:
                        host.kill()
                self.loop.destroy(OUTSIDE)
        if self.loop.errors:
            raise UnhandledError("\n".join(self.loop.errors))
        return result
