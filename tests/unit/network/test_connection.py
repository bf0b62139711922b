"""Connections over TCP: framing, order of responses, stored bytes, limits and shutdown."""

import asyncio
import contextlib
import os
import random
import socket
import struct
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from moldau.logs.store import FileSlice
from moldau.network.buffer_pool import BufferPool
from moldau.network.connection import REQUESTS_IN_FLIGHT_MAX, CloseConnectionError
from moldau.network.frame_reader import SHARED_BUFFER_SIZE, FrameReader, FrameTooLargeError
from moldau.network.limits import ConnectionQuotas, MemoryPool, PartialFrameLimiter
from moldau.network.socket_server import SocketServer
from moldau.platform.os_disk import OsDisk
from moldau.settings.sources import build_settings

PIPELINED_API_KEY = 0
Handler = Callable[[memoryview], Coroutine[Any, Any, Sequence[Any] | None]]

ReleasingHandler = Callable[[memoryview, Callable[[], None]], Coroutine[Any, Any, Sequence[Any] | None]]


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


# Frames


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_split_from_any_chunks(seed: int) -> None:
    source = random.Random(seed)
    sent = [source.randbytes(source.choice([0, 1, 5, 100, 5000, 300_000])) for _ in range(30)]
    stream = memoryview(b"".join(map(framed, sent)))
    reader = FrameReader(memoryview(bytearray(SHARED_BUFFER_SIZE)), BufferPool(), 1_000_000)
    got, position = [], 0
    while position < len(stream):
        room = reader.buffer()
        count = min(len(room), len(stream) - position, source.choice([1, 3, 4, 100, 70_000, 300_000]))
        room[:count] = stream[position : position + count]
        position += count
        got += [bytes(frame) for frame in reader.bytes_received(count)]
    assert got == sent
    assert reader.is_between_frames


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_frame_of_an_invalid_size_is_rejected(size: int) -> None:
    reader = FrameReader(memoryview(bytearray(SHARED_BUFFER_SIZE)), BufferPool(), 1000)
    reader.buffer()[:4] = struct.pack(">i", size)
    with pytest.raises(FrameTooLargeError):
        list(reader.bytes_received(4))


def test_frames_own_their_memory() -> None:
    shared = memoryview(bytearray(SHARED_BUFFER_SIZE))
    reader = FrameReader(shared, BufferPool(), 1000)
    reader.buffer()[:7] = framed(b"abc")
    [frame] = reader.bytes_received(7)
    shared[:7] = bytes(7)
    assert bytes(frame) == b"abc"


# Connections


