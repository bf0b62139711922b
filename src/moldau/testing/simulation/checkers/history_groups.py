"""What the members of groups asked of their coordinator and heard from it: the evidence of `checker_groups.py`.

Times are counted in events, over all clients. What never ended may have happened at any time after it began, or
not at all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from moldau.testing.simulation.checkers.history import Partition

NO_GENERATION = -1
NOTHING_COMMITTED = -1


class Claim(NamedTuple):
    """Who a request says it is from."""

    group: str
    generation: int
    """NO_GENERATION for commits from outside the membership."""
    member: str
    instance: str | None


class Fate(Enum):
    UNKNOWN = "unknown"
    DONE = "done"
    REFUSED = "refused"
    """For certain: nothing of it may ever show."""


@dataclass(slots=True, kw_only=True)
class Asked:
    begun: int
    ended: int | None = None
    fate: Fate = Fate.UNKNOWN

    @property
    def over(self) -> float:
        """When it had happened for certain, if it did."""
        return math.inf if self.ended is None else self.ended


@dataclass(slots=True, kw_only=True)
class Commit(Asked):
    stamp: str
    """Goes with the commit as its metadata and comes back with every answer that shows it: no two are alike."""
    claim: Claim
    partition: Partition
    offset: int

    @property
    def key(self) -> tuple[str, Partition]:
        return self.claim.group, self.partition


@dataclass(slots=True, kw_only=True)
class Deletion(Asked):
    group: str
    partition: Partition | None
    """None: the group with all its offsets."""


@dataclass(slots=True, kw_only=True)
class Join(Asked):
    """Recorded where the answer brought a member id that the request did not have."""

    group: str
    instance: str | None
    member: str


@dataclass(slots=True, kw_only=True)
class Sync(Asked):
    """An assignment handed out."""

    claim: Claim
    partitions: Sequence[Partition]


@dataclass(slots=True, kw_only=True)
class Beat(Asked):
    """A heartbeat that was accepted."""

    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """An answer to the question what is committed for a partition."""

    group: str
    partition: Partition
    begun: int
    ended: int
    offset: int
    stamp: str


class Delivery(NamedTuple):
    """A record that a group's consumer gave to its user."""

    at: int
    group: str
    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True)
class Settled:
    """A group at the end, as its coordinator describes it."""

    state: str
    assignments: Mapping[str, Sequence[Partition]]
    """By member."""


@dataclass(slots=True)
class GroupHistory:
    commits: list[Commit] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    joins: list[Join] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    settled: dict[str, Settled] = field(default_factory=dict)
    """The groups of consumers, at the end."""
    ends: dict[Partition, int] = field(default_factory=dict)
    """The partitions that every one of those groups must have read, and where they end."""
    _events: int = 0

    def now(self) -> int:
        self._events += 1
        return self._events
