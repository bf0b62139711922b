"""Whose code is running: every callback belongs to one life of one host, and dies with it.

Tasks inherit the context they are made in, so whatever a host starts stays the host's.
"""

from contextvars import ContextVar


class Life:
    """A host from one boot to the next crash. Nothing of it runs once `alive` is False."""

    def __init__(self, host: str, boot: int) -> None:
        self.host = host
        self.boot = boot
        self.alive = True


OUTSIDE = Life("outside", 0)
"""The test itself: the code that starts, crashes and checks hosts."""

current_life: ContextVar[Life] = ContextVar("current_life", default=OUTSIDE)
