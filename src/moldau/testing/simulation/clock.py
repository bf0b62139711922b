"""A host's clocks, on the loop's virtual time: one starts anywhere and never jumps, one is often wrong."""

from moldau.testing.simulation.loop import SimulatedLoop

WALL_START_MS = 1_767_225_600_000
"""The first of January 2026."""


class SimulatedClock:
    def __init__(self, loop: SimulatedLoop, *, monotonic_start_ms: int = 0, wall_error_ms: int = 0) -> None:
        self._loop = loop
        self._monotonic_start_ms = monotonic_start_ms
        self.wall_error_ms = wall_error_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_start_ms + self._loop.now_ns // 1_000_000

    def wall_ms(self) -> int:
        return WALL_START_MS + self.wall_error_ms + self._loop.now_ns // 1_000_000

    def jump(self, milliseconds: int) -> None:
        """Moves the wall clock, forwards or back, as an operator or a time server does."""
        self.wall_error_ms += milliseconds
