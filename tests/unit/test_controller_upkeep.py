"""Controllers and brokers together, on virtual time: who is fenced, when, and what becomes of what they led."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from moldau.controller import brokers as broker_decisions
from moldau.controller import driver as controller_driver
from moldau.controller import upkeep
from moldau.controller.requests import (
    ElectionType,
    Heartbeat,
    InSyncChange,
    NewTopic,
    NotReady,
    Registration,
    TopicRef,
)
from moldau.controller.state import ControllerState
from moldau.controller.upkeep import ASKS_MAX
from moldau.decisions import Decision
from moldau.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    NotControllerError,
    StaleBrokerEpochError,
    StorageError,
)
from moldau.membership.state import Phase
from moldau.metadata.image import ClusterDelta, ClusterImage, Endpoint, PartitionImage
from moldau.metadata.records import BrokerRegistrationChangeRecord, Record, encode
from moldau.peers.probing import Probe
from moldau.quorum.batches import CommittedBatch
from moldau.quorum.messages import LogEnd
from support import brokers_and_controllers
from support.brokers_and_controllers import Node, Stage, on_virtual_time

SESSION_MS = 3_000
FETCH_TIMEOUT_MS = 1_500
INTERVAL_MS = 500


def no_lease_outlives_its_session(stage: Stage) -> None:
    """Fails the test where somebody is fenced who may still take itself for a leader."""

    def check(offset: int, record: Record) -> None:
        if isinstance(record, BrokerRegistrationChangeRecord) and record.fenced > 0:
            node = stage.nodes[record.broker_id]
            if node.membership.phase is not Phase.SHUTTING_DOWN and node.membership.lease.is_valid():
                stage.violations.append(f"{record.broker_id} is fenced while its lease runs")

    stage.on_append = check


async def with_topic(
    stage: Stage, *replicas: list[int], name: str = "orders", configs: dict[str, str] | None = None
) -> None:
    topic = NewTopic(name, assignment=dict(enumerate(replicas)), configs=configs or {})
    [created] = await stage.controller.create_topics([topic])
    assert created.error is None


def orders(stage: Stage, index: int = 0) -> PartitionImage:
    return stage.image.topics["orders"].partitions[index]


def is_fenced(stage: Stage, broker_id: int) -> bool:
    return stage.image.brokers[broker_id].fenced


# Alive


def test_a_broker_registers_fenced_and_is_taken_in_when_it_has_caught_up() -> None:
    async def story(stage: Stage) -> None:
        fenced: list[tuple[str, object]] = []
        stage.on_append = lambda offset, record: fenced.append(
            (type(record).__name__, getattr(record, "fenced", None))
        )
        await stage.boot(1)
        assert [each for each in fenced if each[0] != "FeatureLevelRecord"] == [
            ("RegisterBrokerRecord", True),
            ("BrokerRegistrationChangeRecord", -1),
        ]
        membership = stage.nodes[1].membership
        assert membership.is_active
        assert membership.lease.is_valid()
        assert membership.broker_epoch == stage.image.brokers[1].epoch

    on_virtual_time(story)


def test_brokers_that_are_heard_of_stay_for_as_long_as_they_are() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        end_offset = stage.end_offset
        await stage.pass_ms(60_000)
        assert stage.end_offset == end_offset, "nothing was decided"
        assert all(node.membership.lease.is_valid() for node in stage.nodes.values())
        beats = len(stage.nodes[2].sent)
        assert 60_000 / INTERVAL_MS <= beats <= 60_000 / INTERVAL_MS + 10

    on_virtual_time(story)


def test_a_silent_broker_is_fenced_when_its_session_is_over_and_its_lease_is_over_by_then() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        no_lease_outlives_its_session(stage)
        await with_topic(stage, [2, 3, 1])
        stage.nodes[2].cut_off()
        took_ms = await stage.until(lambda: is_fenced(stage, 2))
        assert SESSION_MS - INTERVAL_MS <= took_ms <= SESSION_MS + 50
        assert (orders(stage).leader, orders(stage).leader_epoch, orders(stage).in_sync) == (3, 1, (3, 1))
        assert not stage.nodes[2].membership.lease.is_valid()
        stage.nodes[2].heal()
        await stage.until(lambda: not is_fenced(stage, 2))
        await stage.pass_ms(INTERVAL_MS)
        assert stage.nodes[2].membership.lease.is_valid()

    on_virtual_time(story)


def test_a_broker_whose_process_is_gone_is_fenced_at_once() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [2, 3, 1])
        await stage.nodes[2].kill()
        assert await stage.until(lambda: is_fenced(stage, 2)) < 100
        assert orders(stage).leader == 3

    on_virtual_time(story)


def test_a_closed_connection_of_a_broker_that_is_there_changes_nothing() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        epoch = stage.nodes[2].membership.broker_epoch
        for _ in range(20):
            stage.controller.broker_connection_closed(2, epoch)
            await stage.pass_ms(130)
            assert not is_fenced(stage, 2)
        stage.nodes[3].cut_off()
        stage.controller.broker_connection_closed(3, stage.nodes[3].membership.broker_epoch)
        await stage.pass_ms(1_000)
        assert not is_fenced(stage, 3), "silence is not news at once"

    on_virtual_time(story)


def test_a_process_that_dies_while_it_is_looked_for_is_found_out() -> None:
    """It still took the first connection: its sockets close one by one."""

    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        epoch = stage.nodes[2].membership.broker_epoch
        await stage.nodes[2].membership.close()
        stage.controller.broker_connection_closed(2, epoch)
        await stage.pass_ms(20)
        stage.nodes[2].is_dead = True
        assert await stage.until(lambda: is_fenced(stage, 2)) < 500

    on_virtual_time(story)


def test_the_connection_of_a_former_life_says_nothing_of_this_one() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        former = stage.nodes[2].membership.broker_epoch
        await stage.nodes[2].kill()
        await stage.until(lambda: is_fenced(stage, 2))
        await stage.add(2).start()
        await stage.nodes[2].membership.wait_active()
        stage.nodes[2].is_dead = True
        stage.controller.broker_connection_closed(2, former)
        await stage.pass_ms(1_000)
        assert not is_fenced(stage, 2)

    on_virtual_time(story)


def test_a_controller_that_was_held_up_fences_nobody_for_it() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        decided: list[Record] = []
        stage.on_append = lambda offset, record: decided.append(record)
        for _ in range(300):
            # Time goes by and nothing is read: what brokers sent meanwhile comes after the timer.
            stage.clock._monotonic_start_ms += 5_000
            await stage.pass_ms(37)
        assert decided == []

    on_virtual_time(story)


# A new controller


def test_a_new_controller_gives_everybody_a_fresh_session() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        no_lease_outlives_its_session(stage)
        await stage.pass_ms(2_000)
        stage.nodes[3].cut_off()
        await stage.pass_ms(2_000)
        stage.elect(2)
        took_ms = await stage.until(lambda: is_fenced(stage, 3))
        assert SESSION_MS <= took_ms <= SESSION_MS + 50

    on_virtual_time(story)


def test_a_new_controller_looks_at_once_who_is_gone() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3, 4)
        await with_topic(stage, [1, 4, 2, 3])
        await stage.nodes[4].kill()
        await stage.nodes[1].kill()
        stage.elect(2)
        assert await stage.until(lambda: is_fenced(stage, 1) and is_fenced(stage, 4)) < 100
        assert orders(stage).leader == 2

    on_virtual_time(story)


@pytest.mark.parametrize("session_ms", [3_000, 9_000])
@pytest.mark.parametrize("elected_after_ms", [FETCH_TIMEOUT_MS, 1_700, 2_400])
def test_a_controller_that_is_cut_off_is_fenced_sooner_and_its_own_lease_is_over_by_then(
    session_ms: int, elected_after_ms: int
) -> None:
    async def story(stage: Stage) -> None:
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

    on_virtual_time(story, broker_session_timeout_ms=session_ms)


def test_a_controller_that_hands_over_is_not_fenced_before_its_lease_is_over() -> None:
    """Nobody was silent when another one was elected: its lease may be a moment old."""

    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        no_lease_outlives_its_session(stage)
        await stage.pass_ms(1_001)
        stage.elect(2)
        stage.nodes[1].cut_off()
        assert await stage.until(lambda: is_fenced(stage, 1)) >= SESSION_MS - INTERVAL_MS

    on_virtual_time(story)


def test_leases_do_not_wait_for_what_the_controllers_own_node_is_slow_to_take() -> None:
    """Opening the logs of a large topic takes long; a heartbeat that changes nothing has nothing to do with it."""

    async def story(stage: Stage) -> None:
        async def slow(delta: ClusterDelta, image: ClusterImage) -> None:
            if delta.topics_created:
                await asyncio.sleep(4)

        await stage.boot(1, 2, 3)
        stage.nodes[1].loader._publishers.append(slow)
        creating = asyncio.ensure_future(
            stage.controller.create_topics([NewTopic("big", partitions=10, replication_factor=3)])
        )
        for _ in range(400):
            await stage.pass_ms(10)
            assert all(node.membership.lease.is_valid() for node in stage.nodes.values())
        await creating
        assert not any(is_fenced(stage, broker_id) for broker_id in (1, 2, 3))

    on_virtual_time(story)


def test_what_a_heartbeat_tells_of_its_broker_is_committed() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        await stage.pass_ms(100)
        epoch = stage.nodes[2].membership.broker_epoch
        fencing = asyncio.ensure_future(stage.controller.heartbeat(Heartbeat(2, epoch, 0, wants_fence=True)))
        told = asyncio.ensure_future(stage.controller.heartbeat(Heartbeat(2, epoch, 0)))
        await stage.until(told.done)
        assert fencing.done()
        assert (await told).is_fenced
        assert is_fenced(stage, 2)

    on_virtual_time(story)


def test_one_refused_connection_is_not_the_end_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        answers: list[Probe] = []

        async def probe(self: Node, broker_id: int) -> Probe:
            answers.append(Probe.GONE if not answers else Probe.ALIVE)
            return answers[-1]

        monkeypatch.setattr(stage.controller._upkeep, "_probe", partial(probe, stage.nodes[1]))
        await stage.nodes[2].membership.close()
        stage.controller.broker_connection_closed(2, stage.nodes[2].membership.broker_epoch)
        await stage.pass_ms(1_500)
        assert answers[:2] == [Probe.GONE, Probe.ALIVE]
        assert not is_fenced(stage, 2)

    on_virtual_time(story)


def test_no_new_replicas_are_given_to_a_broker_whose_process_is_just_gone() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3, 4)
        await stage.nodes[4].kill()
        stage.elect(2)
        await stage.until(lambda: stage.controller.is_active)
        topics = [NewTopic(f"topic-{number}", partitions=6, replication_factor=2) for number in range(3)]
        await stage.controller.create_topics(topics)
        created = [each for topic in stage.image.topics.values() for each in topic.partitions]
        assert len(created) == 18
        assert not any(4 in each.replicas for each in created)

    on_virtual_time(story)


def test_a_broker_whose_fencing_failed_is_fenced_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = False

    def fence(state: ControllerState, *more: Any) -> Decision[Record, bool]:
        nonlocal failed
        if not failed:
            failed = True
            raise ValueError("a bug")
        return broker_decisions.fence_broker(state, *more)

    monkeypatch.setattr(upkeep, "fence_broker", fence)

    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        stage.nodes[2].cut_off()
        await stage.until(lambda: is_fenced(stage, 2))
        assert failed
        stage.nodes[2].heal()

    on_virtual_time(story)


def test_a_new_cluster_gets_its_features_when_the_log_takes_them() -> None:
    async def story(stage: Stage) -> None:
        stage.add(1).quorum.append_error = StorageError("the disk is full")
        stage.elect(1)
        await stage.pass_ms(100)
        stage.nodes[1].quorum.append_error = None
        await stage.until(lambda: "metadata.version" in stage.image.features)

    on_virtual_time(story)


def test_a_controllers_node_shuts_down_soon_though_the_handover_is_slow_to_be_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own heartbeat is given up before it is answered."""

    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [1, 2, 3])
        await stage.pass_ms(700)
        began_ms = stage.clock.monotonic_ms()
        monkeypatch.setattr(brokers_and_controllers, "COMMIT_S", 1.2)
        asyncio.get_running_loop().call_later(
            0.05, lambda: monkeypatch.setattr(brokers_and_controllers, "COMMIT_S", 0.004)
        )
        await stage.nodes[1].membership.shut_down()
        assert is_fenced(stage, 1)
        assert stage.clock.monotonic_ms() - began_ms < 2_000

    on_virtual_time(story)


