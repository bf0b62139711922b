"""The safeguards of a cluster, each with a switch that takes it out of the code under test and the kind of trouble in
which it is missed. A simulation that does not notice would be a hole in the simulation."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from moldau.controller import brokers, in_sync
from moldau.groups.shard import Shard
from moldau.logs.epochs import EpochHistory
from moldau.partitions import replica
from moldau.partitions.partition import Partition
from moldau.partitions.replica import Replica
from moldau.partitions.state import LeaderState
from moldau.partitions.syncing import Syncing
from moldau.raft.elections import ElectionFile
from moldau.raft.events import Election
from moldau.raft.messages import LogEnd
from moldau.raft.replicas import Leadership
from moldau.raft.state import QuorumState
from moldau.records.batch import Batch
from moldau.testing.simulation.ablations.patch import replaced
from moldau.testing.simulation.scenarios.faulty_cluster import Plan

SAVING_S = 0.5


@dataclass(frozen=True, slots=True)
class Ablation:
    switch: Callable[[], AbstractContextManager[None]]
    plan: Callable[[Plan], Plan] = lambda plan: plan
    """Makes a seed's plan one in which the safeguard matters."""


def _in(profile: str, **changes: Any) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, profile=profile, **changes)


# Replication


def without_fsync() -> AbstractContextManager[None]:
    """What is appended counts as safe, on leaders and followers."""

    def safe_offset(syncing: Syncing) -> int:
        return syncing._log.end_offset

    return replaced(Syncing, "safe_offset", safe_offset)


def with_unsynced_followers() -> AbstractContextManager[None]:
    """A follower vouches for what it has not synced."""

    def followed_offset(follower: Replica) -> int:
        return follower.log.end_offset

    return replaced(Replica, "followed_offset", followed_offset)


def without_truncation() -> AbstractContextManager[None]:
    """A follower goes on from its own end, whatever its leader says of epochs."""

    def truncation_point(epochs: EpochHistory, end_offset: int, diverging: LogEnd) -> int:
        return end_offset

    return replaced(replica, "truncation_point", truncation_point)


def without_maximal_in_sync() -> AbstractContextManager[None]:
    """A leader goes by the in-sync set that it wants, before the controller has agreed."""

    def maximal_in_sync(state: LeaderState) -> tuple[int, ...]:
        return state.image.in_sync if state.proposal is None else state.proposal.in_sync

    return replaced(LeaderState, "maximal_in_sync", maximal_in_sync)


def without_lease() -> AbstractContextManager[None]:
    """A leader acknowledges as long as it has not heard that it was replaced."""

    def check_lease(partition: Partition) -> None:
        pass

    return replaced(Partition, "check_lease", check_lease)


def without_high_watermark() -> AbstractContextManager[None]:
    """Consumers see all there is."""

    def visible_end(partition: Partition, *, committed_only: bool) -> int:
        return partition.log.end_offset

    return replaced(Partition, "visible_end", visible_end)


def without_producers_on_followers() -> AbstractContextManager[None]:
    """A follower does not remember what producers have written last."""
    append = Replica._append_followed

    async def append_followed(follower: Replica, batches: list[Batch]) -> None:
        await append(follower, batches)
        follower.log.producers.rebuild(None, ())

    return replaced(Replica, "_append_followed", append_followed)


# The controller


def without_partition_epoch() -> AbstractContextManager[None]:
    """A change of an in-sync set is made, whatever state it was thought up on."""

    def check(*arguments: object) -> None:
        pass

    return replaced(in_sync, "_check_partition_epoch", check)


def without_broker_epoch() -> AbstractContextManager[None]:
    """Every broker that registers anew is believed to have all that it had."""

    def is_clean_restart(*arguments: object) -> bool:
        return True

    return replaced(brokers, "is_clean_restart", is_clean_restart)


def without_group_load() -> AbstractContextManager[None]:
    """A coordinator begins to serve before it has read its groups."""
    return replaced(Shard, "is_empty", True)


# The quorum


def with_votes_saved_later() -> AbstractContextManager[None]:
    """A vote is given before it is on disk."""
    save = ElectionFile.save

    async def save_later(elections: ElectionFile, election: Election) -> None:
        async def later() -> None:
            await asyncio.sleep(SAVING_S)
            await save(elections, election)

        # The loop keeps it: a simulated loop holds on to its tasks.
        asyncio.get_running_loop().create_task(later())

    return replaced(ElectionFile, "save", save_later)


def without_log_check() -> AbstractContextManager[None]:
    """A vote is given to whoever asks first."""

    def is_up_to_date(state: QuorumState, last: LogEnd) -> bool:
        return True

    return replaced(QuorumState, "_is_up_to_date", is_up_to_date)


def without_pre_vote() -> AbstractContextManager[None]:
    """A node that misses its leader begins a new epoch without asking."""

    def asks_first(state: QuorumState) -> bool:
        return False

    return replaced(QuorumState, "_asks_first", asks_first)


def without_majority() -> AbstractContextManager[None]:
    """A change of metadata is answered when the leader alone has it."""

    def durable_on_majority(leadership: Leadership, voters: object, durable_offset: int) -> int:
        return durable_offset

    return replaced(Leadership, "durable_on_majority", durable_on_majority)


ABLATIONS: Mapping[str, Ablation] = {
    "fsync-before-ack": Ablation(without_fsync, _in("power cuts", sync_ms_max=20.0)),
    "unsynced-followers": Ablation(with_unsynced_followers, _in("power cuts", sync_ms_max=20.0)),
    "vote-before-save": Ablation(with_votes_saved_later, _in("elections", gap_s=0.5)),
    "up-to-date-log": Ablation(without_log_check, _in("everything")),
    "pre-vote": Ablation(without_pre_vote, _in("rejoins")),
    "truncation": Ablation(without_truncation, _in("network")),
    "maximal-in-sync": Ablation(without_maximal_in_sync, _in("network")),
    "partition-epoch": Ablation(
        without_partition_epoch, _in("flapping", faults=30, lasting_s_min=1.5, lasting_s_max=2.5)
    ),
    "broker-epoch": Ablation(without_broker_epoch, _in("one at a time")),
    "lease": Ablation(without_lease, _in("pauses")),
    "high-watermark": Ablation(without_high_watermark, _in("network")),
    "producers-on-followers": Ablation(without_producers_on_followers, _in("kills")),
    "group-load": Ablation(without_group_load, _in("kills")),
    "metadata-commit": Ablation(without_majority, _in("network")),
}
