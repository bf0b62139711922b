"""Storms: brokers that run stay unfenced and keep their leases, and clients get metadata soon."""

import pytest

from moldau.testing.simulation.platform.cpu import FixedCost, MeasuredCost
from moldau.testing.simulation.scenarios.storms import STORMS, StormCluster, StormFigures, StormPlan

PLAN = StormPlan(brokers=10, voters=3, clients=100, topics=10, partitions=3)
CALLBACK_NS = 50_000
"""About what a callback of a node takes in these storms."""
HEARTBEAT_TIMEOUT_MS = 1_000
RECOVERY_MS = {
    "metadata refresh": 500,
    "one bootstrap server": 1_000,
    "controller dies": 2_000,
    "brokers restart": 4_000,
    "all nodes restart": 4_000,
}
"""By when all partitions have a leader, no broker is fenced and every client has metadata. Killed nodes are down for a
second of this time."""
REPLICATED_MS = 8_000


@pytest.fixture(scope="module")
def figures() -> dict[str, StormFigures]:
    found = StormCluster(1, PLAN, FixedCost(CALLBACK_NS)).run(list(STORMS))
    return {each.name: each for each in found}


@pytest.mark.parametrize("name", STORMS)
def test_no_running_broker_is_fenced_or_loses_its_lease(name: str, figures: dict[str, StormFigures]) -> None:
    found = figures[name]
    assert (found.fenced, found.lost_leases) == ([], [])
    assert 0 < found.heartbeat_ms < HEARTBEAT_TIMEOUT_MS


@pytest.mark.parametrize("name", STORMS)
def test_the_cluster_and_all_clients_recover_in_time(name: str, figures: dict[str, StormFigures]) -> None:
    found = figures[name]
    assert len(found.client_ms) == PLAN.clients
    assert max(*found.client_ms, found.led_ms, found.unfenced_ms) < RECOVERY_MS[name]
    assert found.replicated_ms < REPLICATED_MS
    assert found.metadata_requests >= PLAN.clients


def test_dead_brokers_are_fenced_and_their_partitions_get_other_leaders(figures: dict[str, StormFigures]) -> None:
    assert figures["controller dies"].fenced_dead == 1
    assert figures["brokers restart"].fenced_dead == PLAN.brokers
    assert figures["brokers restart"].elections > 0
    assert figures["metadata refresh"].elections == figures["one bootstrap server"].elections == 0


def test_a_slow_controller_that_many_clients_choose_keeps_the_leases_of_all_brokers() -> None:
    """Without the cache of encoded responses, the controller would be busy for about four seconds, which is longer
    than a lease."""
    plan = StormPlan(brokers=1, voters=1, clients=100, topics=100, partitions=10)
    (found,) = StormCluster(1, plan, MeasuredCost(slowness=20)).run(["one bootstrap server"])
    assert (found.fenced, found.lost_leases, found.failed_heartbeats) == ([], [], 0)
    assert max(found.client_ms) < 2_000
