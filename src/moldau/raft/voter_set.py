"""The voters of the metadata quorum, as the metadata log records them. Pure.

The latest voters record is in force, even if it is not committed. If that record is truncated, the previous voters
record is in force again. Without any voters record, the initial voters from the settings are in force.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moldau.raft.messages import ReplicaKey, VoterNode

NOT_IN_LOG = -1


class VoterSet(NamedTuple):
    offset: int
    """The offset of the voters record; NOT_IN_LOG for the initial voters."""
    voters: tuple[VoterNode, ...]
    """The voters, sorted by node id."""


class VoterSetHistory:
    """The voter sets by ascending offset. There is always at least one."""

    __slots__ = ("_initial", "_sets")

    def __init__(self, initial: Iterable[VoterNode]) -> None:
        self._initial = VoterSet(NOT_IN_LOG, sort_by_node_id(initial))
        self._sets = [self._initial]

    @property
    def last_entry(self) -> VoterSet:
        return self._sets[-1]

    @property
    def current(self) -> tuple[VoterNode, ...]:
        return self._sets[-1].voters

    @property
    def previous(self) -> tuple[VoterNode, ...]:
        """The voters that become current if the latest voters record is truncated; empty if there are none."""
        return self._sets[-2].voters if len(self._sets) > 1 else ()

    @property
    def has_voters_record(self) -> bool:
        return self._sets[-1].offset != NOT_IN_LOG

    def add(self, offset: int, voters: Iterable[VoterNode]) -> None:
        assert offset > self.last_entry.offset, "offsets ascend"
        self._sets.append(VoterSet(offset, sort_by_node_id(voters)))

    def voters_below(self, end_offset: int) -> tuple[VoterNode, ...]:
        """Returns the voters of the last voters record below `end_offset`; empty if there is no such record."""
        for entry in reversed(self._sets):
            if entry.offset < end_offset:
                return () if entry.offset == NOT_IN_LOG else entry.voters
        return ()

    def truncate(self, end_offset: int) -> None:
        while len(self._sets) > 1 and self._sets[-1].offset >= end_offset:
            self._sets.pop()

    def advance_start_offset(self, start_offset: int) -> None:
        """Drops voter sets that no truncation can make current again."""
        while len(self._sets) > 1 and self._sets[1].offset < start_offset:
            self._sets.pop(0)

    def reset_to_snapshot(self, end_offset: int, voters: Sequence[VoterNode]) -> None:
        """Replaces the history with the voters of a snapshot, or with the initial voters if it has none."""
        self._sets = [VoterSet(end_offset - 1, sort_by_node_id(voters)) if voters else self._initial]


def sort_by_node_id(voters: Iterable[VoterNode]) -> tuple[VoterNode, ...]:
    by_id = {voter.node_id: voter for voter in voters}
    return tuple(by_id[node_id] for node_id in sorted(by_id))


def is_same_replica(one: ReplicaKey, other: ReplicaKey) -> bool:
    """Returns whether both keys can name the same replica. An unknown directory matches any directory."""
    return one.node_id == other.node_id and (
        one.directory_id is None or other.directory_id is None or one.directory_id == other.directory_id
    )


def find_voter(voters: Iterable[VoterNode], key: ReplicaKey) -> VoterNode | None:
    return next((voter for voter in voters if is_same_replica(voter.key, key)), None)


def majority_size(count: int) -> int:
    return count // 2 + 1
