"""`python -m moldau.testing.simulation --seeds N` runs N seeds and prints how to replay one that fails."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from moldau.testing.simulation.scenarios.cluster import ClusterScenario
from moldau.testing.simulation.scenarios.groups import GroupsScenario
from moldau.testing.simulation.scenarios.one_node import OneNodeScenario
from moldau.testing.simulation.scenarios.outcome import SimulationOutcome
from moldau.testing.simulation.scenarios.scenario import Scenario, run_seeds
from moldau.testing.simulation.scenarios.transaction_schedules import TransactionSchedule
from moldau.testing.simulation.scenarios.transactions import TransactionsScenario

SCENARIOS: Mapping[str, type[Scenario]] = {
    each.NAME: each
    for each in (OneNodeScenario, GroupsScenario, ClusterScenario, TransactionsScenario, TransactionSchedule)
}
ABLATIONS = [name for scenario in SCENARIOS.values() for name in scenario.ablations()]
MINIMUM_COUNTS = {"operations", "faults"}
"""Counts whose minimum over all seeds is reported, because a seed with few operations or faults proves too little."""
LOG_LINES_SHOWN = 30
EVENTS_SHOWN = 40
VIOLATIONS_SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m moldau.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds to run")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--scenario", choices=SCENARIOS, help="run this scenario only (default: all)")
    parser.add_argument(
        "--ablation", choices=ABLATIONS, help="disable a safeguard, in the scenario that has it; the run must then fail"
    )
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed and print its events and log")
    parser.add_argument("--keep-going", action="store_true", help="continue after a seed that fails")
    parser.add_argument("--jobs", type=int, default=1, help="number of seeds to run in parallel")
    parser.add_argument("--times", type=int, default=1, help="number of replays; all must have the same trace hash")
    options = parser.parse_args(arguments)
    scenarios = [
        scenario
        for name, scenario in SCENARIOS.items()
        if options.scenario in (None, name) and (not options.ablation or options.ablation in scenario.ablations())
    ]
    if not scenarios:
        parser.error(f"scenario {options.scenario} has no ablation {options.ablation}")
    if options.replay is not None:
        return max([_replay(each, options.replay, options.ablation, options.times) for each in scenarios])
    seeds = range(options.start, options.start + options.seeds)
    with run_seeds(scenarios, seeds, options.ablation, options.jobs) as outcomes:
        return _report_seeds(outcomes, seeds, options.ablation, options.keep_going)


def _report_seeds(
    each_seed: Iterator[list[SimulationOutcome]], seeds: range, ablation: str | None, keep_going: bool
) -> int:
    started = time.monotonic()
    counts: Counter[str] = Counter()
    minimums: dict[str, int] = {}
    failed: list[int] = []
    seen = 0
    for seed, outcomes in zip(seeds, each_seed, strict=True):
        seen += 1
        for outcome in outcomes:
            counts += outcome.counts
            for what in MINIMUM_COUNTS & outcome.counts.keys():
                minimums[what] = min(outcome.counts[what], minimums.get(what, outcome.counts[what]))
            if outcome.violations:
                _show_failure(outcome, ablation)
        _show_progress(f"{seen}/{len(seeds)} seeds, {_format_counts(counts)}", seen == len(seeds))
        if any(outcome.violations for outcome in outcomes):
            failed.append(seed)
            if not keep_going:
                break
    took = time.monotonic() - started
    _print(f"{seen} seeds in {took:.0f} s, {_format_counts(counts)}; {len(failed)} seeds failed")
    if minimums and not failed:
        _print("at least " + ", ".join(f"{minimums[what]} {what}" for what in sorted(minimums)) + " in each")
    return 1 if failed else 0


def _replay(scenario: type[Scenario], seed: int, ablation: str | None, times: int) -> int:
    outcome = scenario(seed, ablation).run()
    for line in (*outcome.notable_events, *outcome.log):
        _print(line)
    _print(
        f"{scenario.NAME}, seed {seed}, {outcome.profile}: trace {outcome.trace_hash}, {outcome.virtual_ms} virtual ms"
    )
    _print(_format_counts(outcome.counts))
    for violation in outcome.violations:
        _print(f"violation: {violation}")
    others = sum(scenario(seed, ablation).run().trace_hash != outcome.trace_hash for _ in range(times - 1))
    if times > 1:
        _print(f"{times} runs, {others} of them differ from the first")
    return 1 if outcome.violations or others else 0


def _show_failure(outcome: SimulationOutcome, ablation: str | None) -> None:
    option = f" --ablation {ablation}" if ablation else ""
    _print(f"\n{outcome.scenario}, seed {outcome.seed} ({outcome.profile}) failed:")
    for violation in outcome.violations[:VIOLATIONS_SHOWN]:
        _print(f"  {violation}")
    if len(outcome.violations) > VIOLATIONS_SHOWN:
        _print(f"  and {len(outcome.violations) - VIOLATIONS_SHOWN} more")
    _print("last events:")
    for line in outcome.notable_events[-EVENTS_SHOWN:]:
        _print(f"  {line}")
    _print("last log lines:")
    for line in outcome.log[-LOG_LINES_SHOWN:]:
        _print(f"  {line}")
    replay = f"--scenario {outcome.scenario}{option} --replay {outcome.seed}"
    _print(f"replay with: python -m moldau.testing.simulation {replay}")


def _format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def _show_progress(text: str, is_last: bool) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}" + ("\n" if is_last else ""))
        sys.stderr.flush()


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
