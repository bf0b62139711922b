"""A deterministic event loop on virtual time: the same program with the same seed takes the same steps.

Callbacks run in the order in which they were scheduled, as asyncio guarantees. A callback takes one virtual
microsecond, or the time that the processor of its host needs for it (`cpu.py`). When no callback is ready, time jumps
to the next timer. Callbacks of a paused host are kept until the host resumes. Each host measures time with its own
clock. Calls that would leave the simulation (threads, sockets, signals) raise DeterminismError.
"""

import asyncio
import contextvars
import functools
import heapq
import inspect
import math
import random
import sys
import traceback
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any, TypeVarTuple

from moldau.testing.simulation.platform.cpu import CallbackCost, SimulatedCpu
from moldau.testing.simulation.platform.determinism import DeterminismError, DeterministicLoop
from moldau.testing.simulation.platform.trace import Trace

if TYPE_CHECKING:
    from moldau.testing.simulation.platform.network import SimulatedNetwork

Ts = TypeVarTuple("Ts")

NANOSECONDS = 1_000_000_000
CALLBACK_NS = 1_000
"""The virtual time that one callback takes. It is not 0, because a busy loop would then stop the clock."""

CALLBACKS_MAX = 50_000_000
CLOSE_ATTEMPTS_MAX = 100


class DeadlockError(RuntimeError):
    """No callback is ready, no timer is set, and the main task is not done."""


class LivelockError(RuntimeError):
    """The run exceeded its maximum number of callbacks."""


@dataclass(eq=False)
class Incarnation:
    """A host from one boot to the next crash. It owns every callback, task and future created on the host.

    Tasks inherit the context of the code that creates them. So everything that a host starts belongs to the same
    incarnation. Callbacks of an incarnation do not run after its end (`is_alive` is False), or while it is paused.
    """

    host: str
    boot: int
    clock_rate: float = 1.0
    """Speed of the monotonic clock and of all timers, relative to virtual time."""
    cpu: SimulatedCpu | None = None
    """The processor that runs the callbacks one by one. Without it, they take no time of this host."""
    is_alive: bool = field(default=True, init=False)
    is_paused: bool = field(default=False, init=False)
    callbacks: int = field(default=0, init=False)
    """The number of callbacks that have run. The state of the host changes only in callbacks."""


OUTSIDE = Incarnation("outside", 0)
"""The incarnation of the test driver, which is the code that starts, crashes and checks hosts."""

current_incarnation: ContextVar[Incarnation] = ContextVar("current_incarnation", default=OUTSIDE)


class SimulatedHandle(asyncio.TimerHandle):
    """A callback that is ready, or waits for its time.

    A run creates about a million of them. So this class sets the fields of asyncio's handles directly, without the
    debug mode of asyncio.
    """

    __slots__ = ("incarnation",)

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: "SimulatedLoop",
        context: contextvars.Context,
        when: float = 0.0,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = self._source_traceback = None
        self._when = when
        self._scheduled = False
        self.incarnation: Incarnation = context.get(current_incarnation, OUTSIDE)

    def cancel(self) -> None:
        # The loop drops cancelled callbacks when they are due.
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class CpuTurn(SimulatedHandle):
    """A timer that fires when the processor of a host is free for its next callback."""


class SimulatedFuture(asyncio.Future[Any]):
    incarnation: Incarnation


class SimulatedTask(asyncio.Task[Any]):
    number: int
    """Tasks are numbered per loop, because asyncio's numbers continue from run to run."""
    context: contextvars.Context
    """The context in which the coroutine is closed after a crash."""
    incarnation: Incarnation


EMPTY_CONTEXT = contextvars.Context()
"""The context of callbacks that belong to no host."""


