"""The two clocks: one that never jumps, for timeouts and leases, and one that people read, for records."""

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> int:
        """Milliseconds that only move forward; for deadlines, timeouts and leases."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; for record timestamps and retention only, because it may jump."""


class SystemClock:
    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
