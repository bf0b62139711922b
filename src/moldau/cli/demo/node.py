"""The node of the demo, in a child process. If the demo is killed, the node removes DIRECTORY.

If DIRECTORY is '', the node removes nothing.

python -m moldau.cli.demo.node DIRECTORY --listen 127.0.0.1:0 ...
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moldau.cli.child_node import HOST, bind_once, child_environment, serve_until_parent_exits
from moldau.cli.console import CommandError
from moldau.pipelines.runtime.state_directory import DIRECTORY, state_directories

PORT = 9092
STOP_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.1


def choose_port(requested: int | None) -> int:
    """Returns the requested port. By default returns 9092, or 0 (any free port) if 9092 is in use."""
    if requested is not None:
        return requested
    try:
        bind_once(PORT)
    except OSError:
        return 0
    return PORT


@contextmanager
def run_node(port: int, directory: Path, cleanup_directory: Path | None = None) -> Iterator[str]:
    """Runs the node and yields the node's address. The log of the node is in `node.log`.

    The node removes `cleanup_directory` if the demo is killed.
    """
    log = directory / "node.log"
    command = [sys.executable, "-m", __name__, str(cleanup_directory or ""), "--listen", f"{HOST}:{port}"]
    command += ["--data-dir", str(directory / "data"), "--group-initial-rebalance-delay-ms", "0"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=child_environment(),
            text=True,
            # In a new session the node does not receive Ctrl-C. The demo stops the node after the pipeline.
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            reason = (log.read_text(errors="replace").strip().splitlines() or ["no log output"])[-1]
            raise CommandError(f"The node failed to start: {reason.removeprefix('moldau: ')}")
        yield ready.removeprefix("Moldau is ready on ").partition(",")[0]
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def main(cleanup_directory: str, arguments: list[str]) -> int:
    """Runs the node in the node's process and returns the exit code."""
    code, is_orphaned = serve_until_parent_exits(arguments)
    if is_orphaned and cleanup_directory:
        _remove_directory(Path(cleanup_directory))
    return code


def _remove_directory(directory: Path) -> None:
    """Waits until Spark, which may exit after the demo, has released its locks. Then removes the directory."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < deadline and any(each.is_locked() for each in state_directories(directory / DIRECTORY)):
        time.sleep(POLL_INTERVAL_S)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
