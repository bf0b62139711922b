"""Work that can take long and cannot wait for anything in between, such as compressing records: a turn of the event
loop has room for so much of it, and what is due besides comes between."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

SHARE_S = 0.02
"""A turn in which this work has gone on for so long takes on no more of it."""

T = TypeVar("T")


class Turns:
    def __init__(self) -> None:
        self._order = asyncio.Lock()
        self._began_s: float | None = None
        """When the first of this work was begun in this turn."""

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives: at once where this turn has room for it, and otherwise in the order the calls came."""
        loop = asyncio.get_running_loop()
        async with self._order:
            if self._began_s is not None and loop.time() - self._began_s >= SHARE_S:
                await asyncio.sleep(0)
            if self._began_s is None:
                self._began_s = loop.time()
                loop.call_soon(self._end)
            return work()

    def _end(self) -> None:
        self._began_s = None
