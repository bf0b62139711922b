"""`moldau produce`: produces lines of standard input as records: plain values, values with keys, or JSON."""

import asyncio
import functools
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from moldau.cli.admin import connected_cluster, notify_if_slow, run_or_exit
from moldau.cli.console import CommandError, pluralize, print_notice
from moldau.cli.exit_codes import NotFoundError
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Topic, option
from moldau.cli.progress import ProgressBar, progress_bar
from moldau.cli.record_json import NewRecord, RecordJsonError, parse_json
from moldau.cli.signals import stop_signal
from moldau.cli.stdio import LINE_BYTES_MAX, InputFile, read_lines
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import Producer, RecordMetadata
from moldau.records.compression import CODECS_BY_NAME

CODECS = [each for each in CODECS_BY_NAME if each != "uncompressed"]
"""The codecs of a producer. `uncompressed` is excluded, because it is only valid as a topic setting."""
LINES_PER_YIELD = 500
"""The number of lines that are read before the command yields to the event loop, so that batches can be sent."""
JSON_LINE_BYTES_MAX = 8 * LINE_BYTES_MAX
"""Base64 and escapes make a line longer than its record, by at most six times for control characters."""
REQUEST_BYTES_MAX = LINE_BYTES_MAX + 64 * 1024
"""Large enough for each line, so that the broker decides whether the topic takes a record."""
TOO_LARGE_ERRORS = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)
TOPIC_TIMEOUT_MS = 5_000
"""How long brokers may take to create a missing topic."""


@dataclass
class RecordCounts:
    sent: int = 0
    acknowledged: int = 0

    def __str__(self) -> str:
        total = f" of {self.sent}" if self.acknowledged < self.sent else ""
        return f"{self.acknowledged}{total} record{'' if self.sent == 1 else 's'} acknowledged."


