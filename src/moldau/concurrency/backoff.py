"""Exponential backoff."""

from typing import Protocol

_JITTER = 0.2
"""The random variation of a delay, as a fraction.

It prevents clients that failed at the same time from retrying at the same time.
"""
_DOUBLINGS_MAX = 16
"""The maximum number of doublings. It is enough for any `max_ms` and keeps the numbers small in a long outage."""


def exponential_backoff_ms(failures: int, initial_ms: int, max_ms: int) -> int:
    """Returns the delay after `failures` consecutive failures (at least one).

    The delay doubles with each failure, up to `max_ms`.
    """
    return min(initial_ms << min(failures - 1, _DOUBLINGS_MAX), max_ms)


class UniformRandom(Protocol):
    """The part of `random.Random` that jitter needs."""

    def uniform(self, a: float, b: float) -> float: ...


class Backoff:
    """Delays between retries: exponential, with jitter."""

    def __init__(self, random: UniformRandom, initial_ms: int, max_ms: int) -> None:
        self._random = random
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._failures = 0

    def next_delay_ms(self) -> int:
        """Counts a failure and returns the delay before the next attempt."""
        self._failures += 1
        return self.delay_ms(self._failures)

    def delay_ms(self, failures: int) -> int:
        """Returns the delay after this many failures, for callers that count the failures themselves."""
        middle_ms = exponential_backoff_ms(failures, self._initial_ms, self._max_ms)
        return round(middle_ms * self._random.uniform(1 - _JITTER, 1 + _JITTER))

    def reset(self) -> None:
        """Resets the number of failures after a success."""
        self._failures = 0
