"""Base classes of scenarios, and the runner of seeds."""

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import ClassVar, Protocol

from moldau.testing.simulation.platform.loop import DeadlockError, LivelockError
from moldau.testing.simulation.platform.simulation import Host, Simulation, SimulationTimeout, UnhandledError
from moldau.testing.simulation.scenarios.faulty_node import FaultyNode
from moldau.testing.simulation.scenarios.outcome import ScenarioError, SimulationOutcome, capture_log

RUN_TIMEOUT_MS = 600_000


class SystemUnderTest(Protocol):
    """A faulty node or a faulty cluster."""

    simulation: Simulation
    outcome: SimulationOutcome
    clients: list[Host]

    def add_client(self, name: str) -> Host: ...

    def wall_ms(self) -> int: ...


class Scenario:
    NAME: ClassVar[str]
    IGNORED_FSYNCS: ClassVar[dict[str, str]] = {}
    """The ablations that disable fsync, by name. The value is a glob of the files or directories whose fsync is
    disabled."""

    def __init__(self, seed: int, ablation: str | None = None, *, keep_trace: bool = False) -> None:
        if ablation is not None and ablation not in self.ablations():
            raise ValueError(f"no such ablation: {ablation!r}; known are {', '.join(self.ablations())}")
        self.ablation = ablation
        self.system = self._build_system(seed, self.IGNORED_FSYNCS.get(ablation or "", ""), keep_trace)

    def _build_system(self, seed: int, ignored_fsync_glob: str, keep_trace: bool) -> SystemUnderTest:
        raise NotImplementedError

    @classmethod
    def ablations(cls) -> tuple[str, ...]:
        return tuple(cls.IGNORED_FSYNCS)

    def apply_ablation(self) -> AbstractContextManager[object]:
        """Returns a context manager that disables the safeguard of the ablation in the code under test."""
        return nullcontext()

    async def main(self) -> None:
        raise NotImplementedError

    def check(self) -> Iterable[object]:
        """Returns the violations in the history."""
        raise NotImplementedError

    def add_counts(self) -> None:
        """Adds counts from the history to the outcome."""

    def run(self) -> SimulationOutcome:
        simulation, outcome = self.system.simulation, self.system.outcome
        with capture_log(self.system.wall_ms, outcome.add_violation) as lines:
            try:
                with self.apply_ablation():
                    simulation.run(self.main, RUN_TIMEOUT_MS)
                outcome.violations += map(str, self.check())
            except (
                ScenarioError,
                UnhandledError,
                SimulationTimeout,
                DeadlockError,
                LivelockError,
                AssertionError,
            ) as error:
                outcome.add_violation(f"{type(error).__name__}: {error}")
            outcome.log = list(lines)
        outcome.trace_hash = simulation.trace_hash
        outcome.notable_events = simulation.trace.notable_events()
        outcome.virtual_ms = simulation.loop.now_ns // 1_000_000
        self.add_counts()
        return outcome


class NodeScenario(Scenario):
    """A scenario with a single node."""

    SYNC_MS_MAX: ClassVar[Sequence[float]] = (0.5, 3.0, 20.0)
    node: FaultyNode

    def _build_system(self, seed: int, ignored_fsync_glob: str, keep_trace: bool) -> FaultyNode:
        self.node = FaultyNode(
            self.NAME, seed, sync_ms_max=self.SYNC_MS_MAX, ignored_fsync_glob=ignored_fsync_glob, keep_trace=keep_trace
        )
        return self.node


@contextmanager
def run_seeds(
    scenarios: Sequence[type[Scenario]], seeds: range, ablation: str | None, jobs: int
) -> Iterator[Iterator[list[SimulationOutcome]]]:
    """Yields an iterator over the outcomes of each seed, in order. If `jobs` is above 1, the seeds run in parallel
    processes."""
    main = partial(_run_seed, scenarios, ablation)
    if jobs == 1:
        yield map(main, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as processes:
        yield processes.imap(main, seeds)


def _run_seed(scenarios: Sequence[type[Scenario]], ablation: str | None, seed: int) -> list[SimulationOutcome]:
    return [scenario(seed, ablation).run() for scenario in scenarios]
