"""A node of `moldau up`, in its process: as `moldau serve`, but it ends too when the command that started it is gone.

python -m moldau.cli.up.node --config FILE
"""

import os
import signal
import sys
import threading

from moldau.cli.serve import serve


def main(arguments: list[str]) -> int:
    def stop_when_parent_exits() -> None:
        # Nothing is ever written to it: it ends when its other side is closed, however that comes.
        os.read(sys.stdin.fileno(), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_parent_exits, name="moldau up", daemon=True).start()
    return serve(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
