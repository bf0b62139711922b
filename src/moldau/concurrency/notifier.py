"""A notifier that wakes all waiting coroutines, and a function that waits for an event with a timeout."""

import asyncio


class Notifier:
    """An edge-triggered notifier. Unlike `asyncio.Event`, it loses a notification if no coroutine waits.

    A coroutine that awaits something else between its check and `wait` passes the `count` from before the check.
    """

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []
        self.count = 0
        """How many notifications there were."""

    def notify_all(self) -> None:
        """Wakes all current waiters in the order in which they started to wait."""
        self.count += 1
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            resolve(waiter)

    async def wait(self, timeout_ms: int | None = None, *, since_count: int | None = None) -> None:
        """Returns at the next notification, or when the timeout has passed. Returns at once if `since_count` is given
        and there was a notification since then."""
        if since_count is not None and since_count != self.count:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        if timeout_ms is None:
            await waiter
            return
        timer = loop.call_later(max(0, timeout_ms) / 1000, resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)


async def wait_for_event(event: asyncio.Event, timeout_ms: int | None) -> None:
    """Waits until the event is set. If it is not set within `timeout_ms` (None: no limit), this function sets it."""
    timer = None
    if timeout_ms is not None:
        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, event.set)
    try:
        await event.wait()
    finally:
        if timer is not None:
            timer.cancel()


def resolve(waiter: "asyncio.Future[None]") -> None:
    """Completes the future, unless it is already complete or cancelled."""
    if not waiter.done():
        waiter.set_result(None)
