"""Pausing and disconnecting of clients when bytes pile up, step by step on one connection without a socket."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from moldau.logs.store import FileSlice
from moldau.network.buffer_pool import BufferPool
from moldau.network.connection import STALL_TIMEOUT_S, Connection
from moldau.network.frame_reader import LARGE_FRAME_BYTES_MIN, SHARED_BUFFER_SIZE
from moldau.network.limits import MemoryPool, PartialFrameLimiter
from moldau.network.response_sender import ResponseSender
from moldau.platform.os_disk import OsDisk

Handler = Callable[[memoryview], Coroutine[Any, Any, Sequence[Any] | None]]


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


class Client(asyncio.Transport):
    """The client's end of a connection, driven by the test."""

    def __init__(self, memory_pool: MemoryPool, handler: Handler) -> None:
        super().__init__()
        self.is_read = True
        self.unsent_bytes = 0
        self.connection = Connection(
            shared_buffer=memoryview(bytearray(SHARED_BUFFER_SIZE)),
            buffers=BufferPool(),
            frame_bytes_max=10_000_000,
            memory_pool=memory_pool,
            partial_frames=PartialFrameLimiter(100_000_000),
            pipelined_api_keys=(),
            on_opened=lambda connection: lambda frame, release: handler(frame),
            on_closed=lambda connection: None,
        )
        self.connection.connection_made(self)

    def sends(self, data: bytes) -> None:
        """Sends as much as the connection reads."""
        while data and self.is_read:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            room.release()
            data = data[count:]
            self.connection.buffer_updated(count)

    def is_sent_home(self, after_s: float, idle_s: float = 600) -> bool:
        return self.connection.is_expired(asyncio.get_running_loop().time() + after_s, idle_s)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def write(self, data: Any) -> None:
        self.unsent_bytes += len(data)


def test_a_large_frame_resumes_when_the_memory_pool_has_room() -> None:
    begun: list[int] = []

    async def response(frame: memoryview) -> Sequence[Any] | None:
        begun.append(len(frame))
        return None

    async def main() -> None:
        memory_pool = MemoryPool(1000)
        memory_pool.reserve(1000)
        client = Client(memory_pool, response)
        client.sends(struct.pack(">i", LARGE_FRAME_BYTES_MIN) + bytes(10))
        assert not client.is_read
        assert not client.is_sent_home(after_s=STALL_TIMEOUT_S + 1), "it is not the client that stalls"
        memory_pool.release(1)
        assert client.is_read
        client.sends(bytes(LARGE_FRAME_BYTES_MIN - 10))
        assert begun == [LARGE_FRAME_BYTES_MIN]

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_connection_without_reservations_is_read_while_the_pool_is_exhausted() -> None:
    async def main() -> None:
        may_end = asyncio.Event()

        async def response(frame: memoryview) -> Sequence[Any] | None:
            await may_end.wait()
            return None

        memory_pool = MemoryPool(1000)
        memory_pool.reserve(2000)
        client = Client(memory_pool, response)
        client.sends(framed(b"one") + framed(b"two"))
        assert not client.is_read
        may_end.set()
        while not client.is_read:
            await asyncio.sleep(0)
        assert memory_pool.is_exhausted

    asyncio.run(asyncio.wait_for(main(), 20))


def test_requests_in_flight_keep_their_reservation_after_a_disconnect() -> None:
    async def main() -> None:
        may_end = asyncio.Event()

        async def response(frame: memoryview) -> Sequence[Any] | None:
            await may_end.wait()
            return None

        memory_pool = MemoryPool(1000)
        client = Client(memory_pool, response)
        client.sends(framed(bytes(1000)))
        client.connection.connection_lost(None)
        assert memory_pool.is_exhausted
        may_end.set()
        while memory_pool.is_exhausted:
            await asyncio.sleep(0)
        memory_pool.reserve(999)
        assert not memory_pool.is_exhausted, "it was given back once"

    asyncio.run(asyncio.wait_for(main(), 20))


async def answer_much(frame: memoryview) -> Sequence[Any]:
    return [bytes(1_000_000)]