def test_a_controller_without_its_majority_prolongs_no_lease_that_its_successor_ends() -> None:
    """Broker 3 is on the side of the old controller, and heard by nobody else."""

    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        no_lease_outlives_its_session(stage)
        stage.nodes[3].stuck_with = 1
        stage.nodes[3].is_cut_off = True
        stage.nodes[1].cut_off()
        await stage.pass_ms(FETCH_TIMEOUT_MS)
        stage.elect(2)
        await stage.until(lambda: is_fenced(stage, 3))

    on_virtual_time(story)


def test_a_new_controller_finishes_what_the_one_before_has_begun() -> None:
    async def story(stage: Stage) -> None:
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
        assert 3 not in orders(stage).in_sync

    on_virtual_time(story)


def test_who_is_not_the_controller_any_more_refuses_everything_and_its_timers_do_nothing() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        former = stage.controller
        stage.elect(2)
        with pytest.raises(NotControllerError):
            await former.heartbeat(Heartbeat(3, stage.nodes[3].membership.broker_epoch, 0))
        with pytest.raises(NotControllerError):
            await former.wait_ready(["orders"], 10**9)
        with pytest.raises(NotControllerError):
            former.list_reassignments()
        await stage.pass_ms(10_000)
        assert not any(is_fenced(stage, broker_id) for broker_id in (1, 2, 3))

    on_virtual_time(story)


