"""Topics with leader.follows.controller: on all brokers, and led by the active controller as soon as it is in sync."""

import random
from collections.abc import Sequence
from uuid import UUID

import pytest

from moldau.controller.cluster_control import unregister_broker
from moldau.controller.elections import (
    balance_partition_leaders,
    can_controller_lead_more,
    elect_unclean_leaders,
    move_leaders_to_controller,
)
from moldau.controller.partition_index import PartitionName
from moldau.controller.placement import majority_of_brokers
from moldau.controller.reassignment import alter_partition_reassignments, plan_drain
from moldau.controller.requests import (
    BrokerHeartbeat,
    ConfigChange,
    ConfigOperation,
    ElectionType,
    NewTopic,
    OfflineReplica,
    PartitionIncrease,
    Reassignment,
    TopicRef,
)
from moldau.controller.topics import create_topics
from moldau.errors import ElectionNotNeededError, InvalidReplicaAssignmentError, InvalidReplicationFactorError
from moldau.metadata.image import BROKER_RESOURCE, BrokerRegistration, ConfigResource
from moldau.metadata.records import PartitionChangeRecord, RegisterBrokerRecord
from moldau.raft.messages import EpochEndOffset
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from support.controller_cluster import ControllerCluster, run_on_virtual_time
from support.controller_cluster_helpers import is_fenced, no_lease_outlives_its_session, orders, with_topic
from support.controller_decisions import ORDERS, Cluster, error_of
from support.partition_decisions import ControlledCluster

FOLLOWS = {"leader.follows.controller": "true"}


def cluster_with_orders(controller_id: int = 1, partitions: int = 1) -> ControlledCluster:
    cluster = ControlledCluster((1, 2, 3), controller_id=controller_id)
    replicas = ([controller_id, *(each for each in (1, 2, 3) if each != controller_id)] for _ in range(partitions))
    cluster.create("orders", *replicas, leader_follows_controller="true")
    return cluster


def move(cluster: ControlledCluster) -> list[int]:
    """Returns the partitions whose leader moves."""
    expected = can_controller_lead_more(cluster.state)
    assert cluster.do(move_leaders_to_controller(cluster.state)) is False
    assert bool(cluster.last_records) == expected
    return [each.partition_id for each in cluster.last_records if isinstance(each, PartitionChangeRecord)]


# Placement


@pytest.mark.parametrize("replication_factor", [-1, 1, 3, 9])
def test_a_new_topic_is_on_all_brokers_with_the_controller_first(replication_factor: int) -> None:
    cluster = Cluster((1, 2, 3, 4, 5), controller_id=3)
    cluster.fence(5)
    [created] = cluster.create(NewTopic("orders", 2, replication_factor, configs=FOLLOWS))
    assert (created.error, created.replication_factor) == (None, 5)
    for partition in cluster.state.image.topics["orders"].partitions:
        assert partition.replicas == (3, 1, 2, 4, 5)
        assert partition.isr == (3, 1, 2, 4)
        assert partition.leader == 3


def test_a_controller_that_is_fenced_does_not_lead_a_new_topic() -> None:
    cluster = Cluster((1, 2, 3), controller_id=1)
    cluster.fence(1)
    cluster.create(NewTopic("orders", 1, -1, configs=FOLLOWS))
    assert cluster.state.image.topics["orders"].partitions[0].leader == 2
    cluster.fence(2)
    cluster.fence(3)
    assert error_of(cluster.create(NewTopic("more", 1, -1, configs=FOLLOWS)))[0] is InvalidReplicationFactorError


@pytest.mark.parametrize("replication_factor", [0, -2])
def test_an_invalid_replication_factor_is_refused(replication_factor: int) -> None:
    cluster = Cluster((1, 2, 3), controller_id=1)
    created = cluster.create(NewTopic("orders", 1, replication_factor, configs=FOLLOWS))
    assert error_of(created)[0] is InvalidReplicationFactorError