def test_a_slow_reader_that_makes_progress_is_not_disconnected() -> None:
    async def main() -> None:
        client = Client(MemoryPool(1000), answer_much)
        client.sends(framed(b"much"))
        assert client.unsent_bytes
        assert not client.is_sent_home(after_s=599)
        client.unsent_bytes -= 1
        assert not client.is_sent_home(after_s=700)
        assert not client.is_sent_home(after_s=1299)
        assert client.is_sent_home(after_s=1301)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_client_that_reads_no_responses_and_blocks_others_is_disconnected() -> None:
    async def main() -> None:
        memory_pool = MemoryPool(1000)
        client = Client(memory_pool, answer_much)
        client.sends(framed(b"much"))
        client.sends(framed(b"never begun" * 10))
        assert not client.is_sent_home(after_s=STALL_TIMEOUT_S + 1), "there is room for all"
        memory_pool.reserve(900)
        assert not client.is_sent_home(after_s=STALL_TIMEOUT_S - 1)
        assert client.is_sent_home(after_s=STALL_TIMEOUT_S + 1)

    asyncio.run(asyncio.wait_for(main(), 20))


async def wait_forever(frame: memoryview) -> Sequence[Any]:
    await asyncio.Event().wait()
    return []


def test_requests_behind_a_pending_request_block_others_only_shortly() -> None:
    async def main() -> None:
        memory_pool = MemoryPool(1000)
        client = Client(memory_pool, wait_forever)
        client.sends(framed(b"pending") + framed(bytes(1000)))
        assert memory_pool.is_exhausted
        assert not client.is_sent_home(after_s=STALL_TIMEOUT_S - 1)
        assert client.is_sent_home(after_s=STALL_TIMEOUT_S + 1)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_client_with_a_pending_request_does_not_expire() -> None:
    async def main() -> None:
        client = Client(MemoryPool(1000), wait_forever)
        client.sends(framed(b"pending"))
        assert client.is_read, "a disconnect is noticed"
        assert not client.is_sent_home(after_s=601)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_client_with_more_requests_behind_a_pending_one_expires() -> None:
    """The connection does not read, so it would never notice that the client is gone."""

    async def main() -> None:
        client = Client(MemoryPool(1000), wait_forever)
        client.sends(framed(b"pending") + framed(b"next"))
        assert not client.is_read
        assert not client.is_sent_home(after_s=599)
        assert client.is_sent_home(after_s=601)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_stalled_client_is_disconnected_in_spite_of_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def response(frame: memoryview) -> Sequence[Any] | None:
        return None

    async def main() -> None:
        now = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        memory_pool = MemoryPool(1000)
        client = Client(memory_pool, response)
        client.sends(struct.pack(">i", LARGE_FRAME_BYTES_MIN) + bytes(10))
        for _ in range(4):
            assert not client.is_sent_home(after_s=0)
            now += STALL_TIMEOUT_S / 4 + 1
            memory_pool.reserve(1000)
            client.connection.resume_reading()
            assert not client.is_read
            now += STALL_TIMEOUT_S / 2
            memory_pool.release(1000)
            assert client.is_read
        assert client.is_sent_home(after_s=0)

    asyncio.run(main())


def test_progress_of_a_slow_reader_of_stored_bytes_is_seen(tmp_path: Path) -> None:
    size = 30_000_000
    file = OsDisk().open(str(tmp_path / "segment"))
    file.append([bytes(size)])

    class OnSocket(Client):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return here if name == "socket" else default

    async def main() -> None:
        there.setblocking(False)
        here.setblocking(False)
        client = OnSocket(MemoryPool(1000), answer_much)
        sender = ResponseSender(client, lambda: None)
        sender.send([b"head", FileSlice(file, 0, size)])
        before = sender.sent_bytes
        assert 0 < before < size
        while sender.sent_bytes == before:
            with contextlib.suppress(BlockingIOError):
                there.recv(100_000)
            await asyncio.sleep(0)
        sender.close()

    here, there = socket.socketpair()
    with here, there:
        asyncio.run(asyncio.wait_for(main(), 20))
