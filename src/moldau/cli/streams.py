"""Standard input and output for a command whose event loop must go on, however slow the other end is."""

import asyncio
import io
import os
import queue
import select
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import BinaryIO, Self

from moldau.client.errors import ErrorCode, KafkaError

CHUNK_BYTES = 64 * 1024
LINE_BYTES_MAX = 1024 * 1024


async def read_lines(stream: BinaryIO) -> AsyncIterator[list[bytes]]:
    """The lines as they come, many at a time, without their newlines. What follows the last newline is a line."""
    begun: list[bytes] = []
    begun_bytes = 0
    async for chunk in _read_chunks(stream):
        first, *others = chunk.split(b"\n")
        begun.append(first)
        begun_bytes += len(first)
        if begun_bytes > LINE_BYTES_MAX:
            raise KafkaError(ErrorCode.message_too_large, f"a line of more than {LINE_BYTES_MAX} bytes")
        if others:
            *whole, last = others
            yield [b"".join(begun), *whole]
            begun, begun_bytes = [last], len(last)
    if begun_bytes:
        yield [b"".join(begun)]


async def _read_chunks(stream: BinaryIO) -> AsyncIterator[bytes]:
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk
        return
    # Not as a pipe transport, which would make the terminal non-blocking for all who share it.
    while True:
        await _wait_readable(descriptor)
        chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


async def _wait_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:
        # A file: it cannot be waited for, and need not be.
        await asyncio.sleep(0)
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


class OutputWriter:
    """Writes in a thread of its own. It is a daemon, because a write that nobody takes cannot be called off."""

    def __init__(self, stream: BinaryIO) -> None:
        # Without the buffer, whose lock such a write would hold when the process wants to end.
        self._stream = getattr(stream, "raw", stream)
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="moldau-output", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.put(None)

    def write(self, data: bytes) -> "asyncio.Future[None]":
        """Done when all is written; raises OSError."""
        written: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((data, written))
        return written

    def _run(self) -> None:
        while (order := self._queue.get()) is not None:
            data, written = order
            failure: OSError | None = None
            try:
                self._write_all(data)
            except OSError as error:
                failure = error
            # The loop may have ended without waiting any longer.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_complete_write, written, failure)

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            count = self._stream.write(rest)
            if count is None:
                # Full, and somebody else who has it made it non-blocking.
                select.select([], [self._stream], [])
            else:
                rest = rest[count:]


def _complete_write(written: "asyncio.Future[None]", failure: OSError | None) -> None:
    if written.done():
        return
    if failure is None:
        written.set_result(None)
    else:
        written.set_exception(failure)
        # Whoever no longer waits for it has no use for it.
        written.exception()
