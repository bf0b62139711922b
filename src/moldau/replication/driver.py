"""Replication on one node: a fetcher per leader, and the ISR changes of the partitions that this node leads."""

import asyncio
import random
from collections.abc import Sequence

from moldau.broker_lifecycle.manager import BrokerLifecycleManager
from moldau.controller.channel import NodeToControllerChannel
from moldau.partitions.follower_replica import FollowerReplica
from moldau.partitions.partition import Partition
from moldau.partitions.replica_manager import ReplicaManager
from moldau.peers.client import PeerClient
from moldau.platform.clock import Clock
from moldau.replication.alter_partition_manager import AlterPartitionManager
from moldau.replication.fetch_session import PartitionKey
from moldau.replication.fetcher import FetcherContext, ReplicaFetcher
from moldau.replication.quota import ReplicationQuotaManager
from moldau.settings.effective import EffectiveSettings


class ReplicaFetcherManager:
    def __init__(
        self,
        node_id: int,
        replica_manager: ReplicaManager,
        peers: PeerClient,
        controller_channel: NodeToControllerChannel,
        lifecycle: BrokerLifecycleManager,
        settings: EffectiveSettings,
        clock: Clock,
        random: random.Random,
        *,
        cluster_id: str = "",
    ) -> None:
        self.quota = ReplicationQuotaManager(node_id, settings)
        self._replica_manager = replica_manager
        self._fetcher_context = FetcherContext(
            node_id=node_id,
            cluster_id=cluster_id,
            broker_epoch=lambda: lifecycle.broker_epoch,
            peers=peers,
            quota=self.quota,
            settings=settings,
            clock=clock,
            random=random,
        )
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._leader_by_partition: dict[PartitionKey, int] = {}
        """The leader of each partition that this node follows."""
        self.alter_partition_manager = AlterPartitionManager(
            node_id,
            lambda: [each.leader for each in replica_manager.leader_partitions()],
            controller_channel,
            lambda: lifecycle.broker_epoch,
            settings,
            clock,
            random,
        )
        self._is_closed = False

    def start(self) -> None:
        """Starts to fetch. The broker must be registered, because leaders reject fetches of unregistered replicas."""
        self._replica_manager.on_roles_changed.append(self._roles_changed)
        self.alter_partition_manager.start()
        self._roles_changed(list(self._replica_manager))

    async def close(self) -> None:
        """Stops all fetchers after the appends in progress have ended."""
        self._is_closed = True
        await asyncio.gather(self.alter_partition_manager.close(), *(each.close() for each in self._fetchers.values()))

    def _roles_changed(self, partitions: Sequence[Partition]) -> None:
        """Moves the changed partitions to the fetchers of their new leaders."""
        if self._is_closed:
            return
        added: dict[int, list[FollowerReplica]] = {}
        removed: dict[int, list[PartitionKey]] = {}
        for partition in partitions:
            key = PartitionKey(partition.topic_id, partition.name.partition)
            previous = self._leader_by_partition.pop(key, None)
            leader = partition.leader_id if partition.is_follower and partition.failure is None else None
            if previous is not None and previous != leader:
                removed.setdefault(previous, []).append(key)
            if leader is not None:
                self._leader_by_partition[key] = leader
                added.setdefault(leader, []).append(partition.follower)
        for leader_id in sorted({*added, *removed}):
            if leader_id not in self._fetchers:
                self._fetchers[leader_id] = ReplicaFetcher(leader_id, self._fetcher_context)
            self._fetchers[leader_id].follow(added.get(leader_id, ()), removed.get(leader_id, ()))
