"""A run of a killed stateful query, and the checks of its output."""

import os

from kills.clusters import EXECUTOR
from kills.history import check_input, check_sums, check_table, check_topic, duplicated
from kills.stateful_harness import KEYS, WORKER, StatefulKills, StatefulOutcome


def kills_and_seed(default: int) -> tuple[int, int]:
    return int(os.environ.get("MOLDAU_SPARK_KILLS", default)), int(os.environ.get("MOLDAU_SEED", "1"))


def check(kills: StatefulKills, count: int) -> None:
    """Kills processes this many times. The output must have every row exactly once."""
    try:
        outcome = kills.play(count)
    finally:
        kills.close()
    wrong = {
        "input": check_input(outcome.produced, outcome.acknowledged, outcome.input),
        "rows": check_table(outcome.input, outcome.committed),
        "state": check_sums(outcome.input, outcome.sums, KEYS),
        "attempts": check_topic(outcome.input, outcome.copies, outcome.log, outcome.replays),
    }
    print(message(outcome))
    assert not any(wrong.values()), f"{wrong}\n{message(outcome)}"
    assert outcome.replays.count, "no kill struck a batch under way"
    if kills.master.is_speculative:
        # Kills make Spark retry tasks too, but at most the two that run.
        retries_max = 2 * sum(each.startswith((WORKER, EXECUTOR)) for each in outcome.strikes)
        assert retried(outcome) > retries_max, "no task was run twice because it was slow"


def retried(outcome: StatefulOutcome) -> int:
    """Counts attempts that were not the first of their task, and wrote rows."""
    return len({copy.by for copy in outcome.copies if copy.by.number})


def message(outcome: StatefulOutcome) -> str:
    summary = (
        f"{outcome.produced} rows, {duplicated(outcome.copies)} of them in the log more than once; "
        f"{len(outcome.strikes)} kills in {outcome.seconds:.0f} s; batches begun again: {outcome.replays.count}, "
        f"second attempts that wrote: {retried(outcome)}; drivers that ended on their own: {len(outcome.ended)}"
    )
    return "\n".join([summary, *outcome.strikes, *(f"a driver ended on its own: {said}" for said in outcome.ended)])
