"""Plays seeds, one after the other or several at once in processes of their own."""

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from moldau.testing.simulation.scenarios.outcome import SimulationOutcome
from moldau.testing.simulation.scenarios.scenario import Scenario


@contextmanager
def run_seeds(
    scenarios: Sequence[type[Scenario]], seeds: range, ablation: str | None, jobs: int
) -> Iterator[Iterator[list[SimulationOutcome]]]:
    """What came of each seed, in their order."""
    main = partial(_run_seed, scenarios, ablation)
    if jobs == 1:
        yield map(main, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as processes:
        yield processes.imap(main, seeds)


def _run_seed(
    scenarios: Sequence[type[Scenario]], ablation: str | None, seed: int
) -> list[SimulationOutcome]:
    return [scenario(seed, ablation).run() for scenario in scenarios]