def test_a_manual_assignment_must_have_all_brokers() -> None:
    cluster = Cluster((1, 2, 3), controller_id=1)
    created = cluster.create(NewTopic("orders", assignment={0: [2, 1, 3], 1: [1, 2]}, configs=FOLLOWS))
    assert error_of(created)[0] is InvalidReplicaAssignmentError
    created = cluster.create(NewTopic("orders", assignment={0: [1, 2]}, configs=FOLLOWS))
    error, message = error_of(created)
    assert error is InvalidReplicaAssignmentError
    assert message.endswith("a topic with leader.follows.controller needs replicas on all its brokers: [1, 2, 3].")
    [done] = cluster.create(NewTopic("orders", assignment={0: [2, 1, 3]}, configs=FOLLOWS))
    assert done.error is None
    created = cluster.create(NewTopic("false", assignment={0: [2]}, configs={"leader.follows.controller": "false"}))
    assert created[0].error is None


def test_new_partitions_are_on_the_brokers_of_the_topic() -> None:
    cluster = ControlledCluster((1, 2, 3, 4), controller_id=2)
    topic = NewTopic("orders", 1, -1, configs=FOLLOWS)
    cluster.do(create_topics(cluster.state, [topic], random.Random(1), validate_only=False))
    cluster.reassign([1, 2, 3])
    decisions = Cluster(())
    decisions.state = cluster.state
    [added] = decisions.more(PartitionIncrease("orders", 3, None))
    assert added.error is None
    assert [each.replicas for each in cluster.state.image.topics["orders"].partitions[1:]] == [(2, 1, 3), (2, 1, 3)]
    refused = decisions.more(PartitionIncrease("orders", 4, [[1, 2, 4]]))
    assert error_of(refused)[0] is InvalidReplicaAssignmentError
    [added] = decisions.more(PartitionIncrease("orders", 4, [[1, 3, 2]]))
    assert added.error is None


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_the_majority_of_brokers(count: int, majority: int) -> None:
    brokers = {each: BrokerRegistration(each, 0, UUID(int=each), (), None, False) for each in range(count)}
    assert majority_of_brokers(brokers) == majority


# Elections


def test_leaders_move_to_a_new_controller() -> None:
    cluster = cluster_with_orders(partitions=3)
    assert move(cluster) == []
    cluster.become_controller(2)
    assert move(cluster) == [0, 1, 2]
    for index in range(3):
        partition = cluster.partition(index=index)
        assert (partition.leader, partition.leader_epoch, partition.isr) == (2, 1, (1, 2, 3))
    assert move(cluster) == []


def test_only_topics_with_the_config_follow_the_controller() -> None:
    cluster = cluster_with_orders()
    cluster.create("other", [1, 2, 3])
    cluster.create("off", [1, 2, 3], leader_follows_controller="false")
    cluster.become_controller(3)
    assert move(cluster) == [0]
    assert [cluster.partition(name).leader for name in ("orders", "other", "off")] == [3, 1, 1]


def test_a_controller_outside_the_isr_does_not_lead() -> None:
    cluster = cluster_with_orders()
    cluster.alter([1, 3])
    cluster.become_controller(2)
    # The index has only partitions that can move, because it is read after every change of the metadata.
    assert not cluster.state.index.partitions_away_from_controller()
    assert move(cluster) == []
    cluster.alter([1, 3, 2])
    assert cluster.partition().leader == 1
    assert move(cluster) == [0]
    assert cluster.partition().leader == 2


def test_a_controller_that_is_not_active_does_not_lead() -> None:
    cluster = cluster_with_orders()
    cluster.fence(2)
    cluster.become_controller(2)
    assert move(cluster) == []
    cluster.unfence(2)
    assert move(cluster) == []
    cluster.alter([1, 3, 2])
    assert move(cluster) == [0]
    cluster.shut_down(2)
    assert cluster.partition().leader == 1
    assert move(cluster) == []


def test_an_offline_replica_of_the_controller_does_not_lead() -> None:
    cluster = cluster_with_orders()
    cluster.become_controller(2)
    topic_id = cluster.state.image.topics["orders"].topic_id
    epoch = cluster.state.image.brokers[2].epoch
    offline = OfflineReplica(topic_id, 0, 2, "the disk is full", is_transient=True)
    cluster.state.update_offline_replicas(BrokerHeartbeat(2, epoch, 0, not_ready=(offline,)))
    cluster.do(move_leaders_to_controller(cluster.state))
    assert cluster.last_records == []
    cluster.state.update_offline_replicas(BrokerHeartbeat(2, epoch, 0))
    assert move(cluster) == [0]


