"""Replicas move: added, caught up, removed; cancelled on the way; and a broker is emptied."""

from collections import Counter

import pytest

from moldau.controller.reassignment import (
    alter_partition_reassignments,
    list_partition_reassignments,
    plan_drain,
)
from moldau.controller.requests import OngoingReassignment, Reassignment
from moldau.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NewLeaderElectedError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from moldau.metadata.image import NO_LEADER
from moldau.metadata.records import PartitionChangeRecord
from support.controlled import ControlledCluster


def cluster_of(*replicas: int, **configs: str) -> ControlledCluster:
    cluster = ControlledCluster((1, 2, 3, 4))
    cluster.create("orders", replicas, **configs)
    return cluster


def moving(cluster: ControlledCluster) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Replicas, those being added, those being removed."""
    partition = cluster.partition()
    return partition.replicas, partition.adding_replicas, partition.removing_replicas


def test_one_replica_grows_to_three() -> None:
    cluster = cluster_of(1, min_insync_replicas="2")
    assert cluster.reassign([1, 2, 3]).error is None
    assert moving(cluster) == ((1, 2, 3), (2, 3), ())
    assert cluster.partition().min_isr(2) == 1, "writes go on while the new ones catch up"
    assert cluster.partition().leader_epoch == 0
    cluster.alter([1, 3])
    assert moving(cluster) == ((1, 2, 3), (2, 3), ())
    cluster.alter([1, 3, 2])
    assert moving(cluster) == ((1, 2, 3), (), ())
    assert cluster.partition().leader_epoch == 0, "nobody has to look for a new leader"
    assert cluster.partition().min_isr(2) == 2


def test_a_replica_that_moves_goes_when_the_new_one_is_in_sync() -> None:
    cluster = cluster_of(1, 2)
    cluster.reassign([1, 3])
    assert moving(cluster) == ((1, 3, 2), (3,), (2,))
    assert cluster.alter([1, 2, 3]).isr == (1, 3)
    assert moving(cluster) == ((1, 3), (), ())
    assert cluster.partition().leader_epoch == 1, "2 must not go on as a follower in the same epoch"


def test_the_leadership_goes_to_the_new_replicas_when_its_own_is_removed() -> None:
    cluster = cluster_of(1, 2)
    cluster.reassign([4, 3])
    assert cluster.partition().leader == 1
    result = cluster.alter([1, 2, 3, 4])
    assert isinstance(result.error, NewLeaderElectedError)
    partition = cluster.partition()
    assert (partition.leader, partition.replicas, partition.isr) == (4, (4, 3), (3, 4))


def test_what_adds_nothing_is_done_at_once() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.reassign([2, 1])
    partition = cluster.partition()
    assert (moving(cluster), partition.isr, partition.leader) == (((2, 1), (), ()), (1, 2), 1)
    assert len(cluster.last_records) == 1
    cluster.reassign([1, 2])
    assert moving(cluster) == ((1, 2), (), ())
    cluster.reassign([1, 2])
    assert cluster.last_records == []


def test_fewer_replicas_wait_until_those_that_stay_are_in_sync() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.fence(2)
    cluster.reassign([1, 2])
    assert moving(cluster) == ((1, 2, 3), (), (3,))
    cluster.unfence(2)
    cluster.alter([1, 3, 2])
    assert moving(cluster) == ((1, 2), (), ())


def test_a_reassignment_ends_with_the_election_of_the_only_one_that_stays() -> None:
    cluster = cluster_of(1, 2, min_insync_replicas="2")
    cluster.fence(2)
    cluster.fence(1)
    cluster.reassign([2])
    assert moving(cluster) == ((2, 1), (), (1,)), "without a leader nothing is removed"
    cluster.unfence(2)
    assert (cluster.partition().leader, moving(cluster)) == (2, ((2,), (), ()))


def test_a_cancelled_reassignment_leaves_what_was_before() -> None:
    cluster = cluster_of(1, 2)
    cluster.reassign([3, 4])
    cluster.alter([1, 2, 3])
    assert cluster.reassign(None).error is None
    assert moving(cluster) == ((1, 2), (), ())
    assert cluster.partition().isr == (1, 2)
    assert isinstance(cluster.reassign(None).error, NoReassignmentInProgressError)


def test_a_leader_that_was_being_added_goes_with_the_cancelled_reassignment() -> None:
    cluster = cluster_of(1, 2)
    cluster.reassign([3, 4])
    cluster.alter([1, 2, 3])
    cluster.fence(1)
    assert cluster.partition().leader == 3
    cluster.reassign(None)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.replicas) == (2, (2,), (1, 2))


def test_a_reassignment_is_not_cancelled_where_only_the_new_replicas_are_in_sync() -> None:
    cluster = cluster_of(1, 2)
    cluster.reassign([3, 4])
    cluster.alter([1, 3])
    cluster.fence(1)
    assert cluster.partition().isr == (3,)
    assert isinstance(cluster.reassign(None).error, InvalidReplicaAssignmentError)
    assert isinstance(cluster.reassign([4]).error, InvalidReplicaAssignmentError)
    assert cluster.partition().leader == 3


def test_another_target_replaces_the_one_under_way() -> None:
    cluster = cluster_of(1, 2)
    cluster.reassign([3, 2])
    cluster.alter([1, 2])
    cluster.reassign([4, 2])
    assert moving(cluster) == ((4, 2, 1), (4,), (1,))
    cluster.reassign(None)
    assert moving(cluster) == ((2, 1), (), ())


def test_the_number_of_replicas_changes_only_where_that_is_allowed() -> None:
    cluster = cluster_of(1, 2)
    error = cluster.reassign([1, 2, 3], allow_rf_change=False).error
    assert isinstance(error, InvalidReplicationFactorError)
    assert str(error) == "The replication factor is changed from 2 to 3"
    assert cluster.reassign([1, 3], allow_rf_change=False).error is None
    assert cluster.reassign([1, 4], allow_rf_change=False).error is None


@pytest.mark.parametrize("replicas", [[1, 9], [], [1, 1], [-1]])
def test_replicas_that_cannot_be_are_refused(replicas: list[int]) -> None:
    cluster = cluster_of(1, 2)
    assert isinstance(cluster.reassign(replicas).error, InvalidReplicaAssignmentError)
    assert moving(cluster) == ((1, 2), (), ())


def test_partitions_that_do_not_exist_or_are_named_twice_are_refused() -> None:
    cluster = cluster_of(1, 2)
    assert isinstance(cluster.reassign([1], topic="nothing").error, UnknownTopicOrPartitionError)
    assert isinstance(cluster.reassign([1], index=1).error, UnknownTopicOrPartitionError)
    twice = [Reassignment("orders", 0, [1]), Reassignment("orders", 0, [2])]
    decision = alter_partition_reassignments(cluster.state, cluster.settings, twice, allow_rf_change=True)
    assert decision.records == []
    [result] = decision.response
    assert isinstance(result.error, InvalidRequestError)


def test_a_reassignment_to_a_broker_that_is_down_begins_and_waits() -> None:
    cluster = cluster_of(1)
    cluster.fence(4)
    assert cluster.reassign([1, 4]).error is None
    assert moving(cluster) == ((1, 4), (4,), ())
    assert cluster.partition().leader != NO_LEADER


def test_the_record_has_a_directory_for_every_replica() -> None:
    cluster = cluster_of(1)
    cluster.reassign([1, 2, 3])
    [record] = cluster.last_records
    assert isinstance(record, PartitionChangeRecord)
    assert record.directories == (None, None, None)


def test_those_under_way_are_listed() -> None:
    cluster = ControlledCluster((1, 2, 3, 4))
    cluster.create("orders", (1, 2), (2, 1))
    cluster.create("bills", (1,))
    assert list_partition_reassignments(cluster.state.image, None) == []
    cluster.reassign([3, 2], index=1)
    cluster.reassign([1, 2], topic="bills")
    first = OngoingReassignment("orders", 1, (3, 2, 1), (3,), (1,))
    second = OngoingReassignment("bills", 0, (1, 2), (2,), ())
    assert list_partition_reassignments(cluster.state.image, None) == [first, second]
    asked = [("bills", 0), ("orders", 0), ("bills", 3), ("nothing", 0), ("bills", 0)]
    assert list_partition_reassignments(cluster.state.image, asked) == [second]


# Draining a broker


def test_a_drained_broker_keeps_nothing_and_the_others_share_evenly() -> None:
    replicas = {("orders", index): ((index % 4) + 1, (index + 1) % 4 + 1) for index in range(24)}
    moves = plan_drain(replicas, dict.fromkeys((1, 2, 3, 4)), 4)
    after = {**replicas, **{(move.topic, move.partition): tuple(move.replicas or ()) for move in moves}}
    assert {len(set(members)) for members in after.values()} == {2}
    assert Counter(each for members in after.values() for each in members) == {1: 16, 2: 16, 3: 16}
    assert Counter(members[0] for members in after.values()) == {1: 8, 2: 8, 3: 8}
    untouched = {name for name, members in replicas.items() if 4 not in members}
    assert not untouched & {(move.topic, move.partition) for move in moves}


def test_a_drained_replica_goes_to_a_rack_that_has_none() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    [move] = plan_drain({("orders", 0): (1, 3)}, {**racks, 5: "a"}, 3)
    assert move.replicas == (1, 4)
    [move] = plan_drain({("orders", 0): (1, 3, 5)}, racks, 5)
    assert move.replicas == (1, 3, 2)


def test_a_broker_cannot_be_drained_where_nobody_can_take_its_replicas() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="orders-0 has 3"):
        plan_drain({("orders", 0): (1, 2, 3)}, {1: None, 2: None, 3: None}, 3)
    assert plan_drain({("orders", 0): (1, 2)}, {1: None, 2: None, 3: None}, 3) == []
