"""`moldau produce`: lines from standard input become records."""

import asyncio
import sys
from typing import Annotated

import typer

from moldau.cli.asking import LOCAL, Bootstrap, complaints, run_or_fail
from moldau.client.producer import Producer, RecordMetadata
from moldau.records.compression import NUMBERS

DELIVERIES_CHECKED_EVERY = 1_000


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    bootstrap: Bootstrap = LOCAL,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="What is before it in a line is the key."),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0)] = None,
    compression: Annotated[str, typer.Option(help=f"One of {', '.join(NUMBERS)}.")] = "none",
) -> None:
    """Send each line of standard input as a record, and wait until all are acknowledged.

    seq 1000 | moldau produce numbers
    """
    if compression not in NUMBERS:
        raise typer.BadParameter(f"one of {', '.join(NUMBERS)}", param_hint="--compression")
    separator = None if not key_separator else key_separator.encode()

    async def run() -> int:
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[RecordMetadata]] = []
        count = 0
        async with Producer(bootstrap, compression=compression) as producer:
            # Off the loop: whoever types takes their time, and records that are on their way must not wait for it.
            while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
                text = line.removesuffix(b"\n")
                key: bytes | None = None
                if separator is not None and separator in text:
                    key, _, text = text.partition(separator)
                waiting.append(await producer.send(topic, text, key=key, partition=partition))
                count += 1
                if len(waiting) >= DELIVERIES_CHECKED_EVERY:
                    waiting = [each for each in waiting if not _is_delivered(each)]
            await producer.flush()
            for each in waiting:
                await each
        return count

    count = run_or_fail(run(), bootstrap)
    complaints.print(f"{count} records are acknowledged.")


def _is_delivered(record: "asyncio.Future[RecordMetadata]") -> bool:
    """Raises what kept it from being so."""
    if record.done():
        record.result()
    return record.done()
