"""Connections: frames however the bytes arrive, answers in the order of requests, stored bytes sent whole,
limits kept."""

import asyncio
import os
import random
import socket
import struct
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from moldau.connections.admission import Admission
from moldau.connections.budget import Budget
from moldau.connections.connection import REQUESTS_IN_FLIGHT_MAX, CloseConnectionError, Connection
from moldau.connections.frames import SHARED_BUFFER_SIZE, FrameReader, FrameTooLargeError
from moldau.connections.large_frames import LargeFrames
from moldau.connections.listener import Listener
from moldau.logs.store import FileSlice
from moldau.settings.sources import build
from moldau.world.os_disk import OsDisk

Handler = Callable[[memoryview], Coroutine[Any, Any, Sequence[Any] | None]]


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


# Frames


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_out_however_the_bytes_come_in(seed: int) -> None:
    source = random.Random(seed)
    sent = [source.randbytes(source.choice([0, 1, 5, 100, 5000, 300_000])) for _ in range(30)]
    stream = memoryview(b"".join(map(framed, sent)))
    reader = FrameReader(memoryview(bytearray(SHARED_BUFFER_SIZE)), 1_000_000)
    got, position = [], 0
    while position < len(stream):
        room = reader.buffer()
        count = min(len(room), len(stream) - position, source.choice([1, 3, 4, 100, 70_000, 300_000]))
        room[:count] = stream[position : position + count]
        position += count
        got += [bytes(frame) for frame in reader.received(count)]
    assert got == sent
    assert reader.is_between_frames


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_frame_of_an_impossible_size_is_refused(size: int) -> None:
    reader = FrameReader(memoryview(bytearray(SHARED_BUFFER_SIZE)), 1000)
    reader.buffer()[:4] = struct.pack(">i", size)
    with pytest.raises(FrameTooLargeError):
        list(reader.received(4))


def test_frames_own_their_memory() -> None:
    shared = memoryview(bytearray(SHARED_BUFFER_SIZE))
    reader = FrameReader(shared, 1000)
    reader.buffer()[:7] = framed(b"abc")
    [frame] = reader.received(7)
    shared[:7] = bytes(7)
    assert bytes(frame) == b"abc"


# Connections


class Server:
    """A listener on real TCP whose requests a test answers as it likes."""

    def __init__(self, handler: Handler, **settings: str) -> None:
        chosen = build(flags={"listen": "127.0.0.1:0", "store": "memory", **settings})
        self.budget = Budget(chosen.queued_max_request_bytes)
        self.listener = Listener(
            "PLAINTEXT",
            lambda: chosen,
            self.budget,
            LargeFrames(chosen.queued_max_request_bytes),
            Admission(lambda: chosen),
            lambda connection, name: lambda frame, release: handler(frame),
        )
        self.port = 0

    async def __aenter__(self) -> "Server":
        _, self.port = await self.listener.bind("127.0.0.1", 0)
        await self.listener.serve()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.listener.close(0.2)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    return await reader.readexactly(size)


LOOPS = [asyncio.new_event_loop]
try:
    import uvloop

    LOOPS.append(uvloop.new_event_loop)
except ImportError:
    pass


@pytest.fixture(params=LOOPS, ids=lambda factory: factory.__module__.split(".")[0])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run_(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(main, 20))

    return run_


Run = Callable[[Coroutine[Any, Any, None]], None]


def test_answers_leave_in_the_order_of_requests_whatever_each_takes(run: Run) -> None:
    async def answer(frame: memoryview) -> Sequence[Any]:
        await asyncio.sleep(0.02 * (frame[0] % 3))
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Server(answer) as server:
            reader, writer = await server.connect()
            sent = [bytes([number]) * 5 for number in (2, 0, 1, 2, 1, 0, 5, 3)]
            writer.write(b"".join(map(framed, sent)))
            assert [await read_frame(reader) for _ in sent] == sent
            writer.close()

    run(main())


def test_a_request_without_answer_does_not_hold_up_the_next(run: Run) -> None:
    async def answer(frame: memoryview) -> Sequence[Any] | None:
        return None if bytes(frame) == b"silent" else [framed(bytes(frame))]

    async def main() -> None:
        async with Server(answer) as server:
            reader, writer = await server.connect()
            writer.write(framed(b"silent") + framed(b"a") + framed(b"silent") + framed(b"b"))
            assert [await read_frame(reader) for _ in range(2)] == [b"a", b"b"]
            writer.close()

    run(main())


