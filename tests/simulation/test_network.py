"""The simulated network: ordered bytes in odd chunks, flow control, refused connections, partitions and crashes."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.testing.simulation.platform.simulation import Host, Simulation


def simulate(seed: int, main: Callable[[Simulation, Host, Host], Awaitable[Any]]) -> str:
    simulation = Simulation(seed)
    server, client = simulation.add_host("server"), simulation.add_host("client")
    simulation.run(lambda: main(simulation, server, client), 600_000)
    return simulation.trace_hash


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1000):
            writer.write(data)
            await writer.drain()
        writer.close()
    except ConnectionError:
        writer.transport.abort()


async def serve_echo() -> asyncio.AbstractServer:
    return await asyncio.start_server(echo, "0.0.0.0", 9092)


@pytest.mark.parametrize("seed", range(10))
def test_streams_carry_bytes_in_order(seed: int) -> None:
    data = random.Random(seed).randbytes(300_000)

    async def client() -> bytes:
        reader, writer = await asyncio.open_connection("server", 9092)
        assert writer.get_extra_info("peername")[1] == 9092
        assert writer.get_extra_info("socket") is None

        async def send() -> None:
            for start in range(0, len(data), 7000):
                writer.write(data[start : start + 7000])
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        received = await reader.read()
        await sending
        writer.close()
        await writer.wait_closed()
        return received

    async def main(simulation: Simulation, server: Host, other: Host) -> None:
        await server.run(serve_echo())
        assert await other.run(client()) == data

    assert simulate(seed, main) == simulate(seed, main)
    assert simulate(seed, main) != simulate(seed + 1, main)


class Collector(asyncio.Protocol):
    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)


class BufferedCollector(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.buffer = bytearray(1000)
        self.data = b""
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, size: int) -> None:
        self.data += self.buffer[:size]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)


async def listen(factory: Callable[[], Any], port: int = 9092) -> list[Any]:
    """Starts a server with protocols from `factory`, and returns the list to which they are added."""
    protocols: list[Any] = []

    def make() -> Any:
        protocols.append(factory())
        return protocols[-1]

    await asyncio.get_running_loop().create_server(make, "0.0.0.0", port)
    return protocols


async def connect(factory: Callable[[], Any] = Collector, host: str = "server", port: int = 9092) -> Any:
    return (await asyncio.get_running_loop().create_connection(factory, host, port))[1]


def test_plain_and_buffered_protocols_get_all_bytes_then_the_end() -> None:
    data = random.Random(1).randbytes(100_000)

    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        buffered = await server.run(listen(BufferedCollector, 1))
        plain = await server.run(listen(Collector, 2))
        for port in (1, 2):
            protocol = await client.run(connect(port=port))
            protocol.transport.writelines([data[:10], memoryview(data)[10:]])
            protocol.transport.close()
            assert protocol.transport.is_closing()
            assert await protocol.lost is None
        assert await buffered[0].lost is None
        assert await plain[0].lost is None
        assert buffered[0].data == data
        assert b"".join(plain[0].pieces) == data

    simulate(1, main)


def test_frames_arrive_split_and_joined() -> None:
    sizes: set[int] = set()
    for seed in range(20):

        async def main(simulation: Simulation, server: Host, client: Host) -> None:
            protocols = await server.run(listen(Collector))
            protocol = await client.run(connect())
            for _ in range(10):
                protocol.transport.write(b"x" * 100)
            protocol.transport.close()
            await protocols[0].lost
            sizes.update(map(len, protocols[0].pieces))

        simulate(seed, main)
    assert any(size < 100 for size in sizes)
    assert any(size > 100 for size in sizes)


def test_a_slow_reader_pauses_the_writer_until_it_reads_again() -> None:
    class Writer(Collector):
        paused = 0
        resumed: asyncio.Event

        def __init__(self) -> None:
            super().__init__()
            self.resumed = asyncio.Event()

        def pause_writing(self) -> None:
            self.paused += 1

        def resume_writing(self) -> None:
            self.resumed.set()

    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        protocols = await server.run(listen(Collector))
        writer = await client.run(connect(Writer))
        await asyncio.sleep(1)
        protocols[0].transport.pause_reading()
        writer.transport.set_write_buffer_limits(high=1000, low=100)
        writer.transport.write(bytes(1_000_000))
        await asyncio.sleep(10)
        assert writer.paused == 1
        assert not writer.resumed.is_set()
        assert protocols[0].pieces == []
        assert writer.transport.get_write_buffer_size() > 500_000
        protocols[0].transport.resume_reading()
        await writer.resumed.wait()
        assert writer.transport.get_write_buffer_size() <= 100
        await asyncio.sleep(10)
        assert sum(map(len, protocols[0].pieces)) == 1_000_000

    simulate(4, main)


def test_a_port_without_a_listener_refuses_and_an_unknown_host_is_unreachable() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        with pytest.raises(ConnectionRefusedError):
            await client.run(connect())
        with pytest.raises(OSError, match="no such host"):
            await client.run(connect(host="elsewhere"))
        listening = await server.run(serve_echo())
        listening.close()
        with pytest.raises(ConnectionRefusedError):
            await client.run(connect())

    simulate(1, main)


def test_ports_belong_to_hosts() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        first = await server.run(serve_echo())
        with pytest.raises(OSError, match="in use"):
            await server.run(serve_echo())
        await client.run(serve_echo())
        with pytest.raises(OSError, match="not an address"):
            await client.run(asyncio.start_server(echo, server.address, 1))
        assert first.sockets[0].getsockname() == (server.address, 9092)
        free = await server.run(asyncio.start_server(echo, server.address, 0))
        port = free.sockets[0].getsockname()[1]
        await client.run(connect(host=server.address, port=port))
        await server.run(connect(host="127.0.0.1", port=port))

    simulate(1, main)


def test_a_closed_server_waits_for_its_connections() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        listening = await server.run(serve_echo())
        protocol = await client.run(connect())
        await asyncio.sleep(1)
        listening.close()
        closed = asyncio.create_task(server.run(listening.wait_closed()))
        await asyncio.sleep(1)
        assert not closed.done()
        protocol.transport.close()
        await closed

    simulate(1, main)


def test_an_abort_resets_the_other_side() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        protocols = await server.run(listen(Collector))
        protocol = await client.run(connect())
        await asyncio.sleep(1)
        protocol.transport.abort()
        assert await protocol.lost is None
        assert isinstance(await protocols[0].lost, ConnectionResetError)

    simulate(1, main)


def test_writing_to_a_closed_side_ends_in_a_reset() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        protocols = await server.run(listen(Collector))
        with_eof = protocols

        class Stubborn(Collector):
            def eof_received(self) -> bool:
                return True

        protocol = await client.run(connect(Stubborn))
        await asyncio.sleep(1)
        with_eof[0].transport.close()
        await asyncio.sleep(1)
        assert not protocol.lost.done()
        protocol.transport.write(b"anybody there?")
        assert isinstance(await protocol.lost, ConnectionResetError)

    simulate(1, main)


def test_a_protocol_that_raises_loses_its_connection_and_fails_the_run() -> None:
    class ScenarioError(Collector):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError

    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        await server.run(listen(ScenarioError))
        protocol = await client.run(connect())
        protocol.transport.write(b"x")
        assert isinstance(await protocol.lost, ConnectionResetError)
        assert "ZeroDivisionError" in simulation.loop.errors.pop()

    simulate(1, main)


def test_a_partition_holds_bytes_back_until_it_heals() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        protocols = await server.run(listen(Collector))
        protocol = await client.run(connect())
        simulation.network.partition({"client"}, {"server"})
        protocol.transport.write(b"first")
        connecting = asyncio.create_task(client.run(connect()))
        await asyncio.sleep(20)
        assert protocols[0].pieces == []
        assert not connecting.done()
        simulation.network.heal()
        protocol.transport.write(b"second")
        await connecting
        await asyncio.sleep(5)
        assert b"".join(protocols[0].pieces) == b"firstsecond"

    simulate(1, main)


def test_a_connection_attempt_across_a_partition_times_out() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        await server.run(serve_echo())
        simulation.network.partition({"client"}, {"server"})
        with pytest.raises(TimeoutError):
            await client.run(connect())

    simulate(1, main)


def test_a_one_way_partition_blocks_one_direction_only() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        protocols = await server.run(listen(Collector))
        protocol = await client.run(connect())
        await asyncio.sleep(1)
        simulation.network.partition({"server"}, {"client"}, one_way=True)
        protocol.transport.write(b"there")
        protocols[0].transport.write(b"back")
        await asyncio.sleep(10)
        assert b"".join(protocols[0].pieces) == b"there"
        assert protocol.pieces == []
        simulation.network.heal()
        await asyncio.sleep(10)
        assert b"".join(protocol.pieces) == b"back"

    simulate(1, main)


def test_a_crash_resets_the_connections_of_others_and_a_silent_one_only_after_the_restart() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        await server.run(listen(Collector))
        protocol = await client.run(connect())
        server.crash()
        assert isinstance(await protocol.lost, ConnectionResetError)
        with pytest.raises(TimeoutError):
            await client.run(connect())
        server.restart()
        with pytest.raises(ConnectionRefusedError):
            await client.run(connect())
        await server.run(listen(Collector))
        protocol = await client.run(connect())
        server.crash(silent=True)
        protocol.transport.write(b"hello?")
        await asyncio.sleep(100)
        assert not protocol.lost.done()
        server.restart()
        assert isinstance(await protocol.lost, ConnectionResetError)

    simulate(1, main)


def test_reset_and_delay_between_hosts() -> None:
    async def main(simulation: Simulation, server: Host, client: Host) -> None:
        protocols = await server.run(listen(Collector))
        protocol = await client.run(connect())
        await asyncio.sleep(1)
        simulation.network.delay({"client"}, {"server"}, 5000)
        protocol.transport.write(b"x")
        await asyncio.sleep(4)
        assert protocols[0].pieces == []
        await asyncio.sleep(4)
        assert protocols[0].pieces == [b"x"]
        simulation.network.reset({"client"}, {"server"})
        assert isinstance(await protocol.lost, ConnectionResetError)
        assert isinstance(await protocols[0].lost, ConnectionResetError)

    simulate(1, main)
