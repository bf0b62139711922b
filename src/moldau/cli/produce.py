"""`moldau produce`: lines from standard input become records."""

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from moldau.cli.arguments import LOCAL, Bootstrap, Topic
from moldau.cli.cluster_access import reached, run_or_fail, say, told_if_slow
from moldau.cli.signals import stopping
from moldau.cli.streams import lines
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import Producer, RecordMetadata
from moldau.records.compression import NUMBERS

CODECS = [each for each in NUMBERS if each != "uncompressed"]
"""That is a topic's word for none."""
LINES_AT_ONCE = 500
"""So many are taken before batches get their chance to leave."""
TOPIC_WITHIN_MS = 5_000
"""As long as it may take until brokers have created a topic by themselves."""


@dataclass
class Counts:
    taken: int = 0
    acknowledged: int = 0

    def __str__(self) -> str:
        of_all = f" of {self.taken}" if self.acknowledged < self.taken else ""
        is_one = self.taken == 1
        return f"{self.acknowledged}{of_all} record{'' if is_one else 's'} {'is' if is_one else 'are'} acknowledged."


def produce(
    topic: Topic,
    bootstrap: Bootstrap = LOCAL,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="What is before it in a line is the record's key."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            "-p",
            min=0,
            metavar="NUMBER",
            help="Where all records go. Otherwise the key decides, and records without one go anywhere.",
        ),
    ] = None,
    compression: Annotated[str, typer.Option(metavar="CODEC", help=f"One of {', '.join(CODECS)}.")] = "none",
) -> None:
    """Send each line of standard input as a record, and wait until all are acknowledged.

    Ctrl-D ends what you type. Ctrl-C ends it, too, after what was read before has been acknowledged.

    seq 1000 | moldau produce numbers

    echo '42:a parcel' | moldau produce orders --key-separator :
    """
    if compression not in CODECS:
        raise typer.BadParameter(f"one of {', '.join(CODECS)}", param_hint="--compression")
    separator = None if not key_separator else os.fsencode(key_separator)
    counts = Counts()

    async def send_lines(
        cluster: Cluster, producer: Producer, failed: "asyncio.Future[BaseException]"
    ) -> None:
        def settle(delivery: "asyncio.Future[RecordMetadata]") -> None:
            error = delivery.exception()
            if error is None:
                counts.acknowledged += 1
            elif not failed.done():
                failed.set_result(error)

        async for some in lines(sys.stdin.buffer):
            if counts.taken == 0:
                with told_if_slow(f"waiting for the topic {topic} ..."):
                    await cluster.wait_for_topics([topic], timeout_ms=TOPIC_WITHIN_MS, create=True)
            for value in some:
                key: bytes | None = None
                if separator is not None and separator in value:
                    key, _, value = value.partition(separator)
                (await producer.send(topic, value, key=key, partition=partition)).add_done_callback(settle)
                counts.taken += 1
                if counts.taken % LINES_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def run() -> int | None:
        """Gives the number of the signal that ended it."""
        async with reached(bootstrap) as cluster, Producer(cluster, compression=compression) as producer:
            if sys.stdin.isatty():
                say(f"Every line becomes a record of {topic}; Ctrl-D ends.")
            loop = asyncio.get_running_loop()
            failed: asyncio.Future[BaseException] = loop.create_future()
            sending = loop.create_task(send_lines(cluster, producer, failed), name="produce sends lines")
            with stopping() as asked:
                ends: list[asyncio.Future[Any]] = [sending, asked, failed]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                sending.cancel()
                await asyncio.wait([sending])
                with told_if_slow("waiting for acknowledgements; Ctrl-C leaves without them ..."):
                    await producer.flush()
            if failed.done():
                raise failed.result()
            if not sending.cancelled():
                sending.result()
            return asked.result() if asked.done() else None

    try:
        signal_number = run_or_fail(run(), bootstrap)
    except typer.Exit:
        if counts.taken:
            say(str(counts))
        raise
    say(str(counts))
    if signal_number is not None:
        raise typer.Exit(128 + signal_number)
