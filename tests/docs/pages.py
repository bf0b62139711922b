"""Code blocks of the documentation, and the environment in which they run."""

import os
import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
TIMEOUT_S = 300


def blocks(page: str, language: str) -> list[str]:
    """Returns the code blocks of a page in one language, in order."""
    text = (PROJECT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def environment(bootstrap: str) -> dict[str, str]:
    """Returns the environment of a user whose broker listens at `bootstrap`."""
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "MOLDAU_BOOTSTRAP": bootstrap,
        "CI": "1",  # Spark builds no class cache then.
        "PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")]),
    }


def run(command: list[str], directory: Path, bootstrap: str, **variables: str) -> str:
    """Runs a command to its end and returns what it printed."""
    done = subprocess.run(
        command,
        cwd=directory,
        env={**environment(bootstrap), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def run_shell(script: str, directory: Path, bootstrap: str, **variables: str) -> str:
    """Runs a block of shell commands; the first that fails, fails it."""
    return run(["bash", "-euo", "pipefail", "-c", script], directory, bootstrap, **variables)
