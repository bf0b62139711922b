"""A queue that spreads the work of HTTP connections over iterations of the event loop.

An HTTP request costs several times as much as a Kafka request. Without the queue, a Kafka request would wait for one
request of every busy HTTP connection.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class TurnQueue:
    def __init__(self) -> None:
        self._callbacks: deque[Callable[[], None]] = deque()

    def add(self, callback: Callable[[], None]) -> None:
        """Calls `callback` in a later iteration of the event loop, one callback in each, in the order of the calls."""
        self._callbacks.append(callback)
        if len(self._callbacks) == 1:
            asyncio.get_running_loop().call_soon(self._run_next)

    def _run_next(self) -> None:
        callback = self._callbacks[0]
        try:
            callback()
        finally:
            self._callbacks.popleft()
            if self._callbacks:
                asyncio.get_running_loop().call_soon(self._run_next)
