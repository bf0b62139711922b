"""The node of the demo: a process of its own with its data in a directory that goes when the demo does, however it
goes. The node reads a pipe that the demo holds, and ends when that is closed. After a demo that was killed it clears
up.

    python -m moldau.cli.demo.node DIRECTORY --listen 127.0.0.1:0 ...    # as `moldau serve`; "" clears nothing up
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

from moldau.cli.cluster_access import CommandError
from moldau.pipelines.runtime.state_directory import DIRECTORY, state_directories

PORT = 9092
STOP_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.1


def choose_port(wanted: int | None) -> int:
    """The one that was asked for, else Kafka's own where it is free, so that commands need not name it."""
    if wanted is not None:
        return wanted
    return PORT if _is_port_free(PORT) else 0


def _is_port_free(port: int) -> bool:
    with socket.socket() as taken:
        # As servers do: what is left of closed connections does not keep a port.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def run_node(port: int, demo_directory: Path, cleanup_directory: Path | None = None) -> Iterator[str]:
    """Gives the address it listens on. What it says is in `node.log`. The node removes `cleanup_directory`
    where the demo
    cannot do that any more."""
    log = demo_directory / "node.log"
    command = [sys.executable, "-m", __name__, str(cleanup_directory or ""), "--listen", f"127.0.0.1:{port}"]
    command += ["--data-dir", str(demo_directory / "data"), "--group-initial-rebalance-delay-ms", "0"]
    # The demo is the same whatever settings there are for other nodes.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOLDAU_")}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
            # Ctrl-C is for the demo, which stops the node last.
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            why = (log.read_text(errors="replace").strip().splitlines() or ["it did not say why"])[-1]
            raise CommandError(f"The node could not be started: {why.removeprefix('moldau: ')}")
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
    """In the node's process."""
    from moldau.cli.serve import serve

    is_alone = threading.Event()

    def stop_when_parent_exits() -> None:
        os.read(sys.stdin.fileno(), 1)
        is_alone.set()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_parent_exits, name="moldau demo", daemon=True).start()
    code = serve(arguments)
    if is_alone.is_set() and cleanup_directory:
        _remove_directory(Path(cleanup_directory))
    return code


def _remove_directory(demo_directory: Path) -> None:
    """Once Java, which may outlive the demo by a moment, writes there no more."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < deadline and any(
        each.is_locked() for each in state_directories(demo_directory / DIRECTORY)
    ):
        time.sleep(POLL_INTERVAL_S)
    shutil.rmtree(demo_directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