# Registration


def test_an_id_that_a_living_process_has_is_refused_with_what_to_do() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        twin = Node(stage, 2)
        with pytest.raises(DuplicateBrokerRegistrationError, match=r"another node\.id"):
            await twin.start()
        assert not is_fenced(stage, 2), "the other one is not disturbed"
        assert stage.nodes[2].membership.lease.is_valid()
        assert not twin.membership.lease.is_valid()
        await twin.close()

    on_virtual_time(story)


def test_a_process_that_comes_back_at_once_is_taken_when_its_former_session_is_over() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        stage.nodes[2].cut_off()
        await stage.nodes[2].close()
        again = stage.add(2)
        await again.start()
        await again.membership.wait_active()
        assert stage.image.brokers[2].epoch == again.membership.broker_epoch

    on_virtual_time(story)


def test_after_a_restart_of_all_nobody_waits_for_the_sessions_of_former_lives() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [1, 2, 3])
        for node in stage.nodes.values():
            node.is_dead = True
            await node.close()
        for broker_id in (1, 2, 3):
            stage.add(broker_id)
        stage.elect(2)
        began_ms = stage.clock.monotonic_ms()
        for node in stage.nodes.values():
            await node.start()
            await node.membership.wait_active()
        assert stage.clock.monotonic_ms() - began_ms < 500
        assert orders(stage).leader > 0

    on_virtual_time(story)


