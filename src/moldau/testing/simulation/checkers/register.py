"""Whether what was read of a register can have been there: the check for one that is written by many. Pure.

Every value is written once. Then the operations on each value have a zone of time in which the register must
have held it, and a history has an order that explains it exactly if these zones leave room for each other (Gibbons
and Korach, Testing Shared Memories, 1997).
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    invoked_at: float
    completed_at: float
    """Infinite for what may still happen."""


class RegisterValue(NamedTuple):
    name: str
    write: Interval
    reads: Sequence[Interval]

    @property
    def certain_from(self) -> float:
        """When it was there for certain, now or before."""
        return min(self.write.completed_at, *(read.completed_at for read in self.reads), math.inf)

    @property
    def certain_until(self) -> float:
        """When it was still there or yet to come, for certain."""
        return max(self.write.invoked_at, *(read.invoked_at for read in self.reads), -math.inf)


def contradictions(values: Sequence[RegisterValue]) -> Iterator[tuple[RegisterValue, RegisterValue]]:
    """Pairs of values of which one was there both before and after the other, which cannot be."""
    known = [value for value in values if value.certain_from < math.inf]
    lasting = sorted(
        (value for value in known if value.certain_from < value.certain_until),
        key=lambda value: value.certain_from,
    )
    passing = [value for value in known if value.certain_from >= value.certain_until]
    for index, value in enumerate(lasting):
        for other in lasting[index + 1 :]:
            if other.certain_from >= value.certain_until:
                break
            yield value, other
        for other in passing:
            if value.certain_from < other.certain_until and other.certain_from < value.certain_until:
                yield value, other
