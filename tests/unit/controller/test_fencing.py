"""Controllers and brokers on virtual time: brokers with heartbeats stay unfenced, others are fenced."""

from moldau.metadata.records import Record
from support.controller_cluster import ControllerCluster, run_on_virtual_time
from support.controller_cluster_helpers import (
    FETCH_TIMEOUT_MS,
    INTERVAL_MS,
    SESSION_MS,
    is_fenced,
    no_lease_outlives_its_session,
    orders,
    with_topic,
)

# Sessions


def test_a_broker_registers_fenced_and_is_unfenced_when_caught_up() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        fenced: list[tuple[str, object]] = []
        cluster.on_append = lambda offset, record: fenced.append(
            (type(record).__name__, getattr(record, "fenced", None))
        )
        await cluster.boot(1)
        assert [each for each in fenced if each[0] not in ("FeatureLevelRecord", "ConfigRecord")] == [
            ("RegisterBrokerRecord", True),
            ("BrokerRegistrationChangeRecord", -1),
        ]
        lifecycle = cluster.nodes[1].lifecycle
        assert lifecycle.is_active
        assert lifecycle.lease.is_valid()
        assert lifecycle.broker_epoch == cluster.image.brokers[1].epoch

    run_on_virtual_time(scenario)


def test_brokers_that_send_heartbeats_stay_unfenced() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        end_offset = cluster.end_offset
        await cluster.pass_ms(60_000)
        assert cluster.end_offset == end_offset, "no record was written"
        assert all(node.lifecycle.lease.is_valid() for node in cluster.nodes.values())
        beats = len(cluster.nodes[2].sent)
        assert 60_000 / INTERVAL_MS <= beats <= 60_000 / INTERVAL_MS + 10

    run_on_virtual_time(scenario)


def test_a_silent_broker_is_fenced_after_its_session_and_its_lease() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        no_lease_outlives_its_session(cluster)
        await with_topic(cluster, [2, 3, 1])
        cluster.nodes[2].cut_off()
        took_ms = await cluster.until(lambda: is_fenced(cluster, 2))
        assert SESSION_MS - INTERVAL_MS <= took_ms <= SESSION_MS + 50
        assert (orders(cluster).leader, orders(cluster).leader_epoch, orders(cluster).isr) == (3, 1, (3, 1))
        assert not cluster.nodes[2].lifecycle.lease.is_valid()
        cluster.nodes[2].heal()
        await cluster.until(lambda: not is_fenced(cluster, 2))
        await cluster.pass_ms(INTERVAL_MS)
        assert cluster.nodes[2].lifecycle.lease.is_valid()

    run_on_virtual_time(scenario)


def test_a_broker_whose_process_died_is_fenced_at_once() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [2, 3, 1])
        await cluster.nodes[2].kill()
        assert await cluster.until(lambda: is_fenced(cluster, 2)) < 100
        assert orders(cluster).leader == 3

    run_on_virtual_time(scenario)


def test_a_closed_connection_of_a_live_broker_changes_nothing() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        epoch = cluster.nodes[2].lifecycle.broker_epoch
        for _ in range(20):
            cluster.controller.broker_connection_closed(2, epoch)
            await cluster.pass_ms(130)
            assert not is_fenced(cluster, 2)
        cluster.nodes[3].cut_off()
        cluster.controller.broker_connection_closed(3, cluster.nodes[3].lifecycle.broker_epoch)
        await cluster.pass_ms(1_000)
        assert not is_fenced(cluster, 3), "silence alone does not fence it before its session expires"

    run_on_virtual_time(scenario)


def test_a_process_that_dies_during_the_probes_is_detected() -> None:
    """It still accepted the first connection: its sockets close one by one."""

    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        epoch = cluster.nodes[2].lifecycle.broker_epoch
        await cluster.nodes[2].lifecycle.close()
        cluster.controller.broker_connection_closed(2, epoch)
        await cluster.pass_ms(20)
        cluster.nodes[2].is_dead = True
        assert await cluster.until(lambda: is_fenced(cluster, 2)) < 500

    run_on_virtual_time(scenario)


def test_a_closed_connection_of_a_previous_incarnation_is_ignored() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        previous = cluster.nodes[2].lifecycle.broker_epoch
        await cluster.nodes[2].kill()
        await cluster.until(lambda: is_fenced(cluster, 2))
        await cluster.add(2).start()
        await cluster.nodes[2].lifecycle.wait_until_active()
        cluster.nodes[2].is_dead = True
        cluster.controller.broker_connection_closed(2, previous)
        await cluster.pass_ms(1_000)
        assert not is_fenced(cluster, 2)

    run_on_virtual_time(scenario)


def test_a_stalled_controller_fences_no_broker_for_it() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        decided: list[Record] = []
        cluster.on_append = lambda offset, record: decided.append(record)
        for _ in range(300):
            # The event loop stalls: heartbeats sent meanwhile are read after the timer.
            cluster.clock._monotonic_start_ms += 5_000
            await cluster.pass_ms(37)
        assert decided == []

    run_on_virtual_time(scenario)


# Heartbeats


def test_a_hanging_heartbeat_is_cancelled_and_the_next_reaches_the_new_controller() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await cluster.pass_ms(2_000)
        cluster.nodes[1].cut_off()
        sent = len(cluster.nodes[3].sent)
        await cluster.pass_ms(FETCH_TIMEOUT_MS)
        cluster.elect(2)
        for _ in range(10 * INTERVAL_MS):
            await cluster.pass_ms(1)
            assert cluster.nodes[3].lifecycle.lease.is_valid(), "no broker loses its lease"
        assert len(cluster.nodes[3].sent) - sent <= 20, "one at a time"

    run_on_virtual_time(scenario)
