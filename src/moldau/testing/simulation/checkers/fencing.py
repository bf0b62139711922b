"""An index of the fenced members of groups, derived from the responses that members received. Pure.

A SyncGroup response of a generation fences all earlier generations. A static member that joins again fences the
previous member with the same instance id.
"""

import math
from collections import defaultdict

from moldau.testing.simulation.checkers.history_groups import (
    GroupHistory,
    JoinOperation,
    RequestIdentity,
    SyncOperation,
)


class FencingIndex:
    def __init__(self, history: GroupHistory) -> None:
        self._own_syncs: dict[RequestIdentity, SyncOperation] = {}
        self._by_group: defaultdict[str, list[SyncOperation]] = defaultdict(list)
        self._by_instance: defaultdict[tuple[str, str], list[SyncOperation]] = defaultdict(list)
        self._joins: dict[tuple[str, str], JoinOperation] = {}
        for sync in history.syncs:
            identity = sync.identity
            self._own_syncs.setdefault(identity, sync)
            self._by_group[identity.group].append(sync)
            if identity.instance_id is not None:
                self._by_instance[identity.group, identity.instance_id].append(sync)
        for join in history.joins:
            self._joins.setdefault((join.group, join.member), join)

    def newer_generation(self, identity: RequestIdentity, before: float = math.inf) -> SyncOperation | None:
        """Returns a SyncGroup of a newer generation than that of `identity`, or None. Considers only SyncGroups that
        completed before `before` and were sent after the member of `identity` had its own SyncGroup response."""
        own = self._own_syncs.get(identity)
        if own is None:
            return None
        for sync in self._by_group[identity.group]:
            is_newer = sync.identity.generation > identity.generation and sync.invoked_at > own.completed_by
            if is_newer and sync.completed_by < before:
                return sync
        return None

    def successor(self, identity: RequestIdentity, before: float = math.inf) -> SyncOperation | None:
        """Returns a SyncGroup that completed before `before`, sent by a member that took over the instance id of
        `identity`. Returns None if no such SyncGroup exists. A JoinGroup alone is not enough, because a crash of the
        coordinator may undo the join."""
        join = self._joins.get((identity.group, identity.member))
        if identity.instance_id is None or join is None:
            return None
        for sync in self._by_instance[identity.group, identity.instance_id]:
            newer = self._joins.get((identity.group, sync.identity.member))
            if newer is not None and newer.invoked_at > join.completed_by and sync.completed_by < before:
                return sync
        return None
