"""CPU time, memory and open files of this process, as the system reports them."""

import os
import resource
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILES_PER_STEP = 500
_PROC = Path("/proc/self")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessStatistics(NamedTuple):
    cpu_s: float
    """CPU time of all threads."""
    resident_bytes: int | None
    """None if the system does not report it (this and the next two: without /proc)."""
    virtual_bytes: int | None
    start_time_s: float | None
    """Seconds since 1970."""
    open_files_max: int


def process_statistics() -> ProcessStatistics:
    virtual_bytes = resident_bytes = None
    try:
        virtual_pages, resident_pages, *_ = (_PROC / "statm").read_text().split()
        virtual_bytes, resident_bytes = int(virtual_pages) * _PAGE_BYTES, int(resident_pages) * _PAGE_BYTES
    except OSError:
        pass
    return ProcessStatistics(
        time.process_time(),
        resident_bytes,
        virtual_bytes,
        _start_time_s(),
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


@cache
def _start_time_s() -> float | None:
    try:
        # The name of the program, in parentheses, may contain spaces. The start time is field 22 of the line.
        ticks = int((_PROC / "stat").read_text().rpartition(")")[2].split()[19])
        boot_lines = [line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime ")]
    except OSError:
        return None
    # Some containers show a /proc/stat without this line.
    return None if not boot_lines else int(boot_lines[0].split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def count_open_files() -> Iterator[int]:
    """Yields the number of open files counted so far, and at the end the number of all. Nothing without /proc.

    Linux 6.2 and later knows the number; otherwise they are listed, which takes long if there are many.
    """
    path = _PROC / "fd"
    try:
        known = path.stat().st_size
        if known:
            yield known
            return
        count = 0
        with os.scandir(path) as files:
            for count, _ in enumerate(files):
                if count % FILES_PER_STEP == 0:
                    yield count
        # The listing itself is one of the files.
        yield count
    except OSError:
        return
