"""`python -m moldau.testing.simulation --seeds N` plays N seeds and says how to replay one that fails."""

import argparse
import sys
import time
from collections.abc import Sequence

from moldau.testing.simulation.scenario_one_node import ABLATIONS, Outcome, run_seed

LOG_LINES_SHOWN = 30
VIOLATIONS_SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m moldau.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to play")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--ablation", choices=sorted(ABLATIONS), help="switch a safeguard off: the run must then fail"
    )
    parser.add_argument(
        "--replay", type=int, metavar="SEED", help="play one seed and show all there is to see"
    )
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first seed that fails")
    parser.add_argument(
        "--times", type=int, default=1, help="replay it this often: all runs must be the same"
    )
    options = parser.parse_args(arguments)
    if options.replay is not None:
        return _replay(options.replay, options.ablation, options.times)
    return _play(range(options.start, options.start + options.seeds), options.ablation, options.keep_going)


def _play(seeds: range, ablation: str | None, keep_going: bool) -> int:
    began = time.monotonic()
    acknowledged = crashes = 0
    failed: list[int] = []
    for count, seed in enumerate(seeds, 1):
        outcome = run_seed(seed, ablation)
        acknowledged += outcome.acknowledged
        crashes += outcome.crashes
        if outcome.violations:
            failed.append(seed)
            _show_failure(outcome, ablation)
            if not keep_going:
                break
        _progress(
            f"{count}/{len(seeds)} seeds, {crashes} crashes, {acknowledged} records acknowledged",
            count == len(seeds),
        )
    done = f"{count} seeds in {time.monotonic() - began:.0f} s, {crashes} crashes"
    _say(f"{done}, {acknowledged} records acknowledged; {len(failed)} seeds failed")
    return 1 if failed else 0


def _replay(seed: int, ablation: str | None, times: int) -> int:
    outcome = run_seed(seed, ablation)
    for line in outcome.log:
        _say(line)
    _say(f"seed {seed}, {outcome.profile}: trace {outcome.trace_hash}, {outcome.virtual_ms} virtual ms")
    _say(f"{outcome.crashes} crashes, {outcome.acknowledged} records acknowledged, {outcome.polled} read")
    for violation in outcome.violations:
        _say(f"violation: {violation}")
    others = sum(run_seed(seed, ablation).trace_hash != outcome.trace_hash for _ in range(times - 1))
    if times > 1:
        _say(f"{times} runs, {others} of them unlike the first")
    return 1 if outcome.violations or others else 0


def _show_failure(outcome: Outcome, ablation: str | None) -> None:
    switch = f" --ablation {ablation}" if ablation else ""
    _say(f"\nseed {outcome.seed} ({outcome.profile}) failed:")
    for violation in outcome.violations[:VIOLATIONS_SHOWN]:
        _say(f"  {violation}")
    if len(outcome.violations) > VIOLATIONS_SHOWN:
        _say(f"  and {len(outcome.violations) - VIOLATIONS_SHOWN} more")
    _say("the node's last log lines:")
    for line in outcome.log[-LOG_LINES_SHOWN:]:
        _say(f"  {line}")
    _say(f"replay it with: python -m moldau.testing.simulation{switch} --replay {outcome.seed}")


def _progress(text: str, is_last: bool) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}" + ("\n" if is_last else ""))
        sys.stderr.flush()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
