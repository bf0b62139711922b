"""Who may no longer speak for a group: what its members were told says who has been left behind. Pure.

A generation that was handed out ends all that were handed out before it, and a static member that joins anew ends the
one that had its instance id.
"""

import math
from collections import defaultdict

from moldau.testing.simulation.checkers.history_groups import Claim, GroupHistory, Join, Sync


class Fences:
    def __init__(self, history: GroupHistory) -> None:
        self._own: dict[Claim, Sync] = {}
        self._by_group: defaultdict[str, list[Sync]] = defaultdict(list)
        self._by_instance: defaultdict[tuple[str, str], list[Sync]] = defaultdict(list)
        self._joins: dict[tuple[str, str], Join] = {}
        for sync in history.syncs:
            claim = sync.claim
            self._own.setdefault(claim, sync)
            self._by_group[claim.group].append(sync)
            if claim.instance is not None:
                self._by_instance[claim.group, claim.instance].append(sync)
        for join in history.joins:
            self._joins.setdefault((join.group, join.member), join)

    def newer_generation(self, claim: Claim, before: float = math.inf) -> Sync | None:
        """One that was handed out after the claim's own, and by then."""
        own = self._own.get(claim)
        if own is None:
            return None
        for sync in self._by_group[claim.group]:
            is_newer = sync.claim.generation > claim.generation and sync.begun > own.over
            if is_newer and sync.over < before:
                return sync
        return None

    def successor(self, claim: Claim, before: float = math.inf) -> Sync | None:
        """A member that took the claim's instance id, and had its assignment by then. (What is only joined, a
        crash of the coordinator may undo.)"""
        join = self._joins.get((claim.group, claim.member))
        if claim.instance is None or join is None:
            return None
        for sync in self._by_instance[claim.group, claim.instance]:
            newer = self._joins.get((claim.group, sync.claim.member))
            if newer is not None and newer.begun > join.over and sync.over < before:
                return sync
        return None
