"""Changes of in-sync sets as the leaders want them (AlterPartition), each thought up on a state that must still be."""

from collections.abc import Sequence
from uuid import UUID

from moldau.controller.cluster_control import check_broker_epoch
from moldau.controller.partition_change_builder import (
    PartitionChangeBuilder,
    active_brokers,
    speculative_settings,
)
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
from moldau.settings.effective import EffectiveSettings


def alter_partition(
    state: ControllerState,
    settings: EffectiveSettings,
    broker_id: int,
    broker_epoch: int,
    changes: Sequence[IsrChange],
) -> CoordinatorResult[Record, list[IsrChangeResult]]:
    """Partition by partition. A reassignment whose new replicas are all in sync by this is done by this; if that
    takes the leadership from the caller, it is made and answered NEW_LEADER_ELECTED."""
    _check_caller(state, broker_id, broker_epoch)
    decided = speculative_settings(state, settings)
    active = active_brokers(state)
    records: list[Record] = []
    results: list[IsrChangeResult] = []
    seen: set[tuple[UUID, int]] = set()
    for wanted in changes:
        try:
            if (wanted.topic_id, wanted.partition) in seen:
                raise InvalidRequestError("A partition is named twice.")
            seen.add((wanted.topic_id, wanted.partition))
            topic, partition = _look_up(state.image, wanted)
            _check_isr_change(state.image, broker_id, partition, wanted)
            _check_not_offline(state, partition, wanted)
        except MoldauError as error:
            results.append(IsrChangeResult(wanted.topic_id, wanted.partition, error=error))
            continue
        change = PartitionChangeBuilder(
            topic.topic_id,
            partition,
            min_isr=decided.topic(topic.name).min_insync_replicas,
            active=active,
        )
        change.isr = tuple(member for member, _ in wanted.isr)
        change.is_recovering = wanted.is_recovering
        # Also where the set stays as it is: in a new partition epoch no late copy of another proposal is taken, which
        # is what its leader wants then.
        record = change.build() or PartitionChangeRecord(
            partition_id=partition.index, topic_id=topic.topic_id, isr=partition.isr
        )
        records.append(record)
        results.append(_result(broker_id, wanted, change.image_after(record)))
    return CoordinatorResult(records, results)


def _result(broker_id: int, wanted: IsrChange, partition: PartitionRegistration) -> IsrChangeResult:
    error = None
    if partition.leader != broker_id:
        error = NewLeaderElectedError(f"The reassignment is done; broker {partition.leader} leads now.")
    return IsrChangeResult(
        wanted.topic_id,
        wanted.partition,
        partition.leader,
        partition.leader_epoch,
        partition.isr,
        partition.is_recovering,
        partition.partition_epoch,
        error,
    )


def _look_up(image: MetadataImage, wanted: IsrChange) -> tuple[TopicImage, PartitionRegistration]:
    topic = image.topic_by_id(wanted.topic_id)
    if topic is None:
        raise UnknownTopicIdError("This server does not host this topic ID.")
    if not 0 <= wanted.partition < len(topic.partitions):
        raise UnknownTopicOrPartitionError(f"No such partition as {topic.name}-{wanted.partition}")
    return topic, topic.partitions[wanted.partition]


def _check_isr_change(
    image: MetadataImage, broker_id: int, partition: PartitionRegistration, wanted: IsrChange
) -> None:
    _check_leader(broker_id, partition, wanted)
    _check_partition_epoch(partition, wanted)
    members = [member for member, _ in wanted.isr]
    if len(set(members)) < len(members) or not set(members) <= set(partition.replicas):
        raise InvalidRequestError(
            f"The in-sync set {members} is not one of the replicas {partition.replicas}."
        )
    if broker_id not in members:
        raise InvalidRequestError(f"The in-sync set {members} is without its leader, broker {broker_id}.")
    if wanted.is_recovering and (len(members) > 1 or not partition.is_recovering):
        raise InvalidRequestError(
            "A leader that recovers from an unclean election is alone in sync, and says once that it is done."
        )
    _check_members(image, partition, wanted)


def _check_leader(broker_id: int, partition: PartitionRegistration, wanted: IsrChange) -> None:
    if wanted.leader_epoch > partition.leader_epoch or wanted.partition_epoch > partition.partition_epoch:
        # What the caller knows was committed by a later controller than this one.
        raise NotControllerError("The leader knows of a newer controller than this one.")
    if wanted.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpochError(f"The leader epoch is {partition.leader_epoch} by now.")
    if broker_id != partition.leader:
        raise NotLeaderOrFollowerError(
            f"Broker {partition.leader} leads, not {broker_id}.", partition.leader, partition.leader_epoch
        )


def _check_partition_epoch(partition: PartitionRegistration, wanted: IsrChange) -> None:
    """The change was thought up on another state: what it leaves out or keeps may be wrong by now."""
    if wanted.partition_epoch < partition.partition_epoch:
        raise InvalidUpdateVersionError(
            f"The partition epoch is {partition.partition_epoch} by now, not {wanted.partition_epoch}."
        )


def _check_members(image: MetadataImage, partition: PartitionRegistration, wanted: IsrChange) -> None:
    """Who joins must be alive, and in the life in which it caught up: a broker that started anew since may have
    less in its log than the leader has seen it fetch."""
    for member, epoch in wanted.isr:
        broker = image.brokers.get(member)
        if broker is None:
            complaint = "is not registered"
        elif broker.in_controlled_shutdown:
            complaint = "is shutting down"
        elif broker.fenced:
            complaint = "is fenced"
        elif epoch == -1 and member not in partition.isr:
            complaint = "joins without its broker epoch"
        elif epoch not in (-1, broker.epoch):
            complaint = f"has the broker epoch {broker.epoch} by now, not {epoch}"
        else:
            continue
        raise IneligibleReplicaError(f"Broker {member} {complaint}.")


def _check_not_offline(state: ControllerState, partition: PartitionRegistration, wanted: IsrChange) -> None:
    for member, _ in wanted.isr:
        if member in partition.isr and state.is_transiently_offline(
            member, wanted.topic_id, wanted.partition
        ):
            # It stays until another is in sync that can take its place, who may be just about to join.
            continue
        if state.is_offline(member, wanted.topic_id, wanted.partition):
            raise IneligibleReplicaError(
                f"Broker {member} has said that its log of the partition has failed."
            )


def _check_caller(state: ControllerState, broker_id: int, broker_epoch: int) -> None:
    check_broker_epoch(state.image, broker_id, broker_epoch)
