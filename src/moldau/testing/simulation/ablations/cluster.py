"""Cluster ablations. Each disables one safeguard in the code under test, and picks a fault profile in which the
safeguard matters. The simulation must then report a violation."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from moldau.controller import alter_partition as isr
from moldau.controller import cluster_control as brokers
from moldau.groups.shard_driver import ShardDriver
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.partitions import follower_replica
from moldau.partitions.follower_replica import FollowerReplica
from moldau.partitions.leader_state import PartitionLeaderState
from moldau.partitions.log_flusher import LogFlusher
from moldau.partitions.partition import Partition
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.leader_state import LeaderState
from moldau.raft.messages import EpochEndOffset
from moldau.raft.quorum_state import QuorumState
from moldau.raft.quorum_state_store import FileQuorumStateStore
from moldau.records.batch import Batch
from moldau.testing.simulation.scenarios.faulty_cluster import FaultPlan

SAVING_S = 0.5


@dataclass(frozen=True, slots=True)
class Ablation:
    switch: Callable[[], AbstractContextManager[object]]
    plan: Callable[[FaultPlan], FaultPlan] = lambda plan: plan
    """Adapts the seed's fault plan so that the safeguard matters."""


def _in(profile: str, **changes: Any) -> Callable[[FaultPlan], FaultPlan]:
    return lambda plan: replace(plan, profile=profile, **changes)


def _returning(value: object) -> Callable[..., object]:
    return lambda *_: value


# Replication


def without_fsync() -> AbstractContextManager[object]:
    """Makes leaders and followers count appended records as durable."""

    def flushed_offset(flusher: LogFlusher) -> int:
        return flusher._log.end_offset

    return mock.patch.object(LogFlusher, "flushed_offset", flushed_offset)


def with_unsynced_followers() -> AbstractContextManager[object]:
    """Makes followers report records as replicated before they have synced them."""

    def replicated_offset(follower: FollowerReplica) -> int:
        return follower.log.end_offset

    return mock.patch.object(FollowerReplica, "replicated_offset", replicated_offset)


def without_truncation() -> AbstractContextManager[object]:
    """Keeps followers from truncating their log where it diverges from the leader's log."""

    def truncation_offset(epochs: LeaderEpochCache, end_offset: int, diverging: EpochEndOffset) -> int:
        return end_offset

    return mock.patch.object(follower_replica, "truncation_offset", truncation_offset)


def without_maximal_in_sync() -> AbstractContextManager[object]:
    """Makes leaders use a proposed ISR before the controller has accepted it."""

    def maximal_isr(state: PartitionLeaderState) -> tuple[int, ...]:
        return state.image.isr if state.proposal is None else state.proposal.isr

    return mock.patch.object(PartitionLeaderState, "maximal_isr", maximal_isr)


def without_lease() -> AbstractContextManager[object]:
    """Makes leaders acknowledge records after their lease has expired."""
    return mock.patch.object(Partition, "check_lease", _returning(None))


def without_high_watermark() -> AbstractContextManager[object]:
    """Lets consumers read beyond the high watermark."""

    def visible_end(partition: Partition, *, committed_only: bool) -> int:
        return partition.log.end_offset

    return mock.patch.object(Partition, "visible_end", visible_end)


def without_producers_on_followers() -> AbstractContextManager[object]:
    """Makes followers lose their producer state after each append."""
    append = FollowerReplica._append_from_leader

    async def append_followed(follower: FollowerReplica, batches: list[Batch]) -> None:
        await append(follower, batches)
        follower.log.producers.rebuild(None, ())

    return mock.patch.object(FollowerReplica, "_append_from_leader", append_followed)


# Controller


def without_partition_epoch() -> AbstractContextManager[object]:
    """Makes the controller accept an ISR change that is based on an old partition epoch."""
    return mock.patch.object(isr, "_check_partition_epoch", _returning(None))


def without_broker_epoch() -> AbstractContextManager[object]:
    """Makes the controller treat every restart of a broker as clean."""
    return mock.patch.object(brokers, "is_clean_restart", _returning(True))


def without_group_load() -> AbstractContextManager[object]:
    """Makes group coordinators serve requests before they have loaded their groups."""
    return mock.patch.object(ShardDriver, "is_empty", True)


# Quorum


def with_votes_saved_later() -> AbstractContextManager[object]:
    """Makes nodes grant a vote before the vote is on disk."""
    save = FileQuorumStateStore.save

    async def save_later(elections: FileQuorumStateStore, election: ElectionState) -> None:
        async def later() -> None:
            await asyncio.sleep(SAVING_S)
            await save(elections, election)

        # No reference to the task is needed, because the simulated loop keeps its tasks.
        asyncio.get_running_loop().create_task(later())

    return mock.patch.object(FileQuorumStateStore, "save", save_later)


def without_log_check() -> AbstractContextManager[object]:
    """Makes nodes vote for a candidate whose log is behind their own log."""
    return mock.patch.object(QuorumState, "is_up_to_date", _returning(True))


def without_pre_vote() -> AbstractContextManager[object]:
    """Makes a node without a leader start an election without a pre-vote."""
    return mock.patch.object(QuorumState, "needs_pre_vote", _returning(False))


def without_majority() -> AbstractContextManager[object]:
    """Makes metadata count as committed when only the leader has it on disk."""

    def majority_end_offset(leader: LeaderState) -> int:
        return leader.log.durable_offset

    return mock.patch.object(LeaderState, "majority_end_offset", majority_end_offset)


ABLATIONS: Mapping[str, Ablation] = {
    "fsync-before-ack": Ablation(without_fsync, _in("power cuts", sync_ms_max=20.0)),
    "unsynced-followers": Ablation(with_unsynced_followers, _in("power cuts", sync_ms_max=20.0)),
    "vote-before-save": Ablation(with_votes_saved_later, _in("elections", fault_interval_s=0.5)),
    "up-to-date-log": Ablation(without_log_check, _in("everything")),
    "pre-vote": Ablation(without_pre_vote, _in("rejoins")),
    "truncation": Ablation(without_truncation, _in("network")),
    "maximal-in-sync": Ablation(without_maximal_in_sync, _in("network")),
    "partition-epoch": Ablation(
        without_partition_epoch, _in("flapping", faults=30, fault_duration_s_min=1.5, fault_duration_s_max=2.5)
    ),
    "broker-epoch": Ablation(without_broker_epoch, _in("one at a time")),
    "lease": Ablation(without_lease, _in("pauses")),
    "high-watermark": Ablation(without_high_watermark, _in("network")),
    "producers-on-followers": Ablation(without_producers_on_followers, _in("kills")),
    "group-load": Ablation(without_group_load, _in("kills")),
    "metadata-commit": Ablation(without_majority, _in("network")),
}
