"""Background load: how many cores were busy with anything but the measured broker and its client."""

from __future__ import annotations

import os
import time

import psutil  # type: ignore[import-untyped]

from bench.brokers import Broker


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


class BackgroundLoad:
    """Counts from its creation."""

    def __init__(self, broker: Broker, broker_cpu_s: float | None = None) -> None:
        self._broker = broker
        self._began = time.monotonic()
        self._busy_s = _busy_s()
        self._own_s = self._harness_s() + (broker.cpu_s() if broker_cpu_s is None else broker_cpu_s)

    @staticmethod
    def _harness_s() -> float:
        used = os.times()
        return used.user + used.system

    def cores(self, client_cpu_s: float = 0.0) -> float:
        own_s = self._harness_s() + self._broker.cpu_s() - self._own_s + client_cpu_s
        return max(0.0, _busy_s() - self._busy_s - own_s) / (time.monotonic() - self._began)