def test_elections_prefer_the_controller() -> None:
    cluster = cluster_with_orders()
    cluster.become_controller(3)
    cluster.fence(1)
    assert cluster.partition().leader == 3


def test_without_an_eligible_controller_the_usual_order_holds() -> None:
    cluster = cluster_with_orders()
    cluster.alter([1, 2])
    cluster.become_controller(3)
    cluster.fence(1)
    assert cluster.partition().leader == 2


def test_elections_from_the_elr_prefer_the_controller() -> None:
    cluster = cluster_with_orders()
    cluster.configure("orders", "min.insync.replicas", "3")
    for broker_id in (2, 3, 1):
        cluster.fence(broker_id)
    assert cluster.partition().leader == -1
    cluster.become_controller(3)
    cluster.unfence(3)
    assert cluster.partition().leader == 3
    assert set(cluster.partition().elr) == {1, 2}


def test_unclean_elections_prefer_the_controller_among_equal_logs() -> None:
    cluster = cluster_with_orders()
    cluster.configure("orders", "unclean.leader.election.enable", "true")
    cluster.alter([1])
    cluster.become_controller(3)
    cluster.fence(1)
    ends = {PartitionName("orders", 0): {2: EpochEndOffset(0, 5), 3: EpochEndOffset(0, 5)}}
    cluster.do(elect_unclean_leaders(cluster.state, ends))
    assert cluster.partition().leader == 3


def test_automatic_balance_and_preferred_elections_keep_the_leader_at_the_controller() -> None:
    settings = EffectiveSettings(BrokerSettings(node_id=1, leader_imbalance_per_broker_percentage=0))
    cluster = ControlledCluster((1, 2, 3), settings=settings, controller_id=1)
    cluster.create("orders", [1, 2, 3], leader_follows_controller="true")
    cluster.become_controller(2)
    move(cluster)
    cluster.do(balance_partition_leaders(cluster.state))
    assert cluster.last_records == []
    [result] = cluster.elect(ElectionType.PREFERRED, ("orders", 0))
    assert isinstance(result.error, ElectionNotNeededError)
    assert cluster.state.index.imbalanced_partitions() == []
    cluster.become_controller(3)
    cluster.do(balance_partition_leaders(cluster.state))
    assert cluster.partition().leader == 3
    cluster.become_controller(1)
    [result] = cluster.elect(ElectionType.PREFERRED, ("orders", 0))
    assert (result.error, cluster.partition().leader) == (None, 1)


def test_a_controller_without_a_replica_does_not_change_the_preferred_leader() -> None:
    cluster = cluster_with_orders()
    cluster.reassign([2, 3])
    assert cluster.partition().leader == 2
    assert move(cluster) == []
    [result] = cluster.elect(ElectionType.PREFERRED, ("orders", 0))
    assert isinstance(result.error, ElectionNotNeededError)


def test_a_reassignment_leaves_a_broker_that_can_lead_all_partitions() -> None:
    cluster = cluster_with_orders(partitions=3)

    def reassign(*targets: Sequence[int]) -> list[type[Exception]]:
        requested = [Reassignment("orders", index, tuple(target)) for index, target in enumerate(targets)]
        results = cluster.do(alter_partition_reassignments(cluster.state, requested, allow_rf_change=True))
        return [type(each.error) for each in results if each.error is not None]

    assert reassign([1], [2], [3]) == [InvalidReplicaAssignmentError] * 3
    assert cluster.last_records == []
    assert reassign([2, 3], [3, 2], [2]) == []
    assert [each.replicas[0] for each in cluster.last_records if isinstance(each, PartitionChangeRecord)] == [2, 3, 2]


def test_many_leaders_move_in_several_decisions() -> None:
    cluster = cluster_with_orders(partitions=5)
    cluster.become_controller(2)
    assert cluster.do(move_leaders_to_controller(cluster.state, elections_max=2)) is True
    assert cluster.do(move_leaders_to_controller(cluster.state, elections_max=2)) is True
    assert cluster.do(move_leaders_to_controller(cluster.state, elections_max=2)) is False
    assert cluster.state.index.leader_count(2) == 5


# The set of brokers


