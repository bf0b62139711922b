"""The one-node scenario: no violations, exact replay, and every disabled fsync is detected."""

import os
import subprocess
import sys

import pytest

from moldau.testing.simulation.__main__ import main
from moldau.testing.simulation.scenarios.one_node import OneNodeScenario
from moldau.testing.simulation.scenarios.outcome import SimulationOutcome

SEEDS = range(10)
"""`make simulate SEEDS=500` runs the full number."""


def run_seed(seed: int, ablation: str | None = None) -> SimulationOutcome:
    return OneNodeScenario(seed, ablation).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    outcome = run_seed(seed)
    assert outcome.violations == []
    assert outcome.counts["records acknowledged"] > 0
    assert outcome.counts["records read"] > 0


def test_a_seed_replays_to_the_same_trace() -> None:
    first = run_seed(3)
    assert [run_seed(3).trace_hash for _ in range(3)] == [first.trace_hash] * 3
    assert run_seed(4).trace_hash != first.trace_hash


def test_a_seed_replays_in_another_process_with_another_hash_seed() -> None:
    program = (
        "from moldau.testing.simulation.scenarios.one_node import OneNodeScenario\n"
        "print(OneNodeScenario(3).run().trace_hash)"
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
    assert hashes == {run_seed(3).trace_hash}


@pytest.mark.parametrize("ablation", OneNodeScenario.ablations())
def test_a_disabled_fsync_is_detected(ablation: str) -> None:
    assert any(run_seed(seed, ablation).violations for seed in SEEDS)


def test_the_checker_finds_records_lost_by_a_disabled_fsync() -> None:
    assert any("lost write" in violation for violation in run_seed(0, "fsync").violations)


def test_the_command_prints_the_failed_seed_and_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "6", "--ablation", "fsync"]) == 1
    printed = capsys.readouterr().out
    assert "failed" in printed
    replay = printed.split("replay with: python -m moldau.testing.simulation ")[1].split("\n")[0]
    assert main(replay.split()) == 1
    assert "violation: " in capsys.readouterr().out