class Server:
    """A socket server on TCP whose request processor is the test's."""

    def __init__(self, handler: Handler | ReleasingHandler, *, releases: bool = False, **settings: str) -> None:
        """With `releases` the handler also takes the function that releases the frame."""
        chosen = build_settings(flags={"listen": "127.0.0.1:0", "store": "memory", **settings})
        self.memory_pool = MemoryPool(chosen.queued_max_request_bytes)
        self.listener = SocketServer(
            "PLAINTEXT",
            lambda: chosen,
            self.memory_pool,
            PartialFrameLimiter(chosen.queued_max_request_bytes),
            ConnectionQuotas(lambda: chosen),
            (PIPELINED_API_KEY,),
            lambda connection, name: handler if releases else lambda frame, release: handler(frame),  # type: ignore
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


def test_responses_are_sent_in_the_order_of_requests(run: Run) -> None:
    """Also if later requests of a pipelined API complete first."""
    completed: list[int] = []

    async def response(frame: memoryview, release: Callable[[], None]) -> Sequence[Any]:
        release()
        await asyncio.sleep(0.02 * (frame[2] % 3))
        completed.append(frame[2])
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Server(response, releases=True) as server:
            reader, writer = await server.connect()
            sent = [pipelined(bytes([number])) for number in (2, 0, 1, 2, 1, 0, 5, 3)]
            writer.write(b"".join(map(framed, sent)))
            assert [await read_frame(reader) for _ in sent] == sent
            assert completed[0] == 0
            writer.close()

    run(main())


# The order of requests


class Requests:
    """Requests that wait until the test releases their frames and completes them. Frames end with a name."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._releases: dict[str, Callable[[], None]] = {}
        self._completions: dict[str, asyncio.Future[None]] = {}

    async def __call__(self, frame: memoryview, release: Callable[[], None]) -> Sequence[Any]:
        name = bytes(frame[2:]).decode()
        self.started.append(name)
        self._releases[name] = release
        self._completions[name] = asyncio.get_running_loop().create_future()
        await self._completions[name]
        return [framed(name.encode())]

    def release(self, name: str) -> None:
        self._releases[name]()

    def complete(self, name: str) -> None:
        self._completions[name].set_result(None)

    def fail(self, name: str) -> None:
        self._completions[name].set_exception(CloseConnectionError("failed"))

    async def are_started(self, *names: str) -> bool:
        """Returns whether exactly these requests start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                while len(self.started) < len(names):
                    await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        return self.started == list(names)


def pipelined(name: bytes) -> bytes:
    return struct.pack(">h", PIPELINED_API_KEY) + name


def other(name: bytes) -> bytes:
    return struct.pack(">h", PIPELINED_API_KEY + 1) + name


def test_a_request_starts_when_the_earlier_ones_have_completed(run: Run) -> None:
    requests = Requests()

    async def main() -> None:
        async with Server(requests, releases=True) as server:
            reader, writer = await server.connect()
            writer.write(framed(other(b"a")) + framed(other(b"b")))
            assert await requests.are_started("a")
            requests.release("a")
            assert await requests.are_started("a")
            requests.complete("a")
            assert await requests.are_started("a", "b")
            requests.complete("b")
            assert [await read_frame(reader) for _ in range(2)] == [b"a", b"b"]
            writer.close()

    run(main())


def test_a_pipelined_request_starts_when_the_earlier_ones_have_released_their_frames(run: Run) -> None:
    requests = Requests()

    async def main() -> None:
        async with Server(requests, releases=True) as server:
            reader, writer = await server.connect()
            writer.write(b"".join(framed(pipelined(name)) for name in (b"a", b"b", b"c")))
            assert await requests.are_started("a")
            requests.release("a")
            assert await requests.are_started("a", "b")
            requests.release("b")
            assert await requests.are_started("a", "b", "c")
            for name in ("c", "b", "a"):
                requests.complete(name)
            assert [await read_frame(reader) for _ in range(3)] == [b"a", b"b", b"c"]
            writer.close()

    run(main())


def test_requests_of_different_apis_do_not_overlap(run: Run) -> None:
    requests = Requests()

    async def main() -> None:
        async with Server(requests, releases=True) as server:
            reader, writer = await server.connect()
            sent = (pipelined(b"a"), pipelined(b"b"), other(b"c"), pipelined(b"d"))
            writer.write(b"".join(map(framed, sent)))
            await requests.are_started("a")
            requests.release("a")
            assert await requests.are_started("a", "b")
            requests.release("b")
            requests.complete("b")
            assert await requests.are_started("a", "b"), "the response of b has to wait, and c for both"
            requests.complete("a")
            assert await requests.are_started("a", "b", "c")
            requests.release("c")
            assert await requests.are_started("a", "b", "c")
            requests.complete("c")
            assert await requests.are_started("a", "b", "c", "d")
            requests.complete("d")
            assert [await read_frame(reader) for _ in sent] == [b"a", b"b", b"c", b"d"]
            writer.close()

    run(main())


def test_requests_behind_a_failed_request_do_not_start(run: Run) -> None:
    requests = Requests()

    async def main() -> None:
        async with Server(requests, releases=True) as server:
            reader, writer = await server.connect()
            writer.write(b"".join(framed(pipelined(name)) for name in (b"a", b"b", b"c")))
            assert await requests.are_started("a")
            requests.release("a")
            assert await requests.are_started("a", "b")
            requests.fail("b")
            requests.complete("a")
            assert await read_frame(reader) == b"a"
            assert await reader.read() == b""
            assert requests.started == ["a", "b"]

    run(main())


def test_stopping_does_not_start_requests_behind_a_pending_one(run: Run) -> None:
    requests = Requests()

    async def main() -> None:
        async with Server(requests, releases=True) as server:
            reader, writer = await server.connect()
            writer.write(framed(other(b"a")) + framed(other(b"b")))
            assert await requests.are_started("a")
            server.listener.stop()
            requests.complete("a")
            assert await read_frame(reader) == b"a"
            assert await reader.read() == b""
            assert requests.started == ["a"]

    run(main())


def test_a_half_closed_client_gets_the_responses_of_pending_requests(run: Run) -> None:
    requests = Requests()

    async def main() -> None:
        async with Server(requests, releases=True) as server:
            reader, writer = await server.connect()
            writer.write(framed(other(b"a")) + framed(other(b"b")))
            writer.write_eof()
            assert await requests.are_started("a")
            requests.complete("a")
            assert await requests.are_started("a", "b")
            requests.complete("b")
            assert [await read_frame(reader) for _ in range(2)] == [b"a", b"b"]
            assert await reader.read() == b""

    run(main())


def test_a_request_without_response_does_not_block_the_next(run: Run) -> None:
    async def response(frame: memoryview) -> Sequence[Any] | None:
        return None if bytes(frame) == b"silent" else [framed(bytes(frame))]

    async def main() -> None:
        async with Server(response) as server:
            reader, writer = await server.connect()
            writer.write(framed(b"silent") + framed(b"a") + framed(b"silent") + framed(b"b"))
            assert [await read_frame(reader) for _ in range(2)] == [b"a", b"b"]
            writer.close()

    run(main())


@pytest.mark.parametrize("size", [10, 100_000, 20_000_000])
def test_stored_bytes_are_sent_whole_and_in_order_to_a_slow_reader(run: Run, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    file = OsDisk().open(str(tmp_path / "segment"))
    file.append([content])

    async def response(frame: memoryview) -> Sequence[Any]:
        if bytes(frame) == b"small":
            return [framed(b"small")]
        return [
            struct.pack(">i", size + 2) + b"<",
            FileSlice(file, 0, size // 3),
            FileSlice(file, size // 3, size - size // 3),
            b">",
        ]

    async def main() -> None:
        async with Server(response) as server:
            reader, writer = await server.connect()
            writer.write(framed(b"small") + framed(b"file") + framed(b"small") + framed(b"file"))
            assert await read_frame(reader) == b"small"
            await asyncio.sleep(0.05)
            assert await read_frame(reader) == b"<" + content + b">"
            assert await read_frame(reader) == b"small"
            assert await read_frame(reader) == b"<" + content + b">"
            writer.close()

    run(main())


def test_a_client_that_disconnects_during_a_large_response_affects_no_other(run: Run, tmp_path: Path) -> None:
    size = 30_000_000
    file = OsDisk().open(str(tmp_path / "segment"))
    file.append([bytes(size)])

    async def response(frame: memoryview) -> Sequence[Any]:
        if bytes(frame) == b"small":
            return [framed(b"small")]
        return [struct.pack(">i", size), FileSlice(file, 0, size)]

    async def main() -> None:
        async with Server(response) as server:
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


def test_a_failed_request_closes_only_its_connection(run: Run) -> None:
    async def response(frame: memoryview) -> Sequence[Any]:
        if bytes(frame) == b"bad":
            raise CloseConnectionError("cannot be read")
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Server(response) as server:
            good_reader, good = await server.connect()
            bad_reader, bad = await server.connect()
            bad.write(framed(b"bad"))
            assert await bad_reader.read() == b""
            good.write(framed(b"fine"))
            assert await read_frame(good_reader) == b"fine"
            good.close()

    run(main())


def test_a_half_closed_client_still_gets_its_responses(run: Run) -> None:
    async def response(frame: memoryview) -> Sequence[Any]:
        await asyncio.sleep(0.05)
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Server(response) as server:
            reader, writer = await server.connect()
            writer.write(framed(b"last words"))
            writer.write_eof()
            assert await read_frame(reader) == b"last words"
            assert await reader.read() == b""

    run(main())


def test_reading_pauses_for_a_client_that_never_reads(run: Run) -> None:
    begun = 0

    async def response(frame: memoryview) -> Sequence[Any]:
        nonlocal begun
        begun += 1
        return [framed(bytes(100_000))]

    async def main() -> None:
        async with Server(response) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.setblocking(False)
                try:
                    while True:
                        client.send(framed(b"x" * 10) * 1000)
                        await asyncio.sleep(0)
                except BlockingIOError:
                    pass
                # Some answers lie in the kernel's buffers, the rest waits: nobody reads requests to pile up
                # more.
                before = -1
                while begun != before:
                    before = begun
                    await asyncio.sleep(0.2)
                assert 0 < begun < 100 * REQUESTS_IN_FLIGHT_MAX

    run(main())


def test_an_exhausted_memory_pool_pauses_reading_until_it_has_room(run: Run) -> None:
    waiting: list[asyncio.Future[None]] = []

    async def response(frame: memoryview) -> Sequence[Any]:
        waiting.append(asyncio.get_running_loop().create_future())
        await waiting[-1]
        return [framed(frame[:1])]

    async def main() -> None:
        limits = {
            "queued.max.request.bytes": "100000",
            "socket.request.max.bytes": "70000",
            "message.max.bytes": "60000",
        }
        async with Server(response, **limits) as server:
            clients = [await server.connect() for _ in range(4)]
            server.memory_pool.reserve(100_000)
            for _, writer in clients:
                writer.write(framed(bytes(60_000)))
            while len(waiting) < 4:
                await asyncio.sleep(0.01)
            for _, writer in clients:
                writer.write(framed(bytes(60_000)) * 3)
            await asyncio.sleep(0.2)
            assert server.memory_pool._bytes == 100_000 + 4 * 60_000, "no connection reads its second request"
            server.memory_pool.release(100_000)
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


def test_a_connection_without_reservations_is_served_by_an_exhausted_pool(run: Run) -> None:
    parked: list[asyncio.Future[None]] = []

    async def response(frame: memoryview) -> Sequence[Any]:
        if len(frame) > 10:
            parked.append(asyncio.get_running_loop().create_future())
            await parked[-1]
        return [framed(bytes(frame[:1]))]

    async def main() -> None:
        limits = {
            "queued.max.request.bytes": "100000",
            "socket.request.max.bytes": "70000",
            "message.max.bytes": "60000",
        }
        async with Server(response, **limits) as server:
            greedy_reader, greedy = await server.connect()
            greedy.write(framed(b"g" * 60_000) * 2)
            while not server.memory_pool.is_exhausted:
                await asyncio.sleep(0)
            reader, writer = await server.connect()
            for number in range(3):
                writer.write(framed(bytes([number])))
                assert await asyncio.wait_for(read_frame(reader), 5) == bytes([number])
            for each in parked:
                each.set_result(None)
            assert await read_frame(greedy_reader) == b"g"
            greedy.close()
            writer.close()

    run(main())


def test_connections_per_address_are_limited(run: Run) -> None:
    async def response(frame: memoryview) -> Sequence[Any]:
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Server(response, **{"max.connections.per.ip": "2"}) as server:
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


def test_stopping_completes_requests_in_flight_and_takes_no_new_ones(run: Run) -> None:
    async def response(frame: memoryview) -> Sequence[Any]:
        await asyncio.sleep(0.05)
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Server(response) as server:
            reader, writer = await server.connect()
            writer.write(framed(b"under way"))
            await asyncio.sleep(0.02)
            await server.listener.close(5)
            assert await read_frame(reader) == b"under way"
            assert await reader.read() == b""
            with pytest.raises(ConnectionError):
                await server.connect()
            assert not server.listener.connections

    run(main())


def test_responses_before_a_failed_request_are_still_sent(run: Run) -> None:
    async def response(frame: memoryview) -> Sequence[Any]:
        if bytes(frame) == b"bad":
            raise CloseConnectionError("cannot be read")
        await asyncio.sleep(0.02)
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Server(response) as server:
            reader, writer = await server.connect()
            writer.write(framed(b"one") + framed(b"two") + framed(b"bad") + framed(b"never begun"))
            assert await read_frame(reader) == b"one"
            assert await read_frame(reader) == b"two"
            assert await reader.read() == b""
            reader, writer = await server.connect()
            writer.write(framed(b"one") + struct.pack(">i", -5))
            assert await read_frame(reader) == b"one"
            assert await reader.read() == b""

    run(main())


def test_a_pending_request_does_not_block_the_memory_of_later_ones(run: Run) -> None:
    parked: list[asyncio.Future[None]] = []

    async def response(frame: memoryview) -> Sequence[Any]:
        if bytes(frame) == b"park":
            parked.append(asyncio.get_running_loop().create_future())
            await parked[-1]
        return [framed(b"done")]

    async def main() -> None:
        limits = {
            "queued.max.request.bytes": "200000",
            "socket.request.max.bytes": "100000",
            "message.max.bytes": "60000",
        }
        async with Server(response, **limits) as server:
            _, hog = await server.connect()
            hog.write(framed(b"park") + framed(bytes(90_000)) * 20)
            await asyncio.sleep(0.1)
            reader, writer = await server.connect()
            writer.write(framed(b"small"))
            assert await asyncio.wait_for(read_frame(reader), 5) == b"done"
            parked[0].set_result(None)
            hog.close()
            writer.close()

    run(main())


def test_many_requests_in_one_packet_do_not_block_other_connections(run: Run) -> None:
    order: list[bytes] = []

    async def response(frame: memoryview) -> Sequence[Any]:
        order.append(bytes(frame[:1]))
        return [framed(b"ok")]

    async def main() -> None:
        async with Server(response) as server:
            _, many = await server.connect()
            reader, one = await server.connect()
            await asyncio.sleep(0.05)
            many.write(framed(b"m") * 5000)
            one.write(framed(b"1"))
            await read_frame(reader)
            assert order.index(b"1") < 4000, "the packet of 5000 was worked off as a whole first"
            many.close()
            one.close()

    run(main())


def test_a_client_that_does_not_read_its_response_is_disconnected(run: Run, tmp_path: Path) -> None:
    size = 30_000_000
    file = OsDisk().open(str(tmp_path / "segment"))
    file.append([bytes(size)])

    async def response(frame: memoryview) -> Sequence[Any]:
        return [struct.pack(">i", size), FileSlice(file, 0, size)]

    async def main() -> None:
        async with Server(response, **{"connections.max.idle.ms": "1000"}) as server:
            _, writer = await server.connect()
            writer.write(framed(b"file") * 2)
            while not server.listener.connections:
                await asyncio.sleep(0)
            while server.listener.connections:
                await asyncio.sleep(0.05)
            writer.close()

    run(main())


def test_a_response_is_sent_whole_to_a_half_closed_client(run: Run, tmp_path: Path) -> None:
    size = 30_000_000
    file = OsDisk().open(str(tmp_path / "segment"))
    file.append([bytes(size)])

    async def response(frame: memoryview) -> Sequence[Any]:
        return [struct.pack(">i", size), FileSlice(file, 0, size)]

    async def main() -> None:
        async with Server(response, **{"connections.max.idle.ms": "1000"}) as server:
            reader, writer = await server.connect()
            writer.write(framed(b"file"))
            writer.write_eof()
            assert len(await read_frame(reader)) == size
            writer.close()

    run(main())


def test_a_slice_that_ends_at_the_sendfile_limit_is_sent_whole(run: Run, tmp_path: Path) -> None:
    """The limit is 4 MiB: a slice that ends exactly there is not a file that is too short."""
    piece = 4 * 1024 * 1024
    file = OsDisk().open(str(tmp_path / "segment"))
    file.append([bytes(3 * piece)])

    async def response(frame: memoryview) -> Sequence[Any]:
        return [struct.pack(">i", 3 * piece), *(FileSlice(file, part * piece, piece) for part in range(3))]

    async def main() -> None:
        async with Server(response) as server:
            reader, writer = await server.connect()
            writer.write(framed(b"file"))
            assert len(await read_frame(reader)) == 3 * piece
            writer.close()

    run(main())


def test_a_file_that_is_too_short_closes_the_connection(run: Run, tmp_path: Path) -> None:
    file = OsDisk().open(str(tmp_path / "segment"))
    file.append([bytes(100)])

    async def response(frame: memoryview) -> Sequence[Any]:
        return [struct.pack(">i", 1000), FileSlice(file, 0, 1000)]

    async def main() -> None:
        async with Server(response) as server:
            reader, writer = await server.connect()
            writer.write(framed(b"file"))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await read_frame(reader)

    run(main())


def test_a_client_that_stalls_inside_a_request_is_disconnected(run: Run) -> None:
    async def response(frame: memoryview) -> Sequence[Any]:
        return [framed(bytes(frame))]

    async def main() -> None:
        async with Server(response, **{"connections.max.idle.ms": "1000"}) as server:
            reader, writer = await server.connect()
            writer.write(b"\x00\x00")
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()

    run(main())


def test_a_client_that_disconnects_during_a_pending_request_is_closed(run: Run) -> None:
    async def main() -> None:
        may_answer = asyncio.Event()

        async def response(frame: memoryview) -> Sequence[Any]:
            await may_answer.wait()
            return [framed(b"joined")]

        async with Server(response, **{"connections.max.idle.ms": "1000"}) as server:
            reader, writer = await server.connect()
            patient_reader, patient = await server.connect()
            for each in (writer, patient):
                each.write(framed(b"join"))
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 10) == b""
            may_answer.set()
            assert await read_frame(patient_reader) == b"joined"
            writer.close()
            patient.close()

    run(main())


# Large frames that are partly received


class Receiving:
    def __init__(self) -> None:
        self.resumed = 0

    def resume_reading(self) -> None:
        self.resumed += 1


def test_the_oldest_partial_frame_can_always_be_completed() -> None:
    frames = PartialFrameLimiter(100)
    first, second, third = Receiving(), Receiving(), Receiving()
    frames.bytes_received(first, 40)
    frames.bytes_received(second, 70)
    frames.bytes_received(third, 1)
    assert not frames.must_pause(first)
    assert frames.must_pause(second)
    assert frames.must_pause(third)
    frames.bytes_received(first, 500)
    frames.frame_ended(first)
    assert (second.resumed, third.resumed) == (1, 1)
    assert not frames.must_pause(third)


def test_a_closed_connection_releases_its_partial_frame() -> None:
    frames = PartialFrameLimiter(100)
    first, second, third = Receiving(), Receiving(), Receiving()
    frames.bytes_received(first, 10)
    frames.bytes_received(second, 200)
    frames.bytes_received(third, 10)
    frames.frame_ended(first)
    assert (second.resumed, third.resumed) == (1, 0), "still over the limit: only the oldest goes on"
    frames.frame_ended(second)
    assert third.resumed == 1


# Memory that is used again


def test_a_buffer_is_reused_once_it_has_no_views() -> None:
    pool = BufferPool()
    buffer = pool.allocate(1_000_000)
    view = memoryview(buffer)[10:20]
    pool.release(buffer)
    assert pool.take(1_000_000) is None, "a view of it is still held"
    view.release()
    del view
    pool.release(buffer)
    again = pool.take(900_000)
    assert again is buffer
    assert pool.take(900_000) is None


def test_a_full_pool_drops_the_buffers_of_other_sizes() -> None:
    pool = BufferPool()
    large = [pool.allocate(4 * 1024 * 1024) for _ in range(8)]
    for buffer in large:
        pool.release(buffer)
    small = pool.allocate(200_000)
    pool.release(small)
    assert pool.take(200_000) is small
    assert pool.take(4 * 1024 * 1024) is None


def test_the_frames_of_a_connection_reuse_one_buffer(run: Run) -> None:
    buffers: list[object] = []

    async def response(frame: memoryview) -> Sequence[Any]:
        buffers.append(frame.obj)
        return [framed(b"ok")]

    async def main() -> None:
        async with Server(response) as server:
            reader, writer = await server.connect()
            for number in range(10):
                writer.write(framed(bytes([number]) * 1_000_000))
                await read_frame(reader)
            # The first frames may have needed larger buffers while they grew.
            assert len({id(buffer) for buffer in buffers[5:]}) == 1
            writer.close()

    run(main())


def test_a_retained_frame_is_not_overwritten(run: Run) -> None:
    kept: list[memoryview] = []

    async def response(frame: memoryview) -> Sequence[Any]:
        kept.append(frame[:10])
        return [framed(b"ok")]

    async def main() -> None:
        async with Server(response) as server:
            reader, writer = await server.connect()
            for number in range(10):
                writer.write(framed(bytes([number]) * 1_000_000))
                await read_frame(reader)
            assert [bytes(view) for view in kept] == [bytes([number]) * 10 for number in range(10)]
            writer.close()

    run(main())
