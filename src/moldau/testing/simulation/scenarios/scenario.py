"""What a scenario is, and how one is played: a story about nodes under fire, with safeguards to switch off."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Protocol

from moldau.testing.simulation.platform.loop import DeadlockError, LivelockError
from moldau.testing.simulation.platform.simulation import Simulation, SimulationTimeout, UnhandledError
from moldau.testing.simulation.scenarios.faulty_node import FaultyNode
from moldau.testing.simulation.scenarios.outcome import ScenarioError, SimulationOutcome, capture_log

RUN_TIMEOUT_MS = 600_000


class SystemUnderTest(Protocol):
    """What is played with: one node, or a cluster."""

    simulation: Simulation
    outcome: SimulationOutcome

    def wall_ms(self) -> int:
        """For the log lines."""


class Scenario:
    NAME: ClassVar[str]
    IGNORED_FSYNCS: ClassVar[dict[str, str]] = {}
    """Safeguards that can be switched off, and the files or directories whose syncs then make nothing safe."""

    def __init__(self, seed: int, ablation: str | None = None, *, keep_trace: bool = False) -> None:
        if ablation is not None and ablation not in self.ablations():
            raise ValueError(f"there is no ablation {ablation!r}; there are {', '.join(self.ablations())}")
        self.ablation = ablation
        self.system = self._build_system(seed, self.IGNORED_FSYNCS.get(ablation or "", ""), keep_trace)

    def _build_system(self, seed: int, ignored_fsync_glob: str, keep_trace: bool) -> SystemUnderTest:
        raise NotImplementedError

    @classmethod
    def ablations(cls) -> tuple[str, ...]:
        return tuple(cls.IGNORED_FSYNCS)

    def apply_ablation(self) -> AbstractContextManager[object]:
        """Within it, the code under test does without the safeguard that the ablation names."""
        return nullcontext()

    async def main(self) -> None:
        raise NotImplementedError

    def violations(self) -> Iterable[object]:
        """What the history shows, once played."""
        raise NotImplementedError

    def add_counts(self) -> None:
        """Adds to the outcome's counts what the history holds."""

    def run(self) -> SimulationOutcome:
        simulation, outcome = self.system.simulation, self.system.outcome
        with capture_log(self.system.wall_ms, outcome.add_violation) as lines:
            try:
                with self.apply_ablation():
                    simulation.run(self.main, RUN_TIMEOUT_MS)
                outcome.violations += map(str, self.violations())
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
    """A story about a single node."""

    SYNC_MS_MAX: ClassVar[Sequence[float]] = (0.5, 3.0, 20.0)
    node: FaultyNode

    def _build_system(self, seed: int, ignored_fsync_glob: str, keep_trace: bool) -> FaultyNode:
        self.node = FaultyNode(
            self.NAME,
            seed,
            sync_ms_max=self.SYNC_MS_MAX,
            ignored_fsync_glob=ignored_fsync_glob,
            keep_trace=keep_trace,
        )
        return self.node
