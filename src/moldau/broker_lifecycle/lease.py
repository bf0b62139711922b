"""The time for which this broker may take itself for the leader of what it leads. It ends before others are elected."""

from moldau.platform.clock import Clock

EXPIRED_MS = -1


class BrokerLease:
    """Without a valid lease nothing is appended, and nothing that was appended is acknowledged."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.expires_ms = EXPIRED_MS

    def is_valid(self) -> bool:
        return self._clock.monotonic_ms() < self.expires_ms

    def extend(self, expires_ms: int) -> None:
        self.expires_ms = max(self.expires_ms, expires_ms)

    def end(self) -> None:
        self.expires_ms = EXPIRED_MS
