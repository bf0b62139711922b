"""The processor of a simulated host: it runs one callback at a time, and a callback takes virtual time.

Without it, callbacks take no time of their own host, so a busy node looks as fast as an idle one.
"""

import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moldau.testing.simulation.platform.loop import SimulatedHandle


class CallbackCost(Protocol):
    """Returns how long a callback has taken so far, since `start`."""

    def start(self) -> None: ...

    def elapsed_ns(self) -> int: ...


class MeasuredCost:
    """The CPU time that the callback really takes. Delays are realistic, but a run differs a little from the next."""

    def __init__(self, slowness: float = 1.0) -> None:
        """`slowness` is how many times as long the callback takes on the simulated host."""
        self._slowness = slowness
        self._started_ns = 0

    def start(self) -> None:
        self._started_ns = time.thread_time_ns()

    def elapsed_ns(self) -> int:
        return int((time.thread_time_ns() - self._started_ns) * self._slowness)


class FixedCost:
    """The same time for every callback, so that a run repeats exactly."""

    def __init__(self, callback_ns: int) -> None:
        self._callback_ns = callback_ns

    def start(self) -> None:
        pass

    def elapsed_ns(self) -> int:
        return self._callback_ns


class SimulatedCpu:
    def __init__(self, cost: CallbackCost) -> None:
        self.cost = cost
        self.busy_until_ns = 0
        self.used_ns = 0
        """The sum of the durations of all callbacks."""
        self.longest_wait_ns = 0
        """The longest time that a callback has waited for the processor."""
        self._waiting: deque[tuple[int, SimulatedHandle]] = deque()
        self._next: SimulatedHandle | None = None
        """The callback that may run now. Others wait behind it."""
        self._is_turn_pending = False

    def admit(self, handle: "SimulatedHandle", now_ns: int) -> bool:
        """Returns whether the callback may run now. Otherwise queues it."""
        if handle is self._next:
            self._next = None
            return True
        if self._next is None and not self._waiting and self.busy_until_ns <= now_ns:
            return True
        self._waiting.append((now_ns, handle))
        return False

    def needs_turn(self) -> bool:
        """Returns whether the loop must set a timer for the next waiting callback."""
        if not self._waiting or self._next is not None or self._is_turn_pending:
            return False
        self._is_turn_pending = True
        return True

    def take_next(self, now_ns: int) -> "SimulatedHandle":
        """Takes the first callback from the queue. It is admitted next."""
        self._is_turn_pending = False
        since_ns, handle = self._waiting.popleft()
        self.longest_wait_ns = max(self.longest_wait_ns, now_ns - since_ns)
        self._next = handle
        return handle

    def add_usage(self, now_ns: int, used_ns: int) -> None:
        self.used_ns += used_ns
        self.busy_until_ns = now_ns + used_ns
