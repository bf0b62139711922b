"""Partitioners: by the hash of the key, as in Java's producer, or sticky for records without a key.

Records without a key go to one (sticky) partition until its batch is closed, so that they fill few large batches.
"""

from collections.abc import Callable, Sequence

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Returns the murmur2 hash that Kafka's producers use, as an unsigned 32-bit integer."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        part = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        part = (part ^ part >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ part
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Returns the partition that Java's producer chooses. The partition may have no leader."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """The current partition of each topic for records without a key."""

    def __init__(self, random_below: Callable[[int], int]) -> None:
        """`random_below(n)` returns a random number from 0 to n - 1."""
        self._random_below = random_below
        self._current: dict[str, int] = {}

    def current_partition(self, topic: str, partition_count: int, available: Sequence[int]) -> int:
        """Returns the current partition of a topic. Chooses a new one if the current partition has no leader.

        `available` contains the partitions with a leader. If it is empty, any partition may be chosen.
        """
        partition = self._current.get(topic)
        if partition is None or partition >= partition_count or (available and partition not in available):
            partition = self._choose_other(partition_count, available, None)
            self._current[topic] = partition
        return partition

    def next_partition(self, topic: str, partition_count: int, available: Sequence[int]) -> int:
        """Switches to another partition for the next batch, if there is one."""
        partition = self._choose_other(partition_count, available, self._current.get(topic))
        self._current[topic] = partition
        return partition

    def _choose_other(self, partition_count: int, available: Sequence[int], excluded: int | None) -> int:
        choices = [each for each in available or range(partition_count) if each != excluded]
        return choices[self._random_below(len(choices))] if choices else excluded or 0
