"""The platform of production: clocks, randomness and disk of the operating system."""

import os
import random

from moldau.platform import Platform
from moldau.platform.clock import SystemClock
from moldau.platform.os_disk import OsDisk


def system_platform(seed: int | None = None) -> Platform:
    """Returns the platform; a seed makes the random choices repeatable. Not for secrets."""
    if seed is None:
        seed = int.from_bytes(os.urandom(32), "big")
    return Platform(clock=SystemClock(), random=random.Random(seed), disk=OsDisk())
