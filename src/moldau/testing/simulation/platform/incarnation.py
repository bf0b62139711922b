"""Whose code is running: every callback belongs to one life of one host, stops and dies with it, and lives by its
clock.

Tasks inherit the context they are made in, so whatever a host starts stays the host's.
"""

from contextvars import ContextVar


class Incarnation:
    """A host from one boot to the next crash. Nothing of it runs once `is_alive` is False, or while it is paused."""

    def __init__(self, host: str, boot: int, clock_rate: float = 1.0) -> None:
        self.host = host
        self.boot = boot
        self.is_alive = True
        self.is_paused = False
        self.clock_rate = clock_rate
        """How fast its monotonic clock runs, and with it all its timers; it stays the same for a life."""


OUTSIDE = Incarnation("outside", 0)
"""The test itself: the code that starts, crashes and checks hosts."""

current_incarnation: ContextVar[Incarnation] = ContextVar("current_incarnation", default=OUTSIDE)
