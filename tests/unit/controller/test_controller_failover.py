"""A new controller: full sessions, leases that expire before other leaders, and completion of pending changes."""

import asyncio
from functools import partial
from typing import Any

import pytest

from moldau.controller import background_tasks as tasks
from moldau.controller import cluster_control as broker_decisions
from moldau.controller.requests import BrokerHeartbeat, NewTopic
from moldau.controller.state import ControllerState
from moldau.coordinator import CoordinatorResult
from moldau.errors import NotControllerError, StorageError
from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.metadata.records import BrokerRegistrationChangeRecord, Record, encode
from moldau.peers.probe import ProbeResult
from moldau.raft.batches import CommittedBatch
from support import controller_cluster
from support.controller_cluster import ControllerCluster, Node, run_on_virtual_time
from support.controller_cluster_helpers import (
    FETCH_TIMEOUT_MS,
    INTERVAL_MS,
    SESSION_MS,
    is_fenced,
    no_lease_outlives_its_session,
    orders,
    with_topic,
)


def test_a_new_controller_starts_a_full_session_for_each_broker() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        no_lease_outlives_its_session(cluster)
        await cluster.pass_ms(2_000)
        cluster.nodes[3].cut_off()
        await cluster.pass_ms(2_000)
        cluster.elect(2)
        took_ms = await cluster.until(lambda: is_fenced(cluster, 3))
        assert SESSION_MS <= took_ms <= SESSION_MS + 50

    run_on_virtual_time(scenario)


def test_a_new_controller_probes_all_brokers_at_once() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3, 4)
        await with_topic(cluster, [1, 4, 2, 3])
        await cluster.nodes[4].kill()
        await cluster.nodes[1].kill()
        cluster.elect(2)
        assert await cluster.until(lambda: is_fenced(cluster, 1) and is_fenced(cluster, 4)) < 100
        assert orders(cluster).leader == 2

    run_on_virtual_time(scenario)


@pytest.mark.parametrize("session_ms", [3_000, 9_000])
@pytest.mark.parametrize("elected_after_ms", [FETCH_TIMEOUT_MS, 1_700, 2_400])
def test_a_partitioned_controller_is_fenced_early_but_after_its_lease(session_ms: int, elected_after_ms: int) -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        no_lease_outlives_its_session(cluster)
        await with_topic(cluster, [1, 2, 3])
        await cluster.pass_ms(1_234)
        cluster.nodes[1].cut_off()
        await cluster.pass_ms(elected_after_ms)
        cluster.elect(2)
        took_ms = await cluster.until(lambda: is_fenced(cluster, 1))
        assert took_ms <= max(session_ms - FETCH_TIMEOUT_MS, session_ms // 2) + 50
        assert orders(cluster).leader == 2

    run_on_virtual_time(scenario, broker_session_timeout_ms=session_ms)


def test_a_resigned_controller_is_fenced_only_after_its_lease() -> None:
    """The previous controller was not silent before the election, so its lease may be fresh."""

    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        no_lease_outlives_its_session(cluster)
        await cluster.pass_ms(1_001)
        cluster.elect(2)
        cluster.nodes[1].cut_off()
        assert await cluster.until(lambda: is_fenced(cluster, 1)) >= SESSION_MS - INTERVAL_MS

    run_on_virtual_time(scenario)


def test_leases_do_not_depend_on_publishing_on_the_controllers_node() -> None:
    """Opening the logs of a large topic takes long and must not delay heartbeats."""

    async def scenario(cluster: ControllerCluster) -> None:
        async def slow(delta: MetadataDelta, image: MetadataImage) -> None:
            if delta.topics_created:
                await asyncio.sleep(4)

        await cluster.boot(1, 2, 3)
        cluster.nodes[1].loader._publishers.append(slow)
        creating = asyncio.ensure_future(
            cluster.controller.create_topics([NewTopic("big", partitions=10, replication_factor=3)])
        )
        for _ in range(400):
            await cluster.pass_ms(10)
            assert all(node.lifecycle.lease.is_valid() for node in cluster.nodes.values())
        await creating
        assert not any(is_fenced(cluster, broker_id) for broker_id in (1, 2, 3))

    run_on_virtual_time(scenario)


def test_a_heartbeat_reply_reflects_committed_state() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        await cluster.pass_ms(100)
        epoch = cluster.nodes[2].lifecycle.broker_epoch
        fencing = asyncio.ensure_future(cluster.controller.heartbeat(BrokerHeartbeat(2, epoch, 0, want_fence=True)))
        reply = asyncio.ensure_future(cluster.controller.heartbeat(BrokerHeartbeat(2, epoch, 0)))
        await cluster.until(reply.done)
        assert fencing.done()
        assert (await reply).is_fenced
        assert is_fenced(cluster, 2)

    run_on_virtual_time(scenario)


def test_a_single_refused_connection_does_not_fence_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        answers: list[ProbeResult] = []

        async def probe(self: Node, broker_id: int) -> ProbeResult:
            answers.append(ProbeResult.REFUSED if not answers else ProbeResult.REACHABLE)
            return answers[-1]

        monkeypatch.setattr(cluster.controller._tasks, "_probe", partial(probe, cluster.nodes[1]))
        await cluster.nodes[2].lifecycle.close()
        cluster.controller.broker_connection_closed(2, cluster.nodes[2].lifecycle.broker_epoch)
        await cluster.pass_ms(1_500)
        assert answers[:2] == [ProbeResult.REFUSED, ProbeResult.REACHABLE]
        assert not is_fenced(cluster, 2)

    run_on_virtual_time(scenario)


def test_new_partitions_avoid_a_broker_whose_process_just_died() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3, 4)
        await cluster.nodes[4].kill()
        cluster.elect(2)
        await cluster.until(lambda: cluster.controller.is_active)
        topics = [NewTopic(f"topic-{number}", partitions=6, replication_factor=2) for number in range(3)]
        await cluster.controller.create_topics(topics)
        created = [each for topic in cluster.image.topics.values() for each in topic.partitions]
        assert len(created) == 18
        assert not any(4 in each.replicas for each in created)

    run_on_virtual_time(scenario)


