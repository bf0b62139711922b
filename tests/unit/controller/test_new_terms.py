"""A new controller: fresh sessions, leases that end before others lead, what the one before had begun."""

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
from support import brokers_and_controllers
from support.brokers_and_controllers import ControllerCluster, Node, run_on_virtual_time
from support.upkeep_stage import (
    FETCH_TIMEOUT_MS,
    INTERVAL_MS,
    SESSION_MS,
    is_fenced,
    no_lease_outlives_its_session,
    orders,
    with_topic,
)


def test_a_new_controller_gives_everybody_a_fresh_session() -> None:
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


def test_a_new_controller_looks_at_once_who_is_gone() -> None:
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
def test_a_controller_that_is_cut_off_is_fenced_sooner_and_its_own_lease_is_over_by_then(
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


def test_a_controller_that_hands_over_is_not_fenced_before_its_lease_is_over() -> None:
    """Nobody was silent when another one was elected: its lease may be a moment old."""

    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        no_lease_outlives_its_session(stage)
        await stage.pass_ms(1_001)
        stage.elect(2)
        stage.nodes[1].cut_off()
        assert await stage.until(lambda: is_fenced(stage, 1)) >= SESSION_MS - INTERVAL_MS

    run_on_virtual_time(story)


def test_leases_do_not_wait_for_what_the_controllers_own_node_is_slow_to_take() -> None:
    """Opening the logs of a large topic takes long; a heartbeat that changes nothing has nothing to do with it."""

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


def test_what_a_heartbeat_tells_of_its_broker_is_committed() -> None:
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


def test_one_refused_connection_is_not_the_end_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_no_new_replicas_are_given_to_a_broker_whose_process_is_just_gone() -> None:
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


def test_a_broker_whose_fencing_failed_is_fenced_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_new_cluster_gets_its_features_when_the_log_takes_them() -> None:
    async def story(stage: ControllerCluster) -> None:
        stage.add(1).quorum.append_error = StorageError("the disk is full")
        stage.elect(1)
        await stage.pass_ms(100)
        stage.nodes[1].quorum.append_error = None
        await stage.until(lambda: "metadata.version" in stage.image.features)

    run_on_virtual_time(story)


def test_a_controllers_node_shuts_down_soon_though_the_handover_is_slow_to_be_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own heartbeat is given up before it is answered."""

    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [1, 2, 3])
        await stage.pass_ms(700)
        began_ms = stage.clock.monotonic_ms()
        monkeypatch.setattr(brokers_and_controllers, "COMMIT_S", 1.2)
        asyncio.get_running_loop().call_later(
            0.05, lambda: monkeypatch.setattr(brokers_and_controllers, "COMMIT_S", 0.004)
        )
        await stage.nodes[1].lifecycle.shut_down()
        assert is_fenced(stage, 1)
        assert stage.clock.monotonic_ms() - began_ms < 2_000

    run_on_virtual_time(story)


def test_a_controller_without_its_majority_prolongs_no_lease_that_its_successor_ends() -> None:
    """Broker 3 is on the side of the old controller, and heard by nobody else."""

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


def test_a_new_controller_finishes_what_the_one_before_has_begun() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [3, 2, 1])
        stage.nodes[3].cut_off()
        # The broker is fenced, and the rest of the change was lost with the controller.
        record = BrokerRegistrationChangeRecord(
            broker_id=3, broker_epoch=stage.image.brokers[3].epoch, fenced=1
        )
        offset = stage.end_offset
        stage.commit(CommittedBatch(offset, offset, stage.epoch, (encode(record),)))
        stage.elect(2)
        await stage.until(lambda: orders(stage).leader == 2, within_ms=100)
        assert 3 not in orders(stage).isr

    run_on_virtual_time(story)


def test_who_is_not_the_controller_any_more_refuses_everything_and_its_timers_do_nothing() -> None:
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
