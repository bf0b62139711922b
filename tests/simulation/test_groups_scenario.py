"""Groups under simulation: no committed offset is lost, no partition has two owners, all settles; ablations show."""

import os
import subprocess
import sys

import pytest

from moldau.testing.simulation.__main__ import main
from moldau.testing.simulation.scenarios.groups import GroupsScenario
from moldau.testing.simulation.scenarios.outcome import SimulationOutcome

SEEDS = range(8)
"""`make simulate SEEDS=500` plays the full number."""
ABLATED_SEEDS = range(10)
QUICK_SEED = 5


def run_seed(seed: int, ablation: str | None = None) -> SimulationOutcome:
    return GroupsScenario(seed, ablation).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_keep_what_they_committed_and_settle(seed: int) -> None:
    outcome = run_seed(seed)
    assert outcome.violations == []
    assert outcome.counts["commits acknowledged"] > 0
    assert outcome.counts["records read"] >= outcome.counts["records acknowledged"] > 0
    assert outcome.counts["generations"] > 0


def test_a_seed_replays_to_the_same_trace_in_another_process_with_another_hash_seed() -> None:
    program = (
        "from moldau.testing.simulation.scenarios.groups import Groups\n"
        f"print(Groups({QUICK_SEED}).run().trace_hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert hashes == {run_seed(QUICK_SEED).trace_hash}


@pytest.mark.parametrize(
    ("ablation", "anomaly"),
    [
        ("generation-check", "old generation accepted"),
        ("generation-check", "member committed less"),
        ("member-fencing", "fenced member accepted"),
        ("reply-before-durable", "committed offset moved back"),
        ("tombstones", "deleted offset is back"),
        ("offsets-fsync", ""),
    ],
)
def test_a_safeguard_that_is_switched_off_is_missed(ablation: str, anomaly: str) -> None:
    """In one of a few seeds, and by what it is there to prevent."""
    assert any(
        violation.startswith(anomaly)
        for seed in ABLATED_SEEDS
        for violation in run_seed(seed, ablation).violations
    )


def test_a_safeguard_is_on_again_when_the_run_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--start", str(QUICK_SEED), "--seeds", "10", "--ablation", "tombstones"]) == 1
    assert "deleted offset is back" in capsys.readouterr().out
    assert run_seed(QUICK_SEED).violations == []


def test_an_ablation_belongs_to_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--scenario", "one-node", "--ablation", "tombstones"])
    assert "no ablation tombstones" in capsys.readouterr().err
