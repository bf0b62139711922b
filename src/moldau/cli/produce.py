"""`moldau produce`: lines from standard input become records."""

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from moldau.cli.cluster_access import connected_cluster, notify_if_slow, print_notice, run_or_exit
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Topic
from moldau.cli.signals import stop_signal
from moldau.cli.streams import read_lines
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import Producer, RecordMetadata
from moldau.records.compression import CODECS_BY_NAME

CODECS = [each for each in CODECS_BY_NAME if each != "uncompressed"]
"""That is a topic's word for none."""
LINES_PER_YIELD = 500
"""So many are taken before batches get their chance to leave."""
TOPIC_TIMEOUT_MS = 5_000
"""As long as it may take until brokers have created a topic by themselves."""


@dataclass
class RecordCounts:
    sent: int = 0
    acknowledged: int = 0

    def __str__(self) -> str:
        of_all = f" of {self.sent}" if self.acknowledged < self.sent else ""
        is_one = self.sent == 1
        return f"{self.acknowledged}{of_all} record{'' if is_one else 's'} {'is' if is_one else 'are'} acknowledged."


def produce(
    topic: Topic,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
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
    counts = RecordCounts()

    async def send_lines(
        cluster: Cluster, producer: Producer, failed: "asyncio.Future[BaseException]"
    ) -> None:
        def settle(delivery: "asyncio.Future[RecordMetadata]") -> None:
            error = delivery.exception()
            if error is None:
                counts.acknowledged += 1
            elif not failed.done():
                failed.set_result(error)

        async for some in read_lines(sys.stdin.buffer):
            if counts.sent == 0:
                with notify_if_slow(f"waiting for the topic {topic} ..."):
                    await cluster.wait_for_topics([topic], timeout_ms=TOPIC_TIMEOUT_MS, create=True)
            for value in some:
                key: bytes | None = None
                if separator is not None and separator in value:
                    key, _, value = value.partition(separator)
                (await producer.send(topic, value, key=key, partition=partition)).add_done_callback(settle)
                counts.sent += 1
                if counts.sent % LINES_PER_YIELD == 0:
                    await asyncio.sleep(0)

    async def run() -> int | None:
        """Gives the number of the signal that ended it."""
        async with (
            connected_cluster(bootstrap) as cluster,
            Producer(cluster, compression=compression) as producer,
        ):
            if sys.stdin.isatty():
                print_notice(f"Every line becomes a record of {topic}; Ctrl-D ends.")
            loop = asyncio.get_running_loop()
            failed: asyncio.Future[BaseException] = loop.create_future()
            sending = loop.create_task(send_lines(cluster, producer, failed), name="produce sends lines")
            with stop_signal() as asked:
                ends: list[asyncio.Future[Any]] = [sending, asked, failed]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                sending.cancel()
                await asyncio.wait([sending])
                with notify_if_slow("waiting for acknowledgements; Ctrl-C leaves without them ..."):
                    await producer.flush()
            if failed.done():
                raise failed.result()
            if not sending.cancelled():
                sending.result()
            return asked.result() if asked.done() else None

    try:
        signal_number = run_or_exit(run(), bootstrap)
    except typer.Exit:
        if counts.sent:
            print_notice(str(counts))
        raise
    print_notice(str(counts))
    if signal_number is not None:
        raise typer.Exit(128 + signal_number)
