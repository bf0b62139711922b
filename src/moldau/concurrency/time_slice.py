"""Long work on the event loop in slices, so that other work runs in between."""

import asyncio
from typing import Protocol

SLICE_US = 2_000


class MicrosecondClock(Protocol):
    def monotonic_us(self) -> int: ...


class TimeSlice:
    """Limits how long a task runs without yielding to the event loop."""

    def __init__(self, clock: MicrosecondClock, slice_us: int = SLICE_US) -> None:
        self._clock = clock
        self._slice_us = slice_us
        self._start_us = clock.monotonic_us()

    async def yield_if_used(self) -> None:
        """Yields if the slice is used up. Called after each small piece of work."""
        if self._clock.monotonic_us() - self._start_us >= self._slice_us:
            await self.yield_now()

    async def yield_now(self) -> None:
        await asyncio.sleep(0)
        self._start_us = self._clock.monotonic_us()
