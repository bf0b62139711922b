"""How long to wait after failures in a row: twice as long each time, up to a limit. Pure."""

_EXPONENT_MAX = 16
"""Enough for any limit, and the number does not grow with every failure of a long outage."""


def exponential_backoff_ms(failures: int, initial_ms: int, max_ms: int) -> int:
    """The wait after so many failures, of which there is at least one."""
    return min(initial_ms << min(failures - 1, _EXPONENT_MAX), max_ms)
