"""The node of the demo: a process of its own with its data in a directory that goes when the demo does."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moldau.cli.asking import CommandError

PORT = 9092
STOPPED_WITHIN_S = 20.0


def choose_port(wanted: int | None) -> int:
    """The one that was asked for, else Kafka's own where it is free, so that commands need not name it."""
    if wanted is not None:
        return wanted
    return PORT if _is_free(PORT) else 0


def _is_free(port: int) -> bool:
    with socket.socket() as taken:
        # As servers do: what is left of closed connections does not keep a port.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def node(port: int, directory: Path) -> Iterator[str]:
    """Gives the address it listens on. What it says is in `node.log`."""
    log = directory / "node.log"
    command = [sys.executable, "-m", "moldau", "serve", "--listen", f"127.0.0.1:{port}"]
    command += ["--data-dir", str(directory / "data"), "--group-initial-rebalance-delay-ms", "0"]
    # The demo is the same whatever settings there are for other nodes.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOLDAU_")}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
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
            process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
