"""What a scenario is, and how one is played: a story about nodes under fire, with safeguards to switch off."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Protocol

from moldau.testing.simulation.platform.loop import DeadlockError, LivelockError
from moldau.testing.simulation.platform.simulation import ProgramError, Simulation, Unfinished
from moldau.testing.simulation.scenarios.faulty_node import NodeUnderFire
from moldau.testing.simulation.scenarios.outcome import Broken, Outcome, captured_log

RUN_TIMEOUT_MS = 600_000


class UnderFire(Protocol):
    """What is played with: one node, or a cluster."""

    simulation: Simulation
    outcome: Outcome

    def wall_ms(self) -> int:
        """For the log lines."""


class Scenario:
    NAME: ClassVar[str]
    LYING_SYNCS: ClassVar[dict[str, str]] = {}
    """Safeguards that can be switched off, and the files or directories whose syncs then make nothing safe."""

    def __init__(self, seed: int, ablation: str | None = None, *, keep_trace: bool = False) -> None:
        if ablation is not None and ablation not in self.ablations():
            raise ValueError(f"there is no ablation {ablation!r}; there are {', '.join(self.ablations())}")
        self.ablation = ablation
        self.under_fire = self._set_up(seed, self.LYING_SYNCS.get(ablation or "", ""), keep_trace)

    def _set_up(self, seed: int, syncs_lie: str, keep_trace: bool) -> UnderFire:
        raise NotImplementedError

    @classmethod
    def ablations(cls) -> tuple[str, ...]:
        return tuple(cls.LYING_SYNCS)

    def switched_off(self) -> AbstractContextManager[object]:
        """Within it, the code under test does without the safeguard that the ablation names."""
        return nullcontext()

    async def play(self) -> None:
        raise NotImplementedError

    def violations(self) -> Iterable[object]:
        """What the history shows, once played."""
        raise NotImplementedError

    def count(self) -> None:
        """Adds to the outcome's counts what the history holds."""

    def run(self) -> Outcome:
        simulation, outcome = self.under_fire.simulation, self.under_fire.outcome
        with captured_log(self.under_fire.wall_ms, outcome.violated) as lines:
            try:
                with self.switched_off():
                    simulation.run(self.play, RUN_TIMEOUT_MS)
                outcome.violations += map(str, self.violations())
            except (Broken, ProgramError, Unfinished, DeadlockError, LivelockError, AssertionError) as error:
                outcome.violated(f"{type(error).__name__}: {error}")
            outcome.log = list(lines)
        outcome.trace_hash = simulation.trace_hash
        outcome.story = simulation.trace.story()
        outcome.virtual_ms = simulation.loop.now_ns // 1_000_000
        self.count()
        return outcome


class NodeScenario(Scenario):
    """A story about a single node."""

    SYNC_MS_MAX: ClassVar[Sequence[float]] = (0.5, 3.0, 20.0)
    node: NodeUnderFire

    def _set_up(self, seed: int, syncs_lie: str, keep_trace: bool) -> NodeUnderFire:
        self.node = NodeUnderFire(
            self.NAME, seed, sync_ms_max=self.SYNC_MS_MAX, syncs_lie=syncs_lie, keep_trace=keep_trace
        )
        return self.node
