"""Waiting until the replicas of a topic are ready."""

import asyncio

import pytest

from moldau.controller.requests import NewTopic, OfflineReplica
from moldau.errors import NotControllerError
from support.controller_cluster import ControllerCluster, run_on_virtual_time
from support.controller_cluster_helpers import is_fenced, with_topic


def test_a_topic_is_ready_without_waiting_for_the_heartbeat_interval() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await cluster.pass_ms(777)
        began_ms = cluster.clock.monotonic_ms()
        await with_topic(cluster, [1, 2, 3], [2, 3, 1])
        assert await cluster.controller.wait_replicas_ready(["orders"], began_ms + 30_000) == {}
        assert cluster.clock.monotonic_ms() - began_ms < 50

    run_on_virtual_time(scenario)


def test_unready_replicas_are_listed_with_the_reason() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3, 4)
        cluster.nodes[4].cut_off()
        await cluster.until(lambda: is_fenced(cluster, 4))
        cluster.nodes[2].cut_off()
        topic = NewTopic("orders", assignment={0: [1, 2, 3, 4], 1: [1, 3, 2, 4]})
        node = cluster.nodes[3]
        node.loader.add_image_listener(lambda image: None)

        [created] = await cluster.controller.create_topics([topic])
        assert created.topic_id is not None
        node.not_ready = [OfflineReplica(created.topic_id, 0, 3, "No space left on device")]
        node.lifecycle.report(cluster.end_offset - 1, node.not_ready)
        deadline_ms = cluster.clock.monotonic_ms() + 1_000
        assert await cluster.controller.wait_replicas_ready(["orders"], deadline_ms) == {
            "orders": [
                "orders-0 on node 3: its log could not be opened: No space left on device",
                "node 2 has not applied the metadata yet",
                "node 4 is fenced",
            ]
        }
        assert await cluster.controller.wait_replicas_ready(["no-such"], deadline_ms) == {}
        # A transient failure is waited for.
        node.not_ready = []
        node.lifecycle.report(cluster.end_offset - 1, [])
        cluster.nodes[2].heal()
        cluster.nodes[4].heal()
        assert await cluster.controller.wait_replicas_ready(["orders"], deadline_ms + 10_000) == {}

    run_on_virtual_time(scenario)


def test_only_new_partitions_are_waited_for() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        await with_topic(cluster, [2], [1])
        cluster.nodes[2].cut_off()
        await cluster.until(lambda: is_fenced(cluster, 2))
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
