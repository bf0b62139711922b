"""`moldau consume`: prints the records of topics. With a group, only the offsets of printed records are committed."""

import asyncio
import json
import sys
from typing import Annotated, Any, Literal

import typer

from moldau.cli.admin import connected_cluster, run_or_exit
from moldau.cli.console import CommandError, bytes_to_json, print_notice
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, IsolationLevel, Topics, option, validate_name
from moldau.cli.signals import stop_signal
from moldau.cli.stdio import OutputWriter
from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import ConsumerRecord, TopicPartition

POLL_MS = 200
TOPIC_TIMEOUT_MS = 500
"""How long to wait for a topic that was just created and is not known to all brokers yet."""
ASSIGNMENT_NOTICE_DELAY_S = 5.0
"""Delay before a notice says that the group waits for other members. It is longer than the initial rebalance delay."""
UNASSIGNED_TIMEOUT_S = 3.0
"""How long an assignment may stay empty with --exit, before the command fails."""
POSITIONS_TIMEOUT_S = 5.0
FINAL_WRITE_TIMEOUT_S = 2.0
"""How long the last write to standard output may take after a stop signal."""


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
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="NUMBER", help="Stop after this many records.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit", "-e", help="Start as with --from-beginning and exit at the end of the partitions.")
    ] = False,
    isolation_level: IsolationLevel = "read_uncommitted",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object per line: topic, partition, offset, timestamp, key, value, headers."
        ),
    ] = False,
) -> None:
    """Print the values of records, one per line, until Ctrl-C.

    On Ctrl-C or SIGTERM the consumer commits its offsets and leaves the group; the exit code is 130 or 143.

    moldau consume orders --from-beginning --exit

    moldau consume orders --group billing --json
    """
    reset: Literal["earliest", "latest"] = "earliest" if from_beginning or exit_at_end else "latest"

    async def run() -> int | None:
        """Returns the number of the signal that stopped the command, or None."""
        async with connected_cluster(bootstrap, topics=topics) as cluster:
            consumer = Consumer(
                cluster=cluster, group_id=group, auto_offset_reset=reset, isolation_level=isolation_level
            )
            await consumer.start()
            with stop_signal() as stop_requested, OutputWriter(sys.stdout.buffer) as output:
                printer = _RecordPrinter(consumer, output, stop_requested, group, as_json)
                try:
                    await printer.start(topics, may_wait=group is not None and not exit_at_end)
                    await printer.run_until_done(count, exit_at_end)
                except BrokenPipeError:
                    # The reader of standard output has exited, as `head` does.
                    return None
                finally:
                    await printer.close()
            return stop_requested.result() if stop_requested.done() else None

    signal_number = run_or_exit(run(), bootstrap)
    if signal_number is not None:
        raise typer.Exit(128 + signal_number)


class _RecordPrinter:
    def __init__(
        self,
        consumer: Consumer,
        output: OutputWriter,
        stop_requested: "asyncio.Future[int]",
        group: str | None,
        as_json: bool,
    ) -> None:
        self._consumer = consumer
        self._output = output
        self._stop_requested = stop_requested
        self._group = group
        self._format_record = _format_json if as_json else _format_value
        self._assigned_at: float | None = None
        """Loop time of the last assignment; None before the first assignment or without a group."""
        self._unassigned_notice: asyncio.TimerHandle | None = None

    async def start(self, topics: list[str], *, may_wait: bool) -> None:
        """Subscribes to the topics, or assigns all their partitions if there is no group.

        Raises KafkaError if a topic does not exist, unless `may_wait` is true.
        """
        cluster = self._consumer.cluster
        try:
            await cluster.wait_for_topics(topics, timeout_ms=TOPIC_TIMEOUT_MS)
        except KafkaError as error:
            if not may_wait or error.code != ErrorCode.unknown_topic_or_partition:
                raise
            missing = ", ".join(topic for topic in topics if topic not in cluster.topics)
            print_notice(f"waiting for {missing} to be created ... (`moldau topic list` shows the existing topics)")
        if self._group is not None:
            self._unassigned_notice = asyncio.get_running_loop().call_later(
                ASSIGNMENT_NOTICE_DELAY_S, print_notice, f"waiting for other members of group {self._group} to join ..."
            )
            self._consumer.subscribe(topics, on_assigned=self._on_assigned)
        else:
            self._consumer.assign(
                TopicPartition(topic, each.index) for topic in topics for each in cluster.topics[topic].partitions
            )

    def _on_assigned(self, _: list[TopicPartition]) -> None:
        self._assigned_at = asyncio.get_running_loop().time()
        self._cancel_unassigned_notice()

    def _cancel_unassigned_notice(self) -> None:
        if self._unassigned_notice is not None:
            self._unassigned_notice.cancel()

    async def run_until_done(self, count: int | None, exit_at_end: bool) -> None:
        remaining = count
        while remaining != 0 and not self._stop_requested.done():
            records = await self._consumer.poll(POLL_MS, max_records=remaining)
            if records and not await self._write(records):
                return
            if remaining is not None:
                remaining -= len(records)
            if exit_at_end and not records and await self._is_at_end():
                return

    async def close(self) -> None:
        """Commits the offsets of printed records and leaves the group."""
        self._cancel_unassigned_notice()
        await self._consumer.close()

    async def _write(self, records: list[ConsumerRecord]) -> bool:
        """Writes records. Returns False if a stop was requested and the write did not complete in time."""
        written = self._output.write(b"".join([self._format_record(record) + b"\n" for record in records]))
        is_written = False
        try:
            either: list[asyncio.Future[Any]] = [written, self._stop_requested]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([written], timeout=FINAL_WRITE_TIMEOUT_S)
            if written.done():
                written.result()
                is_written = True
        finally:
            if not is_written:
                # Seek back to these records. They were not printed, so their offsets must not be committed.
                for record in reversed(records):
                    self._consumer.seek(TopicPartition(record.topic, record.partition), record.offset)
        return is_written

    async def _is_at_end(self) -> bool:
        partitions = self._consumer.assignment
        if not partitions:
            now = asyncio.get_running_loop().time()
            if self._assigned_at is not None and now > self._assigned_at + UNASSIGNED_TIMEOUT_S:
                raise CommandError(
                    f"No partitions are assigned: other members of group {self._group} have all of them. Run "
                    f"`moldau group describe {self._group}` to see them."
                )
            return False
        ends = await self._consumer.end_offsets(partitions)
        try:
            # Limit the time, because a lookup for a deleted topic cannot succeed. The next poll handles the deletion.
            async with asyncio.timeout(POSITIONS_TIMEOUT_S):
                positions = await asyncio.gather(*(self._consumer.position(each) for each in partitions))
        except TimeoutError:
            return False
        return all(position >= ends[each] for each, position in zip(partitions, positions, strict=True))


def _format_value(record: ConsumerRecord) -> bytes:
    return record.value or b""


def _format_json(record: ConsumerRecord) -> bytes:
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _json_text(record.key),
        "value": _json_text(record.value),
        "headers": [[name, _json_text(value)] for name, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False).encode()


def _json_text(data: bytes | None) -> str | dict[str, str] | None:
    return None if data is None else bytes_to_json(data)
