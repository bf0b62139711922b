"""The simulated loop: virtual time, asyncio's order of callbacks, deadlock reports, and no access to the outside."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from moldau.testing.simulation.platform.determinism import DeterminismError
from moldau.testing.simulation.platform.loop import DeadlockError, LivelockError, SimulatedLoop
from moldau.testing.simulation.platform.simulation import HostCrashed, Simulation, SimulationTimeout, UnhandledError


def run(main: Callable[[], Awaitable[Any]], **options: Any) -> Any:
    loop = SimulatedLoop(**options)
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def test_sleepers_wake_in_the_order_of_their_deadlines_and_no_real_time_passes() -> None:
    async def main() -> tuple[list[int], float]:
        woken: list[int] = []

        async def sleeper(seconds: int) -> None:
            await asyncio.sleep(seconds)
            woken.append(seconds)

        await asyncio.gather(*(sleeper(seconds) for seconds in (86400, 3, 60, 1)))
        return woken, asyncio.get_running_loop().time()

    woken, completed_at = run(main)
    assert woken == [1, 3, 60, 86400]
    assert 86400 <= completed_at < 86401


def test_callbacks_run_in_the_order_they_were_scheduled() -> None:
    async def main() -> list[int]:
        loop, order = asyncio.get_running_loop(), []
        for number in range(100):
            loop.call_soon(order.append, number)
        await asyncio.sleep(0.001)
        return order

    assert run(main) == list(range(100))


def test_timers_fire_while_another_task_keeps_the_loop_busy() -> None:
    async def main() -> int:
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, done.set_result, None)
        rounds = 0
        while not done.done():
            rounds += 1
            await asyncio.sleep(0)
        return rounds

    assert run(main) > 100


def test_timeouts_queues_locks_and_cancellation_work() -> None:
    async def main() -> str:
        queue: asyncio.Queue[int] = asyncio.Queue()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await queue.get()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 5)
        task = asyncio.create_task(asyncio.sleep(100))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.Lock(), asyncio.TaskGroup() as group:
            group.create_task(queue.put(1))
        return f"{await queue.get()} at {asyncio.get_running_loop().time():.1f}"

    assert run(main) == "1 at 11.0"


def test_asyncio_runner_accepts_the_loop() -> None:
    async def numbers() -> Any:
        for number in range(3):
            yield number
            await asyncio.sleep(1)

    async def main() -> list[int]:
        return [number async for number in numbers()]

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        assert runner.run(main()) == [0, 1, 2]


def test_a_deadlock_names_the_pending_tasks() -> None:
    async def waits_for_nothing() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        task = asyncio.create_task(waits_for_nothing(), name="stuck")
        await task

    with pytest.raises(DeadlockError, match=r"stuck at .*waits_for_nothing \(simulation/test_loop.py:\d+\)"):
        run(main)


def test_an_endless_loop_is_stopped() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(LivelockError):
        run(main, callbacks_max=1000)


@pytest.mark.parametrize(
    "escape",
    [
        lambda loop: loop.run_in_executor(None, print),
        lambda loop: loop.add_reader(0, print),
        lambda loop: loop.add_signal_handler(2, print),
        lambda loop: loop.getaddrinfo("localhost", 1),
        lambda loop: loop.create_datagram_endpoint(asyncio.DatagramProtocol),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true"),
    ],
)
def test_loop_methods_that_leave_the_simulation_raise(escape: Callable[[Any], Any]) -> None:
    async def main() -> None:
        with pytest.raises(DeterminismError):
            await escape(asyncio.get_running_loop())

    run(main)


def test_randomness_threads_and_sleep_raise_within_a_simulation() -> None:
    import os
    import threading
    import uuid

    async def main() -> None:
        for escape in (lambda: os.urandom(4), uuid.uuid4, lambda: time.sleep(0), threading.Thread(target=print).start):
            with pytest.raises(DeterminismError):
                escape()

    Simulation(1).run(main, 1000)
    assert len(os.urandom(4)) == 4


def test_an_unhandled_exception_fails_the_run() -> None:
    async def main() -> None:
        async def breaks() -> None:
            raise ZeroDivisionError

        asyncio.create_task(breaks())
        await asyncio.sleep(1)

    simulation = Simulation(1)
    host = simulation.add_host("a")

    async def on_host() -> None:
        await host.run(main())

    with pytest.raises(UnhandledError, match="ZeroDivisionError"):
        simulation.run(on_host, 10_000)


def test_a_run_that_times_out_names_the_pending_tasks() -> None:
    async def main() -> None:
        await asyncio.create_task(asyncio.sleep(100), name="slow")

    with pytest.raises(SimulationTimeout, match="pending tasks"):
        Simulation(1).run(main, 1000)


def test_a_crash_stops_a_host_between_two_callbacks() -> None:
    simulation = Simulation(3)
    host = simulation.add_host("a")
    steps: list[str] = []

    async def program() -> None:
        file = host.platform.disk.open("/file")
        try:
            while True:
                await asyncio.sleep(0.1)
                steps.append("step")
        finally:
            steps.append("finally")
            for forbidden in (lambda: file.append([b"from the dead"]), lambda: host_disk.open("/other")):
                with pytest.raises(OSError, match="crashed"):
                    forbidden()
            asyncio.get_running_loop().call_soon(steps.append, "a ghost")
            asyncio.create_task(never())
            await asyncio.sleep(0)
            steps.append("never")

    async def never() -> None:
        steps.append("never")

    host_disk = host.platform.disk

    async def main() -> None:
        running = asyncio.create_task(host.run(program()))
        await asyncio.sleep(1.05)
        host.crash()
        assert not host.is_up
        with pytest.raises(HostCrashed):
            await running
        await asyncio.sleep(10)
        with pytest.raises(HostCrashed):
            await host.run(never())
        host.restart()
        assert host.platform.disk.list("/") in ([], ["file"])
        assert await host.run(asyncio.sleep(0, "back")) == "back"

    simulation.run(main, 100_000)
    assert steps == ["step"] * 10 + ["finally"]


def test_a_generator_that_a_crashed_host_has_abandoned_is_no_error() -> None:
    simulation = Simulation(1)
    host = simulation.add_host("node")

    @asynccontextmanager
    async def locked(lock: asyncio.Lock) -> AsyncIterator[None]:
        async with lock:
            yield

    async def wait_forever() -> None:
        lock = asyncio.Lock()
        await lock.acquire()
        # A cycle, so that the garbage collector and not the crash finalizes the generator.
        entered = locked(lock)
        references: list[object] = [entered]
        references.append(references)
        async with entered:
            pass

    async def main() -> None:
        host.spawn(wait_forever())
        await asyncio.sleep(1)
        host.crash()
        gc.collect()
        await asyncio.sleep(1)
        gc.collect()

    simulation.run(main, 10_000)


def test_clocks_of_hosts_differ_and_wall_clocks_jump() -> None:
    simulation = Simulation(3)
    a, b = simulation.add_host("a"), simulation.add_host("b", wall_error_ms=-5000)

    async def main() -> None:
        assert a.clock.wall_ms() - b.clock.wall_ms() == 5000
        assert a.clock.monotonic_ms() != b.clock.monotonic_ms()
        before = a.clock.monotonic_ms(), a.clock.wall_ms()
        a.clock.jump(-3_600_000)
        await asyncio.sleep(1)
        assert a.clock.monotonic_ms() - before[0] in (1000, 1001)
        assert a.clock.wall_ms() < before[1]

    simulation.run(main, 10_000)


def test_a_host_can_crash_with_many_ready_callbacks() -> None:
    simulation = Simulation(5)
    host = simulation.add_host("a")
    ran: list[int] = []

    async def main() -> None:
        async def schedule() -> None:
            for number in range(10):
                asyncio.get_running_loop().call_soon(ran.append, number)

        await host.run(asyncio.sleep(0))
        host.spawn(schedule())
        asyncio.get_running_loop().call_soon(host.crash)
        await asyncio.sleep(1)

    simulation.run(main, 10_000)
    assert ran == []
