"""The safeguards of a cluster, each with a switch that takes it out of the code under test and the kind of trouble in
which it is missed. A simulation that does not notice would be a hole in the simulation."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from moldau.controller import alter_partition as isr
from moldau.controller import cluster_control as brokers
from moldau.groups.shard_driver import ShardDriver
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.partitions import follower_replica
from moldau.partitions.follower_replica import FollowerReplica
from moldau.partitions.leader_state import LeaderState
from moldau.partitions.log_flusher import LogFlusher
from moldau.partitions.partition import Partition
from moldau.raft.events import ElectionState
from moldau.raft.leader_state import Leadership
from moldau.raft.messages import EpochEndOffset
from moldau.raft.quorum_state_store import FileQuorumStateStore
from moldau.raft.state import QuorumState
from moldau.records.batch import Batch
from moldau.testing.simulation.ablations.patch import patched
from moldau.testing.simulation.scenarios.faulty_cluster import FaultPlan

SAVING_S = 0.5


@dataclass(frozen=True, slots=True)
class Ablation:
    switch: Callable[[], AbstractContextManager[None]]
    plan: Callable[[FaultPlan], FaultPlan] = lambda plan: plan
    """Makes a seed's plan one in which the safeguard matters."""


def _in(profile: str, **changes: Any) -> Callable[[FaultPlan], FaultPlan]:
    return lambda plan: replace(plan, profile=profile, **changes)


# Replication


def without_fsync() -> AbstractContextManager[None]:
    """What is appended counts as safe, on leaders and followers."""

    def flushed_offset(flusher: LogFlusher) -> int:
        return flusher._log.end_offset

    return patched(LogFlusher, "flushed_offset", flushed_offset)


def with_unsynced_followers() -> AbstractContextManager[None]:
    """A follower vouches for what it has not synced."""

    def replicated_offset(follower: FollowerReplica) -> int:
        return follower.log.end_offset

    return patched(FollowerReplica, "replicated_offset", replicated_offset)


def without_truncation() -> AbstractContextManager[None]:
    """A follower goes on from its own end, whatever its leader says of epochs."""

    def truncation_offset(epochs: LeaderEpochCache, end_offset: int, diverging: EpochEndOffset) -> int:
        return end_offset

    return patched(follower_replica, "truncation_offset", truncation_offset)


def without_maximal_in_sync() -> AbstractContextManager[None]:
    """A leader goes by the in-sync set that it wants, before the controller has agreed."""

    def maximal_isr(state: LeaderState) -> tuple[int, ...]:
        return state.image.isr if state.proposal is None else state.proposal.isr

    return patched(LeaderState, "maximal_isr", maximal_isr)


def without_lease() -> AbstractContextManager[None]:
    """A leader acknowledges as long as it has not heard that it was replaced."""

    def check_lease(partition: Partition) -> None:
        pass

    return patched(Partition, "check_lease", check_lease)


def without_high_watermark() -> AbstractContextManager[None]:
    """Consumers see all there is."""

    def visible_end(partition: Partition, *, committed_only: bool) -> int:
        return partition.log.end_offset

    return patched(Partition, "visible_end", visible_end)


def without_producers_on_followers() -> AbstractContextManager[None]:
    """A follower does not remember what producers have written last."""
    append = FollowerReplica._append_from_leader

    async def append_followed(follower: FollowerReplica, batches: list[Batch]) -> None:
        await append(follower, batches)
        follower.log.producers.rebuild(None, ())

    return patched(FollowerReplica, "_append_from_leader", append_followed)


# The controller


def without_partition_epoch() -> AbstractContextManager[None]:
    """A change of an in-sync set is made, whatever state it was thought up on."""

    def check(*arguments: object) -> None:
        pass

    return patched(isr, "_check_partition_epoch", check)


def without_broker_epoch() -> AbstractContextManager[None]:
    """Every broker that registers anew is believed to have all that it had."""

    def is_clean_restart(*arguments: object) -> bool:
        return True

    return patched(brokers, "is_clean_restart", is_clean_restart)


def without_group_load() -> AbstractContextManager[None]:
    """A coordinator begins to serve before it has read its groups."""
    return patched(ShardDriver, "is_empty", True)


# The quorum


def with_votes_saved_later() -> AbstractContextManager[None]:
    """A vote is given before it is on disk."""
    save = FileQuorumStateStore.save

    async def save_later(elections: FileQuorumStateStore, election: ElectionState) -> None:
        async def later() -> None:
            await asyncio.sleep(SAVING_S)
            await save(elections, election)

        # The loop keeps it: a simulated loop holds on to its tasks.
        asyncio.get_running_loop().create_task(later())

    return patched(FileQuorumStateStore, "save", save_later)


def without_log_check() -> AbstractContextManager[None]:
    """A vote is given to whoever asks first."""

    def is_up_to_date(state: QuorumState, last: EpochEndOffset) -> bool:
        return True

    return patched(QuorumState, "_is_up_to_date", is_up_to_date)


def without_pre_vote() -> AbstractContextManager[None]:
    """A node that misses its leader begins a new epoch without asking."""

    def asks_first(state: QuorumState) -> bool:
        return False

    return patched(QuorumState, "_needs_pre_vote", asks_first)


def without_majority() -> AbstractContextManager[None]:
    """A change of metadata is answered when the leader alone has it."""

    def majority_end_offset(leadership: Leadership, voters: object, durable_offset: int) -> int:
        return durable_offset

    return patched(Leadership, "majority_end_offset", majority_end_offset)


ABLATIONS: Mapping[str, Ablation] = {
    "fsync-before-ack": Ablation(without_fsync, _in("power cuts", sync_ms_max=20.0)),
    "unsynced-followers": Ablation(with_unsynced_followers, _in("power cuts", sync_ms_max=20.0)),
    "vote-before-save": Ablation(with_votes_saved_later, _in("elections", fault_interval_s=0.5)),
    "up-to-date-log": Ablation(without_log_check, _in("everything")),
    "pre-vote": Ablation(without_pre_vote, _in("rejoins")),
    "truncation": Ablation(without_truncation, _in("network")),
    "maximal-in-sync": Ablation(without_maximal_in_sync, _in("network")),
    "partition-epoch": Ablation(
        without_partition_epoch,
        _in("flapping", faults=30, fault_duration_s_min=1.5, fault_duration_s_max=2.5),
    ),
    "broker-epoch": Ablation(without_broker_epoch, _in("one at a time")),
    "lease": Ablation(without_lease, _in("pauses")),
    "high-watermark": Ablation(without_high_watermark, _in("network")),
    "producers-on-followers": Ablation(without_producers_on_followers, _in("kills")),
    "group-load": Ablation(without_group_load, _in("kills")),
    "metadata-commit": Ablation(without_majority, _in("network")),
}
