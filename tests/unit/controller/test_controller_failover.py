"""A new controller: full sessions, leases that expire before other leaders, and completion of pending changes."""

import asyncio
from functools import partial
from typing import Any

import pytest

from moldau.controller import background_tasks as tasks
from moldau.controller import cluster_control as broker_decisions
from moldau.controller.requests import (
    BrokerHeartbeat,
    NewTopic,
)
from moldau.controller.state import ControllerState
from moldau.coordinator import CoordinatorResult
from moldau.errors import (
    NotControllerError,
    StorageError,
)
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
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        no_lease_outlives_its_session(stage)
        await stage.pass_ms(2_000)
        stage.nodes[3].cut_off()
        await stage.pass_ms(2_000)
        stage.elect(2)
        took_ms = await stage.until(lambda: is_fenced(stage, 3))
        assert SESSION_MS <= took_ms <= SESSION_MS + 50

    run_on_virtual_time(story)


def test_a_new_controller_probes_all_brokers_at_once() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3, 4)
        await with_topic(stage, [1, 4, 2, 3])
        await stage.nodes[4].kill()
        await stage.nodes[1].kill()
        stage.elect(2)
        assert await stage.until(lambda: is_fenced(stage, 1) and is_fenced(stage, 4)) < 100
        assert orders(stage).leader == 2

    run_on_virtual_time(story)


@pytest.mark.parametrize("session_ms", [3_000, 9_000])
@pytest.mark.parametrize("elected_after_ms", [FETCH_TIMEOUT_MS, 1_700, 2_400])
def test_a_partitioned_controller_is_fenced_early_but_after_its_lease(
    session_ms: int, elected_after_ms: int
) -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        no_lease_outlives_its_session(stage)
        await with_topic(stage, [1, 2, 3])
        await stage.pass_ms(1_234)
        stage.nodes[1].cut_off()
        await stage.pass_ms(elected_after_ms)
        stage.elect(2)
        took_ms = await stage.until(lambda: is_fenced(stage, 1))
        assert took_ms <= max(session_ms - FETCH_TIMEOUT_MS, session_ms // 2) + 50
        assert orders(stage).leader == 2

    run_on_virtual_time(story, broker_session_timeout_ms=session_ms)


def test_a_resigned_controller_is_fenced_only_after_its_lease() -> None:
    """The previous controller was not silent before the election, so its lease may be fresh."""

    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        no_lease_outlives_its_session(stage)
        await stage.pass_ms(1_001)
        stage.elect(2)
        stage.nodes[1].cut_off()
        assert await stage.until(lambda: is_fenced(stage, 1)) >= SESSION_MS - INTERVAL_MS

    run_on_virtual_time(story)


def test_leases_do_not_depend_on_publishing_on_the_controllers_node() -> None:
    """Opening the logs of a large topic takes long and must not delay heartbeats."""

    async def story(stage: ControllerCluster) -> None:
        async def slow(delta: MetadataDelta, image: MetadataImage) -> None:
            if delta.topics_created:
                await asyncio.sleep(4)

        await stage.boot(1, 2, 3)
        stage.nodes[1].loader._publishers.append(slow)
        creating = asyncio.ensure_future(
            stage.controller.create_topics([NewTopic("big", partitions=10, replication_factor=3)])
        )
        for _ in range(400):
            await stage.pass_ms(10)
            assert all(node.lifecycle.lease.is_valid() for node in stage.nodes.values())
        await creating
        assert not any(is_fenced(stage, broker_id) for broker_id in (1, 2, 3))

    run_on_virtual_time(story)


def test_a_heartbeat_reply_reflects_committed_state() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2)
        await stage.pass_ms(100)
        epoch = stage.nodes[2].lifecycle.broker_epoch
        fencing = asyncio.ensure_future(
            stage.controller.heartbeat(BrokerHeartbeat(2, epoch, 0, want_fence=True))
        )
        told = asyncio.ensure_future(stage.controller.heartbeat(BrokerHeartbeat(2, epoch, 0)))
        await stage.until(told.done)
        assert fencing.done()
        assert (await told).is_fenced
        assert is_fenced(stage, 2)

    run_on_virtual_time(story)


