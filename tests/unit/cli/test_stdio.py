"""Non-blocking standard input and output."""

import asyncio
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from moldau.cli.stdio import CHUNK_BYTES, LINE_BYTES_MAX, OutputWriter, read_lines
from moldau.client.errors import ErrorCode, KafkaError

MORE_THAN_A_PIPE_HOLDS = b"x" * 1_000_000


@contextmanager
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "wb") as writer:
        yield reader, writer


async def all_lines(stream: BinaryIO) -> list[bytes]:
    return [line async for some in read_lines(stream) for line in some]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nlast", [b"a", b"", b"last"]),
        (b"a\r\nb\r\n", [b"a\r", b"b\r"]),
        (b"y" * 3 * CHUNK_BYTES + b"\nz", [b"y" * 3 * CHUNK_BYTES, b"z"]),
    ],
)
def test_files_pipes_and_memory_yield_the_same_lines(tmp_path: Path, text: bytes, expected: list[bytes]) -> None:
    assert asyncio.run(all_lines(io.BytesIO(text))) == expected
    (tmp_path / "text").write_bytes(text)
    with open(tmp_path / "text", "rb") as file:
        assert asyncio.run(all_lines(file)) == expected

    async def piped() -> list[bytes]:
        with pipe() as (reader, writer), OutputWriter(writer) as output:
            reading = asyncio.create_task(all_lines(reader))
            await output.write(text)
            writer.close()
            return await reading

    assert asyncio.run(piped()) == expected


def test_complete_lines_are_yielded_at_once() -> None:
    async def run() -> list[bytes]:
        with pipe() as (reader, writer):
            os.write(writer.fileno(), b"one\ntwo\nthr")
            async for some in read_lines(reader):
                return some
        return []

    assert asyncio.run(run()) == [b"one", b"two"]


def test_reading_lines_can_be_cancelled() -> None:
    async def run() -> None:
        with pipe() as (reader, _):
            waiting = asyncio.create_task(all_lines(reader))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()

    asyncio.run(run())


def test_an_endless_line_is_an_error() -> None:
    with open("/dev/zero", "rb") as zeros, pytest.raises(KafkaError) as refused:
        asyncio.run(all_lines(zeros))
    assert refused.value.code == ErrorCode.message_too_large
    assert str(LINE_BYTES_MAX) in str(refused.value)


def test_a_blocked_write_does_not_block_the_event_loop() -> None:
    async def run() -> None:
        with pipe() as (reader, writer), OutputWriter(writer) as output:
            written = output.write(MORE_THAN_A_PIPE_HOLDS)
            await asyncio.sleep(0.01)
            assert not written.done()
            taken = await asyncio.to_thread(reader.read, len(MORE_THAN_A_PIPE_HOLDS))
            await written
            assert taken == MORE_THAN_A_PIPE_HOLDS

    asyncio.run(run())


def test_a_non_blocking_pipe_is_written_completely() -> None:
    async def run() -> None:
        with pipe() as (reader, writer), OutputWriter(writer) as output:
            os.set_blocking(writer.fileno(), False)
            written = output.write(MORE_THAN_A_PIPE_HOLDS)
            assert await asyncio.to_thread(reader.read, len(MORE_THAN_A_PIPE_HOLDS)) == MORE_THAN_A_PIPE_HOLDS
            await written

    asyncio.run(run())


def test_a_write_to_a_closed_pipe_is_an_error() -> None:
    async def run() -> None:
        with pipe() as (reader, writer), OutputWriter(writer) as output:
            reader.close()
            with pytest.raises(BrokenPipeError):
                await output.write(b"hello")

    asyncio.run(run())
