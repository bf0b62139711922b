"""Cluster ablations. Each disables one safeguard in the code under test, and picks a fault profile in which the
safeguard matters. The simulation must then report a violation."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

from moldau.controller import alter_partition as isr
from moldau.controller import cluster_control as brokers
from moldau.coordinator.shard_driver import ShardDriver
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
    plan: Callable[[FaultPlan], FaultPlan]
    """Adapts the seed's fault plan so that the safeguard matters."""


def replacing(owner: object, name: str, replacement: object, profile: str, **plan_changes: Any) -> Ablation:
    """Returns an ablation that replaces an attribute of the code under test and runs in a fault profile."""
    return Ablation(
        partial(mock.patch.object, owner, name, replacement),
        lambda plan: replace(plan, profile=profile, **plan_changes),
    )


def returning(value: object) -> Callable[..., object]:
    return lambda *_, **__: value


# Replication


def _appended_offset(flusher: LogFlusher) -> int:
    return flusher._log.end_offset


def _appended_offset_of_follower(follower: FollowerReplica) -> int:
    return follower.log.end_offset


def _no_truncation(epochs: LeaderEpochCache, end_offset: int, diverging: EpochEndOffset) -> int:
    return end_offset


def _proposed_isr(state: PartitionLeaderState) -> tuple[int, ...]:
    return state.image.isr if state.proposal is None else state.proposal.isr


def _log_end(partition: Partition, *, committed_only: bool) -> int:
    return partition.log.end_offset


_append_from_leader = FollowerReplica._append_from_leader


async def _append_without_producers(follower: FollowerReplica, batches: list[Batch]) -> None:
    await _append_from_leader(follower, batches)
    follower.log.producers.rebuild(None, ())


# Quorum

_save = FileQuorumStateStore.save


async def _save_later(store: FileQuorumStateStore, election: ElectionState) -> None:
    async def save_after_delay() -> None:
        await asyncio.sleep(SAVING_S)
        await _save(store, election)

    # No reference to the task is needed, because the simulated loop keeps its tasks.
    asyncio.get_running_loop().create_task(save_after_delay())


def _own_durable_offset(leader: LeaderState) -> int:
    return leader.log.durable_offset


# Each comment in the mapping describes the wrong behaviour that the replacement causes.
ABLATIONS: Mapping[str, Ablation] = {
    # Leaders and followers count appended records as durable before the records are synced.
    "fsync-before-ack": replacing(LogFlusher, "flushed_offset", _appended_offset, "power cuts", sync_ms_max=20.0),
    # Followers report records as replicated before they have synced them.
    "unsynced-followers": replacing(
        FollowerReplica, "replicated_offset", _appended_offset_of_follower, "power cuts", sync_ms_max=20.0
    ),
    # Nodes grant a vote before the vote is on disk.
    "vote-before-save": replacing(FileQuorumStateStore, "save", _save_later, "elections", fault_interval_s=0.5),
    # Nodes vote for a candidate whose log is behind their own log.
    "up-to-date-log": replacing(QuorumState, "is_up_to_date", returning(True), "everything"),
    # A node without a leader starts an election without a pre-vote.
    "pre-vote": replacing(QuorumState, "needs_pre_vote", returning(False), "rejoins"),
    # Followers keep the part of their log that diverges from the leader's log.
    "truncation": replacing(follower_replica, "truncation_offset", _no_truncation, "network"),
    # Leaders wait only for the members of a proposed ISR, before the controller has accepted the proposal.
    "maximal-in-sync": replacing(PartitionLeaderState, "maximal_isr", _proposed_isr, "network"),
    # The controller accepts an ISR change that is based on an old partition epoch.
    "partition-epoch": replacing(
        isr,
        "_check_partition_epoch",
        returning(None),
        "flapping",
        faults=30,
        fault_duration_s_min=1.5,
        fault_duration_s_max=2.5,
    ),
    # The controller treats every restart of a broker as clean.
    "broker-epoch": replacing(brokers, "is_clean_restart", returning(True), "one at a time"),
    # Leaders acknowledge records after their lease has expired.
    "lease": replacing(Partition, "check_lease", returning(None), "pauses"),
    # Consumers can read beyond the high watermark.
    "high-watermark": replacing(Partition, "visible_end", _log_end, "network"),
    # Followers lose their producer state after each append.
    "producers-on-followers": replacing(FollowerReplica, "_append_from_leader", _append_without_producers, "kills"),
    # Group coordinators serve requests before they have loaded their groups.
    "group-load": replacing(ShardDriver, "is_empty", True, "kills"),
    # Metadata counts as committed when only the leader has it on disk.
    "metadata-commit": replacing(LeaderState, "majority_end_offset", _own_durable_offset, "network"),
}
