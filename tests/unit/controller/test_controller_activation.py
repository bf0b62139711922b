"""Activation of a controller: on a busy node, and with other settings than the previous one."""

import asyncio

import pytest

from moldau.controller import elections
from moldau.controller.requests import CreateTopicResult, NewTopic
from moldau.metadata.image import NO_LEADER, MetadataDelta, MetadataImage, PartitionRegistration
from moldau.settings.topic import TopicSettings
from support.controller_cluster import ControllerCluster, Node, run_on_virtual_time


async def with_topic(stage: ControllerCluster, *replicas: list[int]) -> CreateTopicResult:
    [created] = await stage.controller.create_topics(
        [NewTopic("orders", assignment=dict(enumerate(replicas)))]
    )
    assert created.error is None
    return created


def partition(stage: ControllerCluster, index: int = 0) -> PartitionRegistration:
    return stage.nodes[stage.leader_id].loader.committed_image.topics["orders"].partitions[index]


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
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3, 4)
        logs = OpensLogs(stage.nodes[2])
        await with_topic(stage, [4, 3])
        await stage.nodes[1].kill()
        stage.elect(2)
        assert stage.nodes[2].controller.is_active
        await stage.pass_ms(10_000)
        assert stage.nodes[3].lifecycle.lease.is_valid()
        assert stage.nodes[2].lifecycle.lease.is_valid()

        # Other brokers restart and get their responses.
        await stage.nodes[4].kill()
        await stage.until(lambda: partition(stage).leader == 3)
        again = stage.add(4)
        await again.start()
        await again.lifecycle.wait_until_active()
        assert again.lifecycle.lease.is_valid()
        assert stage.image.topics == {}, "this node still serves its published image"

        creating = asyncio.get_running_loop().create_task(
            stage.controller.create_topics([NewTopic("more", assignment={0: [3]})])
        )
        await stage.pass_ms(1_000)
        assert not creating.done(), "the response waits until the topic is published"
        logs.are_open.set()
        [created] = await creating
        assert created.error is None
        assert "more" in stage.image.topics

    run_on_virtual_time(story)


def test_a_controller_deactivates_though_its_node_lags_behind() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        logs = OpensLogs(stage.nodes[2])
        await with_topic(stage, [3, 2])
        stage.elect(2)
        stage.nodes[2].controller.leader_changed(2, stage.epoch)
        assert stage.nodes[2].controller.is_active, "a repeated notification changes nothing"
        stage.elect(3)
        assert not stage.nodes[2].controller.is_active
        logs.are_open.set()
        await stage.pass_ms(1_000)
        assert not stage.nodes[2].controller.is_active, "a late publication does not activate it"
        assert stage.nodes[3].controller.is_active

    run_on_virtual_time(story)


def test_a_new_controller_recomputes_elrs_with_its_own_min_isr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Settings change node by node: the node that lowered min.insync.replicas first led a partition under a
    controller that had not."""
    monkeypatch.setattr(elections, "RECORDS_PER_DECISION_MAX", 2)

    async def restart(stage: ControllerCluster, node_id: int) -> None:
        former = stage.nodes[node_id].lifecycle.broker_epoch
        await stage.nodes[node_id].kill()
        if stage.leader_id == node_id:
            stage.elect(1)
        node = stage.add(node_id, previous_epoch=former)
        await node.start()
        await node.lifecycle.wait_until_active()

    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3, leader=3)
        await with_topic(stage, *[[1, 2]] * 5)
        await stage.nodes[2].kill()
        await stage.until(lambda: all(partition(stage, index).isr == (1,) for index in range(5)))
        stage.settings["topic_defaults"] = TopicSettings(min_insync_replicas=1)
        await restart(stage, 1)
        await stage.until(lambda: partition(stage).leader == 1)
        assert partition(stage).elr == (2,)
        first = len(stage.batches)
        await restart(stage, 3)
        await stage.until(lambda: all(partition(stage, index).elr == () for index in range(5)))
        assert partition(stage).leader not in (2, NO_LEADER)
        assert max(len(batch.values) for batch in stage.batches[first:]) == 2

    run_on_virtual_time(story, topic_defaults=TopicSettings(min_insync_replicas=2))
