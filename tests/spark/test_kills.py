"""Streaming queries whose driver, worker and broker are killed with SIGKILL in turn: every row is exactly once in the
tables and, for readers with read_committed, in the topic. Attempts of a task that were aborted are in the log of the
topic only if Spark had a reason to repeat them. MOLDAU_SPARK_KILLS sets how often (3)."""

import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'moldau[spark]'")

from kills.harness import Kills, KillsOutcome
from kills.history import check_input, check_table, check_topic, duplicated
from kills.queries import DELTA, PARQUET, TOPIC

pytestmark = pytest.mark.spark

KILLS = int(os.environ.get("MOLDAU_SPARK_KILLS", "3"))
SEED = int(os.environ.get("MOLDAU_SEED", "1"))


def test_killed_queries_write_every_row_exactly_once(tmp_path: Path, only_moldau: None) -> None:
    kills = Kills(tmp_path, SEED)
    try:
        outcome = kills.play(KILLS)
    finally:
        kills.close()
    wrong = {
        "input": check_input(outcome.produced, outcome.acknowledged, outcome.input),
        TOPIC: check_table(outcome.input, outcome.committed),
        "attempts": check_topic(outcome.input, outcome.copies, outcome.logs[TOPIC], outcome.replays[TOPIC]),
        PARQUET: check_table(outcome.input, outcome.tables[PARQUET]),
        DELTA: check_table(outcome.input, outcome.tables[DELTA]),
    }
    print(message(outcome))
    assert not any(wrong.values()), f"MOLDAU_SEED={SEED}: {wrong}\n{message(outcome)}"
    assert any(replays.count for replays in outcome.replays.values()), "no kill struck a batch under way"


def message(outcome: KillsOutcome) -> str:
    replayed = {query: replays.count for query, replays in outcome.replays.items()}
    twice, retried = duplicated(outcome.copies), len({copy.by for copy in outcome.copies if copy.by.number})
    summary = (
        f"{outcome.produced} rows, {twice} of them in the log more than once; batches begun again: {replayed}, "
        f"tasks tried again: {retried}; drivers that ended on their own: {len(outcome.ended)}"
    )
    lines = [summary, *outcome.strikes, *(f"a driver ended on its own: {said}" for said in outcome.ended)]
    return "\n".join(lines)
