"""Simulated processors: callbacks of a host run one by one and take time, on this host only."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.testing.simulation.platform.cpu import FixedCost, MeasuredCost
from moldau.testing.simulation.platform.network import NetworkSettings
from moldau.testing.simulation.platform.simulation import Host, Simulation

CALLBACK_MS = 10
TOLERANCE_MS = 0.1
TIMEOUT_MS = 60_000


def simulation_with(callback_ms: float = CALLBACK_MS) -> Simulation:
    network = NetworkSettings(delay_ms_min=1.0, delay_ms_max=1.0, slow_packet_chance=0.0, partial_read_chance=0.0)
    simulation = Simulation(1, callback_cost=FixedCost(int(callback_ms * 1e6)), network=network)
    simulation.loop._timer_lateness_ns = 0
    return simulation


def run(simulation: Simulation, main: Callable[[], Awaitable[Any]]) -> Any:
    return simulation.run(main, TIMEOUT_MS)


def schedule(simulation: Simulation, host: Host, count: int) -> list[float]:
    """Schedules callbacks on a host. Returns the virtual milliseconds at which they start."""
    started_ms: list[float] = []

    async def start() -> None:
        for _ in range(count):
            asyncio.get_running_loop().call_soon(lambda: started_ms.append(simulation.loop.now_ns / 1e6))

    host.spawn(start())
    return started_ms


def test_callbacks_of_a_host_run_one_by_one() -> None:
    simulation = simulation_with()
    busy = simulation.add_host("busy", has_cpu=True)
    other = simulation.add_host("other", has_cpu=True)
    without = simulation.add_host("without")

    async def main() -> list[list[float]]:
        started_ms = [schedule(simulation, host, 3) for host in (busy, other, without)]
        await asyncio.sleep(1)
        return started_ms

    # The first callback of each host is the start of the task.
    expected = [10, 20, 30], [10, 20, 30], [0, 0, 0]
    for started_ms, expected_ms in zip(run(simulation, main), expected, strict=True):
        assert started_ms == pytest.approx(expected_ms, abs=TOLERANCE_MS)
    assert busy.cpu is not None
    assert busy.cpu.longest_wait_ns / 1e6 == pytest.approx(30, abs=TOLERANCE_MS)
    assert without.cpu is None


def test_timers_of_a_busy_host_fire_late() -> None:
    simulation = simulation_with()
    host = simulation.add_host("host", has_cpu=True)

    async def main() -> float:
        async def sleep() -> float:
            await asyncio.sleep(0.005)
            return simulation.loop.now_ns / 1e6

        schedule(simulation, host, 5)
        return await host.run(sleep())

    # Both tasks start, the five callbacks run, then the timer fires and wakes its task.
    assert run(simulation, main) == pytest.approx(80, abs=TOLERANCE_MS)


def test_a_packet_leaves_when_its_callback_has_ended() -> None:
    simulation = simulation_with()
    server = simulation.add_host("server", has_cpu=True)
    client = simulation.add_host("client")

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    async def serve() -> None:
        await asyncio.get_running_loop().create_server(Echo, "server", 80)

    async def send() -> float:
        loop = asyncio.get_running_loop()
        received = loop.create_future()

        class Receive(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                received.set_result(loop.time())

        transport, _ = await loop.create_connection(Receive, "server", 80)
        assert isinstance(transport, asyncio.Transport)
        await asyncio.sleep(1)
        sent_s = loop.time()
        transport.write(b"?")
        return float(await received - sent_s) * 1000

    async def main() -> float:
        await server.run(serve())
        return await client.run(send())

    assert run(simulation, main) == pytest.approx(1 + CALLBACK_MS + 1, abs=TOLERANCE_MS)


def test_a_cancelled_callback_does_not_stop_the_queue() -> None:
    simulation = simulation_with()
    host = simulation.add_host("host", has_cpu=True)
    ran: list[int] = []
    handles: list[asyncio.Handle] = []

    async def start() -> None:
        handles.extend(asyncio.get_running_loop().call_soon(ran.append, number) for number in range(6))

    async def main() -> None:
        host.spawn(start())
        await asyncio.sleep(0.015)
        for number in (1, 2, 5):
            handles[number].cancel()
        await asyncio.sleep(1)

    run(simulation, main)
    assert ran == [0, 3, 4]


def test_a_paused_host_keeps_the_order_of_its_callbacks() -> None:
    simulation = simulation_with()
    host = simulation.add_host("host", has_cpu=True)
    ran: list[int] = []

    async def start(first: int) -> None:
        for number in range(first, first + 5):
            asyncio.get_running_loop().call_soon(ran.append, number)

    async def main() -> None:
        host.spawn(start(0))
        await asyncio.sleep(0.025)
        host.pause()
        host.spawn(start(5))
        await asyncio.sleep(1)
        assert len(ran) < 5
        host.resume()
        await asyncio.sleep(1)

    run(simulation, main)
    assert ran == list(range(10))


def test_a_killed_host_drops_its_callbacks_and_starts_idle() -> None:
    simulation = simulation_with()
    host = simulation.add_host("host", has_cpu=True)

    async def main() -> tuple[list[float], list[float]]:
        before = schedule(simulation, host, 100)
        await asyncio.sleep(0.025)
        host.kill()
        host.restart()
        after = schedule(simulation, host, 1)
        await asyncio.sleep(2)
        return before, after

    before, after = run(simulation, main)
    assert len(before) == 2
    assert after == pytest.approx([35], abs=TOLERANCE_MS)


def test_a_run_with_a_fixed_cost_repeats_exactly() -> None:
    def trace_hash() -> str:
        simulation = simulation_with(0.02)
        hosts = [simulation.add_host(f"host-{number}", has_cpu=True) for number in range(3)]

        async def main() -> None:
            for host in hosts:
                schedule(simulation, host, 20)
            await asyncio.sleep(1)

        run(simulation, main)
        return simulation.trace_hash

    assert trace_hash() == trace_hash()


def test_a_measured_callback_takes_its_cpu_time() -> None:
    simulation = Simulation(1, callback_cost=MeasuredCost())
    host = simulation.add_host("host", has_cpu=True)

    async def main() -> float:
        async def work() -> float:
            started_s, deadline = asyncio.get_running_loop().time(), time.thread_time() + 0.02
            while time.thread_time() < deadline:
                pass
            return asyncio.get_running_loop().time() - started_s

        return await host.run(work())

    assert 0.02 <= run(simulation, main) < 0.2
    assert host.cpu is not None
    assert host.cpu.used_ns >= 0.02e9