def test_a_node_alone_does_not_wait_for_its_own_former_session() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1)
        await stage.nodes[1].close()
        again = stage.add(1)
        again.membership._registration = replace(
            again.membership._registration, endpoints=(Endpoint("PLAINTEXT", "127.0.0.1", 1),)
        )
        stage.elect(1)
        began_ms = stage.clock.monotonic_ms()
        await again.start()
        assert stage.clock.monotonic_ms() - began_ms < 500

    on_virtual_time(story)


def test_a_node_of_another_cluster_is_refused() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1)
        stranger = Node(stage, 2, cluster_id="another-cluster")
        with pytest.raises(InconsistentClusterIdError, match=r"empty data\.dir"):
            await stranger.start()
        assert 2 not in stage.image.brokers
        await stranger.close()

    on_virtual_time(story)


def test_a_clean_restart_keeps_a_replica_eligible_and_an_unclean_one_does_not() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        await with_topic(stage, [2, 1], configs={"min.insync.replicas": "2"})
        epoch = stage.nodes[2].membership.broker_epoch
        await stage.nodes[2].kill()
        await stage.until(lambda: is_fenced(stage, 2))
        assert orders(stage).eligible == (2,)
        await stage.add(2, previous_epoch=epoch).start()
        assert orders(stage).eligible == (2,)
        await stage.nodes[2].kill()
        await stage.pass_ms(SESSION_MS)
        stage.lives[2].clear()
        await stage.add(2).start()
        assert orders(stage).eligible == ()

    on_virtual_time(story)


