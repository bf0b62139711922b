"""A node that measures how long its event loop does other work at once.

`python -m bench.metrics_node serve …` takes the flags of `moldau serve`. SIGUSR1 starts a measurement, SIGUSR2 ends it
and prints the longest pause and the most CPU time of the loop between two iterations, both in milliseconds.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable

from moldau.cli import serve_node
from moldau.cli.serve import serve

RESULT = "longest pause: "


class LoopMonitor:
    """Runs a callback in each iteration of the event loop. The time between two of them is that of all other work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last_s = self._longest_s = self._last_cpu_s = self._longest_cpu_s = 0.0
        self._is_running = False

    def install(self) -> None:
        self._loop.add_signal_handler(signal.SIGUSR1, self.start)
        self._loop.add_signal_handler(signal.SIGUSR2, self.stop)

    def start(self) -> None:
        self._last_s, self._last_cpu_s = time.perf_counter(), time.thread_time()
        self._longest_s = self._longest_cpu_s = 0.0
        if not self._is_running:
            self._is_running = True
            self._loop.call_soon(self._tick)

    def stop(self) -> None:
        self._is_running = False
        sys.stdout.write(f"{RESULT}{self._longest_s * 1000:.3f} {self._longest_cpu_s * 1000:.3f}\n")
        sys.stdout.flush()

    def _tick(self) -> None:
        now_s, cpu_s = time.perf_counter(), time.thread_time()
        self._longest_s = max(self._longest_s, now_s - self._last_s)
        self._longest_cpu_s = max(self._longest_cpu_s, cpu_s - self._last_cpu_s)
        self._last_s, self._last_cpu_s = now_s, cpu_s
        if self._is_running:
            self._loop.call_soon(self._tick)


def monitored_loops(choice: str) -> Callable[[], asyncio.AbstractEventLoop]:
    make_loop = original_loops(choice)

    def make_monitored_loop() -> asyncio.AbstractEventLoop:
        loop = make_loop()
        loop.call_soon(LoopMonitor(loop).install)
        return loop

    return make_monitored_loop


original_loops = serve_node.loop_factory

if __name__ == "__main__":
    serve_node.loop_factory = monitored_loops
    sys.exit(serve(sys.argv[2:]))
