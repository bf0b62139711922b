"""Waiting until the replicas of a topic are ready."""

import asyncio
from uuid import UUID

import pytest

from moldau.controller.heartbeat_manager import BrokerHeartbeatManager
from moldau.controller.replica_readiness import UnreadyReplicas, find_unready_replicas
from moldau.controller.requests import BrokerHeartbeat, NewTopic, OfflineReplica
from moldau.errors import NotControllerError
from moldau.metadata.image import BrokerRegistration, MetadataImage, PartitionRegistration, TopicImage
from support.controller_cluster import ControllerCluster, run_on_virtual_time
from support.controller_cluster_helpers import SESSION_MS, is_fenced, with_topic

TOPIC_ID = UUID(int=77)
EPOCH = 5
NO_SPACE = "No space left on device"


def broker(broker_id: int, *, fenced: bool = False, leaving: bool = False) -> BrokerRegistration:
    return BrokerRegistration(broker_id, EPOCH, UUID(int=broker_id), (), None, fenced, leaving)


def image(replicas: list[tuple[int, ...]], *brokers: BrokerRegistration) -> MetadataImage:
    partitions = tuple(PartitionRegistration(index, each, each, each[0], 0, 0) for index, each in enumerate(replicas))
    topics = {"orders": TopicImage("orders", TOPIC_ID, partitions)}
    return MetadataImage(offset=50, brokers={each.broker_id: each for each in brokers}, topics=topics)


def heartbeats(offsets: dict[int, int], unopened: list[tuple[int, int]] | None = None) -> BrokerHeartbeatManager:
    """Heartbeats with these metadata offsets; `unopened` are partitions and brokers whose log could not be opened."""
    manager = BrokerHeartbeatManager(SESSION_MS)
    manager.initialize(0, {each: broker(each) for each in offsets}, 40)
    for broker_id, offset in offsets.items():
        failed = [OfflineReplica(TOPIC_ID, index, at, NO_SPACE) for index, at in unopened or () if at == broker_id]
        manager.touch(BrokerHeartbeat(broker_id, EPOCH, offset, not_ready=failed), 10)
    return manager


def could_not_open(partition: int, broker_id: int) -> str:
    return f"orders-{partition} on node {broker_id}: its log could not be opened: {NO_SPACE}"


def test_each_unready_replica_on_a_live_broker_is_listed_with_the_reason() -> None:
    manager = heartbeats({1: 50, 2: 49, 3: 51}, unopened=[(1, 3)])
    at = image([(1, 2, 3), (3, 1, 2)], broker(1), broker(2), broker(3))
    reasons = [could_not_open(1, 3), "node 2 has not applied the metadata yet"]
    assert find_unready_replicas(at, manager, {"orders": 0}, 50) == {"orders": UnreadyReplicas(reasons, False)}
    assert find_unready_replicas(at, manager, {"orders": 2}, 50) == {}
    assert find_unready_replicas(at, manager, {"gone": 0}, 50) == {}


def test_replicas_on_fenced_and_unregistered_brokers_are_not_waited_for() -> None:
    at = image([(1, 2, 9), (9, 2, 1)], broker(1), broker(2, fenced=True))
    assert find_unready_replicas(at, heartbeats({1: 50, 2: 0}), {"orders": 0}, 50) == {}


def test_a_partition_is_offline_if_no_live_broker_could_open_its_log() -> None:
    replicas: list[tuple[int, ...]] = [(1, 2, 3), (2, 3, 1)]
    manager = heartbeats({1: 50, 2: 50, 3: 50}, unopened=[(0, 1), (0, 2)])
    reasons = [could_not_open(0, 1), could_not_open(0, 2)]
    for third, is_offline in ((broker(3), False), (broker(3, fenced=True), True)):
        at = image(replicas, broker(1), broker(2), third)
        found = find_unready_replicas(at, manager, {"orders": 0}, 50)
        assert found == {"orders": UnreadyReplicas(reasons, is_offline)}
        assert find_unready_replicas(at, manager, {"orders": 1}, 50) == {}


