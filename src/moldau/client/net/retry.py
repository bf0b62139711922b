"""Retries of one operation, with backoff, until a deadline."""

import asyncio

from moldau.client.errors import KafkaError
from moldau.concurrency.backoff import Backoff


class Retry:
    """The attempts at one operation: `wait_or_raise` a failed one it waits, or says that this was the last.

    retry = Retry(...)
    while True:
        try:
            return await attempt()
        except KafkaError as error:
            await retry.wait_or_raise(error)
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
