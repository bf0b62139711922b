"""PySpark's worker daemon without the error message for a socket that Spark closes early.

`show` and `limit` close a worker's socket when they need no more rows. PySpark would print this as a failure.
"""

import socket

from pyspark import daemon

_work = daemon.worker


def work(sock: socket.socket, authenticated: bool) -> int:
    try:
        return int(_work(sock, authenticated))
    except OSError:
        # PySpark itself catches and reports errors of user code, so this error comes from the socket. Any result but 0
        # ends the worker.
        return 1


if __name__ == "__main__":
    daemon.worker = work
    daemon.manager()