def test_a_failed_fencing_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = False

    def fence(state: ControllerState, *more: Any) -> CoordinatorResult[Record, bool]:
        nonlocal failed
        if not failed:
            failed = True
            raise ValueError("a bug")
        return broker_decisions.fence_broker(state, *more)

    monkeypatch.setattr(tasks, "fence_broker", fence)

    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        cluster.nodes[2].cut_off()
        await cluster.until(lambda: is_fenced(cluster, 2))
        assert failed
        cluster.nodes[2].heal()

    run_on_virtual_time(scenario)


def test_features_of_a_new_cluster_are_written_when_the_log_accepts_them() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        cluster.add(1).quorum.append_error = StorageError("the disk is full")
        cluster.elect(1)
        await cluster.pass_ms(100)
        cluster.nodes[1].quorum.append_error = None
        await cluster.until(lambda: "metadata.version" in cluster.image.features)

    run_on_virtual_time(scenario)


def test_a_controllers_node_shuts_down_soon_despite_slow_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own heartbeat times out before the response."""

    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [1, 2, 3])
        await cluster.pass_ms(700)
        began_ms = cluster.clock.monotonic_ms()
        monkeypatch.setattr(controller_cluster, "COMMIT_S", 1.2)
        asyncio.get_running_loop().call_later(0.05, lambda: monkeypatch.setattr(controller_cluster, "COMMIT_S", 0.004))
        await cluster.nodes[1].lifecycle.shut_down()
        assert is_fenced(cluster, 1)
        assert cluster.clock.monotonic_ms() - began_ms < 2_000

    run_on_virtual_time(scenario)


def test_a_controller_without_its_majority_extends_no_lease_past_its_successors_fencing() -> None:
    """Broker 3 is partitioned together with the old controller."""

    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        no_lease_outlives_its_session(cluster)
        cluster.nodes[3].stuck_with = 1
        cluster.nodes[3].is_cut_off = True
        cluster.nodes[1].cut_off()
        await cluster.pass_ms(FETCH_TIMEOUT_MS)
        cluster.elect(2)
        await cluster.until(lambda: is_fenced(cluster, 3))

    run_on_virtual_time(scenario)


def test_a_new_controller_completes_changes_of_the_previous_one() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [3, 2, 1])
        cluster.nodes[3].cut_off()
        # The broker is fenced, but its partition changes were lost with the controller.
        record = BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=cluster.image.brokers[3].epoch, fenced=1)
        offset = cluster.end_offset
        cluster.commit(CommittedBatch(offset, offset, cluster.epoch, (encode(record),)))
        cluster.elect(2)
        await cluster.until(lambda: orders(cluster).leader == 2, within_ms=100)
        assert 3 not in orders(cluster).isr

    run_on_virtual_time(scenario)


def test_a_deactivated_controller_rejects_requests_and_its_timers_do_nothing() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        previous = cluster.controller
        cluster.elect(2)
        with pytest.raises(NotControllerError):
            await previous.heartbeat(BrokerHeartbeat(3, cluster.nodes[3].lifecycle.broker_epoch, 0))
        with pytest.raises(NotControllerError):
            await previous.wait_replicas_ready(["orders"], 10**9)
        with pytest.raises(NotControllerError):
            previous.list_partition_reassignments()
        await cluster.pass_ms(10_000)
        assert not any(is_fenced(cluster, broker_id) for broker_id in (1, 2, 3))

    run_on_virtual_time(scenario)
