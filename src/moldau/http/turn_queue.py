"""A queue that lets HTTP connections take turns with Kafka requests.

An HTTP request costs several times as much as a Kafka request. Without the queue, a Kafka request would wait for one
request of every busy HTTP connection. So each iteration of the event loop processes the bytes of one HTTP connection.

While Kafka clients send requests, turns are also paced: the next one starts when the event loop has been idle for as
long as it was busy since the last one. Otherwise HTTP clients could keep the loop, and the cores that other nodes and
clients share with it, always busy, and every step of a Kafka request would wait.

If the loop has so much other work that an iteration takes long, the next iteration has several turns. Otherwise HTTP
requests would make hardly any progress on a node that Kafka clients use to capacity.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from moldau.platform.cpu import thread_cpu_s

BUSY_SHARE_MAX = 0.5
"""The share of time for which the event loop may be busy before the next turn is delayed."""
PAUSE_MAX_S = 0.004
"""The longest pause between two turns, so that HTTP requests make progress if Kafka clients keep the loop busy."""
TIMER_RESOLUTION_S = 0.001
"""uvloop rounds shorter delays to zero."""
BUSY_PER_TURN_S = 0.01
"""For so much CPU time of the event loop, HTTP has one turn, which costs about 1 ms."""
TURNS_MAX = 10
"""The maximum number of turns in one iteration."""
KAFKA_ACTIVE_S = 0.1
"""How long Kafka clients count as active after a request."""


class TurnQueue:
    def __init__(self, kafka_request_count: Callable[[], int], loop_cpu_s: Callable[[], float] = thread_cpu_s) -> None:
        """`kafka_request_count` returns how many requests Kafka clients have sent to this node. `loop_cpu_s` returns
        the CPU time of the event loop."""
        self._kafka_request_count = kafka_request_count
        self._loop_cpu_s = loop_cpu_s
        self._callbacks: deque[Callable[[], None]] = deque()
        self._last_count = kafka_request_count()
        self._kafka_active_until_s = 0.0
        self._last_turn_s = 0.0
        self._last_turn_cpu_s = 0.0

    def add(self, callback: Callable[[], None]) -> None:
        """Calls `callback` in a later iteration of the event loop, in the order of the calls."""
        self._callbacks.append(callback)
        if len(self._callbacks) == 1:
            asyncio.get_running_loop().call_soon(self._run_next)

    def _run_next(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = self._pause_s(loop.time())
        if pause_s > 0:
            loop.call_later(max(pause_s, TIMER_RESOLUTION_S), self._run_next)
            return
        cpu_s = self._loop_cpu_s()
        turns = 1 + int((cpu_s - self._last_turn_cpu_s) / BUSY_PER_TURN_S)
        self._last_turn_s, self._last_turn_cpu_s = loop.time(), cpu_s
        try:
            for _ in range(min(turns, TURNS_MAX, len(self._callbacks))):
                self._run_first()
        finally:
            if self._callbacks:
                loop.call_soon(self._run_next)

    def _run_first(self) -> None:
        try:
            self._callbacks[0]()
        finally:
            self._callbacks.popleft()

    def _pause_s(self, now_s: float) -> float:
        """Returns for how long the next turn must wait."""
        count = self._kafka_request_count()
        if count != self._last_count:
            self._last_count, self._kafka_active_until_s = count, now_s + KAFKA_ACTIVE_S
        if now_s >= self._kafka_active_until_s:
            return 0.0
        busy_s = self._loop_cpu_s() - self._last_turn_cpu_s
        return min(busy_s / BUSY_SHARE_MAX, PAUSE_MAX_S) - (now_s - self._last_turn_s)
