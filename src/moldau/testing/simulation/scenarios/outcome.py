"""Outcome of a simulated run: violations, counts, trace hash and log."""

import asyncio
import inspect
import logging
import traceback
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from moldau.observe.logging import ROOT, TextFormatter
from moldau.testing.simulation.platform.loop import SimulatedLoop, current_incarnation
from moldau.testing.simulation.platform.simulation import SimulatedClock

LOG_LINES_KEPT = 200
CLIENT_LOGGER = f"{ROOT}.client."
POLL_INTERVAL_S = 0.1
HEAL_TIMEOUT_S = 60


class ScenarioError(Exception):
    """The system under test failed in a way that the histories of clients do not show."""


def format_error(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


@dataclass(slots=True)
class SimulationOutcome:
    scenario: str
    seed: int
    profile: str
    trace_hash: str = ""
    virtual_ms: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Counts of events. The keys are plural nouns, such as crashes, faults or records acknowledged."""
    violations: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """Latest log lines, each with the host that wrote it."""
    notable_events: list[str] = field(default_factory=list)
    """The latest events of the trace that are not routine."""

    def add_violation(self, what: str) -> None:
        """Records a violation. The run continues and may find more violations."""
        self.violations.append(what)

    async def poll_until(
        self, condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = HEAL_TIMEOUT_S
    ) -> bool:
        """Polls the condition until it is true, the timeout expires or there is a violation. Returns its last value."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            result = condition()
            is_true = await result if inspect.isawaitable(result) else result
            if is_true or self.violations or loop.time() > deadline:
                return is_true
            await asyncio.sleep(POLL_INTERVAL_S)

    async def wait_until(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        """Waits until the condition is true. Adds a violation if it is not true after HEAL_TIMEOUT_S."""
        if not await self.poll_until(condition) and not self.violations:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulatedLoop)
            self.add_violation(f"not within {HEAL_TIMEOUT_S} s: {what()}; pending tasks:\n{loop.pending_tasks()}")


@contextmanager
def capture_log(loop: SimulatedLoop, on_client_error: Callable[[str], None]) -> Iterator[deque[str]]:
    """Captures log lines, so that they are not printed. Calls `on_client_error` with each error line of a client,
    because clients must not log errors under any fault."""
    lines: deque[str] = deque(maxlen=LOG_LINES_KEPT)

    class Capture(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{current_incarnation.get().host}: {self.format(record)}")
            if record.levelno >= logging.ERROR and record.name.startswith(CLIENT_LOGGER):
                on_client_error(lines[-1])

    logger = logging.getLogger(ROOT)
    handler = Capture()
    handler.setFormatter(TextFormatter(SimulatedClock(loop).wall_ms))
    before = logger.level, logger.propagate, logger.handlers
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        level, logger.propagate, logger.handlers = before
        logger.setLevel(level)
