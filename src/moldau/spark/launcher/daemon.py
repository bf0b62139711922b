"""PySpark's daemon of workers, without its complaint when Spark has rows enough.

`show` and `limit` end a task in the middle of its rows. The worker then finds its socket closed, which PySpark prints
as if something had failed.
"""

import socket

from pyspark import daemon

_work = daemon.worker


def work(sock: socket.socket, authenticated: bool) -> int:
    try:
        return int(_work(sock, authenticated))
    except OSError:
        # What a user's code raises is told to Spark before: this is the socket. Not 0: the worker is not used again.
        return 1


if __name__ == "__main__":
    daemon.worker = work
    daemon.manager()
