"""Groups on a replicated partition: commits, leader changes and expired leases."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from moldau.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidCommitOffsetSizeError,
    NotCoordinatorError,
)
from moldau.groups.coordinator import GroupCoordinator
from moldau.groups.group_shard import GroupShard
from moldau.groups.records import NO_EXPIRY, CommittedOffset
from moldau.groups.requests import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    CommitRequest,
    GroupResponse,
    MemberIdentity,
    OffsetToCommit,
)
from moldau.groups.shard import GroupCoordinatorShard
from moldau.metadata.loader import MetadataLoader
from moldau.partitions.replica_manager import ReplicaManager
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from support.replicas import Replicas

LIMITS = BrokerSettings(group_min_session_timeout_ms=1, group_initial_rebalance_delay_ms=0)
COMMIT_TIMEOUT_MS = 600_000


class Coordinator:
    """The groups of one node's replica."""

    def __init__(self, replicas: Replicas, node: int) -> None:
        self.shard = GroupShard(
            replicas[node], replicas.clock, commit_timeout_ms=COMMIT_TIMEOUT_MS, existing_topics=dict
        )

    async def load(self) -> None:
        await self.shard.driver.load(GroupCoordinatorShard(LIMITS), 1 << 20)

    def commit(self, offset: int) -> "asyncio.Future[GroupResponse]":
        identity = MemberIdentity(group_id="g", generation=NO_GENERATION, member_id=UNKNOWN_MEMBER_ID, instance_id=None)
        made = OffsetToCommit("orders", 0, offset, -1, "", NO_EXPIRY, None)
        request = CommitRequest(identity=identity, offsets=(made,))
        return self.shard.driver.submit(
            lambda state, now, request_id: state.commit(now, request, request_id),
            too_large_error=InvalidCommitOffsetSizeError,
        )

    async def offsets(self) -> list[int]:
        reply = await self.shard.driver.submit(
            lambda state, now, request_id: state.fetch_offsets("g", None, request_id)
        )
        assert isinstance(reply, dict)
        return [each.offset for each in reply.values() if isinstance(each, CommittedOffset)]


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def on_replicas(scene: Callable[[Replicas, Coordinator], Awaitable[None]]) -> None:
    async def main() -> None:
        replicas = Replicas((1, 2, 3), min_insync_replicas=2)
        await replicas.begin(leader=1)
        coordinator = Coordinator(replicas, 1)
        await coordinator.load()
        await scene(replicas, coordinator)
        await coordinator.shard.driver.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_commit_completes_when_all_in_sync_replicas_have_it() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        answered = coordinator.commit(5)
        await turns()
        await replicas.replicate(2)
        await turns()
        assert not answered.done()
        await replicas.replicate(3)
        await answered
        assert await coordinator.offsets() == [5]

    on_replicas(scene)


def test_offsets_survive_a_leader_change() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        answered = coordinator.commit(5)
        await turns()
        await replicas.replicate(2, 3)
        await answered
        unanswered = coordinator.commit(6)
        await turns()
        await replicas.fetch(2)
        replicas.elect(2, [2, 3])
        await replicas.publish_image()
        with pytest.raises(NotCoordinatorError):
            await unanswered
        with pytest.raises(NotCoordinatorError):
            await coordinator.offsets()
        successor = Coordinator(replicas, 2)
        loading = asyncio.ensure_future(successor.load())
        await turns()
        with pytest.raises(CoordinatorLoadInProgressError):
            await successor.offsets()
        # What it begins with is not known to be committed before the other one has it.
        await replicas.replicate(3)
        await loading
        assert await successor.offsets() == [6]
        await successor.shard.driver.close()

    on_replicas(scene)


def test_a_leader_replaced_while_loading_stays_inactive() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        answered = coordinator.commit(5)
        await turns()
        await replicas.replicate(2, 3, times=1)
        replicas.elect(2, [2, 3])
        await replicas.publish_image()
        successor = Coordinator(replicas, 2)
        loading = asyncio.ensure_future(successor.load())
        await turns()
        replicas.elect(3, [2, 3])
        await replicas.publish_image()
        await loading
        assert not successor.shard.driver.is_active
        with pytest.raises(NotCoordinatorError):
            await successor.offsets()
        with pytest.raises(NotCoordinatorError):
            await answered

    on_replicas(scene)


