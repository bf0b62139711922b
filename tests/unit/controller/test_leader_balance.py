"""Preferred leaders are restored when the imbalance of a broker exceeds the limit."""

from moldau.controller.elections import balance_partition_leaders
from moldau.controller.requests import ElectionType
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from support.partition_decisions import ControlledCluster


def cluster_with_leaders_elsewhere(count: int, of: int, percentage: int = 10) -> ControlledCluster:
    """Broker 1 is preferred for `of` partitions, of which it does not lead the first `count`."""
    settings = EffectiveSettings(BrokerSettings(node_id=1, leader_imbalance_per_broker_percentage=percentage))
    cluster = ControlledCluster((1, 2, 3), settings=settings)
    cluster.create("orders", *([1, 2] for _ in range(of)))
    for index in range(count):
        cluster.reassign([2, 1], index=index)
        cluster.elect(ElectionType.PREFERRED, ("orders", index))
        cluster.reassign([1, 2], index=index)
    assert cluster.state.index.leader_count(1) == of - count
    return cluster


def balance(cluster: ControlledCluster, elections_max: int = 1000) -> bool:
    return cluster.do(balance_partition_leaders(cluster.state, elections_max=elections_max))


def test_leaders_above_the_allowed_imbalance_are_moved_back() -> None:
    cluster = cluster_with_leaders_elsewhere(3, of=20)
    assert balance(cluster) is False
    assert cluster.state.index.leader_count(1) == 20
    assert len(cluster.last_records) == 3


def test_the_allowed_imbalance_is_kept() -> None:
    cluster = cluster_with_leaders_elsewhere(2, of=20)
    assert balance(cluster) is False
    assert cluster.last_records == []
    cluster = cluster_with_leaders_elsewhere(2, of=20, percentage=9)
    balance(cluster)
    assert len(cluster.last_records) == 2


def test_a_preferred_replica_outside_the_isr_is_not_elected() -> None:
    cluster = ControlledCluster((1, 2, 3))
    cluster.create("orders", *([1, 2] for _ in range(4)))
    cluster.fence(1)
    cluster.unfence(1)
    balance(cluster)
    assert cluster.state.index.leader_count(1) == 0
    cluster.alter([2, 1], index=3)
    balance(cluster)
    assert [name.partition for name in cluster.state.index.partitions_led_by(1)] == [3]


def test_many_leaders_are_balanced_in_several_decisions() -> None:
    cluster = cluster_with_leaders_elsewhere(5, of=5)
    assert balance(cluster, elections_max=2) is True
    assert balance(cluster, elections_max=2) is True
    assert balance(cluster, elections_max=2) is False
    assert cluster.state.index.leader_count(1) == 5
