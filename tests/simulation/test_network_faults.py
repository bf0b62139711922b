"""Lost, duplicated and reordered packets, paused and killed processes, and clocks with different rates."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.testing.simulation.platform.network import NetworkSettings
from moldau.testing.simulation.platform.simulation import Host, Simulation


def simulate(
    main: Callable[[Simulation, Host, Host], Awaitable[Any]],
    *,
    seed: int = 1,
    network: NetworkSettings | None = None,
    clock_rate: float = 1.0,
) -> Simulation:
    simulation = Simulation(seed, network=network)
    server = simulation.add_host("server", clock_rate=clock_rate)
    client = simulation.add_host("client")
    simulation.run(lambda: main(simulation, server, client), 600_000)
    return simulation


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()
    except ConnectionError:
        writer.transport.abort()


async def serve_echo() -> asyncio.AbstractServer:
    return await asyncio.start_server(echo, "0.0.0.0", 9092)


async def round_trip(data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("server", 9092)
    for start in range(0, len(data), 700):
        writer.write(data[start : start + 700])
    writer.write_eof()
    response = await reader.read()
    writer.close()
    return response


@pytest.mark.parametrize("seed", range(10))
def test_a_stream_is_whole_and_in_order_however_its_packets_travel(seed: int) -> None:
    data = random.Random(seed).randbytes(50_000)

    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        await server.run(serve_echo())
        assert await client.run(round_trip(data)) == data

    settings = NetworkSettings(slow_packet_chance=0.2, loss_chance=0.1, duplication_chance=0.2)
    simulation = simulate(main, seed=seed, network=settings)
    assert simulation.network.counts["packets lost"] > 0
    assert simulation.network.counts["duplicates dropped"] > 0
    assert simulation.trace_hash == simulate(main, seed=seed, network=settings).trace_hash


def test_a_lost_packet_comes_after_the_retransmission_timeout_and_holds_up_those_behind_it() -> None:
    arrivals: list[tuple[float, bytes]] = []

    class Receiver(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            arrivals.append((asyncio.get_running_loop().time(), data))

    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        loop = asyncio.get_running_loop()
        await server.run(loop.create_server(Receiver, "0.0.0.0", 9092))
        transport, _ = await client.run(loop.create_connection(asyncio.Protocol, "server", 9092))
        await asyncio.sleep(1)
        began = loop.time()
        simulation.network.settings.loss_chance = 0.999999
        simulation.network.random.seed(3)
        losses = iter((True, False))
        simulation.network._retransmissions_ms = lambda: 200.0 if next(losses) else 0.0  # type: ignore[method-assign]
        transport.write(b"first")
        transport.write(b"second")
        simulation.network.settings.loss_chance = 0
        await asyncio.sleep(2)
        assert b"".join(data for _, data in arrivals) == b"firstsecond"
        assert arrivals[0][0] >= began + 0.2

    simulate(main, network=NetworkSettings(slow_packet_chance=0, partial_read_chance=0))


def test_a_healed_path_is_open_while_others_stay_partitioned() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        bridge = simulation.add_host("bridge")
        await server.run(serve_echo())
        simulation.network.partition({"server"}, {"client", "bridge"})
        simulation.network.heal_between({"server"}, {"bridge"})
        assert await bridge.run(round_trip(b"through")) == b"through"
        with pytest.raises(TimeoutError):
            await client.run(round_trip(b"not through"))

    simulate(main)


def test_a_host_on_both_sides_of_a_partition_reaches_itself() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        await server.run(serve_echo())
        simulation.network.partition({"server"}, {"server", "client"})
        assert await server.run(round_trip(b"me")) == b"me"

    simulate(main)


def test_a_paused_host_does_nothing_and_keeps_its_connections() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        await server.run(serve_echo())
        ticks: list[int] = []

        async def tick() -> None:
            while True:
                await asyncio.sleep(1)
                ticks.append(server.clock.monotonic_ms())

        server.spawn(tick())
        await asyncio.sleep(3.5)
        server.pause()
        before = server.clock.monotonic_ms()
        request = asyncio.create_task(client.run(round_trip(b"are you there?")))
        await asyncio.sleep(30)
        assert len(ticks) == 3
        assert not request.done()
        assert server.clock.monotonic_ms() >= before + 30_000
        server.resume()
        assert await request == b"are you there?"
        assert len(ticks) == 4
        assert ticks[-1] >= before + 30_000

    simulate(main)


def test_a_paused_host_can_be_killed_and_started_again() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        await server.run(serve_echo())
        server.pause()
        server.kill()
        server.restart()
        assert not server.is_paused
        await server.run(serve_echo())
        assert await client.run(round_trip(b"again")) == b"again"

    simulate(main)


def test_a_killed_process_refuses_connections_and_a_machine_without_power_times_out() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        await server.run(serve_echo())
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            await client.run(round_trip(b"x"))
        server.restart()
        server.crash()
        with pytest.raises(TimeoutError):
            await client.run(round_trip(b"x"))

    simulate(main)


@pytest.mark.parametrize("rate", [0.95, 1.05])
def test_timers_and_clocks_of_a_host_run_at_its_own_rate(rate: float) -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        async def nap() -> tuple[float, int]:
            loop, clock = asyncio.get_running_loop(), server.clock
            began, began_ms = loop.time(), clock.monotonic_ms()
            await asyncio.sleep(100)
            try:
                async with asyncio.timeout(100):
                    await asyncio.get_running_loop().create_future()
            except TimeoutError:
                pass
            return loop.time() - began, clock.monotonic_ms() - began_ms

        began_ns = simulation.loop.now_ns
        felt_s, felt_ms = await server.run(nap())
        took_s = (simulation.loop.now_ns - began_ns) / 1e9
        assert felt_s == pytest.approx(200, abs=0.01)
        assert felt_ms == pytest.approx(200_000, abs=10)
        assert took_s * rate == pytest.approx(200, abs=0.01)

    simulate(main, clock_rate=rate)
