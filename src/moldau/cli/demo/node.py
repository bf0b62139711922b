"""The node of the demo, in a separate process.

The node stops when the demo exits, because the exit closes a pipe. If the demo was killed, the node also removes
DIRECTORY, unless DIRECTORY is empty. The other arguments are those of `moldau serve`.

    python -m moldau.cli.demo.node DIRECTORY --listen 127.0.0.1:0 ...
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moldau.cli.console import CommandError
from moldau.pipelines.runtime.state_directory import DIRECTORY, state_directories

PORT = 9092
STOP_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.1


def choose_port(requested: int | None) -> int:
    """Returns the requested port, if there is one.

    Otherwise returns 9092, so that commands work without --bootstrap. Returns 0 (any free port) if 9092 is in use.
    """
    if requested is not None:
        return requested
    return PORT if _is_port_free(PORT) else 0


def _is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        # The option is the same as in servers, so that connections in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def run_node(port: int, directory: Path, cleanup_directory: Path | None = None) -> Iterator[str]:
    """Runs the node and yields the node's address. The log of the node is in `node.log`.

    The node removes `cleanup_directory` if the demo is killed.
    """
    log = directory / "node.log"
    command = [sys.executable, "-m", __name__, str(cleanup_directory or ""), "--listen", f"127.0.0.1:{port}"]
    command += ["--data-dir", str(directory / "data"), "--group-initial-rebalance-delay-ms", "0"]
    # Settings in the environment are removed, because they are for other nodes.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOLDAU_")}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
            # In a new session the node does not receive Ctrl-C. The demo handles Ctrl-C and stops the node last.
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
    from moldau.cli.serve import serve

    is_orphaned = threading.Event()

    def stop_when_parent_exits() -> None:
        os.read(sys.stdin.fileno(), 1)
        is_orphaned.set()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_parent_exits, name="moldau demo", daemon=True).start()
    code = serve(arguments)
    if is_orphaned.is_set() and cleanup_directory:
        _remove_directory(Path(cleanup_directory))
    return code


def _remove_directory(directory: Path) -> None:
    """Removes the directory after Spark has released its locks. Spark may exit shortly after the demo."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < deadline and any(each.is_locked() for each in state_directories(directory / DIRECTORY)):
        time.sleep(POLL_INTERVAL_S)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
