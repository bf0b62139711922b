"""The groups scenario: no violations, exact replay, and every disabled safeguard is detected."""

import os
import subprocess
import sys

import pytest

from moldau.testing.simulation.__main__ import main
from moldau.testing.simulation.scenarios.groups import GroupsScenario
from moldau.testing.simulation.scenarios.outcome import SimulationOutcome

SEEDS = range(8)
"""`make simulate SEEDS=500` runs the full number."""
ABLATED_SEEDS = range(10)
QUICK_SEED = 5


def run_seed(seed: int, ablation: str | None = None) -> SimulationOutcome:
    return GroupsScenario(seed, ablation).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_keep_committed_offsets_and_become_stable(seed: int) -> None:
    outcome = run_seed(seed)
    assert outcome.violations == []
    assert outcome.counts["commits acknowledged"] > 0
    assert outcome.counts["records read"] >= outcome.counts["records acknowledged"] > 0
    assert outcome.counts["generations"] > 0


def test_a_seed_replays_to_the_same_trace_in_another_process_with_another_hash_seed() -> None:
    program = (
        "from moldau.testing.simulation.scenarios.groups import GroupsScenario\n"
        f"print(GroupsScenario({QUICK_SEED}).run().trace_hash)"
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
def test_a_disabled_safeguard_is_detected(ablation: str, anomaly: str) -> None:
    """One of a few seeds must fail, with the anomaly that the safeguard prevents."""
    assert any(
        violation.startswith(anomaly) for seed in ABLATED_SEEDS for violation in run_seed(seed, ablation).violations
    )


def test_a_safeguard_is_restored_after_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--start", str(QUICK_SEED), "--seeds", "10", "--ablation", "tombstones"]) == 1
    assert "deleted offset is back" in capsys.readouterr().out
    assert run_seed(QUICK_SEED).violations == []


def test_an_ablation_belongs_to_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--scenario", "one-node", "--ablation", "tombstones"])
    assert "no ablation tombstones" in capsys.readouterr().err
