"""Counts that the components of a node keep. Pure."""

from collections.abc import Collection
from dataclasses import dataclass, field

from moldau.metrics.histogram import DurationHistogram


@dataclass(slots=True)
class IsrMetrics:
    """Changes of the ISRs of the partitions that this broker leads."""

    shrinks: int = 0
    expands: int = 0

    def record(self, previous: Collection[int], current: Collection[int]) -> None:
        """Counts a change. One that replaces a member counts as both."""
        if previous is current:
            return
        self.shrinks += any(each not in current for each in previous)
        self.expands += any(each not in previous for each in current)


@dataclass(slots=True)
class ControllerMetrics:
    """What this node has done as the active controller."""

    leader_elections: int = 0
    unclean_leader_elections: int = 0
    timed_out_heartbeats: int = 0


@dataclass(slots=True)
class QuorumMetrics:
    elections_won: int = 0
    commit_durations: DurationHistogram = field(default_factory=DurationHistogram)
    """From the append of a batch by this node, as the leader, until the batch is committed."""


@dataclass(slots=True)
class HeartbeatMetrics:
    """The heartbeats of this broker."""

    durations: DurationHistogram = field(default_factory=DurationHistogram)
    """Of those that the controller accepted, from sending to the response."""
    failures: int = 0