def test_too_few_in_sync_replicas_return_coordinator_not_available() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        replicas.image = type(replicas.image)(0, (1, 2, 3), (1,), 1, 0, 5)
        await replicas.publish_image(1)
        with pytest.raises(CoordinatorNotAvailableError):
            await coordinator.commit(5)

    on_replicas(scene)


def test_requests_without_a_lease_return_not_coordinator() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        answered = coordinator.commit(5)
        await turns()
        replicas.leases[1].valid = False
        await replicas.replicate(2, 3)
        await turns()
        with pytest.raises(NotCoordinatorError):
            await answered
        with pytest.raises(NotCoordinatorError):
            await coordinator.commit(6)
        with pytest.raises(NotCoordinatorError):
            await coordinator.offsets()
        replicas.leases[1].valid = True
        assert await coordinator.offsets() == [5], "nobody else has coordinated meanwhile"
        later = coordinator.commit(7)
        await turns()
        await replicas.replicate(2, 3)
        await later
        assert await coordinator.offsets() == [7]

    on_replicas(scene)


def test_pending_requests_fail_when_the_lease_expires() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        answered = coordinator.commit(5)
        await turns()
        replicas.leases[1].valid = False
        replicas[1].on_lease_lost()
        await turns()
        with pytest.raises(NotCoordinatorError):
            await answered

    on_replicas(scene)


def test_loading_groups_without_a_lease_return_not_coordinator() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        loading = Coordinator(replicas, 1)
        replicas.leases[1].valid = False
        with pytest.raises(NotCoordinatorError):
            await loading.offsets()

    on_replicas(scene)


async def taken_over(replicas: Replicas, coordinator: Coordinator) -> None:
    """Node 2 leads, with a record that is not known to be committed."""
    answered = coordinator.commit(5)
    await turns()
    await replicas.fetch(2)
    replicas.elect(2, [2, 3])
    await replicas.publish_image()
    with pytest.raises(NotCoordinatorError):
        await answered


def test_loading_resumes_after_the_lease_is_renewed() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        await taken_over(replicas, coordinator)
        successor = Coordinator(replicas, 2)
        loading = asyncio.ensure_future(successor.load())
        await turns()
        replicas.leases[2].valid = False
        replicas[2].on_lease_lost()
        await loading
        assert successor.shard.driver.is_loading
        replicas.leases[2].valid = True
        await replicas.replicate(3)
        await successor.load()
        assert await successor.offsets() == [5]
        await successor.shard.driver.close()

    on_replicas(scene)


def test_a_shard_that_waits_for_a_commit_does_not_block_other_shards() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        await taken_over(replicas, coordinator)
        other = Replicas((1, 2, 3), min_insync_replicas=2)
        await other.begin(leader=2)
        written = Coordinator(other, 2)
        await written.load()
        answered = written.commit(6)
        await turns()
        await other.replicate(1, 3)
        await answered
        await written.shard.driver.close()
        settings = EffectiveSettings(BrokerSettings(node_id=2))
        groups = GroupCoordinator(
            2, cast(ReplicaManager, None), cast(MetadataLoader, None), cast(Any, None), settings, replicas.clock
        )
        groups._shards._on_election(0, replicas[2], None)
        groups._shards._on_election(1, other[2], None)
        await turns()
        drivers = [shard.driver for shard in groups._shards.shards]
        assert drivers[0].is_loading
        assert drivers[1].is_active
        await replicas.replicate(3)
        await turns()
        assert drivers[0].is_active
        await groups.close()

    on_replicas(scene)


def test_operations_of_an_earlier_epoch_are_not_written() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        # The append of the commit waits behind both changes of the leader.
        async with replicas[1]._lock:
            for leader in (2, 1):
                replicas.elect(leader)
                asyncio.ensure_future(replicas[1].apply_image(replicas.image, brokers=replicas.brokers))
                await turns()
            answered = coordinator.commit(5)
            await turns()
        await turns()
        with pytest.raises(NotCoordinatorError):
            await answered
        assert replicas[1].is_leader
        assert replicas[1].log.end_offset == 0

    on_replicas(scene)
