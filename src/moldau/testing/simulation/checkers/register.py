"""Linearizability check of a register in which every value is written only once. Pure.

The operations on a value define a zone: the time in which the register must have held the value. A history is
linearizable if and only if no two zones conflict (Gibbons and Korach, Testing Shared Memories, 1997).
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    invoked_at: float
    completed_at: float
    """Infinite for an operation that has not completed and may still take effect."""


class RegisterValue(NamedTuple):
    name: str
    write: Interval
    reads: Sequence[Interval]

    @property
    def earliest_completion(self) -> float:
        """The earliest completion of an operation on the value. The value was written before this time."""
        return min(self.write.completed_at, *(read.completed_at for read in self.reads), math.inf)

    @property
    def latest_invocation(self) -> float:
        """The time when the last write or read of this value was invoked. The register held the value at some time
        after it."""
        return max(self.write.invoked_at, *(read.invoked_at for read in self.reads), -math.inf)


def contradictions(values: Sequence[RegisterValue]) -> Iterator[tuple[RegisterValue, RegisterValue]]:
    """Yields pairs of values that contradict each other, because one was current both before and after the other.

    The zone of a value is the time in which the value must have been current. Zones of two values must not conflict.
    """
    certain = [value for value in values if value.earliest_completion < math.inf]
    forward_zones = sorted(
        (value for value in certain if value.earliest_completion < value.latest_invocation),
        key=lambda value: value.earliest_completion,
    )
    backward_zones = [value for value in certain if value.earliest_completion >= value.latest_invocation]
    for index, value in enumerate(forward_zones):
        for other in forward_zones[index + 1 :]:
            if other.earliest_completion >= value.latest_invocation:
                break
            yield value, other
        for other in backward_zones:
            if (
                value.earliest_completion < other.latest_invocation
                and other.earliest_completion < value.latest_invocation
            ):
                yield value, other
