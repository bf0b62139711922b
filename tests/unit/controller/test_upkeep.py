"""Controllers and brokers together, on virtual time: who is heard of stays, and who is not is fenced."""

from moldau.metadata.records import Record
from support.brokers_and_controllers import ControllerCluster, run_on_virtual_time
from support.upkeep_stage import (
    FETCH_TIMEOUT_MS,
    INTERVAL_MS,
    SESSION_MS,
    is_fenced,
    no_lease_outlives_its_session,
    orders,
    with_topic,
)

# Alive


def test_a_broker_registers_fenced_and_is_taken_in_when_it_has_caught_up() -> None:
    async def story(stage: ControllerCluster) -> None:
        fenced: list[tuple[str, object]] = []
        stage.on_append = lambda offset, record: fenced.append(
            (type(record).__name__, getattr(record, "fenced", None))
        )
        await stage.boot(1)
        assert [each for each in fenced if each[0] != "FeatureLevelRecord"] == [
            ("RegisterBrokerRecord", True),
            ("BrokerRegistrationChangeRecord", -1),
        ]
        lifecycle = stage.nodes[1].lifecycle
        assert lifecycle.is_active
        assert lifecycle.lease.is_valid()
        assert lifecycle.broker_epoch == stage.image.brokers[1].epoch

    run_on_virtual_time(story)


def test_brokers_that_are_heard_of_stay_for_as_long_as_they_are() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        end_offset = stage.end_offset
        await stage.pass_ms(60_000)
        assert stage.end_offset == end_offset, "nothing was decided"
        assert all(node.lifecycle.lease.is_valid() for node in stage.nodes.values())
        beats = len(stage.nodes[2].sent)
        assert 60_000 / INTERVAL_MS <= beats <= 60_000 / INTERVAL_MS + 10

    run_on_virtual_time(story)


def test_a_silent_broker_is_fenced_when_its_session_is_over_and_its_lease_is_over_by_then() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        no_lease_outlives_its_session(stage)
        await with_topic(stage, [2, 3, 1])
        stage.nodes[2].cut_off()
        took_ms = await stage.until(lambda: is_fenced(stage, 2))
        assert SESSION_MS - INTERVAL_MS <= took_ms <= SESSION_MS + 50
        assert (orders(stage).leader, orders(stage).leader_epoch, orders(stage).isr) == (3, 1, (3, 1))
        assert not stage.nodes[2].lifecycle.lease.is_valid()
        stage.nodes[2].heal()
        await stage.until(lambda: not is_fenced(stage, 2))
        await stage.pass_ms(INTERVAL_MS)
        assert stage.nodes[2].lifecycle.lease.is_valid()

    run_on_virtual_time(story)


def test_a_broker_whose_process_is_gone_is_fenced_at_once() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        await with_topic(stage, [2, 3, 1])
        await stage.nodes[2].kill()
        assert await stage.until(lambda: is_fenced(stage, 2)) < 100
        assert orders(stage).leader == 3

    run_on_virtual_time(story)


def test_a_closed_connection_of_a_broker_that_is_there_changes_nothing() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        epoch = stage.nodes[2].lifecycle.broker_epoch
        for _ in range(20):
            stage.controller.broker_connection_closed(2, epoch)
            await stage.pass_ms(130)
            assert not is_fenced(stage, 2)
        stage.nodes[3].cut_off()
        stage.controller.broker_connection_closed(3, stage.nodes[3].lifecycle.broker_epoch)
        await stage.pass_ms(1_000)
        assert not is_fenced(stage, 3), "silence is not news at once"

    run_on_virtual_time(story)


def test_a_process_that_dies_while_it_is_looked_for_is_found_out() -> None:
    """It still took the first connection: its sockets close one by one."""

    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2)
        epoch = stage.nodes[2].lifecycle.broker_epoch
        await stage.nodes[2].lifecycle.close()
        stage.controller.broker_connection_closed(2, epoch)
        await stage.pass_ms(20)
        stage.nodes[2].is_dead = True
        assert await stage.until(lambda: is_fenced(stage, 2)) < 500

    run_on_virtual_time(story)


def test_the_connection_of_a_former_life_says_nothing_of_this_one() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2)
        former = stage.nodes[2].lifecycle.broker_epoch
        await stage.nodes[2].kill()
        await stage.until(lambda: is_fenced(stage, 2))
        await stage.add(2).start()
        await stage.nodes[2].lifecycle.wait_until_active()
        stage.nodes[2].is_dead = True
        stage.controller.broker_connection_closed(2, former)
        await stage.pass_ms(1_000)
        assert not is_fenced(stage, 2)

    run_on_virtual_time(story)


def test_a_controller_that_was_held_up_fences_nobody_for_it() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        decided: list[Record] = []
        stage.on_append = lambda offset, record: decided.append(record)
        for _ in range(300):
            # Time goes by and nothing is read: what brokers sent meanwhile comes after the timer.
            stage.clock._monotonic_start_ms += 5_000
            await stage.pass_ms(37)
        assert decided == []

    run_on_virtual_time(story)


# Heartbeats


def test_a_heartbeat_that_hangs_is_given_up_and_the_next_one_finds_the_new_controller() -> None:
    async def story(stage: ControllerCluster) -> None:
        await stage.boot(1, 2, 3)
        await stage.pass_ms(2_000)
        stage.nodes[1].cut_off()
        sent = len(stage.nodes[3].sent)
        await stage.pass_ms(FETCH_TIMEOUT_MS)
        stage.elect(2)
        for _ in range(10 * INTERVAL_MS):
            await stage.pass_ms(1)
            assert stage.nodes[3].lifecycle.lease.is_valid(), "the change costs nobody its lease"
        assert len(stage.nodes[3].sent) - sent <= 20, "one at a time"

    run_on_virtual_time(story)
