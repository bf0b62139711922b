"""`make chaos`: a cluster of real processes under every kind of fault for a given time, and one table at the end.

Needs root: the nodes live in network namespaces, with disks of their own. Nothing outside of them is touched.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.namespaces import CannotIsolate, check_machine
from chaos.run import ChaosRun


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=1, help="which faults, and when")
    parser.add_argument(
        "--only", action="append", default=[], help="only this kind of fault (may be repeated)"
    )
    parser.add_argument("--keep", type=Path, help="leave the nodes' logs here")
    options = parser.parse_args()
    try:
        check_machine()
    except CannotIsolate as error:
        sys.stdout.write(f"not run: {error}\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="moldau-chaos-") as directory:
        run = ChaosRun(Path(directory), options.seconds, options.seed, options.only)
        return run.play(options.keep)


if __name__ == "__main__":
    sys.exit(main())
