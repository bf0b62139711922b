"""Producer ids for this node's clients, taken from the controller in blocks so that most cost no metadata
write."""

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIds:
    def __init__(self, allocate: Callable[[], Awaitable[range]]) -> None:
        self._allocate = allocate
        self._block = iter(range(0))
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """An id that nobody in the cluster has had before."""
        async with self._lock:
            for producer_id in self._block:
                return producer_id
            self._block = iter(await self._allocate())
            return next(self._block)
