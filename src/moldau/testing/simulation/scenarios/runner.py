"""Plays seeds, one after the other or several at once in processes of their own."""

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from moldau.testing.simulation.scenarios.outcome import Outcome
from moldau.testing.simulation.scenarios.scenario import Scenario


@contextmanager
def played(
    scenarios: Sequence[type[Scenario]], seeds: range, ablation: str | None, jobs: int
) -> Iterator[Iterator[list[Outcome]]]:
    """What came of each seed, in their order."""
    play = partial(_play, scenarios, ablation)
    if jobs == 1:
        yield map(play, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as processes:
        yield processes.imap(play, seeds)


def _play(scenarios: Sequence[type[Scenario]], ablation: str | None, seed: int) -> list[Outcome]:
    return [scenario(seed, ablation).run() for scenario in scenarios]