def test_a_broker_that_is_behind_may_still_open_the_log() -> None:
    at = image([(1, 2)], broker(1), broker(2))
    found = find_unready_replicas(at, heartbeats({1: 50, 2: 49}, unopened=[(0, 1)]), {"orders": 0}, 50)
    assert not found["orders"].is_offline


def test_a_topic_is_ready_when_all_its_live_replicas_are() -> None:
    at = image([(1, 2)], broker(1), broker(2, leaving=True))
    for offsets, is_ready in (({1: 49, 2: 49}, False), ({1: 50, 2: 49}, False), ({1: 50, 2: 50}, True)):
        assert (find_unready_replicas(at, heartbeats(offsets), {"orders": 0}, 50) == {}) == is_ready


# In a cluster


def test_a_topic_is_ready_without_waiting_for_the_heartbeat_interval() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await cluster.pass_ms(777)
        began_ms = cluster.clock.monotonic_ms()
        await with_topic(cluster, [1, 2, 3], [2, 3, 1])
        assert await cluster.controller.wait_replicas_ready(["orders"], began_ms + 30_000) == {}
        assert cluster.clock.monotonic_ms() - began_ms < 50

    run_on_virtual_time(scenario)


def test_a_fenced_broker_is_not_waited_for() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        cluster.nodes[3].cut_off()
        await cluster.until(lambda: is_fenced(cluster, 3))
        began_ms = cluster.clock.monotonic_ms()
        await with_topic(cluster, [1, 2, 3], [2, 1, 3])
        assert await cluster.controller.wait_replicas_ready(["orders"], began_ms + 30_000) == {}
        assert cluster.clock.monotonic_ms() - began_ms < 50

    run_on_virtual_time(scenario)


def test_the_wait_ends_when_the_broker_is_fenced() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        cluster.nodes[3].cut_off()
        began_ms = cluster.clock.monotonic_ms()
        await with_topic(cluster, [1, 2, 3])
        assert not is_fenced(cluster, 3)
        assert await cluster.controller.wait_replicas_ready(["orders"], began_ms + 30_000) == {}
        assert is_fenced(cluster, 3)
        assert cluster.clock.monotonic_ms() - began_ms <= SESSION_MS + 50

    run_on_virtual_time(scenario)


def test_unready_replicas_are_listed_at_the_deadline() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        cluster.nodes[2].cut_off()
        node = cluster.nodes[3]

        [created] = await cluster.controller.create_topics([NewTopic("orders", assignment={0: [1, 2, 3]})])
        assert created.topic_id is not None
        node.not_ready = [OfflineReplica(created.topic_id, 0, 3, NO_SPACE)]
        node.lifecycle.report(cluster.end_offset - 1, node.not_ready)
        deadline_ms = cluster.clock.monotonic_ms() + 1_000
        reasons = [could_not_open(0, 3), "node 2 has not applied the metadata yet"]
        unready = await cluster.controller.wait_replicas_ready(["orders"], deadline_ms)
        assert unready == {"orders": UnreadyReplicas(reasons, False)}
        assert await cluster.controller.wait_replicas_ready(["no-such"], deadline_ms) == {}
        # A transient failure is waited for.
        node.not_ready = []
        node.lifecycle.report(cluster.end_offset - 1, [])
        cluster.nodes[2].heal()
        assert await cluster.controller.wait_replicas_ready(["orders"], deadline_ms + 10_000) == {}

    run_on_virtual_time(scenario)


def test_only_new_partitions_are_waited_for() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        cluster.nodes[2].cut_off()
        await with_topic(cluster, [2], [1])
        now_ms = cluster.clock.monotonic_ms()
        assert await cluster.controller.wait_replicas_ready(["orders"], now_ms) != {}
        assert await cluster.controller.wait_replicas_ready(["orders"], now_ms, first_partition={"orders": 1}) == {}

    run_on_virtual_time(scenario)


def test_waiting_for_readiness_ends_when_the_controller_deactivates() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        cluster.nodes[3].cut_off()
        await with_topic(cluster, [1, 3])
        waiting = asyncio.ensure_future(cluster.controller.wait_replicas_ready(["orders"], 10**9))
        await cluster.pass_ms(100)
        cluster.elect(2)
        with pytest.raises(NotControllerError):
            await waiting

    run_on_virtual_time(scenario)
