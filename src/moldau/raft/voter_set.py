"""The voters of the quorum as the log names them: the newest record counts, committed or not. Pure.

A record that is truncated away gives the word back to the one before it, and in the end to the first voters,
which come from the settings.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moldau.raft.messages import ReplicaKey, VoterNode

NOT_IN_LOG = -1


class VoterSet(NamedTuple):
    offset: int
    """Of the record that names them; NOT_IN_LOG for the first voters."""
    voters: tuple[VoterNode, ...]
    """By ascending node id."""


class VoterSetHistory:
    """Offsets ascend strictly; there is always at least one set, which the log's start has not passed."""

    __slots__ = ("_first", "_sets")

    def __init__(self, first: Iterable[VoterNode]) -> None:
        self._first = VoterSet(NOT_IN_LOG, sort_by_node_id(first))
        self._sets = [self._first]

    @property
    def last_entry(self) -> VoterSet:
        return self._sets[-1]

    @property
    def current(self) -> tuple[VoterNode, ...]:
        return self._sets[-1].voters

    @property
    def previous(self) -> tuple[VoterNode, ...]:
        """Those whose word it is again should the newest record be truncated away."""
        return self._sets[-2].voters if len(self._sets) > 1 else ()

    @property
    def has_voters_record(self) -> bool:
        return self._sets[-1].offset != NOT_IN_LOG

    def add(self, offset: int, voters: Iterable[VoterNode]) -> None:
        assert offset > self.last_entry.offset, "records come one after the other"
        self._sets.append(VoterSet(offset, sort_by_node_id(voters)))

    def voters_below(self, end_offset: int) -> tuple[VoterNode, ...]:
        """Those that the log up to `end_offset` names; none where it names none."""
        for each in reversed(self._sets):
            if each.offset < end_offset:
                return () if each.offset == NOT_IN_LOG else each.voters
        return ()

    def truncate(self, end_offset: int) -> None:
        """The log now ends at `end_offset`."""
        while len(self._sets) > 1 and self._sets[-1].offset >= end_offset:
            self._sets.pop()

    def advance_start_offset(self, start_offset: int) -> None:
        """What is committed below the log's start can no longer be truncated away."""
        while len(self._sets) > 1 and self._sets[1].offset < start_offset:
            self._sets.pop(0)

    def reset_to_snapshot(self, end_offset: int, voters: Sequence[VoterNode]) -> None:
        """The log begins anew at the end of a snapshot, which names these (or none)."""
        self._sets = [VoterSet(end_offset - 1, sort_by_node_id(voters)) if voters else self._first]


def sort_by_node_id(voters: Iterable[VoterNode]) -> tuple[VoterNode, ...]:
    found = {voter.node_id: voter for voter in voters}
    return tuple(found[node_id] for node_id in sorted(found))


def is_same_replica(one: ReplicaKey, other: ReplicaKey) -> bool:
    """A directory that is not known may be any."""
    return one.node_id == other.node_id and (
        one.directory_id is None or other.directory_id is None or one.directory_id == other.directory_id
    )


def find_voter(voters: Iterable[VoterNode], key: ReplicaKey) -> VoterNode | None:
    return next((voter for voter in voters if is_same_replica(voter.key, key)), None)


def majority_size(count: int) -> int:
    return count // 2 + 1
