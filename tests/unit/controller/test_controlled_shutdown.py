"""Controlled shutdown moves leadership before a broker stops."""

import asyncio

import pytest

from moldau.broker_lifecycle.manager import HANDOVER_WAIT_MS
from moldau.broker_lifecycle.state import BrokerState
from moldau.controller.background_tasks import BackgroundTasks
from moldau.controller.cluster_control import HeartbeatOutcome
from moldau.controller.requests import BrokerHeartbeat
from support.controller_cluster import ControllerCluster, run_on_virtual_time
from support.controller_cluster_helpers import INTERVAL_MS, SESSION_MS, is_fenced, orders, with_topic


def test_a_controlled_shutdown_moves_leadership_before_it_completes() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [2, 3, 1], [3, 2, 1])
        node = cluster.nodes[2]
        await node.lifecycle.shut_down()
        assert orders(cluster).leader == 3
        assert [2 in orders(cluster, index).isr for index in (0, 1)] == [False, False]
        assert is_fenced(cluster, 2)
        assert not node.lifecycle.lease.is_valid()
        for other in (1, 3):
            assert cluster.nodes[other].loader.image.topics["orders"].partitions[0].leader == 3
        # It may register again at once, without waiting for its session to expire.
        epoch = node.lifecycle.broker_epoch
        await node.close()
        began_ms = cluster.clock.monotonic_ms()
        await cluster.add(2, previous_epoch=epoch).start()
        assert cluster.clock.monotonic_ms() - began_ms < 100

    run_on_virtual_time(scenario)


def test_a_shutdown_takes_no_longer_than_the_other_brokers_need() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [2, 3, 1])
        for broker_id in (2, 1):
            began_ms = cluster.clock.monotonic_ms()
            await cluster.nodes[broker_id].lifecycle.shut_down()
            assert cluster.clock.monotonic_ms() - began_ms < INTERVAL_MS // 10

    run_on_virtual_time(scenario)


def test_a_report_that_arrives_while_a_heartbeat_is_processed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [2, 1])
        controller, other = cluster.nodes[1].controller, cluster.nodes[3]
        process = controller._process_heartbeat
        reported_ms: list[int] = []

        async def process_until_reported(tasks: BackgroundTasks, beat: BrokerHeartbeat) -> HeartbeatOutcome:
            outcome = await process(tasks, beat)
            offset = outcome.controlled_shutdown_offset
            if offset is not None and not outcome.reply.should_shut_down and not reported_ms:
                other.heal()
                await cluster.until(lambda: tasks.heartbeat_manager.metadata_offset_of(3) >= offset)
                reported_ms.append(cluster.clock.monotonic_ms())
            return outcome

        monkeypatch.setattr(controller, "_process_heartbeat", process_until_reported)
        other.cut_off()
        await cluster.nodes[2].lifecycle.shut_down()
        assert cluster.clock.monotonic_ms() - reported_ms[0] < INTERVAL_MS // 10

    run_on_virtual_time(scenario)


def test_a_heartbeat_of_a_stopping_broker_is_answered_before_it_times_out() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [2, 1])
        cluster.nodes[3].cut_off()
        epoch = cluster.nodes[2].lifecycle.broker_epoch
        beat = BrokerHeartbeat(2, epoch, 0, want_shut_down=True)
        began_ms = cluster.clock.monotonic_ms()
        reply = await cluster.nodes[1].controller.heartbeat(beat)
        assert not reply.should_shut_down
        assert cluster.clock.monotonic_ms() - began_ms <= INTERVAL_MS

    run_on_virtual_time(scenario)


def test_a_shutdown_waits_for_a_lagging_broker_until_that_is_fenced() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [2, 1])
        cluster.nodes[3].cut_off()
        began_ms = cluster.clock.monotonic_ms()
        await cluster.nodes[2].lifecycle.shut_down()
        assert is_fenced(cluster, 3)
        assert cluster.clock.monotonic_ms() - began_ms <= SESSION_MS + 200

    run_on_virtual_time(scenario)


def test_all_brokers_may_stop_at_the_same_time() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [1, 2, 3])
        began_ms = cluster.clock.monotonic_ms()
        for broker_id in (3, 2, 1):
            await cluster.nodes[broker_id].lifecycle.shut_down()
        assert cluster.clock.monotonic_ms() - began_ms < 1_000
        assert orders(cluster).leader == -1
        assert len(orders(cluster).isr) == 1, "the last one has all records"

    run_on_virtual_time(scenario)


def test_a_shutdown_without_a_controller_completes() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        await cluster.nodes[1].kill()
        began_ms = cluster.clock.monotonic_ms()
        await cluster.nodes[2].lifecycle.shut_down()
        assert cluster.clock.monotonic_ms() - began_ms <= SESSION_MS + 3 * INTERVAL_MS

    run_on_virtual_time(scenario)


def test_a_shutdown_continues_with_the_next_controller() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [3, 2, 1])
        cluster.nodes[2].cut_off()
        leaving = asyncio.ensure_future(cluster.nodes[3].lifecycle.shut_down())
        await cluster.until(lambda: cluster.image.brokers[3].in_controlled_shutdown)
        await cluster.nodes[1].kill()
        cluster.nodes[2].heal()
        cluster.elect(2)
        await leaving
        assert is_fenced(cluster, 3)
        assert orders(cluster).leader == 2

    run_on_virtual_time(scenario)


def test_a_broker_waits_for_the_handover_only_while_it_shuts_down() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [2, 3, 1])
        lifecycle, clock = cluster.nodes[2].lifecycle, cluster.clock
        began_ms = clock.monotonic_ms()
        await lifecycle.wait_for_handover()
        assert clock.monotonic_ms() == began_ms
        leaving = asyncio.ensure_future(lifecycle.shut_down())
        await cluster.until(lambda: lifecycle.phase is BrokerState.CONTROLLED_SHUTDOWN)
        await lifecycle.wait_for_handover()
        assert lifecycle.phase is BrokerState.STOPPED
        for other in (1, 3):
            assert cluster.nodes[other].loader.image.topics["orders"].partitions[0].leader == 3
        await leaving

    run_on_virtual_time(scenario)


def test_the_wait_for_the_handover_is_limited() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [2, 1])
        cluster.nodes[3].cut_off()
        leaving = asyncio.ensure_future(cluster.nodes[2].lifecycle.shut_down())
        await cluster.until(lambda: cluster.nodes[2].lifecycle.phase is BrokerState.CONTROLLED_SHUTDOWN)
        began_ms = cluster.clock.monotonic_ms()
        await cluster.nodes[2].lifecycle.wait_for_handover()
        assert HANDOVER_WAIT_MS <= cluster.clock.monotonic_ms() - began_ms <= HANDOVER_WAIT_MS + 20
        await leaving

    run_on_virtual_time(scenario)
