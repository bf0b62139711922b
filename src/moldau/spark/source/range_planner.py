"""Planner of offset ranges on the driver. Uses the options and the current offsets of the logs."""

import asyncio
from collections.abc import Mapping

from moldau.client.consumer.offset_lookup import EARLIEST
from moldau.client.record import TopicPartition
from moldau.spark.errors import OptionError
from moldau.spark.source.data_loss import report_data_loss
from moldau.spark.source.offset_ranges import OffsetRange
from moldau.spark.source.offsets import OffsetRangeLimit, Offsets, SpecificOffsets, StreamPosition
from moldau.spark.source.options import SourceOptions
from moldau.spark.source.partition_catalog import PartitionCatalog


async def plan_batch(options: SourceOptions) -> list[OffsetRange]:
    catalog = PartitionCatalog(options, is_stream=False)
    try:
        return await _plan_batch(catalog, options)
    finally:
        catalog.close()


async def _plan_batch(catalog: PartitionCatalog, options: SourceOptions) -> list[OffsetRange]:
    partitions = await catalog.require_partitions()
    starts, ends, first, last = await asyncio.gather(
        catalog.resolve("starting", options.starting, partitions),
        catalog.resolve("ending", options.ending, partitions),
        catalog.earliest_offsets(partitions),
        catalog.latest_offsets(partitions),
    )
    ranges = []
    for partition in partitions:
        if partition not in first or partition not in last:
            _report_deleted(partition, options)
            continue
        log = range(first[partition], last[partition])
        start = _to_log_offset(starts[partition], options.starting, log)
        end = _to_log_offset(ends[partition], options.ending, log)
        ranges.append(batch_range(OffsetRange(*partition, start, end), log, options))
    return ranges


async def plan_start(catalog: PartitionCatalog, options: SourceOptions) -> Offsets:
    """Returns the offsets at which a new stream starts."""
    partitions = await catalog.require_partitions()
    starts, first, last = await asyncio.gather(
        catalog.resolve("starting", options.starting, partitions),
        catalog.earliest_offsets(partitions),
        catalog.latest_offsets(partitions),
    )
    found = {}
    for partition in partitions:
        if partition not in first or partition not in last:
            _report_deleted(partition, options)
            continue
        log = range(first[partition], last[partition])
        offset = _to_log_offset(starts[partition], options.starting, log)
        if not log.start <= offset <= log.stop:
            report_data_loss(
                f"{partition} at {options.bootstrap} should be read from offset {offset}, but its "
                f"log has {log.start} to {log.stop}",
                fails=options.fail_on_data_loss,
                action=f"starts at {log.start}",
            )
            offset = log.start
        found[partition] = offset
    return found


def batch_range(requested: OffsetRange, log: range, options: SourceOptions) -> OffsetRange:
    """Limits a range to the offsets in the log. Raises DataLossError or OptionError."""
    where = f"{requested.topic_partition} at {options.bootstrap}"
    if requested.end < requested.start:
        if isinstance(options.starting, SpecificOffsets) or isinstance(options.ending, SpecificOffsets):
            raise OptionError(
                f"{where} would be read from {requested.start} to {requested.end}: the end is before the start"
            )
        # The range is empty because the times are in reverse order or the records are not ordered by time.
        return requested._replace(end=requested.start)
    if requested.size and requested.start < log.start:
        report_data_loss(
            f"{where} should be read from offset {requested.start}, but its log starts at {log.start}",
            fails=options.fail_on_data_loss,
            action=f"starts at {log.start}",
        )
        requested = requested._replace(start=log.start, end=max(log.start, requested.end))
    if requested.size and requested.end > log.stop:
        report_data_loss(
            f"{where} should be read up to offset {requested.end}, but its log ends at {log.stop}",
            fails=options.fail_on_data_loss,
            action=f"ends at {log.stop}",
        )
        requested = requested._replace(start=min(requested.start, log.stop), end=log.stop)
    return requested


def _to_log_offset(offset: int, limit: OffsetRangeLimit, log: range) -> int:
    if offset < 0:
        return log.start if offset == EARLIEST else log.stop
    if isinstance(limit, SpecificOffsets):
        return offset
    # Limit the offset to the log, because the log may have changed between the two requests.
    return min(max(offset, log.start), log.stop)


def _report_deleted(partition: TopicPartition, options: SourceOptions) -> None:
    report_data_loss(
        f"{partition} at {options.bootstrap} was deleted while the read was planned",
        fails=options.fail_on_data_loss,
        action="reads the others",
    )


def stream_ranges(
    start: StreamPosition, end: StreamPosition, first: Mapping[TopicPartition, int], options: SourceOptions
) -> list[OffsetRange]:
    """Returns the ranges of a micro-batch. `first` contains the earliest offsets of partitions that are not resumed."""
    carried = start.resume_offsets(end)
    topics = {partition.topic for partition in carried}
    ranges = []
    for partition, stop in sorted(end.offsets.items()):
        begin = carried.get(partition)
        if begin is None:
            begin = first.get(partition, stop)
            if begin > 0 and partition.topic in topics and partition not in start.offsets:
                report_data_loss(
                    f"{partition} at {options.bootstrap} is new but already starts at offset {begin}",
                    fails=options.fail_on_data_loss,
                    action=f"starts at {begin}",
                )
        ranges.append(OffsetRange(*partition, min(begin, stop), stop))
    return ranges
