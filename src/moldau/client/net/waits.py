"""How long to wait after failures in a row: twice as long each time, up to a limit. Pure."""

_DOUBLINGS_MAX = 16
"""Enough for any limit, and the number does not grow with every failure of a long outage."""


def wait_ms(failures: int, first_ms: int, max_ms: int) -> int:
    """The wait after so many failures, of which there is at least one."""
    return min(first_ms << min(failures - 1, _DOUBLINGS_MAX), max_ms)