def test_a_broker_that_joins_gets_replicas_in_the_decision_that_registers_it() -> None:
    cluster = Cluster((1, 2, 3), controller_id=1)
    cluster.create(NewTopic("orders", 2, -1, configs=FOLLOWS), NewTopic("other", 1, 3))
    epoch = cluster.register(4)
    assert isinstance(cluster.last_records[0], RegisterBrokerRecord)
    assert cluster.last_records[0].broker_epoch == epoch
    for partition in cluster.state.image.topics["orders"].partitions:
        assert (partition.replicas, partition.adding_replicas) == ((1, 2, 3, 4), (4,))
        assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 0, (1, 2, 3))
    assert 4 not in cluster.state.image.topics["other"].partitions[0].replicas
    cluster.register(5)
    assert cluster.state.image.topics["orders"].partitions[0].adding_replicas == (4, 5)


def test_a_broker_that_registers_again_does_not_get_drained_replicas_back() -> None:
    cluster = ControlledCluster((1, 2, 3), controller_id=1)
    cluster.create("orders", [1, 2, 3], leader_follows_controller="true")
    cluster.reassign([1, 2])
    decisions = Cluster(())
    decisions.state = cluster.state
    decisions.register(3)
    assert cluster.partition().replicas == (1, 2)


def test_a_broker_joins_a_partition_without_leader() -> None:
    cluster = Cluster((1, 2), controller_id=1)
    cluster.create(NewTopic("orders", 1, -1, configs=FOLLOWS))
    for broker_id in (2, 1):
        # With another disk, so that no replica has all records.
        cluster.register(broker_id)
    assert cluster.state.image.topics["orders"].partitions[0].isr == ()
    cluster.register(3)
    assert cluster.state.image.topics["orders"].partitions[0].adding_replicas == (3,)


def test_a_broker_that_joins_again_without_its_records_leaves_the_elr() -> None:
    cluster = ControlledCluster((1, 2, 3, 4, 5), controller_id=1)
    cluster.create("orders", [1, 2, 3, 4, 5], leader_follows_controller="true")
    cluster.configure("orders", "min.insync.replicas", "4")
    for broker_id in (3, 4, 5):
        cluster.fence(broker_id)
    cluster.reassign([1, 2, 3])
    assert (cluster.partition().removing_replicas, cluster.partition().elr) == ((4, 5), (4, 5))
    cluster.do(unregister_broker(cluster.state, 5))
    decisions = Cluster(())
    decisions.state = cluster.state
    decisions.register(5)
    assert (cluster.partition().replicas, cluster.partition().removing_replicas) == ((1, 2, 3, 5, 4), (4,))
    assert cluster.partition().elr == (4,)
    for broker_id in (2, 1):
        cluster.fence(broker_id)
    cluster.unfence(5)
    assert cluster.partition().leader == -1


def drain(cluster: ControlledCluster, broker_id: int) -> Sequence[Reassignment]:
    image = cluster.state.image
    replicas = {
        (topic.name, partition.index): partition.replicas
        for topic in image.topics.values()
        for partition in topic.partitions
    }
    racks = dict.fromkeys(image.brokers)
    return plan_drain(replicas, racks, broker_id, cluster.state.controller_led_topics)


def test_a_drained_broker_leaves_the_set() -> None:
    cluster = ControlledCluster((1, 2, 3, 4), controller_id=1)
    cluster.create("orders", [1, 2, 3, 4], leader_follows_controller="true")
    cluster.create("other", [1, 2])
    moves = drain(cluster, 2)
    assert moves == [Reassignment("orders", 0, (1, 3, 4)), Reassignment("other", 0, (1, 3))]
    cluster.reassign(moves[0].replicas)
    partition = cluster.partition()
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 3, 4), (1, 3, 4), 1)


def test_a_drained_controller_leads_no_more() -> None:
    cluster = cluster_with_orders()
    cluster.alter([1, 2])
    [moved] = drain(cluster, 1)
    cluster.reassign(moved.replicas)
    assert (cluster.partition().removing_replicas, cluster.partition().leader) == ((1,), 1)
    cluster.alter([1, 2, 3])
    assert (cluster.partition().replicas, cluster.partition().leader) == ((2, 3), 2)


def test_min_insync_replicas_is_limited_to_the_brokers_that_are_left() -> None:
    cluster = cluster_with_orders()
    cluster.configure("orders", "min.insync.replicas", "2")
    cluster.reassign([1])
    assert cluster.partition().min_isr(2) == 1


