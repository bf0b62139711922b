"""ISR changes that leaders request: accepted for the current state, else rejected with the right error."""

from uuid import UUID

import pytest

from moldau.controller.alter_partition import alter_partition
from moldau.controller.partition_change_builder import RetainedData
from moldau.controller.requests import IsrChange, IsrChangeResult
from moldau.errors import (
    BrokerIdNotRegisteredError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    MoldauError,
    NotControllerError,
    NotLeaderOrFollowerError,
    StaleBrokerEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from support.partition_decisions import ControlledCluster


@pytest.fixture
def cluster() -> ControlledCluster:
    """1 leads; 2 and 3 follow and are in sync; 4 has no replica."""
    cluster = ControlledCluster((1, 2, 3, 4))
    cluster.create("orders", (1, 2, 3))
    return cluster


def error_of(result: IsrChangeResult) -> type[MoldauError] | None:
    return None if result.error is None else type(result.error)


def test_isr_shrink_and_expansion_return_the_new_state(cluster: ControlledCluster) -> None:
    result = cluster.alter([1, 2])
    assert (result.leader, result.leader_epoch, result.isr, result.partition_epoch) == (1, 0, (1, 2), 1)
    result = cluster.alter([1, 2, 3])
    assert (result.isr, result.partition_epoch, result.error) == ((1, 2, 3), 2, None)
    assert cluster.partition().isr == (1, 2, 3)
    assert cluster.partition().leader_epoch == 0


def test_an_unchanged_isr_starts_a_new_partition_epoch(cluster: ControlledCluster) -> None:
    """A leader withdraws a pending change this way: the new epoch makes delayed copies of it stale."""
    result = cluster.alter([1, 2, 3])
    assert (result.isr, result.partition_epoch, result.error) == ((1, 2, 3), 1, None)
    assert cluster.partition().partition_epoch == 1
    assert error_of(cluster.alter([1, 2], partition_epoch=0)) is InvalidUpdateVersionError


def test_a_change_with_a_stale_partition_epoch_is_rejected(cluster: ControlledCluster) -> None:
    cluster.alter([1, 2])
    assert error_of(cluster.alter([1, 3], partition_epoch=0)) is InvalidUpdateVersionError
    assert cluster.partition().isr == (1, 2)


def test_a_previous_leader_is_rejected(cluster: ControlledCluster) -> None:
    cluster.fence(1)
    cluster.unfence(1)
    assert error_of(cluster.alter([1, 2, 3], leader=1, leader_epoch=0)) is FencedLeaderEpochError
    assert error_of(cluster.alter([1, 2, 3], leader=1)) is NotLeaderOrFollowerError


def test_a_leader_with_newer_metadata_gets_not_controller(cluster: ControlledCluster) -> None:
    assert error_of(cluster.alter([1, 2], leader_epoch=7)) is NotControllerError
    assert error_of(cluster.alter([1, 2], partition_epoch=7)) is NotControllerError


@pytest.mark.parametrize("members", [[1, 4], [1, 9], [1, 2, 2], [2, 3], []])
def test_an_invalid_isr_is_rejected(cluster: ControlledCluster, members: list[int]) -> None:
    assert error_of(cluster.alter(members)) is InvalidRequestError


def test_fenced_and_stopping_brokers_cannot_join_the_isr(cluster: ControlledCluster) -> None:
    cluster.fence(2)
    assert error_of(cluster.alter([1, 2, 3])) is IneligibleReplicaError
    cluster.shut_down(3)
    assert error_of(cluster.alter([1, 3])) is IneligibleReplicaError
    assert cluster.partition().isr == (1,)


def test_a_broker_that_registered_after_it_caught_up_cannot_join_the_isr(cluster: ControlledCluster) -> None:
    caught_up_in = cluster.state.image.brokers[3].epoch
    cluster.register(3, RetainedData.NONE)
    cluster.unfence(3)
    assert error_of(cluster.alter([1, 2, 3], broker_epochs={3: caught_up_in})) is IneligibleReplicaError
    assert cluster.alter([1, 2, 3]).error is None


def test_only_isr_members_may_omit_the_broker_epoch(cluster: ControlledCluster) -> None:
    assert cluster.alter([1, 2], broker_epochs={1: -1, 2: -1}).error is None
    assert error_of(cluster.alter([1, 2, 3], broker_epochs={3: -1})) is IneligibleReplicaError


def test_a_leader_reports_its_recovery_once(cluster: ControlledCluster) -> None:
    assert error_of(cluster.alter([1], is_recovering=True)) is InvalidRequestError


def test_a_request_with_a_stale_broker_epoch_fails_as_a_whole(cluster: ControlledCluster) -> None:
    epoch = cluster.state.image.brokers[1].epoch
    cluster.register(1)
    with pytest.raises(StaleBrokerEpochError):
        alter_partition(cluster.state, 1, epoch, [])
    with pytest.raises(BrokerIdNotRegisteredError):
        alter_partition(cluster.state, 9, epoch, [])


def test_each_partition_succeeds_or_fails_on_its_own(cluster: ControlledCluster) -> None:
    topic_id, brokers = cluster.state.image.topics["orders"].topic_id, cluster.state.image.brokers
    members = ((1, brokers[1].epoch), (2, brokers[2].epoch))
    requested = [
        IsrChange(UUID(int=7), 0, 0, 0, members),
        IsrChange(topic_id, 1, 0, 0, members),
        IsrChange(topic_id, -1, 0, 0, members),
        IsrChange(topic_id, 0, 0, 0, members),
        IsrChange(topic_id, 0, 0, 0, members[:1]),
    ]
    results = cluster.do(alter_partition(cluster.state, 1, brokers[1].epoch, requested))
    assert [error_of(result) for result in results] == [
        UnknownTopicIdError,
        UnknownTopicOrPartitionError,
        UnknownTopicOrPartitionError,
        None,
        InvalidRequestError,
    ]
    assert cluster.partition().isr == (1, 2)
