"""Offsets that one task reads, and how partitions with much to read are split over several tasks. Pure."""

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
    """Not read any more."""

    @property
    def size(self) -> int:
        """How many records there are at most: compaction and transactions leave gaps."""
        return self.end - self.start

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic_partition} from {self.start} to {self.end}"


def split_ranges(
    ranges: Iterable[OffsetRange], *, partitions_min: int | None = None, records_max: int | None = None
) -> list[OffsetRange]:
    """One range per task. Those with nothing in them are left out; the others are cut where `records_max` asks for it,
    and the largest of them further until there are about `partitions_min`."""
    found = sorted(each for each in ranges if each.size > 0)
    if records_max is not None:
        found = [part for each in found for part in _divide(each, -(-each.size // records_max))]
    if partitions_min is not None and len(found) < partitions_min:
        found = _divide_largest(found, partitions_min)
    return found


def _divide_largest(ranges: Sequence[OffsetRange], count: int) -> list[OffsetRange]:
    """In proportion to their sizes. What is too small to be cut does not take part in the sum, so that it does not
    keep the large ones from being cut as far as was asked for."""
    total = sum(each.size for each in ranges)
    large = {each for each in ranges if _part_count(each.size, total, count) > 1}
    large_total = sum(each.size for each in large)
    count_of_large = max(1, count - (len(ranges) - len(large)))
    cut: list[OffsetRange] = []
    for each in ranges:
        cut += _divide(each, _part_count(each.size, large_total, count_of_large) if each in large else 1)
    return cut


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
