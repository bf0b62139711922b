"""`moldau consume`: prints the records of topics. With a group, only the offsets of printed records are committed."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from moldau.cli.admin import connected_cluster, notify_if_slow, run_or_exit
from moldau.cli.console import pluralize, print_notice
from moldau.cli.consume_progress import CountProgress, OffsetProgress
from moldau.cli.exit_codes import NotFoundError
from moldau.cli.log_position import (
    POSITION_HELP,
    LogBounds,
    LogPosition,
    PositionError,
    find_bounds,
    find_offsets,
    parse_position,
)
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, IsolationLevel, Topics, option, validate_name
from moldau.cli.progress import ProgressBar, progress_bar
from moldau.cli.record_format import TOKENS_HELP, RecordFormat, RecordFormatError
from moldau.cli.record_json import format_json
from moldau.cli.record_printer import RecordPrinter
from moldau.cli.signals import stop_signal
from moldau.cli.stdio import OutputWriter
from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.record import ConsumerRecord, TopicPartition

TOPIC_TIMEOUT_MS = 500
"""How long to wait for a topic that was just created and is not known to all brokers yet."""
ASSIGNMENT_NOTICE_DELAY_S = 5.0
"""Delay before a notice says that the group waits for other members. It is longer than the initial rebalance delay."""


@dataclass(frozen=True)
class _Selection:
    """The records to print."""

    topics: Sequence[str]
    group: str | None
    partitions: Sequence[int]
    """Empty: all partitions."""
    first: LogPosition | None
    until: LogPosition | None
    exit_at_end: bool


def consume(
    topics: Topics,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    group: Annotated[
        str | None,
        option(
            "--group -g",
            "GROUP",
            "Join this consumer group: share partitions with its members, continue from its committed "
            "offsets, and commit.",
            validate_name,
        ),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Start at the earliest offset instead of the latest, unless the group has committed offsets.",
        ),
    ] = False,
    from_: Annotated[
        str | None, option("--from", "POSITION", f"Where to start in each partition: {POSITION_HELP}.")
    ] = None,
    until: Annotated[
        str | None, option("--until", "POSITION", "Stop before this position, written as for --from, and exit.")
    ] = None,
    partitions: Annotated[
        list[int] | None,
        option("--partition -p", "NUMBER", "Read only this partition of each topic; can be repeated.", min=0),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="NUMBER", help="Stop after this many records.")
    ] = None,
    exit_at_end: Annotated[
        bool,
        typer.Option(
            "--exit", "-e", help="Exit at the end of the partitions. Without --from, start as with --from-beginning."
        ),
    ] = False,
    isolation_level: IsolationLevel = "read_uncommitted",
    record_format: Annotated[
        str | None,
        option(
            "--format -f", "FORMAT", rf"Print each record in this format, as kcat -f: {TOKENS_HELP}; \n \t \0 \x1f."
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object per line: topic, partition, offset, timestamp, key, value, headers. "
            "`moldau produce --json` reads it.",
        ),
    ] = False,
) -> None:
    """Print the values of records, one per line, until Ctrl-C.

    On Ctrl-C or SIGTERM the consumer commits its offsets and leaves the group; the exit code is 130 or 143.

    moldau consume orders --from-beginning --exit

    moldau consume orders --group billing --json

    moldau consume orders --from '5 minutes ago' --format '%p %o %k: %s\\n'
    """
    if from_ is not None and from_beginning:
        raise typer.BadParameter("use either --from or --from-beginning")
    if group is not None:
        for flag, value in (("--from", from_), ("--until", until), ("--partition", partitions)):
            if value:
                raise typer.BadParameter(
                    "cannot be used with --group, which continues from its committed offsets. Use --from-beginning for "
                    f"a new group, or `moldau group reset {group}` to move the offsets",
                    param_hint=flag,
                )
    now_ms = time.time_ns() // 1_000_000
    starts_at_beginning = from_beginning or exit_at_end or until is not None
    reset: Literal["earliest", "latest"] = "earliest" if starts_at_beginning else "latest"
    selection = _Selection(
        topics,
        group,
        partitions or (),
        _parse_position(from_, now_ms, "--from"),
        _parse_position(until, now_ms, "--until"),
        exit_at_end,
    )
    format_record = _record_formatter(record_format, as_json)

    async def run() -> int | None:
        """Returns the number of the signal that stopped the command, or None."""
        async with connected_cluster(bootstrap, topics=topics) as cluster:
            consumer = Consumer(
                cluster=cluster, group_id=group, auto_offset_reset=reset, isolation_level=isolation_level
            )
            await consumer.start()
            with stop_signal() as stop_requested, OutputWriter(sys.stdout.buffer) as output:
                printer = RecordPrinter(consumer, output, stop_requested, format_record)
                try:
                    await _wait_for_topics(cluster, selection)
                    # The records and a bar must not be on the same terminal.
                    with (
                        progress_bar("consuming", enabled=not sys.stdout.isatty()) as bar,
                        _waiting_for_members(group) as stop_waiting,
                    ):
                        stops = await _start_reading(consumer, printer, selection, stop_waiting)
                        if bar.is_shown:
                            printer.on_printed = await _progress(bar, consumer, selection, stops, count)
                        await printer.run(count=count, exit_at_end=exit_at_end, until=stops)
                except BrokenPipeError:
                    # The reader of standard output has exited, as `head` does.
                    return None
                finally:
                    # Commits the offsets of printed records and leaves the group.
                    await consumer.close()
            return stop_requested.result() if stop_requested.done() else None

    signal_number = run_or_exit(run(), bootstrap)
    if signal_number is not None:
        raise typer.Exit(128 + signal_number)


def _parse_position(text: str | None, now_ms: int, flag: str) -> LogPosition | None:
    if text is None:
        return None
    try:
        return parse_position(text, now_ms)
    except PositionError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def _record_formatter(record_format: str | None, as_json: bool) -> Callable[[ConsumerRecord], bytes]:
    if record_format is None:
        return _format_json_line if as_json else _format_value_line
    if as_json:
        raise typer.BadParameter("use either --format or --json")
    try:
        return RecordFormat(os.fsencode(record_format)).format
    except RecordFormatError as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None


def _format_value_line(record: ConsumerRecord) -> bytes:
    return (record.value or b"") + b"\n"


def _format_json_line(record: ConsumerRecord) -> bytes:
    return format_json(record) + b"\n"


async def _wait_for_topics(cluster: Cluster, selection: _Selection) -> None:
    """Raises KafkaError if a topic does not exist, unless a group can wait for it."""
    try:
        await cluster.wait_for_topics(selection.topics, timeout_ms=TOPIC_TIMEOUT_MS)
    except KafkaError as error:
        may_wait = selection.group is not None and not selection.exit_at_end
        if not may_wait or error.code != ErrorCode.unknown_topic_or_partition:
            raise
        missing = ", ".join(topic for topic in selection.topics if topic not in cluster.topics)
        print_notice(f"waiting for {missing} to be created ... (`moldau topic list` shows the existing topics)")


@contextmanager
def _waiting_for_members(group: str | None) -> Iterator[Callable[[], None]]:
    """Prints a notice if the group assigns no partitions in time. Yields the function that cancels the notice."""
    if group is None:
        yield lambda: None
        return
    timer = asyncio.get_running_loop().call_later(
        ASSIGNMENT_NOTICE_DELAY_S, print_notice, f"waiting for other members of group {group} to join ..."
    )
    try:
        yield timer.cancel
    finally:
        timer.cancel()


async def _start_reading(
    consumer: Consumer, printer: RecordPrinter, selection: _Selection, stop_waiting: Callable[[], None]
) -> dict[TopicPartition, int] | None:
    """Subscribes, or without a group assigns partitions and seeks. Returns the offsets at which to stop, if any."""
    if selection.group is not None:

        def on_assigned(_: list[TopicPartition]) -> None:
            stop_waiting()
            printer.assigned_at = asyncio.get_running_loop().time()

        consumer.subscribe(selection.topics, on_assigned=on_assigned)
        return None
    partitions = _select_partitions(consumer.cluster, selection)
    consumer.assign(partitions)
    if selection.first is None and selection.until is None:
        return None
    with notify_if_slow("looking up offsets ..."):
        bounds = await find_bounds(consumer, partitions)
        if selection.first is not None:
            _print_missing_offset(selection.first, bounds)
            for partition, offset in (await find_offsets(consumer, selection.first, bounds)).items():
                consumer.seek(partition, offset)
        return None if selection.until is None else await find_offsets(consumer, selection.until, bounds)


async def _progress(
    bar: ProgressBar,
    consumer: Consumer,
    selection: _Selection,
    stops: Mapping[TopicPartition, int] | None,
    count: int | None,
) -> Callable[[list[ConsumerRecord]], None] | None:
    """Returns the function that updates the bar, or None if it is unknown how many records will be printed."""
    if count is not None:
        return CountProgress(bar, count).add
    if selection.group is not None:
        return None
    ends = stops
    if ends is None and selection.exit_at_end:
        ends = await consumer.end_offsets(consumer.assignment)
    if ends is None:
        return None
    return OffsetProgress(bar, {each: await consumer.position(each) for each in ends}, ends).add


def _select_partitions(cluster: Cluster, selection: _Selection) -> list[TopicPartition]:
    selected = []
    for topic in selection.topics:
        existing = [each.index for each in cluster.topics[topic].partitions]
        for each in selection.partitions:
            if each not in existing:
                raise NotFoundError(
                    f"{topic} has {pluralize(len(existing), 'partition')}; there is no partition {each}."
                )
        selected += [TopicPartition(topic, each) for each in existing if each in (selection.partitions or existing)]
    return selected


def _print_missing_offset(first: LogPosition, bounds: Mapping[TopicPartition, LogBounds]) -> None:
    """Prints a notice if no partition has the offset of --from, because the output then starts elsewhere."""
    if first.to != "offset" or not bounds:
        return
    if all(first.value > each.end for each in bounds.values()):
        end = max(each.end for each in bounds.values())
        print_notice(f"No partition has offset {first.value} yet: reading from the end, which is offset {end}.")
    elif all(first.value < each.start for each in bounds.values()):
        start = min(each.start for each in bounds.values())
        print_notice(f"Offset {first.value} was deleted in all partitions: reading from the log start, offset {start}.")
