"""The two clocks: a monotonic one for timeouts and leases, and the wall clock for records."""

import time
from typing import Final, Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> int:
        """Returns milliseconds that never go back, for deadlines, timeouts and leases."""

    def wall_ms(self) -> int:
        """Returns milliseconds since 1970, for record timestamps and retention only, because it may jump."""


# CLOCK_BOOTTIME also counts the time in which the machine was suspended, and leases must expire in that time.
_MONOTONIC: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_MONOTONIC) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
