"""Prints consumed records until a count, an end or a stop signal. Only printed records are committed."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from moldau.cli.console import CommandError
from moldau.cli.stdio import OutputWriter
from moldau.client.consumer.consumer import Consumer
from moldau.client.record import ConsumerRecord, TopicPartition

POLL_MS = 200
UNASSIGNED_TIMEOUT_S = 3.0
"""How long an assignment may stay empty, before a command that exits at the end fails."""
POSITIONS_TIMEOUT_S = 5.0
FINAL_WRITE_TIMEOUT_S = 2.0
"""How long the last write to standard output may take after a stop signal."""


class RecordPrinter:
    """Prints the records of a consumer that is subscribed or has partitions assigned."""

    def __init__(
        self,
        consumer: Consumer,
        output: OutputWriter,
        stop_requested: "asyncio.Future[int]",
        format_record: Callable[[ConsumerRecord], bytes],
    ) -> None:
        self._consumer = consumer
        self._output = output
        self._stop_requested = stop_requested
        self._format_record = format_record
        self.assigned_at: float | None = None
        """Loop time of the last assignment; None before the first assignment or without a group."""
        self.on_printed: Callable[[list[ConsumerRecord]], None] | None = None
        """Called with records that were printed."""

    async def run(
        self, *, count: int | None = None, exit_at_end: bool = False, until: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Prints until `count` records are printed, or all partitions are at their end or at their offset in `until`.

        Returns early after a stop signal, or if the reader of standard output has exited.
        """
        remaining = count
        unfinished = dict(until or {})
        while remaining != 0 and not self._stop_requested.done() and not self._output.is_reader_gone:
            if until is not None and not await self._remove_finished(unfinished):
                return
            records = await self._consumer.poll(POLL_MS, max_records=remaining)
            is_empty = not records
            if until is not None:
                records = [each for each in records if each.offset < until[TopicPartition(each.topic, each.partition)]]
            if records and not await self._write(records):
                return
            if records and self.on_printed is not None:
                self.on_printed(records)
            if remaining is not None:
                remaining -= len(records)
            if exit_at_end and is_empty and await self._is_at_end():
                return

    async def _remove_finished(self, unfinished: dict[TopicPartition, int]) -> bool:
        """Removes and pauses the partitions that are read up to their offset. Returns whether others are left."""
        for partition, offset in list(unfinished.items()):
            if await self._consumer.position(partition) >= offset:
                del unfinished[partition]
                self._consumer.pause([partition])
        return bool(unfinished)

    async def _write(self, records: list[ConsumerRecord]) -> bool:
        """Writes records. Returns False if a stop was requested and the write did not complete in time."""
        written = self._output.write(b"".join([self._format_record(record) for record in records]))
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
            if self.assigned_at is not None and now > self.assigned_at + UNASSIGNED_TIMEOUT_S:
                group = self._consumer.group_metadata().group_id
                raise CommandError(
                    f"No partitions are assigned: other members of group {group} have all of them. Run "
                    f"`moldau group describe {group}` to see them."
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