def test_an_unregistered_broker_that_is_alive_registers_anew() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        await with_topic(stage, [2, 1])
        former = stage.nodes[2].membership.broker_epoch
        await stage.controller.unregister_broker(2)
        assert 2 not in stage.image.brokers
        assert orders(stage).leader == 1
        await stage.until(lambda: 2 in stage.image.brokers and not is_fenced(stage, 2))
        assert stage.nodes[2].membership.broker_epoch > former
        with pytest.raises(StaleBrokerEpochError):
            await stage.controller.heartbeat(Heartbeat(2, former, 0))
        with pytest.raises(BrokerIdNotRegisteredError):
            await stage.controller.unregister_broker(9)

    on_virtual_time(story)


def test_the_same_process_asking_again_keeps_its_epoch() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        broker: Registration = stage.nodes[2].membership._registration
        assert (
            await stage.controller.register_broker(broker, from_afar=True)
            == stage.nodes[2].membership.broker_epoch
        )
        assert not is_fenced(stage, 2)

    on_virtual_time(story)


def test_no_producer_id_is_given_twice_and_none_to_a_former_life() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        epoch = stage.nodes[2].membership.broker_epoch
        blocks = [await stage.controller.allocate_producer_ids(2, epoch) for _ in range(3)]
        assert blocks == [range(1000), range(1000, 2000), range(2000, 3000)]
        with pytest.raises(StaleBrokerEpochError):
            await stage.controller.allocate_producer_ids(2, epoch - 1)

    on_virtual_time(story)


# Going in good order


def test_a_controlled_shutdown_hands_leadership_over_before_it_ends() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [2, 3, 1], [3, 2, 1])
        node = stage.nodes[2]
        await node.membership.shut_down()
        assert orders(stage).leader == 3
        assert [2 in orders(stage, index).in_sync for index in (0, 1)] == [False, False]
        assert is_fenced(stage, 2)
        assert not node.membership.lease.is_valid()
        for other in (1, 3):
            assert stage.nodes[other].loader.image.topics["orders"].partitions[0].leader == 3
        # It may come back at once: nobody waits for its session to end.
        epoch = node.membership.broker_epoch
        await node.close()
        began_ms = stage.clock.monotonic_ms()
        await stage.add(2, previous_epoch=epoch).start()
        assert stage.clock.monotonic_ms() - began_ms < 100

    on_virtual_time(story)


def test_a_shutdown_waits_for_a_broker_that_has_not_heard_of_it_until_that_is_fenced() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [2, 1])
        stage.nodes[3].cut_off()
        began_ms = stage.clock.monotonic_ms()
        await stage.nodes[2].membership.shut_down()
        assert is_fenced(stage, 3)
        assert stage.clock.monotonic_ms() - began_ms <= SESSION_MS + 200

    on_virtual_time(story)


def test_all_may_stop_at_the_same_time() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [1, 2, 3])
        began_ms = stage.clock.monotonic_ms()
        for broker_id in (3, 2, 1):
            await stage.nodes[broker_id].membership.shut_down()
        assert stage.clock.monotonic_ms() - began_ms < 1_000
        assert orders(stage).leader == -1
        assert len(orders(stage).in_sync) == 1, "who was last has everything"

    on_virtual_time(story)


def test_a_shutdown_without_a_controller_comes_to_an_end() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        await stage.nodes[1].kill()
        began_ms = stage.clock.monotonic_ms()
        await stage.nodes[2].membership.shut_down()
        assert stage.clock.monotonic_ms() - began_ms <= SESSION_MS + 3 * INTERVAL_MS

    on_virtual_time(story)


def test_a_shutdown_goes_on_with_the_next_controller() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [3, 2, 1])
        stage.nodes[2].cut_off()
        leaving = asyncio.ensure_future(stage.nodes[3].membership.shut_down())
        await stage.until(lambda: stage.image.brokers[3].in_controlled_shutdown)
        await stage.nodes[1].kill()
        stage.nodes[2].heal()
        stage.elect(2)
        await leaving
        assert is_fenced(stage, 3)
        assert orders(stage).leader == 2

    on_virtual_time(story)


# Heartbeats


