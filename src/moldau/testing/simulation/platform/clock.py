"""A host's clocks, on the loop's virtual time: one starts anywhere and never jumps, one is often wrong. Both run a
little too fast or too slow."""

from moldau.testing.simulation.platform.loop import SimulatedLoop

WALL_START_MS = 1_767_225_600_000
"""The first of January 2026."""


class SimulatedClock:
    def __init__(
        self,
        loop: SimulatedLoop,
        *,
        monotonic_start_ms: int = 0,
        wall_error_ms: int = 0,
        rate: float = 1.0,
    ) -> None:
        self._loop = loop
        self._rate = rate
        self._monotonic_start_ms = monotonic_start_ms
        self.wall_error_ms = wall_error_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_start_ms + self._elapsed_ms()

    def wall_ms(self) -> int:
        return WALL_START_MS + self.wall_error_ms + self._elapsed_ms()

    def _elapsed_ms(self) -> int:
        if self._rate == 1.0:
            return self._loop.now_ns // 1_000_000
        return int(self._loop.now_ns * self._rate / 1_000_000)

    def jump(self, milliseconds: int) -> None:
        """Moves the wall clock, forwards or back, as an operator or a time server does."""
        self.wall_error_ms += milliseconds
