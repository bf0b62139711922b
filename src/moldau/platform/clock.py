"""The two clocks: a monotonic one for timeouts and leases, and the wall clock for records."""

import time
from typing import Final, Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> int:
        """Returns a time in milliseconds that never decreases, for deadlines, timeouts and leases."""

    def monotonic_us(self) -> int:
        """Returns the same time in microseconds, to measure durations."""

    def wall_ms(self) -> int:
        """Returns milliseconds since 1970. This clock may jump, so only record timestamps and retention use it."""


# Use CLOCK_BOOTTIME, because it also counts the time while the machine is suspended. Leases must expire during that
# time too.
_MONOTONIC: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_MONOTONIC) // 1_000_000

    def monotonic_us(self) -> int:
        return time.clock_gettime_ns(_MONOTONIC) // 1_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
