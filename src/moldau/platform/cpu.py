"""The CPU time of threads. The simulator has no such clock, so nothing that it runs may use it."""

import time


def thread_cpu_s() -> float:
    """Returns the CPU time of the calling thread."""
    return time.thread_time()
