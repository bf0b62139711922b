"""The cluster scenario: no violations, exact replay, and every disabled safeguard is detected."""

import os
import subprocess
import sys

import pytest

from moldau.testing.simulation.__main__ import main
from moldau.testing.simulation.ablations.cluster import ABLATIONS
from moldau.testing.simulation.scenarios.cluster import FAULTS_MIN, OPERATIONS_MIN, ClusterScenario
from moldau.testing.simulation.scenarios.outcome import SimulationOutcome

SEEDS = range(6)
"""`make simulate SEEDS=2000` runs the full number."""
SEEDS_PER_ABLATION = 10
FIRST_SEED = 1000
"""First seed of the proofs, so that ablations fail here as they do there."""
SHORTER_FROM_SEED_1 = {"broker-epoch", "pre-vote", "truncation", "up-to-date-log"}
"""Ablations that the first seeds of the proofs find only after minutes."""


def run_seed(seed: int, ablation: str | None = None) -> SimulationOutcome:
    return ClusterScenario(seed, ablation).run()


class OneNodeCluster(ClusterScenario):
    NODES = (1,)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_under_faults_has_no_violations(seed: int) -> None:
    outcome = run_seed(seed)
    assert outcome.violations == []
    assert outcome.counts["operations"] >= OPERATIONS_MIN
    assert outcome.counts["faults"] >= FAULTS_MIN
    assert outcome.counts["records acknowledged"] > 0
    assert outcome.counts["records read"] > 0


def test_a_cluster_of_one_node_under_faults_has_no_violations() -> None:
    assert OneNodeCluster(0).run().violations == []


def test_a_seed_of_a_cluster_replays_to_the_same_trace() -> None:
    assert run_seed(1).trace_hash == run_seed(1).trace_hash != run_seed(2).trace_hash


def test_a_seed_of_a_cluster_replays_in_another_process_with_another_hash_seed() -> None:
    program = (
        "from moldau.testing.simulation.scenarios.cluster import ClusterScenario\n"
        "print(ClusterScenario(3).run().trace_hash)"
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
    assert len(hashes) == 1


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_a_disabled_safeguard_is_detected(ablation: str) -> None:
    first_seed = 1 if ablation in SHORTER_FROM_SEED_1 else FIRST_SEED
    seeds = range(first_seed, first_seed + SEEDS_PER_ABLATION)
    assert any(run_seed(seed, ablation).violations for seed in seeds)


def test_a_failure_is_printed_with_its_events_and_the_replay_command(capsys: pytest.CaptureFixture[str]) -> None:
    ablation = "lease"
    assert main(["--scenario", "cluster", "--seeds", str(SEEDS_PER_ABLATION), "--ablation", ablation]) == 1
    printed = capsys.readouterr().out
    events = printed.split("last events:\n")[1].split("last log lines:\n")[0]
    assert "fault " in events
    assert f"--scenario cluster --ablation {ablation} --replay " in printed
