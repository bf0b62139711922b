"""A node in a child process of `moldau up` or `moldau demo`. It runs `moldau serve`, and stops when its parent exits.

python -m moldau.cli.child_node --config FILE
"""

import os
import signal
import socket
import sys
import threading

HOST = "127.0.0.1"


def bind_once(port: int) -> None:
    """Binds the port and releases it. Raises OSError if a node could not listen on the port."""
    with socket.socket() as probe:
        # Servers set this option too. With it, connections in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))


def child_environment() -> dict[str, str]:
    """Returns this process's environment without the variables MOLDAU_*, which are settings for other nodes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MOLDAU_")}


def serve_until_parent_exits(arguments: list[str]) -> tuple[int, bool]:
    """Runs a node in this process. Returns the exit code, and whether the parent has exited."""
    from moldau.cli.serve import serve

    is_orphaned = threading.Event()

    def stop_when_parent_exits() -> None:
        # The parent never writes to the pipe, so the read returns only when the parent exits and the pipe is closed.
        os.read(sys.stdin.fileno(), 1)
        is_orphaned.set()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_parent_exits, name="moldau parent", daemon=True).start()
    return serve(arguments), is_orphaned.is_set()


if __name__ == "__main__":
    sys.exit(serve_until_parent_exits(sys.argv[1:])[0])
