"""How far a micro-batch reads: at least and at most so many offsets, as the options ask. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from moldau.client.record import TopicPartition
from moldau.spark.source.offsets import Offsets


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    offsets_max: int | None = None
    offsets_min: int | None = None
    """With fewer than these a batch is held back ..."""
    delay_max_ms: int = 15 * 60 * 1000
    """... but not for longer than this after the last one."""


def pending_offsets(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """How many offsets lie between; a partition that `start` does not know counts for nothing."""
    return sum(max(0, offset - start.get(partition, offset)) for partition, offset in end.items())


def is_delayed(limits: TriggerLimits, pending_offsets: int, since_last_ms: int | None) -> bool:
    """Whether a batch waits for more. The first one after a start does not: nobody knows how long ago the last was."""
    if limits.offsets_min is None or since_last_ms is None or since_last_ms >= limits.delay_max_ms:
        return False
    return pending_offsets < limits.offsets_min


def cap_offsets(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], offsets_max: int
) -> Offsets:
    """The end of a batch of about `offsets_max` offsets: each partition has its share in proportion to what waits in
    it. None that has something gets nothing, so many small ones may bring the sum above the limit. `start` must know
    all partitions."""
    total = pending_offsets(start, end)
    if total <= offsets_max:
        return dict(end)
    return {
        partition: _share(start[partition], offset, offsets_max, total) for partition, offset in end.items()
    }


def _share(start: int, end: int, offsets_max: int, total: int) -> int:
    if end <= start:
        return end
    return min(end, start + max(1, offsets_max * (end - start) // total))
