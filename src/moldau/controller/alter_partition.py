"""ISR changes that partition leaders request (AlterPartition). Each change is valid for one partition epoch only."""

from collections.abc import Sequence
from uuid import UUID

from moldau.controller.cluster_control import check_broker_epoch
from moldau.controller.partition_change_builder import PartitionChangeBuilder
from moldau.controller.requests import IsrChange, IsrChangeResult
from moldau.controller.state import ControllerState
from moldau.coordinator import CoordinatorResult
from moldau.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    MoldauError,
    NewLeaderElectedError,
    NotControllerError,
    NotLeaderOrFollowerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from moldau.metadata.image import MetadataImage, PartitionRegistration, TopicImage
from moldau.metadata.records import PartitionChangeRecord, Record


def alter_partition(
    state: ControllerState, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
) -> CoordinatorResult[Record, list[IsrChangeResult]]:
    """Changes the ISR of each partition. Completes a reassignment if all its target replicas are in the new ISR. If the
    completion changes the leader, the result is NEW_LEADER_ELECTED."""
    check_broker_epoch(state.image, broker_id, broker_epoch)
    active = state.active_brokers()
    records: list[Record] = []
    results: list[IsrChangeResult] = []
    seen: set[tuple[UUID, int]] = set()
    for requested in changes:
        try:
            if (requested.topic_id, requested.partition) in seen:
                raise InvalidRequestError("Duplicate partition.")
            seen.add((requested.topic_id, requested.partition))
            topic, partition = _look_up(state.image, requested)
            _check_isr_change(state.image, broker_id, partition, requested)
            _check_not_offline(state, partition, requested)
        except MoldauError as error:
            results.append(IsrChangeResult(requested.topic_id, requested.partition, error=error))
            continue
        change = PartitionChangeBuilder(
            topic.topic_id,
            partition,
            min_isr=state.settings.topic(topic.name).min_insync_replicas,
            active=active,
            controller_id=state.image.controller_id if topic.name in state.controller_led_topics else None,
        )
        change.isr = tuple(member for member, _ in requested.isr)
        change.is_recovering = requested.is_recovering
        # Write even an unchanged ISR, because the new partition epoch invalidates delayed copies of earlier requests.
        record = change.build() or PartitionChangeRecord(
            partition_id=partition.index, topic_id=topic.topic_id, isr=partition.isr
        )
        records.append(record)
        results.append(_result(broker_id, requested, change.image_after(record)))
    return CoordinatorResult(records, results)


def _result(broker_id: int, requested: IsrChange, partition: PartitionRegistration) -> IsrChangeResult:
    error = None
    if partition.leader != broker_id:
        error = NewLeaderElectedError(f"The reassignment is complete and broker {partition.leader} leads.")
    return IsrChangeResult(
        requested.topic_id,
        requested.partition,
        partition.leader,
        partition.leader_epoch,
        partition.isr,
        partition.is_recovering,
        partition.partition_epoch,
        error,
    )


def _look_up(image: MetadataImage, requested: IsrChange) -> tuple[TopicImage, PartitionRegistration]:
    topic = image.topic_by_id(requested.topic_id)
    if topic is None:
        raise UnknownTopicIdError("This server does not host this topic ID.")
    if not 0 <= requested.partition < len(topic.partitions):
        raise UnknownTopicOrPartitionError(f"Partition {topic.name}-{requested.partition} does not exist.")
    return topic, topic.partitions[requested.partition]


def _check_isr_change(
    image: MetadataImage, broker_id: int, partition: PartitionRegistration, requested: IsrChange
) -> None:
    _check_leader(broker_id, partition, requested)
    _check_partition_epoch(partition, requested)
    members = [member for member, _ in requested.isr]
    if len(set(members)) < len(members) or not set(members) <= set(partition.replicas):
        raise InvalidRequestError(f"The ISR {members} is not a subset of the replicas {partition.replicas}.")
    if broker_id not in members:
        raise InvalidRequestError(f"The ISR {members} lacks its leader, broker {broker_id}.")
    if requested.is_recovering and (len(members) > 1 or not partition.is_recovering):
        raise InvalidRequestError(
            "A leader that recovers from an unclean election must be the only ISR member until it has recovered."
        )
    _check_members(image, partition, requested)


def _check_leader(broker_id: int, partition: PartitionRegistration, requested: IsrChange) -> None:
    if requested.leader_epoch > partition.leader_epoch or requested.partition_epoch > partition.partition_epoch:
        # The sender knows metadata that this controller does not have, so a later controller has written it.
        raise NotControllerError("The leader knows of a newer controller than this one.")
    if requested.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpochError(f"The leader epoch is {partition.leader_epoch}.")
    if broker_id != partition.leader:
        raise NotLeaderOrFollowerError(
            f"Broker {partition.leader} leads, not {broker_id}.", partition.leader, partition.leader_epoch
        )


def _check_partition_epoch(partition: PartitionRegistration, requested: IsrChange) -> None:
    if requested.partition_epoch < partition.partition_epoch:
        raise InvalidUpdateVersionError(
            f"The partition epoch is {partition.partition_epoch}, not {requested.partition_epoch}."
        )


def _check_members(image: MetadataImage, partition: PartitionRegistration, requested: IsrChange) -> None:
    """Raises IneligibleReplicaError for a member that is not active or has registered again after it caught up. The log
    of a member that registered again may be shorter."""
    for member, epoch in requested.isr:
        broker = image.brokers.get(member)
        if broker is None:
            reason = "is not registered"
        elif broker.in_controlled_shutdown:
            reason = "is shutting down"
        elif broker.fenced:
            reason = "is fenced"
        elif epoch == -1 and member not in partition.isr:
            reason = "joins without its broker epoch"
        elif epoch not in (-1, broker.epoch):
            reason = f"has broker epoch {broker.epoch}, not {epoch}"
        else:
            continue
        raise IneligibleReplicaError(f"Broker {member} {reason}.")


def _check_not_offline(state: ControllerState, partition: PartitionRegistration, requested: IsrChange) -> None:
    for member, _ in requested.isr:
        if member in partition.isr and state.is_transiently_offline(member, requested.topic_id, requested.partition):
            # Accept a current ISR member whose replica is only temporarily not writable. It stays in the ISR until
            # another member is online, and rejecting this change could keep that other member from joining.
            continue
        if state.is_offline(member, requested.topic_id, requested.partition):
            raise IneligibleReplicaError(f"Broker {member} has reported its replica offline.")
