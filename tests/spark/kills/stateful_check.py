"""A run of a killed stateful query, and the checks of its output."""

import os

from kills.history import check_input, check_sums, check_table, check_topic, duplicated
from kills.stateful_harness import KEYS, StatefulKills, StatefulOutcome


def kills_and_seed(default: int) -> tuple[int, int]:
    return int(os.environ.get("MOLDAU_SPARK_KILLS", default)), int(os.environ.get("MOLDAU_SEED", "1"))


def check(kills: StatefulKills, count: int) -> None:
    """Kills processes this many times. The output must have every row exactly once."""
    try:
        outcome = kills.play(count)
    finally:
        kills.close()
    speculative = kills.master.speculative_attempts() if kills.master.event_log is not None else None
    wrong = {
        "input": check_input(outcome.produced, outcome.acknowledged, outcome.input),
        "rows": check_table(outcome.input, outcome.committed),
        "state": check_sums(outcome.input, outcome.sums, KEYS),
        "attempts": check_topic(outcome.input, outcome.copies, outcome.log, outcome.replays),
    }
    text = message(outcome, speculative)
    print(text)
    assert not any(wrong.values()), f"MOLDAU_SEED={kills.seed}: {wrong}\n{text}"
    assert outcome.replays.count, "no kill struck a batch under way"
    assert speculative != 0, "no task was run twice because it was slow"


def message(outcome: StatefulOutcome, speculative: int | None) -> str:
    retried = len({copy.by for copy in outcome.copies if copy.by.number})
    summary = (
        f"{outcome.produced} rows, {duplicated(outcome.copies)} of them in the log more than once; "
        f"{len(outcome.strikes)} kills in {outcome.seconds:.0f} s; batches begun again: {outcome.replays.count}, "
        f"second attempts that wrote: {retried}, speculative attempts: {speculative or 0}; "
        f"drivers that ended on their own: {len(outcome.ended)}"
    )
    return "\n".join([summary, *outcome.strikes, *(f"a driver ended on its own: {said}" for said in outcome.ended)])
