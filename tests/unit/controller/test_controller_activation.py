"""Activation of a controller: on a busy node, and with other settings than the previous one."""

import asyncio

import pytest

from moldau.controller import elections, feature_control
from moldau.controller.features import METADATA_VERSION
from moldau.controller.requests import CreateTopicResult, NewTopic
from moldau.metadata.image import NO_LEADER, MetadataDelta, MetadataImage, PartitionRegistration
from moldau.settings.topic import TopicSettings
from support.controller_cluster import ControllerCluster, Node, run_on_virtual_time


async def with_topic(cluster: ControllerCluster, *replicas: list[int]) -> CreateTopicResult:
    [created] = await cluster.controller.create_topics([NewTopic("orders", assignment=dict(enumerate(replicas)))])
    assert created.error is None
    return created


def partition(cluster: ControllerCluster, index: int = 0) -> PartitionRegistration:
    return cluster.nodes[cluster.leader_id].loader.committed_image.topics["orders"].partitions[index]


class OpensLogs:
    """A node that publishes only when its logs are open."""

    def __init__(self, node: Node) -> None:
        self.are_open = asyncio.Event()
        self._settings = node.settings
        node.loader._publishers[0] = self._publish

    async def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._settings.apply(image, delta)
        await self.are_open.wait()


def test_a_controller_activates_before_its_node_has_opened_its_logs() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3, 4)
        logs = OpensLogs(cluster.nodes[2])
        await with_topic(cluster, [4, 3])
        await cluster.nodes[1].kill()
        cluster.elect(2)
        assert cluster.nodes[2].controller.is_active
        await cluster.pass_ms(10_000)
        assert cluster.nodes[3].lifecycle.lease.is_valid()
        assert cluster.nodes[2].lifecycle.lease.is_valid()

        # Other brokers restart and get their responses.
        await cluster.nodes[4].kill()
        await cluster.until(lambda: partition(cluster).leader == 3)
        again = cluster.add(4)
        await again.start()
        await again.lifecycle.wait_until_active()
        assert again.lifecycle.lease.is_valid()
        assert cluster.image.topics == {}, "this node still serves its published image"

        creating = asyncio.get_running_loop().create_task(
            cluster.controller.create_topics([NewTopic("more", assignment={0: [3]})])
        )
        await cluster.pass_ms(1_000)
        assert not creating.done(), "the response waits until the topic is published"
        logs.are_open.set()
        [created] = await creating
        assert created.error is None
        assert "more" in cluster.image.topics

    run_on_virtual_time(scenario)


def test_a_controller_deactivates_though_its_node_lags_behind() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        logs = OpensLogs(cluster.nodes[2])
        await with_topic(cluster, [3, 2])
        cluster.elect(2)
        cluster.nodes[2].controller.leader_changed(2, cluster.epoch)
        assert cluster.nodes[2].controller.is_active, "a repeated notification changes nothing"
        cluster.elect(3)
        assert not cluster.nodes[2].controller.is_active
        logs.are_open.set()
        await cluster.pass_ms(1_000)
        assert not cluster.nodes[2].controller.is_active, "a late publication does not activate it"
        assert cluster.nodes[3].controller.is_active

    run_on_virtual_time(scenario)


def test_a_new_controller_recomputes_elrs_with_its_own_min_isr(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster of an earlier version, settings change node by node: the node that lowered min.insync.replicas
    first led a partition under a controller that had not."""
    monkeypatch.setattr(elections, "RECORDS_PER_DECISION_MAX", 2)
    monkeypatch.setattr(feature_control, "SUPPORTED_FEATURES", {METADATA_VERSION: (30, 30)})

    async def restart(cluster: ControllerCluster, node_id: int) -> None:
        previous = cluster.nodes[node_id].lifecycle.broker_epoch
        await cluster.nodes[node_id].kill()
        if cluster.leader_id == node_id:
            cluster.elect(1)
        node = cluster.add(node_id, previous_epoch=previous)
        await node.start()
        await node.lifecycle.wait_until_active()

    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3, leader=3)
        await with_topic(cluster, *[[1, 2]] * 5)
        await cluster.nodes[2].kill()
        await cluster.until(lambda: all(partition(cluster, index).isr == (1,) for index in range(5)))
        cluster.settings["topic_defaults"] = TopicSettings(min_insync_replicas=1)
        await restart(cluster, 1)
        await cluster.until(lambda: partition(cluster).leader == 1)
        assert partition(cluster).elr == (2,)
        first = len(cluster.batches)
        await restart(cluster, 3)
        await cluster.until(lambda: all(partition(cluster, index).elr == () for index in range(5)))
        assert partition(cluster).leader not in (2, NO_LEADER)
        assert max(len(batch.values) for batch in cluster.batches[first:]) == 2

    run_on_virtual_time(scenario, topic_defaults=TopicSettings(min_insync_replicas=2))
