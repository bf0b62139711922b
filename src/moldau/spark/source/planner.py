"""Plans of batch and streaming reads on the driver: which offsets of which partitions are read."""

import asyncio
import time
import uuid
from contextlib import closing

from moldau.client.consumer.offset_lookup import EARLIEST
from moldau.client.record import TopicPartition
from moldau.spark.errors import OptionError
from moldau.spark.source.data_loss import DataLoss, find_data_loss, report_data_loss
from moldau.spark.source.offset_committer import OffsetCommitter
from moldau.spark.source.offset_ranges import OffsetRange, TriggerLimits, cap_offsets, is_delayed, pending_offsets
from moldau.spark.source.offsets import OffsetRangeLimit, Offsets, SpecificOffsets, StreamPosition
from moldau.spark.source.options import SourceOptions
from moldau.spark.source.partition_catalog import PartitionCatalog


async def plan_batch(options: SourceOptions) -> list[OffsetRange]:
    """Returns the ranges that a batch query reads, one per partition."""
    with closing(PartitionCatalog(options, is_stream=False)) as catalog:
        partitions = await catalog.require_partitions()
        await catalog.check_replica(partitions)
        starts, ends, logs = await asyncio.gather(
            catalog.resolve("starting", options.starting, partitions),
            catalog.resolve("ending", options.ending, partitions),
            _existing_logs(catalog, partitions, options),
        )
    ranges = []
    for partition, log in logs.items():
        start = _to_log_offset(starts[partition], options.starting, log)
        end = _to_log_offset(ends[partition], options.ending, log)
        ranges.append(_limit_to_log(OffsetRange(*partition, start, end), log, options))
    return ranges


async def plan_start(catalog: PartitionCatalog, options: SourceOptions) -> Offsets:
    """Returns the offsets at which a new stream starts."""
    partitions = await catalog.require_partitions()
    starts, logs = await asyncio.gather(
        catalog.resolve("starting", options.starting, partitions), _existing_logs(catalog, partitions, options)
    )
    found = {}
    for partition, log in logs.items():
        offset = _to_log_offset(starts[partition], options.starting, log)
        if not log.start <= offset <= log.stop:
            what = (
                f"{partition} at {options.bootstrap} should be read from offset {offset}, but its "
                f"log has {log.start} to {log.stop}"
            )
            report_data_loss(options, what, f"starts at {log.start}")
            offset = log.start
        found[partition] = offset
    return found


async def _existing_logs(
    catalog: PartitionCatalog, partitions: list[TopicPartition], options: SourceOptions
) -> dict[TopicPartition, range]:
    """Returns the range of offsets in each log. Reports partitions that were deleted in the meantime."""
    first, last = await asyncio.gather(catalog.earliest_offsets(partitions), catalog.latest_offsets(partitions))
    logs = {each: range(first[each], last[each]) for each in partitions if each in first and each in last}
    for partition in partitions:
        if partition not in logs:
            what = f"{partition} at {options.bootstrap} was deleted while the read was planned"
            report_data_loss(options, what, "reads the others")
    return logs


def _to_log_offset(offset: int, limit: OffsetRangeLimit, log: range) -> int:
    if offset < 0:
        return log.start if offset == EARLIEST else log.stop
    if isinstance(limit, SpecificOffsets):
        return offset
    # Limit the offset to the log, which may have changed between the lookups of the offset and of the log's range.
    return min(max(offset, log.start), log.stop)


def _limit_to_log(requested: OffsetRange, log: range, options: SourceOptions) -> OffsetRange:
    """Limits the range of a batch query to the offsets in the log, and reports the records that the log lacks.

    Raises OptionError if an option sets offsets and the end is before the start.
    """
    where = f"{requested.topic_partition} at {options.bootstrap}"
    if requested.end < requested.start:
        if isinstance(options.starting, SpecificOffsets) or isinstance(options.ending, SpecificOffsets):
            raise OptionError(
                f"{where} would be read from {requested.start} to {requested.end}: the end is before the start"
            )
        # The starting time is after the ending time, or the records are not ordered by time. The range is empty.
        return requested._replace(end=requested.start)
    if requested.size and requested.start < log.start:
        what = f"{where} should be read from offset {requested.start}, but its log starts at {log.start}"
        report_data_loss(options, what, f"starts at {log.start}")
        requested = requested._replace(start=log.start, end=max(log.start, requested.end))
    if requested.size and requested.end > log.stop:
        what = f"{where} should be read up to offset {requested.end}, but its log ends at {log.stop}"
        report_data_loss(options, what, f"ends at {log.stop}")
        requested = requested._replace(start=min(requested.start, log.stop), end=log.stop)
    return requested


