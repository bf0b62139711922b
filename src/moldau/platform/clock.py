"""The two clocks: one that never jumps, for timeouts and leases, and one that people read, for records."""

import time
from typing import Final, Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> int:
        """Milliseconds that only move forward; for deadlines, timeouts and leases."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; for record timestamps and retention only, because it may jump."""


# A machine that was asleep must not take its leases for valid: Linux has a clock that counts that time too.
_MONOTONIC: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_MONOTONIC) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
