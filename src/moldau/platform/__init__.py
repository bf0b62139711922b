"""A node's world: the clock, the randomness and the disk it may use, all given from outside.

In production these are the operating system's; under simulation they are virtual and come from one seed.
The event loop (and with it sockets and timers) is whatever loop is running.
"""

import random
from dataclasses import dataclass

from moldau.platform.clock import Clock
from moldau.platform.disk import Disk, File

__all__ = ["Clock", "Disk", "File", "Platform"]


@dataclass(frozen=True, slots=True)
class Platform:
    clock: Clock
    random: random.Random
    disk: Disk
