"""Which process a number means: numbers are given out again, so a process is known by its number and its start."""

import os
import subprocess
from pathlib import Path


def process_start(pid: int) -> str | None:
    """When a process was started, as its system counts; None where there is no such process."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        # The name of the program is in parentheses and may contain anything, so what counts follows the last one.
        fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        return None if Path("/proc/self/stat").exists() else _process_start_from_ps(pid)


def _process_start_from_ps(pid: int) -> str | None:
    """For systems without /proc."""
    done = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def own_process_start() -> str:
    start = process_start(os.getpid())
    assert start is not None, "this process runs"
    return start