class SimulatedLoop(DeterministicLoop):
    def __init__(
        self,
        trace: Trace | None = None,
        randomness: random.Random | None = None,
        *,
        timer_lateness_ms_max: float = 0.0,
        callbacks_max: int = CALLBACKS_MAX,
        callback_ns: int = CALLBACK_NS,
    ) -> None:
        """With `randomness`, timers fire late by up to `timer_lateness_ms_max`, as on a busy machine. `callback_ns` is
        the virtual time that passes on all hosts when a callback runs on none of their processors."""
        self.trace = trace or Trace()
        self.network: SimulatedNetwork | None = None
        self.errors: list[str] = []
        """Errors that reached the exception handler. Each error is a bug in the program under test."""
        self._timer_lateness_ns = int(timer_lateness_ms_max * 1e6) if randomness else 0
        self._draw_bits = (randomness or random.Random(0)).getrandbits
        self._callbacks_max = callbacks_max
        self._callback_ns = callback_ns
        self._callbacks = 0
        self.now_ns = 0
        self._ready: deque[SimulatedHandle] = deque()
        self._timers: list[tuple[int, int, SimulatedHandle]] = []
        self._timers_created = 0
        self._delayed_timers: list[tuple[int, SimulatedHandle]] | None = None
        """The timers that the running callback has set. They start when its processor has finished the callback. None
        if the callback runs on no processor."""
        self._cost: CallbackCost | None = None
        """The cost of the running callback; None if it runs on no processor."""
        self._paused_handles: dict[Incarnation, list[SimulatedHandle]] = {}
        """Callbacks of paused incarnations, in the order in which they became ready."""
        self.on_iteration: Callable[[], None] | None = None
        """A function that is called between two iterations of the loop. It must not change the simulated state."""
        self._tasks: dict[int, SimulatedTask] = {}
        self._tasks_created = 0
        self._running = False
        self._stopping = False
        self._closed = False
        self._debug = False
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None

    # Time

    def time(self) -> float:
        """Returns the virtual time on the clock of the host whose code is running."""
        now_ns = self.now_ns if self._cost is None else self.now_ns + self._cost.elapsed_ns()
        return now_ns / NANOSECONDS * current_incarnation.get().clock_rate

    # Scheduling

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> SimulatedHandle:
        self._check_closed()
        context = contextvars.copy_context() if context is None else context
        handle = SimulatedHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> SimulatedHandle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> SimulatedHandle:
        timer = SimulatedHandle(callback, args, self, contextvars.copy_context() if context is None else context)
        rate = timer.incarnation.clock_rate
        timer._when = self.now_ns / NANOSECONDS * rate + delay
        when_ns = self.now_ns + math.ceil(delay / rate * NANOSECONDS)
        if self._delayed_timers is not None:
            self._delayed_timers.append((when_ns, timer))
            return timer
        return self._set_timer(timer, when_ns)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> SimulatedHandle:
        context = contextvars.copy_context() if context is None else context
        timer = SimulatedHandle(callback, args, self, context, when)
        return self._set_timer(timer, math.ceil(when / timer.incarnation.clock_rate * NANOSECONDS))

    def _set_timer(self, timer: SimulatedHandle, when_ns: int) -> SimulatedHandle:
        self._check_closed()
        timer._scheduled = True
        if when_ns < self.now_ns:
            when_ns = self.now_ns
        lateness_max_ns = self._timer_lateness_ns
        if lateness_max_ns:
            # The same as `randrange`, in a third of its time.
            bits = lateness_max_ns.bit_length()
            lateness_ns = self._draw_bits(bits)
            while lateness_ns >= lateness_max_ns:
                lateness_ns = self._draw_bits(bits)
            when_ns += lateness_ns
        self._timers_created += 1
        heapq.heappush(self._timers, (when_ns, self._timers_created, timer))
        return timer

    # Futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        future = SimulatedFuture(loop=self)
        future.incarnation = current_incarnation.get()
        return future

    def create_task(
        self, coro: Any, *, name: object = None, context: contextvars.Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        self._check_closed()
        context = contextvars.copy_context() if context is None else context
        self._tasks_created += 1
        number = self._tasks_created
        label = str(name) if name is not None else f"{getattr(coro, '__qualname__', 'task')}#{number}"
        task = SimulatedTask(coro, loop=self, name=label, context=context, **options)
        task.number = number
        task.context = context
        task.incarnation = context.get(current_incarnation, OUTSIDE)
        if not task.incarnation.is_alive:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coro.close()
            return task
        self._tasks[number] = task
        task.add_done_callback(self._forget_task, context=EMPTY_CONTEXT)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        assert isinstance(task, SimulatedTask)
        self._tasks.pop(task.number, None)

    def destroy(self, incarnation: Incarnation) -> None:
        """Ends all tasks and timers of an incarnation. Disk and network calls in their `finally` blocks fail."""
        owned_tasks = [(number, task) for number, task in self._tasks.items() if task.incarnation is incarnation]
        for number, task in owned_tasks:
            del self._tasks[number]
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for _, task in owned_tasks:
            task.context.run(_close_coroutine, task.get_coro())
        owned_tasks.clear()
        self._paused_handles.pop(incarnation, None)
        # Remove only the timers. Ready callbacks can stay, because `_run` skips callbacks of a dead incarnation.
        self._timers = [timer for timer in self._timers if timer[2].incarnation is not incarnation]
        heapq.heapify(self._timers)

    def pause(self, incarnation: Incarnation) -> None:
        """Suspends an incarnation between two callbacks, as SIGSTOP would."""
        incarnation.is_paused = True
        self._paused_handles.setdefault(incarnation, [])

    def resume(self, incarnation: Incarnation) -> None:
        """Resumes an incarnation. The callbacks kept during the pause become ready, in order."""
        incarnation.is_paused = False
        self._ready.extend(self._paused_handles.pop(incarnation, ()))

    # Running

    def run_forever(self) -> None:
        self._run(lambda: False, None)

    def run_until_complete(self, future: Any) -> Any:
        self._check_closed()
        is_new = not asyncio.isfuture(future)
        main = asyncio.ensure_future(future, loop=self)
        try:
            self._run(main.done, main)
        except BaseException:
            if is_new and not main.done():
                # Suppress the warning about the unfinished task, because it would hide the error that is being raised.
                main._log_destroy_pending = False
            raise
        if not main.done():
            raise RuntimeError("the loop was stopped before the future was done")
        return main.result()

    def _run(self, is_done: Callable[[], bool], main: "asyncio.Future[Any] | None") -> None:
        self._check_closed()
        if self._running or events._get_running_loop() is not None:
            raise RuntimeError("this or another event loop is running already")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finish_generator)
        events._set_running_loop(self)
        self._running = True
        try:
            while not self._stopping and not is_done():
                self._schedule_due_timers()
                if not self._ready:
                    if main is None:
                        return
                    raise DeadlockError(
                        f"no callback is ready and no timer is set; pending tasks:\n{self.pending_tasks()}"
                    )
                # Run only the callbacks that are ready now. As in asyncio, the callbacks that they add run in the next
                # iteration.
                for _ in range(len(self._ready)):
                    handle = self._ready.popleft()
                    incarnation = handle.incarnation
                    if not incarnation.is_alive:
                        continue
                    if incarnation.cpu is not None:
                        self._run_on_cpu(handle, incarnation, incarnation.cpu)
                        continue
                    if handle._cancelled:
                        continue
                    if incarnation.is_paused:
                        self._paused_handles[incarnation].append(handle)
                        continue
                    self._run_handle(handle, incarnation)
                    self.now_ns += self._callback_ns
                if self.on_iteration is not None:
                    self.on_iteration()
        finally:
            self._running = False
            self._stopping = False
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _run_handle(self, handle: SimulatedHandle, incarnation: Incarnation) -> None:
        self._callbacks += 1
        if self._callbacks > self._callbacks_max:
            raise LivelockError(
                f"{self._callbacks_max} callbacks were not enough; pending tasks:\n{self.pending_tasks()}"
            )
        callback = handle._callback
        self.trace.add_step(self.now_ns, incarnation.host, _callback_label(callback))
        incarnation.callbacks += 1
        try:
            handle._context.run(callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler(
                {"message": f"Exception in callback {_callback_label(callback)}", "exception": error, "handle": handle}
            )

    def _run_on_cpu(self, handle: SimulatedHandle, incarnation: Incarnation, cpu: SimulatedCpu) -> None:
        """Runs a callback if the processor of its host is free, and otherwise queues it. Packets that the callback
        sends leave the host when the processor has finished it."""
        if incarnation.is_paused and not handle._cancelled:
            self._paused_handles[incarnation].append(handle)
            return
        if cpu.admit(handle, self.now_ns) and not handle._cancelled:
            delayed: list[tuple[int, SimulatedHandle]] = []
            self._delayed_timers = delayed
            self._cost = cpu.cost
            cpu.cost.start()
            self._run_handle(handle, incarnation)
            used_ns = max(cpu.cost.elapsed_ns(), CALLBACK_NS)
            self._delayed_timers = self._cost = None
            cpu.add_usage(self.now_ns, used_ns)
            for when_ns, timer in delayed:
                self._set_timer(timer, when_ns + used_ns)
        if cpu.needs_turn():
            turn = CpuTurn(_take_turn, (), self, EMPTY_CONTEXT)
            turn.incarnation = incarnation
            self._timers_created += 1
            heapq.heappush(self._timers, (max(cpu.busy_until_ns, self.now_ns), self._timers_created, turn))

    def _schedule_due_timers(self) -> None:
        """Makes due timers ready. If no callback is ready, time first advances to the next timer."""
        timers = self._timers
        while timers and (timers[0][2]._cancelled or not timers[0][2].incarnation.is_alive):
            heapq.heappop(timers)
        if not timers:
            return
        if not self._ready:
            self.now_ns = max(self.now_ns, timers[0][0])
        while timers and timers[0][0] <= self.now_ns:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            if type(timer) is CpuTurn:
                cpu = timer.incarnation.cpu
                assert cpu is not None
                timer = cpu.take_next(self.now_ns)
            self._ready.append(timer)

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if self._running:
            raise RuntimeError("cannot close a running loop")
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        self._paused_handles.clear()
        self._tasks.clear()

    def _check_closed(self) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")

    def pending_tasks(self) -> str:
        """Describes each unfinished task and the line where it is suspended."""
        lines = [
            f"  {task.incarnation.host}: {task.get_name()} at {_suspended_at(task.get_coro())}"
            for task in self._tasks.values()
            if task.incarnation.is_alive and not task.done()
        ]
        return "\n".join(lines) or "  (no task)"

    # Errors and generators

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = str(context.get("message", "unhandled exception"))
        if error is not None:
            text += "\n" + "".join(traceback.format_exception(error))
        self.errors.append(text)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        future = context.get("future") or context.get("task")
        if isinstance(future, SimulatedFuture | SimulatedTask) and not future.incarnation.is_alive:
            # Ignore errors of a dead host, because its code no longer runs and cannot retrieve them.
            return
        if self._exception_handler is None:
            self.default_exception_handler(context)
        else:
            self._exception_handler(self, context)

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        assert isinstance(generator, AsyncGeneratorType)
        # A generator that still awaits something was abandoned by a task of a dead host, and cannot be closed. A task
        # of a live host that is destroyed like this is reported by itself.
        if not self._closed and not generator.ag_running:
            self.create_task(generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """Does nothing, because generators are closed when they are garbage collected."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Does nothing, because there is no executor."""

    def get_debug(self) -> bool:
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        self._debug = enabled

    # Network

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self._get_network().create_server(protocol_factory, host, port, **options)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self._get_network().create_connection(protocol_factory, host, port, **options)

    def _get_network(self) -> "SimulatedNetwork":
        if self.network is None:
            raise DeterminismError("this loop has no network")
        return self.network


def _close_coroutine(coroutine: Any) -> None:
    """Closes a coroutine after the coroutines that it awaits. Repeats this if a `finally` block awaits again."""
    for _ in range(CLOSE_ATTEMPTS_MAX):
        awaited = getattr(coroutine, "cr_await", None)
        if inspect.iscoroutine(awaited):
            _close_coroutine(awaited)
        try:
            coroutine.close()
        except RuntimeError as error:
            if "ignored GeneratorExit" in str(error):
                continue
        except BaseException:
            # Errors in the cleanup of a dead host do not matter.
            pass
        return
    raise RuntimeError(f"{coroutine.__qualname__} cannot be closed")


def _take_turn() -> None:
    """Never runs, because the loop replaces a CpuTurn by the callback that is next."""


def _callback_label(callback: Any) -> str:
    while isinstance(callback, functools.partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    name = getattr(callback, "__qualname__", None)
    return name if name is not None else type(callback).__qualname__


def _suspended_at(coroutine: Any) -> str:
    """Returns the innermost line at which a coroutine is suspended."""
    place = "?"
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            file = "/".join(frame.f_code.co_filename.split("/")[-2:])
            place = f"{frame.f_code.co_qualname} ({file}:{frame.f_lineno})"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return place
