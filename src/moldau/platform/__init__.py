"""The platform that a node runs on: clock, randomness and disk.

In production the operating system provides them. In the simulator they are virtual, and one seed determines their
behaviour. Sockets and timers come from the running event loop.
"""

import random
from dataclasses import dataclass

from moldau.platform.clock import Clock
from moldau.platform.disk import Disk


@dataclass(frozen=True, slots=True)
class Platform:
    clock: Clock
    random: random.Random
    disk: Disk
