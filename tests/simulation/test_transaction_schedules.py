"""Schedules of transactions: no violations, exact replay, and every disabled safeguard is detected."""

import pytest

from moldau.testing.simulation.ablations.transactions import SCHEDULE_ABLATIONS
from moldau.testing.simulation.scenarios.outcome import SimulationOutcome
from moldau.testing.simulation.scenarios.transaction_schedules import TransactionSchedule

SCHEDULES = 50
"""`make soak` runs 10,000."""
FIRST_SEED = 1000
"""First seed of the proofs, so that ablations fail here as they do there."""
SCHEDULES_PER_ABLATION = 300


def run_seed(seed: int, ablation: str | None = None) -> SimulationOutcome:
    return TransactionSchedule(seed, ablation).run()


def test_late_messages_cause_no_violations() -> None:
    outcomes = [run_seed(seed) for seed in range(SCHEDULES)]
    assert [outcome.violations for outcome in outcomes if outcome.violations] == []
    for kind in ("committed", "aborted", "unknown"):
        assert sum(outcome.counts[f"transactions {kind}"] for outcome in outcomes) > SCHEDULES // 2


def test_a_schedule_replays_exactly() -> None:
    assert run_seed(1).notable_events == run_seed(1).notable_events != run_seed(2).notable_events


@pytest.mark.parametrize("ablation", SCHEDULE_ABLATIONS)
def test_a_disabled_safeguard_is_detected(ablation: str) -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + SCHEDULES_PER_ABLATION)
    assert any(run_seed(seed, ablation).violations for seed in seeds)