@pytest.mark.parametrize("size", [10, 100_000, 20_000_000])
def test_stored_bytes_leave_whole_and_in_place_even_to_a_slow_reader(
    run: Run, tmp_path: Path, size: int
) -> None:
    content = os.urandom(size)
    file = OsDisk().open(str(tmp_path / "segment"))
    file.append([content])

    async def answer(frame: memoryview) -> Sequence[Any]:
        if bytes(frame) == b"small":
            return [framed(b"small")]
        return [
            struct.pack(">i", size + 2) + b"<",
            FileSlice(file, 0, size // 3),
            FileSlice(file, size // 3, size - size // 3),
            b">",
        ]

    async def main() -> None:
        async with Server(answer) as server:
            reader, writer = await server.connect()
            writer.write(framed(b"small") + framed(b"file") + framed(b"small") + framed(b"file"))
            assert await read_frame(reader) == b"small"
            await asyncio.sleep(0.05)
            assert await read_frame(reader) == b"<" + content + b">"
            assert await read_frame(reader) == b"small"
            assert await read_frame(reader) == b"<" + content + b">"
            writer.close()

    run(main())


def test_a_client_that_leaves_in_the_middle_of_a_large_answer_harms_nobody(run: Run, tmp_path: Path) -> None:
    size = 30_000_000
    file = OsDisk().open(str(tmp_path / "segment"))
    file.append([bytes(size)])

    async def answer(frame: memoryview) -> Sequence[Any]:
        if bytes(frame) == b"small":
            return [framed(b"small")]
        return [struct.pack(">i", size), FileSlice(file, 0, size)]

    async def main() -> None:
        async with Server(answer) as server:
            for _ in range(3):
                reader, writer = await server.connect()
                writer.write(framed(b"file"))
                await reader.readexactly(1000)
                writer.transport.abort()
            reader, writer = await server.connect()
            writer.write(framed(b"small"))
            assert await read_frame(reader) == b"small"
            writer.close()

    run(main())


def test_a_request_that_cannot_be_answered_closes_its_connection_only(run: Run) -> None:
    async def answer(frame: memoryview) -> Sequence[Any]:
        if bytes(frame) == b"bad":
            raise CloseConnectionError("cannot be read")
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Server(answer) as server:
            good_reader, good = await server.connect()
            bad_reader, bad = await server.connect()
            bad.write(framed(b"bad"))
            assert await bad_reader.read() == b""
            good.write(framed(b"fine"))
            assert await read_frame(good_reader) == b"fine"
            good.close()

    run(main())


def test_a_half_closed_client_still_gets_its_answers(run: Run) -> None:
    async def answer(frame: memoryview) -> Sequence[Any]:
        await asyncio.sleep(0.05)
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Server(answer) as server:
            reader, writer = await server.connect()
            writer.write(framed(b"last words"))
            writer.write_eof()
            assert await read_frame(reader) == b"last words"
            assert await reader.read() == b""

    run(main())


def test_a_client_that_never_reads_is_read_no_further_after_a_while(run: Run) -> None:
    begun = 0

    async def answer(frame: memoryview) -> Sequence[Any]:
        nonlocal begun
        begun += 1
        return [framed(bytes(100_000))]

    async def main() -> None:
        async with Server(answer) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.setblocking(False)
                try:
                    while True:
                        client.send(framed(b"x" * 10) * 1000)
                        await asyncio.sleep(0)
                except BlockingIOError:
                    pass
                await asyncio.sleep(0.2)
                # Some answers lie in the kernel's buffers, the rest waits: nobody reads requests to pile up
                # more.
                assert begun < 100 * REQUESTS_IN_FLIGHT_MAX
                before = begun
                await asyncio.sleep(0.2)
                assert begun == before

    run(main())


def test_the_budget_of_bytes_in_flight_holds_back_and_lets_go_again(run: Run) -> None:
    waiting: list[asyncio.Future[None]] = []

    async def answer(frame: memoryview) -> Sequence[Any]:
        waiting.append(asyncio.get_running_loop().create_future())
        await waiting[-1]
        return [framed(frame[:1])]

    async def main() -> None:
        limits = {
            "queued.max.request.bytes": "100000",
            "socket.request.max.bytes": "70000",
            "message.max.bytes": "60000",
        }
        async with Server(answer, **limits) as server:
            clients = [await server.connect() for _ in range(4)]
            for _, writer in clients:
                for _ in range(4):
                    writer.write(framed(bytes(60_000)))
            await asyncio.sleep(0.2)
            assert len(waiting) < 16
            answered = 0
            while answered < 16:
                while waiting:
                    waiting.pop().set_result(None)
                    answered += 1
                await asyncio.sleep(0.01)
            for reader, writer in clients:
                assert [await read_frame(reader) for _ in range(4)] == [b"\0"] * 4
                writer.close()

    run(main())


def test_there_are_no_more_connections_from_one_address_than_allowed(run: Run) -> None:
    async def answer(frame: memoryview) -> Sequence[Any]:
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Server(answer, **{"max.connections.per.ip": "2"}) as server:
            first = await server.connect()
            second = await server.connect()
            await asyncio.sleep(0.05)
            third_reader, _ = await server.connect()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await third_reader.readexactly(1)
            first[1].close()
            await first[1].wait_closed()
            await asyncio.sleep(0.05)
            reader, writer = await server.connect()
            writer.write(framed(b"in"))
            assert await read_frame(reader) == b"in"
            writer.close()
            second[1].close()

    run(main())


def test_stopping_answers_what_is_under_way_and_takes_nothing_new(run: Run) -> None:
    async def answer(frame: memoryview) -> Sequence[Any]:
        await asyncio.sleep(0.05)
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Server(answer) as server:
            reader, writer = await server.connect()
            writer.write(framed(b"under way"))
            await asyncio.sleep(0.02)
            await server.listener.close(5)
            assert await read_frame(reader) == b"under way"
            assert await reader.read() == b""
            with pytest.raises(ConnectionError):
                await server.connect()
            assert server.listener.connections == 0

    run(main())


def test_a_connection_is_a_buffered_protocol() -> None:
    assert issubclass(Connection, asyncio.BufferedProtocol)
