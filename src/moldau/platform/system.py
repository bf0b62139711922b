"""The production platform: clocks, randomness and disk of the operating system."""

import os
import random

from moldau.platform import Platform
from moldau.platform.clock import SystemClock
from moldau.platform.os_disk import OsDisk


def system_platform(seed: int | None = None) -> Platform:
    """Returns the platform. A seed makes the random numbers repeatable. They are not suitable for secrets."""
    if seed is None:
        seed = int.from_bytes(os.urandom(32), "big")
    return Platform(clock=SystemClock(), random=random.Random(seed), disk=OsDisk())
