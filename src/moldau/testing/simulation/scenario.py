"""What a scenario is, and how one is played: a story about a node under fire, with safeguards to switch off."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from moldau.testing.simulation.loop import DeadlockError, LivelockError
from moldau.testing.simulation.node_under_fire import NodeUnderFire
from moldau.testing.simulation.outcome import Broken, Outcome, captured_log
from moldau.testing.simulation.simulation import ProgramError, Unfinished

RUN_TIMEOUT_MS = 600_000


class Scenario:
    NAME: ClassVar[str]
    SYNC_MS_MAX: ClassVar[Sequence[float]] = (0.5, 3.0, 20.0)
    LYING_SYNCS: ClassVar[dict[str, str]] = {}
    """Safeguards that can be switched off, and the files or directories whose syncs then make nothing safe."""

    def __init__(self, seed: int, ablation: str | None = None, *, keep_trace: bool = False) -> None:
        if ablation is not None and ablation not in self.ablations():
            raise ValueError(f"there is no ablation {ablation!r}; there are {', '.join(self.ablations())}")
        self.ablation = ablation
        self.node = NodeUnderFire(
            self.NAME,
            seed,
            sync_ms_max=self.SYNC_MS_MAX,
            syncs_lie=self.LYING_SYNCS.get(ablation or "", ""),
            keep_trace=keep_trace,
        )

    @classmethod
    def ablations(cls) -> tuple[str, ...]:
        return tuple(cls.LYING_SYNCS)

    def switched_off(self) -> AbstractContextManager[None]:
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
        node, outcome = self.node, self.node.outcome
        with captured_log(lambda: node.server.clock.wall_ms(), outcome.violated) as lines:
            try:
                with self.switched_off():
                    node.simulation.run(self.play, RUN_TIMEOUT_MS)
                outcome.violations += map(str, self.violations())
            except (Broken, ProgramError, Unfinished, DeadlockError, LivelockError, AssertionError) as error:
                outcome.violated(f"{type(error).__name__}: {error}")
            outcome.log = list(lines)
        outcome.trace_hash = node.simulation.trace_hash
        outcome.virtual_ms = node.simulation.loop.now_ns // 1_000_000
        self.count()
        return outcome
