"""The metadata quorum's state machine: who leads, in which epoch, and how far the log is committed. Pure.

Events come in through `step`, effects go out, and the driver performs them in their order. A quorum of one
runs through the same steps as any other: it votes for itself, wins, and commits what its majority of one has
on disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

NO_LEADER = -1
NO_VOTE = -1


class Role(Enum):
    UNATTACHED = "unattached"
    """Knows of no leader in its epoch."""
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Election:
    """What a voter must remember across a crash: without it, it could vote twice in one epoch."""

    epoch: int = 0
    leader_id: int = NO_LEADER
    voted_for: int = NO_VOTE


# Events


@dataclass(frozen=True, slots=True)
class Started:
    """The node is up; its log, all of it durable, ends at `end_offset`."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The log now ends at `end_offset`."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Durable:
    """A voter has everything below `end_offset` on disk."""

    voter_id: int
    end_offset: int


Event = Started | Appended | Durable


# Effects


@dataclass(frozen=True, slots=True)
class Persist:
    """Must be on disk before any later effect is begun."""

    election: Election


@dataclass(frozen=True, slots=True)
class BecameLeader:
    epoch: int


@dataclass(frozen=True, slots=True)
class AppendLeaderChange:
    """The first record of an epoch. It is what lets a leader commit the records of epochs before its own."""

    leader_id: int
    epoch: int
    voters: tuple[int, ...]
    granting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """The high watermark has moved: everything below `offset` is agreed on for ever."""

    offset: int


Effect = Persist | BecameLeader | AppendLeaderChange | Committed


@dataclass(slots=True)
class QuorumState:
    node_id: int
    voters: tuple[int, ...]
    """Ascending, without repeats."""
    election: Election
    """As it was last persisted, or as the newest Persist effect says. Its epoch never falls, and within an
    epoch a vote and a leader, once set, never change."""
    role: Role = Role.UNATTACHED
    end_offset: int = 0
    epoch_start_offset: int = 0
    """Leader only: where its epoch begins. Offsets at or below it are not committed by counting replicas."""
    high_watermark: int = 0
    """Never falls, never beyond end_offset."""
    granted: set[int] = field(default_factory=set)
    """Candidate only: who has voted for this node in this epoch."""
    durable: dict[int, int] = field(default_factory=dict)
    """Leader only: how much of the log each voter is known to have on disk. Never falls in an epoch."""

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Takes one event. `now_ms` is there for the timers of elections between nodes."""
        match event:
            case Started():
                effects = self._start(event)
            case Appended():
                effects = self._appended(event)
            case Durable():
                effects = self._made_durable(event)
        self._check()
        return effects

    def _start(self, event: Started) -> list[Effect]:
        assert self.role is Role.UNATTACHED, "a node starts once"
        assert self.node_id in self.voters, "only a voter stands for election"
        self.end_offset = event.end_offset
        return self._stand_for_election()

    def _stand_for_election(self) -> list[Effect]:
        self.role = Role.CANDIDATE
        self.election = Election(self.epoch + 1, NO_LEADER, self.node_id)
        self.granted = {self.node_id}
        return [Persist(self.election), *self._count_votes()]

    def _count_votes(self) -> list[Effect]:
        if len(self.granted) < majority_of(len(self.voters)):
            return []
        self.role = Role.LEADER
        self.election = Election(self.epoch, self.node_id, self.node_id)
        self.epoch_start_offset = self.end_offset
        self.durable = dict.fromkeys(self.voters, 0)
        return [
            Persist(self.election),
            BecameLeader(self.epoch),
            AppendLeaderChange(self.node_id, self.epoch, self.voters, tuple(sorted(self.granted))),
        ]

    def _appended(self, event: Appended) -> list[Effect]:
        assert event.end_offset > self.end_offset, "an append makes the log longer"
        self.end_offset = event.end_offset
        return []

    def _made_durable(self, event: Durable) -> list[Effect]:
        if not self.is_leader or event.end_offset <= self.durable[event.voter_id]:
            return []
        self.durable[event.voter_id] = event.end_offset
        reached = durable_on_majority(self.durable)
        # Records of earlier epochs may be on a majority and still be lost to another leader (Raft, 5.4.2):
        # they are committed only together with a record of this epoch behind them.
        if reached <= self.epoch_start_offset or reached <= self.high_watermark:
            return []
        self.high_watermark = reached
        return [Committed(reached)]

    def _check(self) -> None:
        assert self.high_watermark <= self.end_offset
        assert self.role is not Role.LEADER or self.election.leader_id == self.node_id
        assert all(offset <= self.end_offset for offset in self.durable.values())


def majority_of(count: int) -> int:
    return count // 2 + 1


def durable_on_majority(durable: Mapping[int, int]) -> int:
    """The offset below which a majority of the voters has everything on disk."""
    return sorted(durable.values(), reverse=True)[majority_of(len(durable)) - 1]
