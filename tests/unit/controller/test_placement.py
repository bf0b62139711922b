"""Replica placement: balanced, over racks, on active brokers."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest

from moldau.controller.placement import ReplicaLoad, Replicas, place_replicas
from moldau.controller.requests import NewTopic, PartitionIncrease
from moldau.controller.topics import create_partitions, create_topics
from moldau.errors import InvalidReplicationFactorError
from moldau.metadata.image import BrokerRegistration
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from support.partition_decisions import ControlledCluster


def brokers(racks: Mapping[int, str | None], fenced: Sequence[int] = ()) -> dict[int, BrokerRegistration]:
    return {
        broker_id: BrokerRegistration(broker_id, 0, UUID(int=broker_id), (), rack, broker_id in fenced)
        for broker_id, rack in racks.items()
    }


def leaders(placed: Sequence[Replicas]) -> Counter[int]:
    return Counter(replicas[0] for replicas in placed)


def held(placed: Sequence[Replicas]) -> Counter[int]:
    return Counter(broker_id for replicas in placed for broker_id in replicas)


def spread(counts: Counter[int]) -> int:
    return max(counts.values()) - min(counts.values())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("count", [3, 4, 5, 7])
@pytest.mark.parametrize("replication_factor", [1, 2, 3])
def test_leaders_and_replicas_are_even(count: int, replication_factor: int, seed: int) -> None:
    at = brokers(dict.fromkeys(range(1, count + 1)))
    for partitions in (count, 5 * count, 5 * count + 2):
        placed = place_replicas(at, partitions, replication_factor, random.Random(seed))
        assert all(len(set(replicas)) == replication_factor for replicas in placed)
        assert spread(leaders(placed)) <= 1
        assert spread(held(placed)) <= 1


@pytest.mark.parametrize("seed", range(10))
def test_every_rack_has_a_replica_and_leaders_stay_even(seed: int) -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    placed = place_replicas(brokers(racks), 30, 3, random.Random(seed))
    assert all({racks[each] for each in replicas} == {"a", "b", "c"} for replicas in placed)
    assert spread(leaders(placed)) <= 1
    assert spread(held(placed)) <= 1


def test_racks_share_replicas_evenly_where_there_are_fewer_racks_than_replicas() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    for replicas in place_replicas(brokers(racks), 12, 4, random.Random(1)):
        assert Counter(racks[each] for each in replicas) == {"a": 2, "b": 2}


def test_a_broker_shares_partitions_with_all_others() -> None:
    placed = place_replicas(brokers(dict.fromkeys(range(1, 6))), 40, 2, random.Random(3))
    assert {tuple(sorted(replicas)) for replicas in placed} == {
        (low, high) for low in range(1, 6) for high in range(low + 1, 6)
    }


def test_fenced_brokers_get_replicas_only_if_the_others_are_too_few() -> None:
    at = brokers({1: "a", 2: "a", 3: "b", 4: "b"}, fenced=(3, 4))
    assert set(held(place_replicas(at, 10, 2, random.Random(1)))) == {1, 2}
    placed = place_replicas(at, 10, 3, random.Random(1))
    assert all(set(replicas[:2]) == {1, 2} and replicas[2] in (3, 4) for replicas in placed)
    assert spread(leaders(placed)) == 0


def test_there_are_never_more_replicas_than_brokers() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="only 2 broker"):
        place_replicas(brokers({1: None, 2: None}), 1, 3, random.Random(1))
    with pytest.raises(InvalidReplicationFactorError, match="fenced"):
        place_replicas(brokers({1: None}, fenced=[1]), 1, 1, random.Random(1))


def test_placement_by_load_prefers_brokers_with_fewest_replicas() -> None:
    load = ReplicaLoad()
    for _ in range(6):
        load.add((1, 2))
    placed = place_replicas(brokers({1: None, 2: None, 3: None}), 6, 2, random.Random(1), load)
    assert leaders(placed) == {2: 3, 3: 3}
    assert held(placed)[3] == 6


def test_topics_are_placed_by_load_with_that_policy() -> None:
    settings = EffectiveSettings(BrokerSettings(node_id=1, placement_policy="load"))
    cluster = ControlledCluster((1, 2), settings=settings)
    cluster.create("old", *([1, 2] for _ in range(4)))
    cluster.register(3)
    cluster.unfence(3)
    topics = [NewTopic("new", 2, 1), NewTopic("newer", 2, 1)]
    cluster.do(create_topics(cluster.state, topics, cluster.random, validate_only=False))
    placed = [
        partition.replicas for topic in ("new", "newer") for partition in cluster.state.image.topics[topic].partitions
    ]
    assert placed == [(3,), (2,), (3,), (2,)]


def test_new_partitions_continue_the_round_robin() -> None:
    cluster = ControlledCluster((1, 2, 3))
    cluster.create("orders", (1, 2), (1, 2), (1, 2), (2, 3))
    requested = [PartitionIncrease("orders", 9)]
    cluster.do(create_partitions(cluster.state, requested, cluster.random, validate_only=False))
    placed = [partition.replicas for partition in cluster.state.image.topics["orders"].partitions]
    assert leaders(placed) == {1: 3, 2: 3, 3: 3}
    assert spread(held(placed)) <= 1


def test_new_partitions_have_the_target_replication_factor() -> None:
    cluster = ControlledCluster((1, 2, 3))
    cluster.create("orders", (1, 2))
    cluster.reassign([3])
    requested = [PartitionIncrease("orders", 2)]
    cluster.do(create_partitions(cluster.state, requested, cluster.random, validate_only=False))
    assert len(cluster.partition(index=1).replicas) == 1
