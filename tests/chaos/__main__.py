"""`make chaos`: runs a cluster of real processes under every kind of fault for a given time, and prints one table.

Needs root: nodes run in network namespaces, with their own disks. Nothing outside of them is touched.
"""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.isolation import exclusive_directory
from chaos.namespaces import IsolationUnavailable
from chaos.run import ChaosRun

SHUTDOWN_TIMEOUT_S = 600
"""Time limit for everything before and after the faults; each part has a shorter limit."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=1, help="which faults, and when")
    parser.add_argument("--only", action="append", default=[], help="only this kind of fault (may be repeated)")
    parser.add_argument("--keep", type=Path, help="leave the nodes' logs here, and their data if there was an anomaly")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _on_sigterm)
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.alarm(int(options.seconds) + SHUTDOWN_TIMEOUT_S)
    try:
        with exclusive_directory() as directory:
            return ChaosRun(directory, options.seconds, options.seed, options.only).run(options.keep)
    except IsolationUnavailable as error:
        sys.stdout.write(f"not run: {error}\n")
        return 0
    except KeyboardInterrupt:
        return 130


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    sys.exit(143)


def _on_alarm(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("the run has hung; this is where")


if __name__ == "__main__":
    sys.exit(main())
