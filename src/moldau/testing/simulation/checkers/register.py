"""Whether what was read of a register can have been there: the check for one that is written by many. Pure.

Every value is written once. Then the operations on each value have a zone of time in which the register must
have held it, and a history has an order that explains it exactly if these zones leave room for each other (Gibbons
and Korach, Testing Shared Memories, 1997).
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    begun: float
    ended: float
    """Infinite for what may still happen."""


class Value(NamedTuple):
    name: str
    write: Interval
    reads: Sequence[Interval]

    @property
    def known_at(self) -> float:
        """When it was there for certain, now or before."""
        return min(self.write.ended, *(read.ended for read in self.reads), math.inf)

    @property
    def wanted_at(self) -> float:
        """When it was still there or yet to come, for certain."""
        return max(self.write.begun, *(read.begun for read in self.reads), -math.inf)


def contradictions(values: Sequence[Value]) -> Iterator[tuple[Value, Value]]:
    """Pairs of values of which one was there both before and after the other, which cannot be."""
    known = [value for value in values if value.known_at < math.inf]
    lasting = sorted(
        (value for value in known if value.known_at < value.wanted_at), key=lambda value: value.known_at
    )
    passing = [value for value in known if value.known_at >= value.wanted_at]
    for index, value in enumerate(lasting):
        for other in lasting[index + 1 :]:
            if other.known_at >= value.wanted_at:
                break
            yield value, other
        for other in passing:
            if value.known_at < other.wanted_at and other.known_at < value.wanted_at:
                yield value, other
