"""How often the events of a random schedule happen."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScheduleFrequencies:
    """Weights of a schedule's steps, relative to 40 for the delivery of a message, and chances.

    Each seed has its own, so that every kind of event is rare in some schedules and common in others.
    """

    replication: float
    failover: float
    timeout: float
    crash: float
    start: float
    """The start of another producer, which fences those with the same transactional id."""
    late_delivery: float
    late_chance: float
    """The share of messages that arrive long after others."""
    tv1_chance: float
    """The share of producers without TV2."""

    @classmethod
    def drawn(cls, draw: random.Random) -> "ScheduleFrequencies":
        return cls(
            replication=draw.choice((6, 14)),
            failover=draw.choice((0.1, 0.3, 0.6)),
            timeout=draw.choice((0.05, 0.2, 0.5)),
            crash=draw.choice((0, 0.1, 0.2)),
            start=draw.choice((0.1, 0.1, 0.4)),
            late_delivery=draw.choice((0.3, 1, 3)),
            late_chance=draw.choice((0.02, 0.05, 0.12)),
            tv1_chance=draw.choice((0, 0, 0.2, 0.8)),
        )
