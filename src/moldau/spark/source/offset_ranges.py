"""Offset ranges of tasks, and the limits on the size of a micro-batch. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from moldau.client.record import TopicPartition
from moldau.spark.source.offsets import Offsets


class OffsetRange(NamedTuple):
    topic: str
    partition: int
    start: int
    end: int
    """The end offset, exclusive."""

    @property
    def size(self) -> int:
        """The number of offsets. The range may have fewer records, because compaction and transactions leave gaps."""
        return self.end - self.start

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic_partition} from {self.start} to {self.end}"


def split_ranges(
    ranges: Iterable[OffsetRange], *, partitions_min: int | None = None, records_max: int | None = None
) -> list[OffsetRange]:
    """Splits ranges into one range per task.

    Empty ranges are dropped. Ranges with more than `records_max` offsets are divided. If the result has fewer than
    `partitions_min` ranges, the largest ranges are divided further until there are about `partitions_min`.
    """
    found = sorted(each for each in ranges if each.size > 0)
    if records_max is not None:
        found = [part for each in found for part in _divide(each, -(-each.size // records_max))]
    if partitions_min is not None and len(found) < partitions_min:
        found = _divide_largest(found, partitions_min)
    return found


def _divide_largest(ranges: Sequence[OffsetRange], count: int) -> list[OffsetRange]:
    """Divides ranges in proportion to their size, into about `count` ranges in total.

    The sizes of ranges that are too small to divide do not count, so that the large ones are divided far enough.
    """
    total = sum(each.size for each in ranges)
    large = {each for each in ranges if _part_count(each.size, total, count) > 1}
    large_total = sum(each.size for each in large)
    count_of_large = max(1, count - (len(ranges) - len(large)))
    divided: list[OffsetRange] = []
    for each in ranges:
        divided += _divide(each, _part_count(each.size, large_total, count_of_large) if each in large else 1)
    return divided


def _part_count(size: int, total: int, count: int) -> int:
    return max(1, (2 * size * count + total) // (2 * total))


def _divide(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    parts = min(parts, whole.size)
    bounds = [whole.start + whole.size * part // parts for part in range(parts + 1)]
    return [whole._replace(start=start, end=end) for start, end in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    offsets_max: int | None = None
    offsets_min: int | None = None
    """A micro-batch with fewer offsets is delayed. None means that no micro-batch is delayed."""
    delay_max_ms: int = 15 * 60 * 1000
    """A micro-batch starts at the latest this long after the previous one, even with fewer than `offsets_min`."""


def pending_offsets(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """Returns the number of offsets from `start` to `end`. Partitions that are not in `start` are ignored."""
    return sum(max(0, offset - start.get(partition, offset)) for partition, offset in end.items())


def is_delayed(limits: TriggerLimits, pending_offsets: int, since_last_ms: int | None) -> bool:
    """Returns whether a micro-batch has to wait for more records. The first micro-batch after a start never waits."""
    if limits.offsets_min is None or since_last_ms is None or since_last_ms >= limits.delay_max_ms:
        return False
    return pending_offsets < limits.offsets_min


def cap_offsets(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], offsets_max: int) -> Offsets:
    """Returns the end offsets of a micro-batch of about `offsets_max` offsets.

    Partitions share the limit in proportion to their pending offsets. Each partition gets at least 1 offset, so many
    small partitions may exceed the limit. `start` must contain all partitions.
    """
    total = pending_offsets(start, end)
    if total <= offsets_max:
        return dict(end)
    return {
        partition: min(offset, start[partition] + max(1, offsets_max * (offset - start[partition]) // total))
        for partition, offset in end.items()
    }
