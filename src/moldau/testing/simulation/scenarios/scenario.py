"""Base class of scenarios, and the runner of seeds."""

import asyncio
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import ClassVar

from moldau.errors import MoldauError
from moldau.testing.simulation.platform.loop import DeadlockError, LivelockError
from moldau.testing.simulation.platform.simulation import SimulationTimeout, UnhandledError
from moldau.testing.simulation.scenarios.faulty_cluster import FaultyCluster
from moldau.testing.simulation.scenarios.faulty_node import FaultyNode
from moldau.testing.simulation.scenarios.outcome import ScenarioError, SimulationOutcome, capture_log
from moldau.testing.simulation.workloads.workload import Workload

RUN_TIMEOUT_MS = 600_000
PROGRESS_MIN = 3
FAILURES = (ScenarioError, UnhandledError, SimulationTimeout, DeadlockError, LivelockError, AssertionError, MoldauError)
"""Errors that end a run and count as a violation."""


class Scenario:
    NAME: ClassVar[str]
    IGNORED_FSYNCS: ClassVar[Mapping[str, str]] = {}
    """The ablations that disable fsync, with a glob of the affected files or directories."""
    SWITCHES: ClassVar[Mapping[str, Callable[[], AbstractContextManager[object]]]] = {}
    """All other ablations. The context manager disables a safeguard in the code under test."""
    system: FaultyNode | FaultyCluster

    def __init__(self, seed: int, ablation: str | None = None) -> None:
        if ablation is not None and ablation not in self.ablations():
            raise ValueError(f"no such ablation: {ablation!r}; known are {', '.join(self.ablations())}")
        self.ablation = ablation or ""
        self._ignored_fsync_glob = self.IGNORED_FSYNCS.get(self.ablation, "")

    @classmethod
    def ablations(cls) -> tuple[str, ...]:
        return (*cls.SWITCHES, *cls.IGNORED_FSYNCS)

    async def main(self) -> None:
        raise NotImplementedError

    def check(self) -> Iterable[object]:
        """Returns the violations in the history."""
        raise NotImplementedError

    def add_counts(self) -> None:
        """Adds counts from the history to the outcome."""

    def run(self) -> SimulationOutcome:
        simulation, outcome = self.system.simulation, self.system.outcome
        with capture_log(simulation.loop, outcome.add_violation) as lines:
            try:
                with self.SWITCHES.get(self.ablation, nullcontext)():
                    simulation.run(self.main, RUN_TIMEOUT_MS)
                outcome.violations += map(str, self.check())
            except FAILURES as error:
                outcome.add_violation(f"{type(error).__name__}: {error}")
            outcome.log = list(lines)
        outcome.trace_hash = simulation.trace_hash
        outcome.notable_events = list(simulation.trace.notable_events)
        outcome.virtual_ms = simulation.loop.now_ns // 1_000_000
        self.add_counts()
        return outcome

    def _spawn(self, workloads: Iterable[Workload]) -> list["asyncio.Task[None]"]:
        """Starts the workloads on the first client host, which is never taken down."""
        host = self.system.clients[0]
        return [host.spawn(workload.run(), name=workload.name) for workload in workloads]

    async def _check_progress(self, workloads: Iterable[Workload], is_over: Callable[[], bool] = lambda: False) -> None:
        """Waits until every workload has made progress. Stops waiting if `is_over` returns True."""
        must_progress = [workload for workload in workloads if workload.MUST_PROGRESS]
        for workload in must_progress:
            workload.progress_target = workload.progress + PROGRESS_MIN

        def stuck() -> list[str]:
            return [workload.name for workload in must_progress if workload.is_stuck]

        await self.system.outcome.wait_until(
            lambda: not stuck() or is_over(), lambda: f"progress of {', '.join(stuck())} after healing"
        )


@contextmanager
def run_seeds(
    scenarios: Sequence[type[Scenario]], seeds: range, ablation: str | None, jobs: int
) -> Iterator[Iterator[list[SimulationOutcome]]]:
    """Yields an iterator with one list per seed: the outcomes of all scenarios. `jobs` is the number of processes."""
    main = partial(_run_seed, scenarios, ablation)
    if jobs == 1:
        yield map(main, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as processes:
        yield processes.imap(main, seeds)


def _run_seed(scenarios: Sequence[type[Scenario]], ablation: str | None, seed: int) -> list[SimulationOutcome]:
    return [scenario(seed, ablation).run() for scenario in scenarios]
