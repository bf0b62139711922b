"""Partition reassignment: adding, completing, cancelling and draining."""

from collections import Counter

import pytest

from moldau.controller.reassignment import (
    alter_partition_reassignments,
    list_partition_reassignments,
    plan_drain,
    plan_replication_factor,
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
from support.partition_decisions import ControlledCluster


def cluster_of(*replicas: int, **configs: str) -> ControlledCluster:
    cluster = ControlledCluster((1, 2, 3, 4))
    cluster.create("orders", replicas, **configs)
    return cluster


def moving(cluster: ControlledCluster) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Replicas, adding replicas, removing replicas."""
    partition = cluster.partition()
    return partition.replicas, partition.adding_replicas, partition.removing_replicas


def test_a_reassignment_adds_replicas() -> None:
    cluster = cluster_of(1, min_insync_replicas="2")
    assert cluster.reassign([1, 2, 3]).error is None
    assert moving(cluster) == ((1, 2, 3), (2, 3), ())
    assert cluster.partition().min_isr(2) == 1, "writes continue while the new replicas catch up"
    assert cluster.partition().leader_epoch == 0
    cluster.alter([1, 3])
    assert moving(cluster) == ((1, 2, 3), (2, 3), ())
    cluster.alter([1, 3, 2])
    assert moving(cluster) == ((1, 2, 3), (), ())
    assert cluster.partition().leader_epoch == 0, "the leader stays"
    assert cluster.partition().min_isr(2) == 2


def test_an_old_replica_is_removed_when_the_new_one_is_in_the_isr() -> None:
    cluster = cluster_of(1, 2)
    cluster.reassign([1, 3])
    assert moving(cluster) == ((1, 3, 2), (3,), (2,))
    assert cluster.alter([1, 2, 3]).isr == (1, 3)
    assert moving(cluster) == ((1, 3), (), ())
    assert cluster.partition().leader_epoch == 1, "2 must not keep following in the same epoch"


def test_a_removed_leader_is_replaced_by_a_target_replica() -> None:
    cluster = cluster_of(1, 2)
    cluster.reassign([4, 3])
    assert cluster.partition().leader == 1
    result = cluster.alter([1, 2, 3, 4])
    assert isinstance(result.error, NewLeaderElectedError)
    partition = cluster.partition()
    assert (partition.leader, partition.replicas, partition.isr) == (4, (4, 3), (3, 4))


def test_a_reassignment_without_new_replicas_completes_at_once() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.reassign([2, 1])
    partition = cluster.partition()
    assert (moving(cluster), partition.isr, partition.leader) == (((2, 1), (), ()), (1, 2), 1)
    assert len(cluster.last_records) == 1
    cluster.reassign([1, 2])
    assert moving(cluster) == ((1, 2), (), ())
    cluster.reassign([1, 2])
    assert cluster.last_records == []


def test_removing_replicas_waits_until_the_remaining_ones_are_in_the_isr() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.fence(2)
    cluster.reassign([1, 2])
    assert moving(cluster) == ((1, 2, 3), (), (3,))
    cluster.unfence(2)
    cluster.alter([1, 3, 2])
    assert moving(cluster) == ((1, 2), (), ())


def test_a_reassignment_completes_with_the_election_of_the_last_replica() -> None:
    cluster = cluster_of(1, 2, min_insync_replicas="2")
    cluster.fence(2)
    cluster.fence(1)
    cluster.reassign([2])
    assert moving(cluster) == ((2, 1), (), (1,)), "no replica is removed without a leader"
    cluster.unfence(2)
    assert (cluster.partition().leader, moving(cluster)) == (2, ((2,), (), ()))


def test_a_cancelled_reassignment_restores_the_original_replicas() -> None:
    cluster = cluster_of(1, 2)
    cluster.reassign([3, 4])
    cluster.alter([1, 2, 3])
    assert cluster.reassign(None).error is None
    assert moving(cluster) == ((1, 2), (), ())
    assert cluster.partition().isr == (1, 2)
    assert isinstance(cluster.reassign(None).error, NoReassignmentInProgressError)


def test_cancelling_removes_a_leader_that_was_being_added() -> None:
    cluster = cluster_of(1, 2)
    cluster.reassign([3, 4])
    cluster.alter([1, 2, 3])
    cluster.fence(1)
    assert cluster.partition().leader == 3
    cluster.reassign(None)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.replicas) == (2, (2,), (1, 2))


def test_a_reassignment_is_not_cancelled_if_only_new_replicas_are_in_the_isr() -> None:
    cluster = cluster_of(1, 2)
    cluster.reassign([3, 4])
    cluster.alter([1, 3])
    cluster.fence(1)
    assert cluster.partition().isr == (3,)
    assert isinstance(cluster.reassign(None).error, InvalidReplicaAssignmentError)
    assert isinstance(cluster.reassign([4]).error, InvalidReplicaAssignmentError)
    assert cluster.partition().leader == 3


def test_a_new_target_replaces_the_ongoing_reassignment() -> None:
    cluster = cluster_of(1, 2)
    cluster.reassign([3, 2])
    cluster.alter([1, 2])
    cluster.reassign([4, 2])
    assert moving(cluster) == ((4, 2, 1), (4,), (1,))
    cluster.reassign(None)
    assert moving(cluster) == ((2, 1), (), ())


def test_the_replication_factor_changes_only_if_allowed() -> None:
    cluster = cluster_of(1, 2)
    error = cluster.reassign([1, 2, 3], allow_rf_change=False).error
    assert isinstance(error, InvalidReplicationFactorError)
    assert str(error) == "The replication factor is changed from 2 to 3"
    assert cluster.reassign([1, 3], allow_rf_change=False).error is None
    assert cluster.reassign([1, 4], allow_rf_change=False).error is None


@pytest.mark.parametrize("replicas", [[1, 9], [], [1, 1], [-1]])
def test_invalid_replicas_are_rejected(replicas: list[int]) -> None:
    cluster = cluster_of(1, 2)
    assert isinstance(cluster.reassign(replicas).error, InvalidReplicaAssignmentError)
    assert moving(cluster) == ((1, 2), (), ())


def test_missing_and_duplicate_partitions_are_rejected() -> None:
    cluster = cluster_of(1, 2)
    assert isinstance(cluster.reassign([1], topic="nothing").error, UnknownTopicOrPartitionError)
    assert isinstance(cluster.reassign([1], index=1).error, UnknownTopicOrPartitionError)
    twice = [Reassignment("orders", 0, [1]), Reassignment("orders", 0, [2])]
    decision = alter_partition_reassignments(cluster.state, twice, allow_rf_change=True)
    assert decision.records == []
    [result] = decision.response
    assert isinstance(result.error, InvalidRequestError)


def test_a_reassignment_to_a_fenced_broker_starts_and_waits() -> None:
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


def test_ongoing_reassignments_are_listed() -> None:
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


def test_draining_a_broker_balances_its_replicas_over_the_others() -> None:
    replicas = {("orders", index): ((index % 4) + 1, (index + 1) % 4 + 1) for index in range(24)}
    moves = plan_drain(replicas, dict.fromkeys((1, 2, 3, 4)), 4)
    after = {**replicas, **{(move.topic, move.partition): tuple(move.replicas or ()) for move in moves}}
    assert {len(set(members)) for members in after.values()} == {2}
    assert Counter(each for members in after.values() for each in members) == {1: 16, 2: 16, 3: 16}
    assert Counter(members[0] for members in after.values()) == {1: 8, 2: 8, 3: 8}
    untouched = {name for name, members in replicas.items() if 4 not in members}
    assert not untouched & {(move.topic, move.partition) for move in moves}


def test_a_drained_replica_goes_to_a_rack_without_one() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    [move] = plan_drain({("orders", 0): (1, 3)}, {**racks, 5: "a"}, 3)
    assert move.replicas == (1, 4)
    [move] = plan_drain({("orders", 0): (1, 3, 5)}, racks, 5)
    assert move.replicas == (1, 3, 2)


def test_a_broker_without_replacement_cannot_be_drained() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="orders-0 has 3"):
        plan_drain({("orders", 0): (1, 2, 3)}, {1: None, 2: None, 3: None}, 3)
    assert plan_drain({("orders", 0): (1, 2)}, {1: None, 2: None, 3: None}, 3) == []


# Changing the replication factor


def changed_replicas(
    replicas: dict[tuple[str, int], tuple[int, ...]],
    racks: dict[int, str | None],
    factor: int,
    *,
    held: dict[int, int] | None = None,
    out_of_sync: tuple[int, ...] = (),
) -> dict[int, tuple[int, ...]]:
    in_sync = {name: [each for each in members if each not in out_of_sync] for name, members in replicas.items()}
    moves = plan_replication_factor(replicas, in_sync, racks, held or {}, factor)
    return {move.partition: tuple(move.replicas or ()) for move in moves}


def test_new_replicas_are_spread_and_preferred_leaders_stay() -> None:
    replicas = {("orders", index): (index % 4 + 1,) for index in range(24)}
    after = changed_replicas(replicas, dict.fromkeys((1, 2, 3, 4)), 3, held={1: 6, 2: 6, 3: 6, 4: 6})
    assert all(members[0] == index % 4 + 1 and len(set(members)) == 3 for index, members in after.items())
    held = Counter(each for members in after.values() for each in members)
    assert held.total() == 24 * 3
    assert max(held.values()) - min(held.values()) <= 2


def test_a_new_replica_goes_to_a_rack_without_one_before_an_idle_broker() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b"}
    assert changed_replicas({("orders", 0): (1,)}, racks, 2, held={1: 1, 2: 0, 3: 9}) == {0: (1, 3)}


def test_partitions_with_the_factor_are_left_out() -> None:
    assert changed_replicas({("orders", 0): (1, 2), ("orders", 1): (2,)}, dict.fromkeys((1, 2)), 2) == {1: (2, 1)}


def test_replicas_are_removed_by_sync_rack_and_load() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "b", 4: "c"}
    members = {("orders", 0): (1, 2, 3, 4)}
    held = {1: 1, 2: 5, 3: 4, 4: 9}
    assert changed_replicas(members, racks, 3, held=held, out_of_sync=(4,)) == {0: (1, 2, 3)}
    assert changed_replicas(members, racks, 3, held=held) == {0: (1, 3, 4)}
    assert changed_replicas(members, racks, 1, held=held) == {0: (1,)}
    assert changed_replicas(members, racks, 1, held=held, out_of_sync=(1, 3, 4)) == {0: (2,)}


def test_a_factor_above_the_number_of_brokers_is_rejected() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="needs 3 running nodes, but there are 2"):
        changed_replicas({("orders", 0): (1,)}, dict.fromkeys((1, 2)), 3)
