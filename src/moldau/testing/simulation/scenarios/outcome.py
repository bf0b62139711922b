"""What comes of playing a seed: violations, what was counted on the way, the hash of its trace and the node's log."""

import logging
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from moldau.observe.logging import ROOT, TextFormatter
from moldau.testing.simulation.platform.incarnation import current_incarnation

LOG_LINES_KEPT = 200
CLIENT_LOGGER = f"{ROOT}.client."


class ScenarioError(Exception):
    """The node did what it must not do, as seen from outside the protocol."""


def format_error(error: BaseException) -> str:
    """With its traceback."""
    return "".join(traceback.format_exception(error)).rstrip()


@dataclass(slots=True)
class SimulationOutcome:
    scenario: str
    seed: int
    profile: str
    trace_hash: str = ""
    virtual_ms: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """What happened how often, by its plural: crashes, faults, records acknowledged."""
    violations: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """The last log lines, each with the host that wrote it."""
    notable_events: list[str] = field(default_factory=list)
    """The last events of the trace that say what was going on."""

    def add_violation(self, what: str) -> None:
        """Notes it and lets the play go on, which may show more."""
        self.violations.append(what)


@contextmanager
def capture_log(wall_ms: Callable[[], int], on_client_error: Callable[[str], None]) -> Iterator[deque[str]]:
    """The log goes into a list; what is printed elsewhere would only be in the way. Whatever happens to a node, its
    clients have no reason to write of errors: `on_client_error` hears when they do."""
    lines: deque[str] = deque(maxlen=LOG_LINES_KEPT)

    class Capture(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{current_incarnation.get().host}: {self.format(record)}")
            if record.levelno >= logging.ERROR and record.name.startswith(CLIENT_LOGGER):
                on_client_error(lines[-1])

    logger = logging.getLogger(ROOT)
    handler = Capture()
    handler.setFormatter(TextFormatter(wall_ms))
    before = logger.level, logger.propagate, logger.handlers
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        level, logger.propagate, logger.handlers = before
        logger.setLevel(level)
