"""Ends a client: once, however many ask for it, and in a limited time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from moldau.observe.logging import get_logger

_log = get_logger("client.closing")

CloseStage = Coroutine[Any, Any, None]


class CloseTask:
    """Closing goes on in a task of its own, in stages that have a time limit in common. It is over at once when
    somebody who waits is cancelled: then nothing is waited for any more, but all is still brought to its end."""

    def __init__(self, close: Callable[["CloseTask"], CloseStage], timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + timeout_ms / 1000
        self._timeout: asyncio.Timeout | None = None
        self.task = loop.create_task(close(self), name="client closes")

    async def wait(self) -> None:
        """Until all is closed, however it ends."""
        try:
            await asyncio.shield(self.task)
        except asyncio.CancelledError:
            self._deadline = asyncio.get_running_loop().time()
            if self._timeout is not None and not self._timeout.expired():
                self._timeout.reschedule(self._deadline)
            await asyncio.gather(asyncio.shield(self.task), return_exceptions=True)
            raise

    async def run_stage(self, what: str, stage: CloseStage) -> None:
        """Waits for a stage while there is time. It begins even when there is none left."""
        try:
            async with asyncio.timeout_at(self._deadline) as self._timeout:
                await stage
        except TimeoutError:
            if self._timeout is None or not self._timeout.expired():
                raise
            _log.warning("the client closes without waiting any longer", for_what=what)
        finally:
            self._timeout = None