def test_a_heartbeat_that_hangs_is_given_up_and_the_next_one_finds_the_new_controller() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        await stage.pass_ms(2_000)
        stage.nodes[1].cut_off()
        sent = len(stage.nodes[3].sent)
        await stage.pass_ms(FETCH_TIMEOUT_MS)
        stage.elect(2)
        for _ in range(10 * INTERVAL_MS):
            await stage.pass_ms(1)
            assert stage.nodes[3].membership.lease.is_valid(), "the change costs nobody its lease"
        assert len(stage.nodes[3].sent) - sent <= 20, "one at a time"

    on_virtual_time(story)


# Readiness


def test_a_topic_is_ready_in_milliseconds_and_not_at_the_next_heartbeat() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        await stage.pass_ms(777)
        began_ms = stage.clock.monotonic_ms()
        await with_topic(stage, [1, 2, 3], [2, 3, 1])
        assert await stage.controller.wait_ready(["orders"], began_ms + 30_000) == {}
        assert stage.clock.monotonic_ms() - began_ms < 50

    on_virtual_time(story)


def test_what_is_not_ready_is_named_with_the_reason() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3, 4)
        stage.nodes[4].cut_off()
        await stage.until(lambda: is_fenced(stage, 4))
        stage.nodes[2].cut_off()
        topic = NewTopic("orders", assignment={0: [1, 2, 3, 4], 1: [1, 3, 2, 4]})
        node = stage.nodes[3]
        node.loader.listen(lambda image: None)

        [created] = await stage.controller.create_topics([topic])
        assert created.topic_id is not None
        node.not_ready = [NotReady(created.topic_id, 0, 3, "No space left on device")]
        node.membership.report(stage.end_offset - 1, node.not_ready)
        deadline_ms = stage.clock.monotonic_ms() + 1_000
        assert await stage.controller.wait_ready(["orders"], deadline_ms) == {
            "orders": [
                "orders-0 on node 3: its log could not be opened: No space left on device",
                "node 2 has not applied the metadata yet",
                "node 4 is fenced",
            ]
        }
        assert await stage.controller.wait_ready(["no-such"], deadline_ms) == {}
        # What passes is waited for.
        node.not_ready = []
        node.membership.report(stage.end_offset - 1, [])
        stage.nodes[2].heal()
        stage.nodes[4].heal()
        assert await stage.controller.wait_ready(["orders"], deadline_ms + 10_000) == {}

    on_virtual_time(story)


def test_only_new_partitions_are_waited_for() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        await with_topic(stage, [2], [1])
        stage.nodes[2].cut_off()
        await stage.until(lambda: is_fenced(stage, 2))
        now_ms = stage.clock.monotonic_ms()
        assert await stage.controller.wait_ready(["orders"], now_ms) != {}
        assert await stage.controller.wait_ready(["orders"], now_ms, first_partition={"orders": 1}) == {}

    on_virtual_time(story)


def test_who_waits_for_a_topic_hears_of_the_end_of_the_controller() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        stage.nodes[3].cut_off()
        await with_topic(stage, [1, 3])
        waiting = asyncio.ensure_future(stage.controller.wait_ready(["orders"], 10**9))
        await stage.pass_ms(100)
        stage.elect(2)
        with pytest.raises(NotControllerError):
            await waiting

    on_virtual_time(story)


# Elections


def test_an_unclean_election_takes_the_longest_log_of_those_who_live() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3, 4)
        await with_topic(stage, [4, 1, 2, 3], configs={"unclean.leader.election.enable": "true"})
        await fall_out_of_sync(stage, 1, 2, 3)
        stage.log_ends = {1: LogEnd(3, 100), 2: LogEnd(4, 50), 3: LogEnd(4, 49)}
        await stage.nodes[4].kill()
        await stage.until(lambda: orders(stage).leader == 2)
        assert orders(stage).in_sync == (2,)
        assert orders(stage).is_recovering
        assert sorted(stage.asked) == [1, 2, 3]

    on_virtual_time(story)


def test_a_live_replica_that_does_not_answer_is_asked_again_and_then_gone_without() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [3, 1, 2], configs={"unclean.leader.election.enable": "true"})
        await fall_out_of_sync(stage, 1, 2)
        stage.log_ends = {2: LogEnd(1, 7)}
        await stage.nodes[3].kill()
        await stage.until(lambda: orders(stage).leader == 2)
        assert stage.asked.count(1) == ASKS_MAX

    on_virtual_time(story)


