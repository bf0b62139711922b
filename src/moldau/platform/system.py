"""The world of production: the system's clocks, unpredictable randomness and the operating system's disk."""

import os
import random

from moldau.platform import Platform
from moldau.platform.clock import SystemClock
from moldau.platform.os_disk import OsDisk


def system_platform(seed: int | None = None) -> Platform:
    """With a seed the random choices repeat from run to run; without one they differ each time. Not for secrets."""
    if seed is None:
        seed = int.from_bytes(os.urandom(32), "big")
    return Platform(clock=SystemClock(), random=random.Random(seed), disk=OsDisk())