def test_a_single_refused_connection_does_not_fence_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        answers: list[ProbeResult] = []

        async def probe(self: Node, broker_id: int) -> ProbeResult:
            answers.append(ProbeResult.REFUSED if not answers else ProbeResult.REACHABLE)
            return answers[-1]

        monkeypatch.setattr(stage.controller._tasks, "_probe", partial(probe, stage.nodes[1]))
        await stage.nodes[2].lifecycle.close()
        stage.controller.broker_connection_closed(2, stage.nodes[2].lifecycle.broker_epoch)
        await stage.pass_ms(1_500)
        assert answers[:2] == [ProbeResult.REFUSED, ProbeResult.REACHABLE]
        assert not is_fenced(stage, 2)

    run_on_virtual_time(story)


def test_new_partitions_avoid_a_broker_whose_process_just_died() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3, 4)
        await stage.nodes[4].kill()
        stage.elect(2)
        await stage.until(lambda: stage.controller.is_active)
        topics = [NewTopic(f"topic-{number}", partitions=6, replication_factor=2) for number in range(3)]
        await stage.controller.create_topics(topics)
        created = [each for topic in stage.image.topics.values() for each in topic.partitions]
        assert len(created) == 18
        assert not any(4 in each.replicas for each in created)

    run_on_virtual_time(story)


def test_a_failed_fencing_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = False

    def fence(state: ControllerState, *more: Any) -> CoordinatorResult[Record, bool]:
        nonlocal failed
        if not failed:
            failed = True
            raise ValueError("a bug")
        return broker_decisions.fence_broker(state, *more)

    monkeypatch.setattr(tasks, "fence_broker", fence)

    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2)
        stage.nodes[2].cut_off()
        await stage.until(lambda: is_fenced(stage, 2))
        assert failed
        stage.nodes[2].heal()

    run_on_virtual_time(story)


def test_features_of_a_new_cluster_are_written_when_the_log_accepts_them() -> None:
    async def story(stage: ControllerCluster) -> None:
        stage.add(1).quorum.append_error = StorageError("the disk is full")
        stage.elect(1)
        await stage.pass_ms(100)
        stage.nodes[1].quorum.append_error = None
        await stage.until(lambda: "metadata.version" in stage.image.features)

    run_on_virtual_time(story)


def test_a_controllers_node_shuts_down_soon_despite_slow_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own heartbeat times out before the response."""

    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [1, 2, 3])
        await stage.pass_ms(700)
        began_ms = stage.clock.monotonic_ms()
        monkeypatch.setattr(controller_cluster, "COMMIT_S", 1.2)
        asyncio.get_running_loop().call_later(
            0.05, lambda: monkeypatch.setattr(controller_cluster, "COMMIT_S", 0.004)
        )
        await stage.nodes[1].lifecycle.shut_down()
        assert is_fenced(stage, 1)
        assert stage.clock.monotonic_ms() - began_ms < 2_000

    run_on_virtual_time(story)


def test_a_controller_without_its_majority_extends_no_lease_past_its_successors_fencing() -> None:
    """Broker 3 is partitioned together with the old controller."""

    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        no_lease_outlives_its_session(stage)
        stage.nodes[3].stuck_with = 1
        stage.nodes[3].is_cut_off = True
        stage.nodes[1].cut_off()
        await stage.pass_ms(FETCH_TIMEOUT_MS)
        stage.elect(2)
        await stage.until(lambda: is_fenced(stage, 3))

    run_on_virtual_time(story)


def test_a_new_controller_completes_changes_of_the_previous_one() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [3, 2, 1])
        stage.nodes[3].cut_off()
        # The broker is fenced, but its partition changes were lost with the controller.
        record = BrokerRegistrationChangeRecord(
            broker_id=3, broker_epoch=stage.image.brokers[3].epoch, fenced=1
        )
        offset = stage.end_offset
        stage.commit(CommittedBatch(offset, offset, stage.epoch, (encode(record),)))
        stage.elect(2)
        await stage.until(lambda: orders(stage).leader == 2, within_ms=100)
        assert 3 not in orders(stage).isr

    run_on_virtual_time(story)


def test_a_deactivated_controller_rejects_requests_and_its_timers_do_nothing() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        former = stage.controller
        stage.elect(2)
        with pytest.raises(NotControllerError):
            await former.heartbeat(BrokerHeartbeat(3, stage.nodes[3].lifecycle.broker_epoch, 0))
        with pytest.raises(NotControllerError):
            await former.wait_replicas_ready(["orders"], 10**9)
        with pytest.raises(NotControllerError):
            former.list_partition_reassignments()
        await stage.pass_ms(10_000)
        assert not any(is_fenced(stage, broker_id) for broker_id in (1, 2, 3))

    run_on_virtual_time(story)
