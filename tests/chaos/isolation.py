"""Exclusive use of the machine by one run, and cleanup after a run that was killed. Only its own names are touched."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.namespaces import IsolationUnavailable, check_machine

PREFIX = "moldau-chaos-"
"""Prefix of namespaces and of the directories with disks."""
EXIT_TIMEOUT_S = 10


@contextmanager
def exclusive_directory() -> Iterator[Path]:
    """Creates a directory for the disks, and locks out other runs."""
    check_machine()
    temporary = Path(tempfile.gettempdir())
    with (temporary / "moldau-chaos.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise IsolationUnavailable("another chaos run is at work on this machine") from None
        remove_leftovers(temporary)
        with tempfile.TemporaryDirectory(prefix=PREFIX) as directory:
            yield Path(directory)


def remove_leftovers(temporary: Path) -> None:
    """Removes processes, namespaces, mounts and directories of a run that was killed."""
    for name in _namespaces():
        for pid in _output("ip", "netns", "pids", name).split():
            _kill(int(pid))
        _output("ip", "netns", "delete", name)
    for mount in _mounts(temporary):
        _output("umount", mount)
    for directory in temporary.glob(f"{PREFIX}*"):
        shutil.rmtree(directory)


def _namespaces() -> list[str]:
    lines = _output("ip", "netns", "list").splitlines()
    return [name for line in lines if re.fullmatch(rf"{PREFIX}\d+", name := line.split()[0])]


def _mounts(temporary: Path) -> list[str]:
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [path for path in mounted if path.startswith(f"{temporary}/{PREFIX}")]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.02)


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise IsolationUnavailable(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