def test_without_leave_no_unclean_election_is_held_unless_an_administrator_asks_for_it() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        await with_topic(stage, [2, 1])
        await fall_out_of_sync(stage, 1)
        stage.log_ends = {1: LogEnd(1, 7)}
        await stage.nodes[2].kill()
        await stage.until(lambda: is_fenced(stage, 2))
        await stage.pass_ms(10_000)
        assert orders(stage).leader == -1
        [result] = await stage.controller.elect_leaders(ElectionType.UNCLEAN, [("orders", 0)])
        assert result.error is None
        assert orders(stage).leader == 1

    on_virtual_time(story)


def test_preferred_leaders_get_their_partitions_back_by_themselves() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        await with_topic(stage, [2, 1])
        stage.nodes[2].cut_off()
        await stage.until(lambda: is_fenced(stage, 2))
        stage.nodes[2].heal()
        await stage.until(lambda: not is_fenced(stage, 2))
        await join_in_sync(stage, 1, 2)
        assert orders(stage).leader == 1
        await stage.until(lambda: orders(stage).leader == 2, within_ms=5_000)

    on_virtual_time(story, leader_imbalance_check_interval_seconds=5)


async def fall_out_of_sync(stage: Stage, *broker_ids: int) -> None:
    at = orders(stage)
    staying = tuple((each, -1) for each in at.in_sync if each not in broker_ids)
    change = InSyncChange(
        stage.image.topics["orders"].topic_id, 0, at.leader_epoch, at.partition_epoch, staying
    )
    leader = stage.nodes[at.leader].membership
    [result] = await stage.controller.alter_in_sync(at.leader, leader.broker_epoch, [change])
    assert result.error is None


async def join_in_sync(stage: Stage, *broker_ids: int) -> None:
    at = orders(stage)
    members = tuple((each, stage.nodes[each].membership.broker_epoch) for each in broker_ids)
    change = InSyncChange(
        stage.image.topics["orders"].topic_id, 0, at.leader_epoch, at.partition_epoch, members
    )
    leader = stage.nodes[at.leader].membership
    [result] = await stage.controller.alter_in_sync(at.leader, leader.broker_epoch, [change])
    assert result.error is None


# More than one decision can hold


def test_what_is_too_large_for_one_decision_is_made_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_decisions, "RECORDS_PER_DECISION_MAX", 3)
    monkeypatch.setattr(controller_driver, "RECORDS_PER_DECISION_MAX", 3)

    def largest(stage: Stage) -> int:
        return max(len(batch.values) for batch in stage.batches[first:])

    first = 0

    async def story(stage: Stage) -> None:
        nonlocal first
        await stage.boot(1, 2)
        await with_topic(stage, *[[2, 1] for _ in range(10)])
        await with_topic(stage, *[[2] for _ in range(7)], name="single")
        first = len(stage.batches)
        await stage.nodes[2].kill()
        await stage.until(lambda: not led_by(stage, 2))
        assert led_by(stage, 1) == 10
        assert led_by(stage, -1) == 7
        assert largest(stage) == 3
        # It comes back uncleanly: first it leaves everything, then it registers, then it leads again.
        await stage.add(2).start()
        assert not any(2 in each.in_sync for each in stage.image.topics["orders"].partitions)
        await stage.until(lambda: led_by(stage, 2) == 7)
        assert largest(stage) == 3
        await stage.nodes[2].membership.shut_down()
        assert led_by(stage, 2) == 0
        await stage.controller.delete_topics([TopicRef("single")])
        await stage.controller.unregister_broker(2)
        assert largest(stage) == 3

    on_virtual_time(story)


def led_by(stage: Stage, broker_id: int) -> int:
    topics = stage.image.topics.values()
    return sum(each.leader == broker_id for topic in topics for each in topic.partitions)


def test_a_decision_that_the_log_cannot_take_is_made_again() -> None:
    async def story(stage: Stage) -> None:
        await stage.boot(1, 2)
        await with_topic(stage, [2, 1])
        stage.nodes[1].quorum.append_error = StorageError("No space left on device")
        await stage.nodes[2].kill()
        await stage.pass_ms(5_000)
        assert not is_fenced(stage, 2)
        stage.nodes[1].quorum.append_error = None
        await stage.until(lambda: is_fenced(stage, 2), within_ms=1_000)
        assert orders(stage).leader == 1

    on_virtual_time(story)
