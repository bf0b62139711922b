"""Broker registration: unique ids, known incarnations, one cluster."""

import pytest

from moldau.controller.requests import BrokerHeartbeat, BrokerRegistrationRequest
from moldau.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    StaleBrokerEpochError,
)
from moldau.metadata.image import Endpoint
from support.controller_cluster import ControllerCluster, Node, run_on_virtual_time
from support.controller_cluster_helpers import SESSION_MS, is_fenced, orders, with_topic


def test_a_duplicate_node_id_is_rejected_with_advice() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        duplicate = Node(cluster, 2)
        with pytest.raises(DuplicateBrokerRegistrationError, match=r"another node\.id"):
            await duplicate.start()
        assert not is_fenced(cluster, 2), "the registered process is not affected"
        assert cluster.nodes[2].lifecycle.lease.is_valid()
        assert not duplicate.lifecycle.lease.is_valid()
        await duplicate.close()

    run_on_virtual_time(scenario)


def test_a_restarted_process_registers_when_its_previous_session_expires() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        cluster.nodes[2].cut_off()
        await cluster.nodes[2].close()
        again = cluster.add(2)
        await again.start()
        await again.lifecycle.wait_until_active()
        assert cluster.image.brokers[2].epoch == again.lifecycle.broker_epoch

    run_on_virtual_time(scenario)


def test_after_a_full_restart_registrations_do_not_wait_for_sessions() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [1, 2, 3])
        for node in cluster.nodes.values():
            node.is_dead = True
            await node.close()
        for broker_id in (1, 2, 3):
            cluster.add(broker_id)
        cluster.elect(2)
        began_ms = cluster.clock.monotonic_ms()
        for node in cluster.nodes.values():
            await node.start()
            await node.lifecycle.wait_until_active()
        assert cluster.clock.monotonic_ms() - began_ms < 500
        assert orders(cluster).leader > 0

    run_on_virtual_time(scenario)


def test_a_single_node_does_not_wait_for_its_previous_session() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1)
        await cluster.nodes[1].close()
        again = cluster.add(1)
        again.lifecycle._registration = again.lifecycle._registration._replace(
            endpoints=(Endpoint("PLAINTEXT", "127.0.0.1", 1),)
        )
        cluster.elect(1)
        began_ms = cluster.clock.monotonic_ms()
        await again.start()
        assert cluster.clock.monotonic_ms() - began_ms < 500

    run_on_virtual_time(scenario)


def test_a_node_of_another_cluster_is_rejected() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1)
        stranger = Node(cluster, 2, cluster_id="another-cluster")
        with pytest.raises(InconsistentClusterIdError, match=r"empty data\.dir"):
            await stranger.start()
        assert 2 not in cluster.image.brokers
        await stranger.close()

    run_on_virtual_time(scenario)


def test_a_clean_restart_keeps_a_replica_in_the_elr_and_an_unclean_one_does_not() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        await with_topic(cluster, [2, 1], configs={"min.insync.replicas": "2"})
        epoch = cluster.nodes[2].lifecycle.broker_epoch
        await cluster.nodes[2].kill()
        await cluster.until(lambda: is_fenced(cluster, 2))
        assert orders(cluster).elr == (2,)
        await cluster.add(2, previous_epoch=epoch).start()
        assert orders(cluster).elr == (2,)
        await cluster.nodes[2].kill()
        await cluster.pass_ms(SESSION_MS)
        cluster.lives[2].clear()
        await cluster.add(2).start()
        assert orders(cluster).elr == ()

    run_on_virtual_time(scenario)


def test_an_unregistered_broker_that_is_alive_registers_again() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        await with_topic(cluster, [2, 1])
        previous = cluster.nodes[2].lifecycle.broker_epoch
        await cluster.controller.unregister_broker(2)
        assert 2 not in cluster.image.brokers
        assert orders(cluster).leader == 1
        await cluster.until(lambda: 2 in cluster.image.brokers and not is_fenced(cluster, 2))
        assert cluster.nodes[2].lifecycle.broker_epoch > previous
        with pytest.raises(StaleBrokerEpochError):
            await cluster.controller.heartbeat(BrokerHeartbeat(2, previous, 0))
        with pytest.raises(BrokerIdNotRegisteredError):
            await cluster.controller.unregister_broker(9)

    run_on_virtual_time(scenario)


def test_a_repeated_registration_keeps_its_epoch() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        broker: BrokerRegistrationRequest = cluster.nodes[2].lifecycle._registration
        assert (
            await cluster.controller.register_broker(broker, is_remote=True) == cluster.nodes[2].lifecycle.broker_epoch
        )
        assert not is_fenced(cluster, 2)

    run_on_virtual_time(scenario)


def test_producer_ids_are_unique_and_refused_to_a_previous_incarnation() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        epoch = cluster.nodes[2].lifecycle.broker_epoch
        blocks = [await cluster.controller.allocate_producer_ids(2, epoch) for _ in range(3)]
        assert blocks == [range(1000), range(1000, 2000), range(2000, 3000)]
        with pytest.raises(StaleBrokerEpochError):
            await cluster.controller.allocate_producer_ids(2, epoch - 1)

    run_on_virtual_time(scenario)
