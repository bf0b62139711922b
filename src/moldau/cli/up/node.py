"""The process of one node of `moldau up`. It runs `moldau serve`, and also stops when the parent process exits.

python -m moldau.cli.up.node --config FILE
"""

import os
import signal
import sys
import threading

from moldau.cli.serve import serve


def main(arguments: list[str]) -> int:
    def stop_when_parent_exits() -> None:
        # The parent never writes to the pipe, so the read returns only when the parent exits and the pipe is closed.
        os.read(sys.stdin.fileno(), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_parent_exits, name="moldau up", daemon=True).start()
    return serve(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
