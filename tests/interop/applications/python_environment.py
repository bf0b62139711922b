"""A virtual environment for an application from PyPI, created once in the cache: its versions differ from Moldau's."""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).resolve().parents[3] / ".cache" / "python-applications"
INSTALL_TIMEOUT_S = 600


class EnvironmentUnavailable(Exception):
    """The environment cannot be created here; the message says why."""


def python_with(requirement: str) -> Path:
    """Returns a Python with this requirement (`name==version`), installed the first time; raises
    EnvironmentUnavailable."""
    CACHE.mkdir(parents=True, exist_ok=True)
    directory = CACHE / requirement
    # Written last, so that an interrupted installation is not used.
    complete = directory / "complete"
    with open(CACHE / f"{requirement}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(directory, ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(directory))
            _run(str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement)
            complete.touch()
    return directory / "bin" / "python"


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise EnvironmentUnavailable(f"{command} did not finish within {INSTALL_TIMEOUT_S} s") from None
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-6:])
        raise EnvironmentUnavailable(f"{command} failed: {last}")
