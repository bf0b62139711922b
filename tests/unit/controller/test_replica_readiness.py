"""Waiting until the replicas of a topic are ready."""

import asyncio

import pytest

from moldau.controller.requests import (
    NewTopic,
    OfflineReplica,
)
from moldau.errors import (
    NotControllerError,
)
from support.controller_cluster import ControllerCluster, run_on_virtual_time
from support.controller_cluster_helpers import (
    is_fenced,
    with_topic,
)


def test_a_topic_is_ready_without_waiting_for_the_heartbeat_interval() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        await stage.pass_ms(777)
        began_ms = stage.clock.monotonic_ms()
        await with_topic(stage, [1, 2, 3], [2, 3, 1])
        assert await stage.controller.wait_replicas_ready(["orders"], began_ms + 30_000) == {}
        assert stage.clock.monotonic_ms() - began_ms < 50

    run_on_virtual_time(story)


def test_unready_replicas_are_listed_with_the_reason() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3, 4)
        stage.nodes[4].cut_off()
        await stage.until(lambda: is_fenced(stage, 4))
        stage.nodes[2].cut_off()
        topic = NewTopic("orders", assignment={0: [1, 2, 3, 4], 1: [1, 3, 2, 4]})
        node = stage.nodes[3]
        node.loader.add_image_listener(lambda image: None)

        [created] = await stage.controller.create_topics([topic])
        assert created.topic_id is not None
        node.not_ready = [OfflineReplica(created.topic_id, 0, 3, "No space left on device")]
        node.lifecycle.report(stage.end_offset - 1, node.not_ready)
        deadline_ms = stage.clock.monotonic_ms() + 1_000
        assert await stage.controller.wait_replicas_ready(["orders"], deadline_ms) == {
            "orders": [
                "orders-0 on node 3: its log could not be opened: No space left on device",
                "node 2 has not applied the metadata yet",
                "node 4 is fenced",
            ]
        }
        assert await stage.controller.wait_replicas_ready(["no-such"], deadline_ms) == {}
        # A transient failure is waited for.
        node.not_ready = []
        node.lifecycle.report(stage.end_offset - 1, [])
        stage.nodes[2].heal()
        stage.nodes[4].heal()
        assert await stage.controller.wait_replicas_ready(["orders"], deadline_ms + 10_000) == {}

    run_on_virtual_time(story)


def test_only_new_partitions_are_waited_for() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2)
        await with_topic(stage, [2], [1])
        stage.nodes[2].cut_off()
        await stage.until(lambda: is_fenced(stage, 2))
        now_ms = stage.clock.monotonic_ms()
        assert await stage.controller.wait_replicas_ready(["orders"], now_ms) != {}
        assert (
            await stage.controller.wait_replicas_ready(["orders"], now_ms, first_partition={"orders": 1})
            == {}
        )

    run_on_virtual_time(story)


def test_waiting_for_readiness_ends_when_the_controller_deactivates() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        stage.nodes[3].cut_off()
        await with_topic(stage, [1, 3])
        waiting = asyncio.ensure_future(stage.controller.wait_replicas_ready(["orders"], 10**9))
        await stage.pass_ms(100)
        stage.elect(2)
        with pytest.raises(NotControllerError):
            await waiting

    run_on_virtual_time(story)
