"""`moldau consume`: records of topics, to standard output as they come. A group commits what was written, no more."""

import asyncio
import base64
import json
import sys
from typing import Annotated, Any, Literal

import typer

from moldau.cli.cluster_access import CommandError, connected_cluster, print_notice, run_or_exit
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Topics, name
from moldau.cli.signals import stop_signal
from moldau.cli.streams import OutputWriter
from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import ConsumerRecord, TopicPartition

POLL_MS = 200
TOPIC_TIMEOUT_MS = 500
"""A topic that was created a moment ago may not be known to all brokers yet."""
ASSIGNMENT_NOTICE_DELAY_S = 5.0
"""Longer than brokers wait for the first members of a group; after that somebody is slow to join."""
UNASSIGNED_TIMEOUT_S = 3.0
"""Who has no partition for so long has none because others have them all."""
POSITIONS_TIMEOUT_S = 5.0
FINAL_WRITE_TIMEOUT_S = 2.0
"""When it is time to stop: how long whoever reads the output has to take what is being written."""


def consume(
    topics: Topics,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            callback=name,
            help="Share the topics with the other consumers of this group, go on where it was, and commit how "
            "far it has come.",
        ),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Begin with the first record, unless the group has committed. Otherwise only what comes from "
            "now on is shown.",
        ),
    ] = False,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, metavar="NUMBER", help="Stop after so many records."),
    ] = None,
    exit_at_end: Annotated[
        bool,
        typer.Option("--exit", "-e", help="Begin as with --from-beginning, and stop at the end."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="One JSON object a line: topic, partition, offset, timestamp, key, value, headers."
        ),
    ] = False,
) -> None:
    """Print the values of records, a line each, until Ctrl-C.

    On Ctrl-C or SIGTERM a group's offsets are committed, and it is left; the exit code is then 130 or 143.

    moldau consume orders --from-beginning --exit

    moldau consume orders --group billing --json
    """
    reset: Literal["earliest", "latest"] = "earliest" if from_beginning or exit_at_end else "latest"

    async def run() -> int | None:
        """Gives the number of the signal that ended it."""
        async with connected_cluster(bootstrap) as cluster:
            consumer = Consumer(cluster=cluster, group_id=group, auto_offset_reset=reset)
            await consumer.start()
            with stop_signal() as asked, OutputWriter(sys.stdout.buffer) as output:
                printing = _RecordPrinter(consumer, output, asked, group, as_json)
                try:
                    await printing.start(topics, may_wait=group is not None and not exit_at_end)
                    await printing.run_until_done(count, exit_at_end)
                except BrokenPipeError:
                    # Whoever read our output has seen enough, as `head` does.
                    return None
                finally:
                    await printing.close()
            return asked.result() if asked.done() else None

    signal_number = run_or_exit(run(), bootstrap)
    if signal_number is not None:
        raise typer.Exit(128 + signal_number)


class _RecordPrinter:
    def __init__(
        self,
        consumer: Consumer,
        output: OutputWriter,
        asked: "asyncio.Future[int]",
        group: str | None,
        as_json: bool,
    ) -> None:
        self._consumer = consumer
        self._output = output
        self._stop_requested = asked
        """Done when it is time to stop."""
        self._group = group
        self._format_record = _format_json if as_json else _format_value
        self._assigned_at: float | None = None
        """When the group last said what this consumer has; never without a group."""
        self._unassigned_notice: asyncio.TimerHandle | None = None

    async def start(self, topics: list[str], *, may_wait: bool) -> None:
        """Raises KafkaError where a topic does not exist, and nobody would wait until it does."""
        cluster = self._consumer.cluster
        try:
            await cluster.wait_for_topics(topics, timeout_ms=TOPIC_TIMEOUT_MS)
        except KafkaError as error:
            if not may_wait or error.code != ErrorCode.unknown_topic_or_partition:
                raise
            missing = ", ".join(topic for topic in topics if topic not in cluster.topics)
            print_notice(f"waiting until {missing} exists ... (`moldau topic list` shows what there is)")
        if self._group is not None:
            self._unassigned_notice = asyncio.get_running_loop().call_later(
                ASSIGNMENT_NOTICE_DELAY_S,
                print_notice,
                f"waiting for other consumers of the group {self._group} to join ...",
            )
            self._consumer.subscribe(topics, on_assigned=self._on_assigned)
        else:
            self._consumer.assign(
                TopicPartition(topic, each.index)
                for topic in topics
                for each in cluster.topics[topic].partitions
            )

    def _on_assigned(self, _: list[TopicPartition]) -> None:
        self._assigned_at = asyncio.get_running_loop().time()
        self._cancel_unassigned_notice()

    def _cancel_unassigned_notice(self) -> None:
        if self._unassigned_notice is not None:
            self._unassigned_notice.cancel()

    async def run_until_done(self, count: int | None, exit_at_end: bool) -> None:
        left = count
        while left != 0 and not self._stop_requested.done():
            records = await self._consumer.poll(POLL_MS, max_records=left)
            if records and not await self._write(records):
                return
            if left is not None:
                left -= len(records)
            if exit_at_end and not records and await self._is_at_end():
                return

    async def close(self) -> None:
        """Commits what was written, and leaves the group."""
        self._cancel_unassigned_notice()
        await self._consumer.close()

    async def _write(self, records: list[ConsumerRecord]) -> bool:
        """Raises OSError. False when it is time to stop and nobody takes them."""
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
                # So that the next consumer of the group gets them.
                for record in reversed(records):
                    self._consumer.seek(TopicPartition(record.topic, record.partition), record.offset)
        return is_written

    async def _is_at_end(self) -> bool:
        partitions = self._consumer.assignment
        if not partitions:
            self._check_has_partitions()
            return False
        ends = await self._consumer.end_offsets(partitions)
        try:
            # A partition may lose its topic while it is looked for; the next poll sees to that.
            async with asyncio.timeout(POSITIONS_TIMEOUT_S):
                positions = await asyncio.gather(*(self._consumer.position(each) for each in partitions))
        except TimeoutError:
            return False
        return all(position >= ends[each] for each, position in zip(partitions, positions, strict=True))

    def _check_has_partitions(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._assigned_at is not None and now > self._assigned_at + UNASSIGNED_TIMEOUT_S:
            raise CommandError(
                f"There is nothing to read here: other consumers of the group {self._group} have all partitions. "
                f"`moldau group describe {self._group}` shows them."
            )


def _format_value(record: ConsumerRecord) -> bytes:
    return record.value or b""


def _format_json(record: ConsumerRecord) -> bytes:
    shown = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _json_text(record.key),
        "value": _json_text(record.value),
        "headers": [[name, _json_text(value)] for name, value in record.headers],
    }
    return json.dumps(shown, ensure_ascii=False).encode()


def _json_text(data: bytes | None) -> str | dict[str, str] | None:
    """Text where it is text; other bytes in base64, and marked as such."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
