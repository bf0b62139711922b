"""Replication on one node: a fetcher for each leader that it follows, and the in-sync sets of what it leads."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from moldau.peers.peers import Peers
from moldau.platform.clock import Clock
from moldau.replication.fetcher import Fetcher, Fetching, FollowedPartition
from moldau.replication.in_sync import Gateway, InSyncSets, LedPartition
from moldau.replication.session import PartitionKey
from moldau.replication.throttle import Throttle
from moldau.settings.effective import EffectiveSettings


class ReplicatedPartition(FollowedPartition, LedPartition, Protocol):
    """A partition in either role, or in none any more."""

    @property
    def is_follower(self) -> bool: ...
    @property
    def leader_id(self) -> int: ...


class Partitions(Protocol):
    """The table of partitions, as far as replication goes."""

    on_roles_changed: list[Callable[[Sequence[Any]], None]]

    def __iter__(self) -> Iterator[ReplicatedPartition]: ...

    def led(self) -> Iterable[ReplicatedPartition]: ...


class Member(Protocol):
    """This node's membership in the cluster."""

    @property
    def broker_epoch(self) -> int: ...


class Replication:
    def __init__(
        self,
        node_id: int,
        table: Partitions,
        peers: Peers,
        gateway: Gateway,
        membership: Member,
        settings: EffectiveSettings,
        clock: Clock,
        random: random.Random,
        *,
        cluster_id: str = "",
    ) -> None:
        self.throttle = Throttle(node_id, settings)
        self._table = table
        self._fetching = Fetching(
            node_id=node_id,
            cluster_id=cluster_id,
            broker_epoch=lambda: membership.broker_epoch,
            peers=peers,
            throttle=self.throttle,
            settings=settings,
            clock=clock,
            random=random,
        )
        self._fetchers: dict[int, Fetcher] = {}
        self._leaders: dict[PartitionKey, int] = {}
        """Of all that is followed."""
        self.in_sync = InSyncSets(
            node_id,
            table.led,
            gateway,
            lambda: membership.broker_epoch,
            settings,
            clock,
            random,
        )
        self._is_closed = False

    def start(self) -> None:
        """Follows what the table says from now on. The broker has registered: leaders refuse those who have not."""
        self._table.on_roles_changed.append(self._roles_changed)
        self.in_sync.start()
        self._roles_changed(list(self._table))

    async def close(self) -> None:
        """Fetches no more, and waits for what is being appended."""
        self._is_closed = True
        await asyncio.gather(self.in_sync.close(), *(each.close() for each in self._fetchers.values()))

    def _roles_changed(self, partitions: Sequence[ReplicatedPartition]) -> None:
        """Only these are looked at: there may be thousands of others."""
        if self._is_closed:
            return
        taken: dict[int, list[ReplicatedPartition]] = {}
        left: dict[int, list[PartitionKey]] = {}
        for partition in partitions:
            key = PartitionKey(partition.topic_id, partition.name.partition)
            former = self._leaders.pop(key, None)
            leader = partition.leader_id if partition.is_follower and partition.failure is None else None
            if former is not None and former != leader:
                left.setdefault(former, []).append(key)
            if leader is not None:
                self._leaders[key] = leader
                taken.setdefault(leader, []).append(partition)
        for leader_id in sorted({*taken, *left}):
            if leader_id not in self._fetchers:
                self._fetchers[leader_id] = Fetcher(leader_id, self._fetching)
            self._fetchers[leader_id].follow(taken.get(leader_id, ()), left.get(leader_id, ()))
