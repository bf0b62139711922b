"""Waiting before the next attempt: longer each time, by chance a little more or less, and never past a deadline."""

import asyncio
import random

from moldau.client.errors import KafkaError
from moldau.client.net.backoff import exponential_backoff_ms

_JITTER_FRACTION = 0.2
"""Clients that failed together should not come back together."""


class Backoff:
    """How long to wait after each failure in a row."""

    def __init__(self, random: random.Random, initial_ms: int, max_ms: int) -> None:
        self._random = random
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._failures = 0

    def next_delay_ms(self) -> int:
        self._failures += 1
        return self.delay_ms(self._failures)

    def delay_ms(self, failures: int) -> int:
        """The wait after so many failures, for those who count themselves."""
        middle_ms = exponential_backoff_ms(failures, self._initial_ms, self._max_ms)
        return round(middle_ms * self._random.uniform(1 - _JITTER_FRACTION, 1 + _JITTER_FRACTION))

    def reset(self) -> None:
        self._failures = 0


class Retry:
    """The attempts at one operation: `wait_or_raise` a failed one it waits, or says that this was the last.

    retry = Retry(...)
    while True:
        try:
            return await attempt()
        except KafkaError as error:
            await retry.after(error)
    """

    def __init__(self, backoff: Backoff, timeout_ms: int) -> None:
        self._backoff = backoff
        self._deadline = asyncio.get_running_loop().time() + timeout_ms / 1000

    @property
    def remaining_ms(self) -> int:
        """How much time is left; at least one millisecond, so that it can be a timeout."""
        return max(1, round((self._deadline - asyncio.get_running_loop().time()) * 1000))

    async def wait_or_raise(self, error: KafkaError) -> None:
        """Waits before the next attempt; raises `error` if it is not retriable or no time is left."""
        if not error.is_retriable:
            raise error
        wait_s = self._backoff.next_delay_ms() / 1000
        if asyncio.get_running_loop().time() + wait_s >= self._deadline:
            raise error
        await asyncio.sleep(wait_s)
