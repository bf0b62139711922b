"""Who waits for a topic hears when it is ready, or what is missing."""

import asyncio

import pytest

from moldau.controller.requests import (
    NewTopic,
    OfflineReplica,
)
from moldau.errors import (
    NotControllerError,
)
from support.brokers_and_controllers import ControllerCluster, run_on_virtual_time
from support.upkeep_stage import (
    is_fenced,
    with_topic,
)


def test_a_topic_is_ready_in_milliseconds_and_not_at_the_next_heartbeat() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        await stage.pass_ms(777)
        began_ms = stage.clock.monotonic_ms()
        await with_topic(stage, [1, 2, 3], [2, 3, 1])
        assert await stage.controller.wait_replicas_ready(["orders"], began_ms + 30_000) == {}
        assert stage.clock.monotonic_ms() - began_ms < 50

    run_on_virtual_time(story)


def test_what_is_not_ready_is_named_with_the_reason() -> None:
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
        # What passes is waited for.
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


def test_who_waits_for_a_topic_hears_of_the_end_of_the_controller() -> None:
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