def produce(
    topic: Topic,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key_separator: Annotated[
        str | None, option("--key-separator -K", "TEXT", "Text that separates the key from the value in a line.")
    ] = None,
    partition: Annotated[
        int | None,
        option(
            "--partition -p",
            "NUMBER",
            "Partition for all records; by default chosen by the hash of the key, or at random without key.",
            min=0,
        ),
    ] = None,
    compression: Annotated[
        str, typer.Option(metavar="CODEC", help=f"Compression codec: {', '.join(CODECS)}.")
    ] = "none",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Read one JSON object per line, as `moldau consume --json` prints it. Only the field value is "
            "required. Partition and timestamp of the record are kept, topic and offset are ignored.",
        ),
    ] = False,
    repartition: Annotated[
        bool,
        typer.Option(
            "--repartition", help="With --json: choose each partition as for a new record, instead of keeping it."
        ),
    ] = False,
) -> None:
    """Produce each line of standard input as a record and wait until all are acknowledged.

    Ctrl-D ends the input. Ctrl-C stops reading and waits for the acknowledgement of lines that were already read.

    seq 1000 | moldau produce numbers

    echo '42:a parcel' | moldau produce orders --key-separator :

    moldau consume orders --exit --json | moldau produce copy --json
    """
    if compression not in CODECS:
        raise typer.BadParameter(f"must be one of {', '.join(CODECS)}", param_hint="--compression")
    if as_json and key_separator:
        raise typer.BadParameter("use either --json or --key-separator; in JSON the key is the field key")
    if repartition and not as_json:
        raise typer.BadParameter("only records in JSON have a partition; add --json", param_hint="--repartition")
    separator = None if not key_separator else os.fsencode(key_separator)
    counts = RecordCounts()
    input_file = InputFile.open(sys.stdin.buffer)
    line_bytes_max = JSON_LINE_BYTES_MAX if as_json else LINE_BYTES_MAX

    async def send_lines(
        cluster: Cluster, producer: Producer, failed: "asyncio.Future[BaseException]", bar: ProgressBar
    ) -> None:
        def on_delivery(line_number: int, delivery: "asyncio.Future[RecordMetadata]") -> None:
            error = delivery.exception()
            if error is None:
                counts.acknowledged += 1
            elif not failed.done():
                failed.set_result(_delivery_error(error, topic, line_number))

        line_number = partition_count = 0
        async for batch in read_lines(sys.stdin.buffer, line_bytes_max):
            if input_file is not None:
                bar.update_bytes(input_file.position(), input_file.size)
            if counts.sent == 0:
                with notify_if_slow(f"waiting for the topic {topic} ..."):
                    await cluster.wait_for_topics([topic], timeout_ms=TOPIC_TIMEOUT_MS, create=True)
                partition_count = len(cluster.topics[topic].partitions)
            for line in batch:
                line_number += 1
                if as_json:
                    if not line.strip():
                        continue
                    record = _parse_json_line(line, line_number)
                else:
                    record = _parse_text_line(line, separator)
                target = record.partition if partition is None and not repartition else partition
                if target is not None and target >= partition_count:
                    raise _missing_partition(topic, partition_count, target, line_number if partition is None else None)
                try:
                    delivery = await producer.send(
                        topic,
                        record.value,
                        key=record.key,
                        partition=target,
                        timestamp_ms=record.timestamp_ms,
                        headers=record.headers,
                    )
                except KafkaError as error:
                    if error.code != ErrorCode.message_too_large:
                        raise
                    raise KafkaError(error.code, f"line {line_number}: {error.message}") from None
                delivery.add_done_callback(functools.partial(on_delivery, line_number))
                counts.sent += 1
                if counts.sent % LINES_PER_YIELD == 0:
                    await asyncio.sleep(0)

    async def run() -> int | None:
        """Returns the number of the signal that stopped the command, or None."""
        async with (
            connected_cluster(bootstrap, topics=[topic]) as cluster,
            Producer(cluster, compression=compression, max_request_size=REQUEST_BYTES_MAX) as producer,
        ):
            if sys.stdin.isatty():
                print_notice(f"Type records for {topic}, one per line; Ctrl-D ends the input.")
            loop = asyncio.get_running_loop()
            failed: asyncio.Future[BaseException] = loop.create_future()
            with stop_signal() as stop_requested, progress_bar("producing", enabled=input_file is not None) as bar:
                sending = loop.create_task(send_lines(cluster, producer, failed, bar), name="produce-lines")
                events: list[asyncio.Future[Any]] = [sending, stop_requested, failed]
                await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
                sending.cancel()
                await asyncio.wait([sending])
                with notify_if_slow("waiting for acknowledgements; Ctrl-C exits without them ..."):
                    await producer.flush()
            if failed.done():
                raise failed.result()
            if not sending.cancelled():
                sending.result()
            return stop_requested.result() if stop_requested.done() else None

    try:
        signal_number = run_or_exit(run(), bootstrap)
    except typer.Exit:
        if counts.sent:
            print_notice(str(counts))
        raise
    print_notice(str(counts))
    if signal_number is not None:
        raise typer.Exit(128 + signal_number)


def _parse_text_line(line: bytes, separator: bytes | None) -> NewRecord:
    if separator is None or separator not in line:
        return NewRecord(line)
    key, _, value = line.partition(separator)
    return NewRecord(value, key)


def _parse_json_line(line: bytes, number: int) -> NewRecord:
    try:
        return parse_json(line)
    except RecordJsonError as error:
        raise CommandError(f"Line {number}: {error}.") from None


def _delivery_error(error: BaseException, topic: str, line_number: int) -> BaseException:
    if not isinstance(error, KafkaError) or error.code not in TOO_LARGE_ERRORS:
        return error
    return KafkaError(
        error.code,
        f"line {line_number}: the record is larger than max.message.bytes of {topic}. `moldau topic configs {topic} "
        "max.message.bytes` shows it.",
    )


def _missing_partition(topic: str, partition_count: int, partition: int, line_number: int | None) -> CommandError:
    """`line_number` is the line that names the partition, or None if an option does."""
    problem = f"{topic} has {pluralize(partition_count, 'partition')}; there is no partition {partition}."
    if line_number is None:
        return NotFoundError(problem)
    return CommandError(
        f"Line {line_number}: {problem} Use --repartition to choose other partitions, or add some with "
        f"`moldau topic alter {topic} --partitions {partition + 1}`."
    )
