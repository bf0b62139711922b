"""Reading of standard input and writing of standard output without blocking the event loop."""

import asyncio
import io
import os
import queue
import select
import stat
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import BinaryIO, NamedTuple, Self

from moldau.client.errors import ErrorCode, KafkaError

CHUNK_BYTES = 64 * 1024
LINE_BYTES_MAX = 32 * 1024 * 1024
"""Limits the memory of input without newlines. A topic's max.message.bytes is usually lower."""


class InputFile(NamedTuple):
    """Standard input if it is a regular file, whose size is known."""

    descriptor: int
    size: int

    @classmethod
    def open(cls, stream: BinaryIO) -> "InputFile | None":
        """Returns None if the stream is no regular file."""
        try:
            status = os.fstat(stream.fileno())
        except io.UnsupportedOperation:
            return None
        return cls(stream.fileno(), status.st_size) if stat.S_ISREG(status.st_mode) else None

    def position(self) -> int:
        return os.lseek(self.descriptor, 0, os.SEEK_CUR)


async def read_lines(stream: BinaryIO, line_bytes_max: int = LINE_BYTES_MAX) -> AsyncIterator[list[bytes]]:
    """Yields batches of lines without newlines. Text after the last newline is also a line."""
    partial: list[bytes] = []
    partial_bytes = 0
    count = 0
    async for chunk in _read_chunks(stream):
        first, *others = chunk.split(b"\n")
        partial.append(first)
        partial_bytes += len(first)
        if partial_bytes > line_bytes_max:
            raise KafkaError(ErrorCode.message_too_large, f"line {count + 1} is longer than {line_bytes_max} bytes")
        if others:
            *complete, last = others
            count += len(others)
            yield [b"".join(partial), *complete]
            partial, partial_bytes = [last], len(last)
    if partial_bytes:
        yield [b"".join(partial)]


async def _read_chunks(stream: BinaryIO) -> AsyncIterator[bytes]:
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk
        return
    # An asyncio pipe transport is not used, because it would make the terminal non-blocking for all processes that
    # share the terminal.
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
        # A regular file is always readable and cannot be polled.
        await asyncio.sleep(0)
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


class OutputWriter:
    """Writes in a daemon thread, because a blocked write cannot be cancelled."""

    def __init__(self, stream: BinaryIO) -> None:
        # Use the raw stream. A blocked write would hold the lock of a buffered stream, which Python needs to exit.
        self._stream = getattr(stream, "raw", stream)
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="moldau-output", daemon=True)
        self._pipe = _pipe_descriptor(self._stream)
        self.is_reader_gone = False
        """Whether the process that reads the output has exited. It is known without a write only if that is a pipe."""

    def __enter__(self) -> Self:
        self._thread.start()
        if self._pipe is not None:
            # The write end of a pipe is never readable, but it is reported when no read end is left.
            self._loop.add_reader(self._pipe, self._on_reader_gone)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pipe is not None:
            self._loop.remove_reader(self._pipe)
        self._queue.put(None)

    def _on_reader_gone(self) -> None:
        self.is_reader_gone = True
        if self._pipe is not None:
            self._loop.remove_reader(self._pipe)

    def write(self, data: bytes) -> "asyncio.Future[None]":
        """Queues data. Returns a future that completes when all data is written, or fails with OSError."""
        written: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((data, written))
        return written

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            data, written = item
            failure: OSError | None = None
            try:
                self._write_all(data)
            except OSError as error:
                failure = error
            # The call raises RuntimeError if the event loop is already closed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_complete_write, written, failure)

    def _write_all(self, data: bytes) -> None:
        remaining = memoryview(data)
        while remaining:
            count = self._stream.write(remaining)
            if count is None:
                # The pipe is full, and another process made the pipe non-blocking.
                select.select([], [self._stream], [])
            else:
                remaining = remaining[count:]


def _pipe_descriptor(stream: BinaryIO) -> int | None:
    """Returns the file descriptor of a stream if it is a pipe."""
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:
        return None
    return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None


def _complete_write(written: "asyncio.Future[None]", failure: OSError | None) -> None:
    if written.done():
        return
    if failure is None:
        written.set_result(None)
    else:
        written.set_exception(failure)
        # This call marks the exception as retrieved, so that asyncio does not log it if no task awaits the future.
        written.exception()
