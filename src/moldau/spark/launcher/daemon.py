"""PySpark's worker daemon without its error message when Spark needs no more rows.

`show` and `limit` close a worker's socket early, which PySpark prints as a failure.
"""

import socket

from pyspark import daemon

_work = daemon.worker


def work(sock: socket.socket, authenticated: bool) -> int:
    try:
        return int(_work(sock, authenticated))
    except OSError:
        # Errors of user code were reported before, so this is the socket. A result other than 0 retires the worker.
        return 1


if __name__ == "__main__":
    daemon.worker = work
    daemon.manager()
