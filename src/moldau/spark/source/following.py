"""Follows the partitions of a streaming query on the driver: where they end now, which are new, which have gone."""

import asyncio
import time
import uuid

from moldau.spark.source.catalog import Catalog
from moldau.spark.source.limits import Limits, capped, is_held_back, waiting
from moldau.spark.source.losses import Loss, losses, report_loss
from moldau.spark.source.offsets import Offsets, Position
from moldau.spark.source.options import SourceOptions
from moldau.spark.source.planning import plan_start, stream_ranges
from moldau.spark.source.publishing import Publisher
from moldau.spark.source.ranges import OffsetRange


class Following:
    """Its coroutines run in the portal's loop, one at a time."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._catalog = Catalog(options, is_stream=True)
        self._publisher: Publisher | None = None
        self._frozen: Position | None = None
        """Where the query is to end, with Trigger.AvailableNow."""
        self._first: Offsets = {}
        """Where the logs of partitions begin that are new to the query."""
        self._last_batch_s: float | None = None
        self.latest: Offsets = {}
        """The ends of all logs, as they were found last."""

    async def begin(self) -> Position:
        """Where a new query begins; it gets a group of its own, unless it has one."""
        start = await plan_start(self._catalog, self._options)
        prefix = self._options.group_id_prefix
        group = None if self._options.group_id else f"{prefix}-{uuid.uuid4().hex[:8]}"
        return Position(start, await self._catalog.ids(start), group)

    async def freeze(self) -> None:
        self._frozen = await self._now(is_fresh=True)

    async def advance(self, start: Position, limits: Limits | None) -> Position:
        """The end of the next batch; `start` itself where there is none. None for limits takes all there is."""
        await self.publish(start)
        now = await self._without_losses(start)
        known, end = start.carried_to(now), now.offsets
        self.latest = end
        self._first = {
            partition: offset for partition, offset in self._first.items() if partition not in known
        }
        new = [partition for partition in end if partition not in known]
        self._first |= await self._catalog.starts(each for each in new if each not in self._first)
        complete = {**{partition: self._first.get(partition, end[partition]) for partition in new}, **known}
        count = waiting(complete, end)
        if count == 0:
            if self._frozen is not None and self._publisher is not None:
                # The query is over, and with it this process.
                await self._publisher.finished()
        elif limits is not None:
            # After a loss the next records must not be taken for those that were lost: the position moves at once.
            may_wait = self._frozen is None and known == start.offsets
            if may_wait and is_held_back(limits, count, self._since_last_ms()):
                return start
            if limits.offsets_max is not None:
                end = capped(complete, end, limits.offsets_max)
        if count or self._last_batch_s is None:
            self._last_batch_s = time.monotonic()
        return Position(end, now.ids, start.group)

    async def ranges(self, start: Position, end: Position) -> list[OffsetRange]:
        """What is read between the two. A batch that is repeated after a restart may be of a topic that is another one
        by now: its offsets mean nothing there."""
        renewed = end.renewed(Position({}, await self._catalog.ids(end.offsets)))
        if renewed:
            # The broker that said so may have been the one that is behind.
            await self._catalog.existing(is_fresh=True)
            renewed = end.renewed(Position({}, await self._catalog.ids(end.offsets)))
        self._report(
            [
                Loss(
                    f"the topic {topic!r} was deleted and made anew since this batch of it was planned",
                    "leaves this batch of it out, and then reads it from its beginning",
                )
                for topic in renewed
            ]
        )
        there = {partition: stop for partition, stop in end.offsets.items() if partition.topic not in renewed}
        end = Position(there, end.ids, end.group)
        known = start.carried_to(end)
        new = [partition for partition in there if partition not in known and partition not in self._first]
        self._first |= await self._catalog.starts(new)
        return stream_ranges(start, end, self._first, self._options)

    async def publish(self, position: Position) -> None:
        """Shows the group, in the background, that all up to there is in the sink."""
        group = self._options.group_id or position.group
        if group is None or not self._options.publishes_offsets:
            return
        if self._publisher is None:
            self._publisher = Publisher(await self._catalog.cluster(), group)
        self._publisher.publish(position.offsets)

    async def stop(self) -> None:
        if self._publisher is not None:
            await self._publisher.finished()
        self._catalog.close()

    async def _now(self, *, is_fresh: bool) -> Position:
        ends = await self._catalog.ends(await self._catalog.existing(is_fresh=is_fresh))
        return Position(ends, await self._catalog.ids(ends))

    async def _without_losses(self, start: Position) -> Position:
        """Where the logs end; what was lost of those that were read is told."""
        if self._frozen is not None:
            self._report(losses(start, self._frozen, self._options.subscription))
            return self._frozen
        for attempt in range(1, self._options.offset_attempts + 1):
            now = await self._now(is_fresh=attempt > 1)
            lost = losses(start, now, self._options.subscription)
            if not lost:
                return now
            if attempt < self._options.offset_attempts:
                # A broker that has just begun to lead may not know better.
                await asyncio.sleep(self._options.offset_retry_ms / 1000)
        self._report(lost)
        return now

    def _report(self, lost: list[Loss]) -> None:
        for loss in lost:
            what = f"{loss.what} (at {self._options.bootstrap})"
            report_loss(what, fails=self._options.fail_on_data_loss, instead=loss.instead)

    def _since_last_ms(self) -> int | None:
        return None if self._last_batch_s is None else round((time.monotonic() - self._last_batch_s) * 1000)
