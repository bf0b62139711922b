"""The time for which this broker may take itself for the leader of what it leads. It ends before others are elected."""

from moldau.platform.clock import Clock

ENDED_MS = -1


class Lease:
    """Without a valid lease nothing is appended, and nothing that was appended is acknowledged."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ends_ms = ENDED_MS

    def is_valid(self) -> bool:
        return self._clock.monotonic_ms() < self.ends_ms

    def prolong(self, ends_ms: int) -> None:
        self.ends_ms = max(self.ends_ms, ends_ms)

    def end(self) -> None:
        self.ends_ms = ENDED_MS
