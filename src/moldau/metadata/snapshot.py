"""Conversion of images to the records of a snapshot, and back. Pure."""

from collections.abc import Iterable, Iterator
from itertools import chain

from moldau.metadata.image import BrokerRegistration, MetadataImage, PartitionRegistration, TopicImage
from moldau.metadata.image_builder import ControllerChange, apply_changes
from moldau.metadata.records import (
    RECOVERED,
    RECOVERING,
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
)

NO_BROKER = -1


def image_to_records(image: MetadataImage) -> Iterator[Record]:
    """Yields the records that rebuild this image, except for its offset, its controller and the cluster id."""
    for name, level in image.features.items():
        yield FeatureLevelRecord(name=name, feature_level=level)
    for broker in image.brokers.values():
        yield _broker_record(broker)
    for topic in image.topics.values():
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for partition in topic.partitions:
            yield _partition_record(topic, partition)
    for resource, settings in image.configs.items():
        for name, value in settings.items():
            yield ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=NO_BROKER, next_producer_id=image.next_producer_id)


def image_from_records(
    records: Iterable[Record], *, cluster_id: str, end_offset: int, epoch: int, leader_id: int
) -> MetadataImage:
    """Returns the image that a snapshot's records describe. Raises CorruptRecordError if they are inconsistent."""
    changes = chain([ControllerChange(leader_id, epoch)], records)
    return apply_changes(MetadataImage(cluster_id=cluster_id), changes, end_offset - 1)[0]


def _broker_record(broker: BrokerRegistration) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=tuple(
            BrokerEndpoint(
                name=endpoint.listener,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in broker.endpoints
        ),
        features=tuple(
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in broker.features
        ),
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
    )


def _partition_record(topic: TopicImage, partition: PartitionRegistration) -> PartitionRecord:
    return PartitionRecord(
        partition_id=partition.index,
        topic_id=topic.topic_id,
        replicas=partition.replicas,
        isr=partition.isr,
        removing_replicas=partition.removing_replicas,
        adding_replicas=partition.adding_replicas,
        leader=partition.leader,
        leader_recovery_state=RECOVERING if partition.is_recovering else RECOVERED,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=(None,) * len(partition.replicas),
        eligible_leader_replicas=partition.elr or None,
        last_known_elr=partition.last_known_elr or None,
        unclean_epoch=partition.unclean_epoch,
    )