class StreamPlanner:
    """The planner of one streaming query. Its coroutines run in the event loop thread, one at a time."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._catalog = PartitionCatalog(options, is_stream=True)
        self._committer: OffsetCommitter | None = None
        self._fixed_end: StreamPosition | None = None
        """The final position of the query with Trigger.AvailableNow; None with other triggers."""
        self._log_starts: Offsets = {}
        """Earliest offsets of partitions that are new to the query."""
        self._last_batch_s: float | None = None
        self.latest: Offsets = {}
        """The end offsets of all partitions at the last call of `next_position`."""

    async def initial_position(self) -> StreamPosition:
        """Returns the start position of a new query, with a generated consumer group if the options name no group."""
        start = await plan_start(self._catalog, self._options)
        prefix = self._options.group_id_prefix
        group = None if self._options.group_id else f"{prefix}-{uuid.uuid4().hex[:8]}"
        return StreamPosition(start, await self._catalog.topic_ids(start), group, self._published_group(group))

    async def fix_end(self) -> None:
        self._fixed_end = await self._fetch_position(refresh_metadata=True)

    async def next_position(self, start: StreamPosition, limits: TriggerLimits | None) -> StreamPosition:
        """Returns the end of the next micro-batch, or `start` if none is due. `limits` is None to read all records."""
        await self.commit_to_group(start)
        now = await self._current_position(start)
        resumed, end = start.resume_offsets(now), now.offsets
        self.latest = end
        new = [each for each in end if each not in resumed]
        starts = {each: offset for each, offset in self._log_starts.items() if each not in resumed}
        starts |= await self._catalog.earliest_offsets(each for each in new if each not in starts)
        self._log_starts = starts
        complete = {**{each: starts.get(each, end[each]) for each in new}, **resumed}
        count = pending_offsets(complete, end)
        if count == 0:
            if self._fixed_end is not None and self._committer is not None:
                # Wait for pending commits, because the query and its process end now.
                await self._committer.drain()
        elif limits is not None:
            # After data loss, do not wait for a larger micro-batch. While the query waits, new records could reuse the
            # lost offsets. The loss would then no longer be detected, and the new records would be skipped.
            may_wait = self._fixed_end is None and resumed == start.offsets
            last_s = self._last_batch_s
            since_last_ms = None if last_s is None else round((time.monotonic() - last_s) * 1000)
            if may_wait and is_delayed(limits, count, since_last_ms):
                return start
            if limits.offsets_max is not None:
                end = cap_offsets(complete, end, limits.offsets_max)
        if count or self._last_batch_s is None:
            self._last_batch_s = time.monotonic()
        return StreamPosition(end, now.topic_ids, start.group, self._published_group(start.group))

    async def ranges(self, start: StreamPosition, end: StreamPosition) -> list[OffsetRange]:
        """Returns the ranges of a micro-batch. Skips topics that were recreated since the micro-batch was planned."""
        recreated = await self._recreated_topics(end)
        if recreated:
            # Refresh the metadata and check again, because cached metadata may come from a broker that lags behind.
            await self._catalog.list_partitions(refresh_metadata=True)
            recreated = await self._recreated_topics(end)
        for topic in recreated:
            what = f"the topic {topic!r} was deleted and recreated since this micro-batch was planned"
            action = "skips it in this micro-batch, and then reads it from its beginning"
            self._report([DataLoss(what, action)])
        existing = {each: stop for each, stop in end.offsets.items() if each.topic not in recreated}
        resumed = start.resume_offsets(StreamPosition(existing, end.topic_ids))
        new = [each for each in existing if each not in resumed]
        self._log_starts |= await self._catalog.earliest_offsets(each for each in new if each not in self._log_starts)
        await self._catalog.check_replica(existing)
        starts = {**{each: self._log_starts.get(each, existing[each]) for each in new}, **resumed}
        known_topics = {partition.topic for partition in resumed}
        for partition in sorted(new):
            if starts[partition] > 0 and partition.topic in known_topics and partition not in start.offsets:
                what = (
                    f"{partition} at {self._options.bootstrap} is new but already starts at offset {starts[partition]}"
                )
                report_data_loss(self._options, what, f"starts at {starts[partition]}")
        return [OffsetRange(*each, min(starts[each], stop), stop) for each, stop in sorted(existing.items())]

    async def _recreated_topics(self, position: StreamPosition) -> list[str]:
        current = StreamPosition({}, await self._catalog.topic_ids(position.offsets))
        return position.recreated_topics(current)

    async def commit_to_group(self, position: StreamPosition) -> None:
        """Commits a position to the consumer group in the background. All records before it must be in the sink."""
        group = self._published_group(position.group)
        if group is None:
            return
        if self._committer is None:
            self._committer = OffsetCommitter(await self._catalog.cluster(), group)
        self._committer.commit(position.offsets)

    def _published_group(self, generated: str | None) -> str | None:
        return self._options.group_id or generated if self._options.publishes_offsets else None

    async def stop(self) -> None:
        if self._committer is not None:
            await self._committer.drain()
        self._catalog.close()

    async def _fetch_position(self, *, refresh_metadata: bool) -> StreamPosition:
        partitions = await self._catalog.list_partitions(refresh_metadata=refresh_metadata)
        ends = await self._catalog.latest_offsets(partitions)
        return StreamPosition(ends, await self._catalog.topic_ids(ends))

    async def _current_position(self, start: StreamPosition) -> StreamPosition:
        """Returns the end of all logs as a position. Reports data loss since `start`."""
        if self._fixed_end is not None:
            self._report(find_data_loss(start, self._fixed_end, self._options.subscription))
            return self._fixed_end
        for attempt in range(1, self._options.offset_attempts + 1):
            now = await self._fetch_position(refresh_metadata=attempt > 1)
            lost = find_data_loss(start, now, self._options.subscription)
            if not lost:
                return now
            if attempt < self._options.offset_attempts:
                # Retry, because a new leader may not know the latest offsets yet.
                await asyncio.sleep(self._options.offset_retry_ms / 1000)
        self._report(lost)
        return now

    def _report(self, lost: list[DataLoss]) -> None:
        for loss in lost:
            report_data_loss(self._options, f"{loss.what} (at {self._options.bootstrap})", loss.action)