# Changes of the config


def test_an_existing_topic_is_extended_to_all_brokers() -> None:
    cluster = Cluster((1, 2, 3), controller_id=2)
    cluster.create(NewTopic("orders", assignment={0: [1, 3], 1: [3, 2]}))
    assert cluster.alter(ORDERS, ConfigChange("leader.follows.controller", "true")) is None
    first, second = cluster.state.image.topics["orders"].partitions
    assert (first.replicas, first.adding_replicas) == ((1, 3, 2), (2,))
    assert (second.replicas, second.adding_replicas) == ((3, 2, 1), (1,))
    assert cluster.alter(ORDERS, ConfigChange("leader.follows.controller", "true")) is None
    assert cluster.last_records == []
    # Broker 2 is not yet in the ISR of partition 0.
    assert list(cluster.state.index.partitions_away_from_controller()) == [("orders", 1)]
    change = ConfigChange("leader.follows.controller", None, ConfigOperation.DELETE)
    assert cluster.alter(ORDERS, change) is None
    assert not cluster.state.index.partitions_away_from_controller()
    assert not cluster.state.controller_led_topics


def test_a_deleted_topic_is_forgotten() -> None:
    cluster = Cluster((1, 2), controller_id=1)
    cluster.create(NewTopic("orders", 1, -1, configs=FOLLOWS))
    assert cluster.state.controller_led_topics == {"orders"}
    [topic] = cluster.state.image.topics.values()
    cluster.delete(TopicRef(topic.name, None))
    assert not cluster.state.controller_led_topics
    cluster.create(NewTopic("orders", 1, 1))
    assert not cluster.state.controller_led_topics


def test_a_config_of_a_broker_does_not_change_a_topic_with_the_same_name() -> None:
    cluster = Cluster((1, 2), controller_id=1)
    cluster.create(NewTopic("1", 1, -1, configs=FOLLOWS))
    assert cluster.alter(ConfigResource(BROKER_RESOURCE, "1"), ConfigChange("log.retention.ms", "5")) is None
    assert cluster.last_records
    assert cluster.state.controller_led_topics == {"1"}


# With running controllers


def test_a_new_controller_leads_at_once_if_it_is_in_sync() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        no_lease_outlives_its_session(cluster)
        await with_topic(cluster, [1, 2, 3], [1, 2, 3], configs=FOLLOWS)
        cluster.elect(3)
        assert await cluster.until(lambda: {orders(cluster, index).leader for index in (0, 1)} == {3}) < 50
        assert orders(cluster).isr == (1, 2, 3)
        await cluster.pass_ms(1_000)
        assert orders(cluster).leader_epoch == 1

    run_on_virtual_time(scenario)


def test_a_new_controller_leads_after_the_death_of_the_previous_one() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [1, 2, 3], configs=FOLLOWS)
        await cluster.nodes[1].kill()
        cluster.elect(3)
        await cluster.until(lambda: is_fenced(cluster, 1))
        assert orders(cluster).leader == 3
        # The previous controller registers again and is unfenced; the leader stays.
        node = cluster.add(1)
        await node.start()
        await node.lifecycle.wait_until_active()
        await cluster.pass_ms(1_000)
        assert orders(cluster).leader == 3

    run_on_virtual_time(scenario)


def test_a_restarted_controller_does_not_lead_before_its_broker_registers() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [1, 2, 3], configs=FOLLOWS)
        await cluster.nodes[3].kill()
        node = cluster.add(3)
        cluster.elect(3)
        # The metadata shows the previous incarnation of broker 3, which is not fenced and in the ISR.
        await cluster.pass_ms(500)
        assert (orders(cluster).leader, orders(cluster).leader_epoch) == (1, 0)
        await node.start()
        await node.lifecycle.wait_until_active()
        assert (orders(cluster).leader, orders(cluster).leader_epoch, orders(cluster).isr) == (1, 0, (1, 2))

    run_on_virtual_time(scenario)


def test_a_broker_that_joins_a_running_cluster_gets_replicas() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        await with_topic(cluster, [1, 2], configs=FOLLOWS)
        node = cluster.add(3)
        await node.start()
        await node.lifecycle.wait_until_active()
        assert orders(cluster).adding_replicas == (3,)

    run_on_virtual_time(scenario)
