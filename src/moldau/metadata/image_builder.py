"""The image builder, which applies metadata records to an image and returns the next image with its delta. Pure.

Each call copies only the maps that records change. Both images share the other maps.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from moldau.errors import CorruptRecordError
from moldau.metadata.image import (
    TOPIC_RESOURCE,
    BrokerRegistration,
    ConfigResource,
    Endpoint,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from moldau.metadata.records import (
    NO_LEADER_CHANGE,
    NO_RECOVERY_STATE_CHANGE,
    RECOVERING,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class ControllerChange:
    """A new leader of the quorum, which is also the new controller. In the log it is a control record."""

    leader_id: int
    epoch: int


MetadataChange = Record | ControllerChange


def apply_changes(
    image: MetadataImage, changes: Iterable[MetadataChange], last_offset: int
) -> tuple[MetadataImage, MetadataDelta]:
    """Applies changes and returns the next image and the delta. `last_offset` is the offset of the last change.

    Raises CorruptRecordError for a change that contradicts the image. No controller writes such a change.
    """
    if last_offset < image.offset:
        raise CorruptRecordError(f"offset {last_offset} is below the image's offset {image.offset}")
    builder = _ImageBuilder(image)
    for change in changes:
        builder.replay(change)
    return builder.build(last_offset)


def _thaw(mapping: Mapping[K, V]) -> dict[K, V]:
    # `dict(proxy)` copies item by item. The proxy's own `copy` is faster, because it copies the whole dict at once.
    return mapping.copy() if isinstance(mapping, MappingProxyType) else dict(mapping)


def _freeze(copy: dict[K, V] | None, base: Mapping[K, V]) -> Mapping[K, V]:
    return base if copy is None else MappingProxyType(copy)


class _ImageBuilder:
    """Collects the changed maps of the next image, and the names of the changed objects."""

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self._topics: dict[str, TopicImage] | None = None
        self._topic_names: dict[UUID, str] | None = None
        self._partitions: dict[str, list[PartitionRegistration]] = {}
        self._configs: dict[ConfigResource, Mapping[str, str]] | None = None
        self._mutable_configs: dict[ConfigResource, dict[str, str]] = {}
        self._brokers: dict[int, BrokerRegistration] | None = None
        self._features: dict[str, int] | None = None
        self._next_producer_id = base.next_producer_id
        self._leader = ControllerChange(base.controller_id, base.controller_epoch)
        # Dicts are used as ordered sets, because the delta must have the same order in every run.
        self._changed_topics: dict[str, None] = {}
        self._changed_configs: dict[ConfigResource, None] = {}
        self._changed_brokers: dict[int, None] = {}
        self._changed_features: dict[str, None] = {}

    def replay(self, change: MetadataChange) -> None:
        match change:
            case TopicRecord():
                self._add_topic(change)
            case PartitionRecord():
                self._add_partition(change)
            case PartitionChangeRecord():
                self._change_partition(change)
            case RemoveTopicRecord():
                self._remove_topic(change)
            case ConfigRecord():
                self._set_config(change)
            case RegisterBrokerRecord():
                self._register_broker(change)
            case UnregisterBrokerRecord():
                self._unregister_broker(change)
            case BrokerRegistrationChangeRecord():
                self._change_broker(change)
            case FeatureLevelRecord():
                self._set_feature(change)
            case ProducerIdsRecord():
                if change.next_producer_id < self._next_producer_id:
                    raise CorruptRecordError(f"producer ids from {change.next_producer_id} were allocated before")
                self._next_producer_id = change.next_producer_id
            case ControllerChange():
                self._leader = change
            case NoOpRecord():
                pass

    # Topics

    def _mutable_topics(self) -> tuple[dict[str, TopicImage], dict[UUID, str]]:
        if self._topics is None or self._topic_names is None:
            self._topics = _thaw(self._base.topics)
            self._topic_names = _thaw(self._base.topic_names)
        return self._topics, self._topic_names

    def _topic(self, topic_id: UUID) -> TopicImage:
        topics, names = self._mutable_topics()
        name = names.get(topic_id)
        if name is None:
            raise CorruptRecordError(f"a record has the unknown topic id {topic_id}")
        return topics[name]

    def _mutable_partitions(self, topic: TopicImage) -> list[PartitionRegistration]:
        self._changed_topics[topic.name] = None
        partitions = self._partitions.get(topic.name)
        if partitions is None:
            partitions = self._partitions[topic.name] = list(topic.partitions)
        return partitions

    def _add_topic(self, record: TopicRecord) -> None:
        topics, names = self._mutable_topics()
        if record.name in topics or record.topic_id in names:
            raise CorruptRecordError(f"topic {record.name} ({record.topic_id}) is created twice")
        topics[record.name] = TopicImage(record.name, record.topic_id, ())
        names[record.topic_id] = record.name
        self._changed_topics[record.name] = None

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topic(record.topic_id)
        topics, names = self._mutable_topics()
        del topics[topic.name], names[record.topic_id]
        self._partitions.pop(topic.name, None)
        self._changed_topics[topic.name] = None
        resource = ConfigResource(TOPIC_RESOURCE, topic.name)
        if resource in self._mutable_config_map():
            self._mutable_config_map().pop(resource)
            self._mutable_configs.pop(resource, None)
            self._changed_configs[resource] = None

    def _add_partition(self, record: PartitionRecord) -> None:
        topic = self._topic(record.topic_id)
        partitions = self._mutable_partitions(topic)
        if record.partition_id != len(partitions):
            raise CorruptRecordError(f"partition {record.partition_id} of {topic.name} is not number {len(partitions)}")
        partitions.append(
            PartitionRegistration(
                record.partition_id,
                record.replicas,
                record.isr,
                record.leader,
                record.leader_epoch,
                record.partition_epoch,
                record.adding_replicas,
                record.removing_replicas,
                record.eligible_leader_replicas or (),
                record.last_known_elr or (),
                record.leader_recovery_state == RECOVERING,
                record.unclean_epoch,
            )
        )

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        topic = self._topic(record.topic_id)
        partitions = self._mutable_partitions(topic)
        if not 0 <= record.partition_id < len(partitions):
            raise CorruptRecordError(f"{topic.name} has no partition {record.partition_id} to change")
        old = partitions[record.partition_id]
        is_elected = record.leader != NO_LEADER_CHANGE
        leader_epoch = old.leader_epoch + 1 if is_elected else old.leader_epoch
        is_unclean = is_elected and record.leader_recovery_state == RECOVERING
        partitions[record.partition_id] = PartitionRegistration(
            old.index,
            old.replicas if record.replicas is None else record.replicas,
            old.isr if record.isr is None else record.isr,
            record.leader if is_elected else old.leader,
            leader_epoch,
            old.partition_epoch + 1,
            old.adding_replicas if record.adding_replicas is None else record.adding_replicas,
            old.removing_replicas if record.removing_replicas is None else record.removing_replicas,
            old.elr if record.eligible_leader_replicas is None else record.eligible_leader_replicas,
            old.last_known_elr if record.last_known_elr is None else record.last_known_elr,
            old.is_recovering
            if record.leader_recovery_state == NO_RECOVERY_STATE_CHANGE
            else record.leader_recovery_state == RECOVERING,
            leader_epoch if is_unclean else old.unclean_epoch,
        )

    # Configurations

    def _mutable_config_map(self) -> dict[ConfigResource, Mapping[str, str]]:
        if self._configs is None:
            self._configs = _thaw(self._base.configs)
        return self._configs

    def _set_config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        self._changed_configs[resource] = None
        configs = self._mutable_config_map()
        values = self._mutable_configs.get(resource)
        if values is None:
            values = self._mutable_configs[resource] = _thaw(configs.get(resource, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            configs[resource] = MappingProxyType(values)
        else:
            configs.pop(resource, None)

    # Brokers and features

    def _mutable_brokers(self) -> dict[int, BrokerRegistration]:
        if self._brokers is None:
            self._brokers = _thaw(self._base.brokers)
        return self._brokers

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        self._changed_brokers[record.broker_id] = None
        self._mutable_brokers()[record.broker_id] = BrokerRegistration(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            tuple(Endpoint(each.name, each.host, each.port, each.security_protocol) for each in record.end_points),
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
        )

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        brokers = self._mutable_brokers()
        old = brokers.get(record.broker_id)
        if old is None or old.epoch != record.broker_epoch:
            raise CorruptRecordError(f"broker {record.broker_id} is not registered with epoch {record.broker_epoch}")
        self._changed_brokers[record.broker_id] = None
        del brokers[record.broker_id]

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        brokers = self._mutable_brokers()
        old = brokers.get(record.broker_id)
        if old is None or old.epoch != record.broker_epoch:
            raise CorruptRecordError(f"broker {record.broker_id} is not registered with epoch {record.broker_epoch}")
        self._changed_brokers[record.broker_id] = None
        brokers[record.broker_id] = dataclasses.replace(
            old,
            fenced=old.fenced if record.fenced == 0 else record.fenced > 0,
            in_controlled_shutdown=old.in_controlled_shutdown or record.in_controlled_shutdown > 0,
        )

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        self._changed_features[record.name] = None
        if self._features is None:
            self._features = _thaw(self._base.features)
        if record.feature_level == 0:
            self._features.pop(record.name, None)
        else:
            self._features[record.name] = record.feature_level

    # The result

    def build(self, last_offset: int) -> tuple[MetadataImage, MetadataDelta]:
        base = self._base
        for name, partitions in self._partitions.items():
            topics, _ = self._mutable_topics()
            topics[name] = dataclasses.replace(topics[name], partitions=tuple(partitions))
        image = MetadataImage(
            cluster_id=base.cluster_id,
            offset=last_offset,
            controller_epoch=self._leader.epoch,
            controller_id=self._leader.leader_id,
            features=_freeze(self._features, base.features),
            brokers=_freeze(self._brokers, base.brokers),
            topics=_freeze(self._topics, base.topics),
            topic_names=_freeze(self._topic_names, base.topic_names),
            configs=_freeze(self._configs, base.configs),
            next_producer_id=self._next_producer_id,
        )
        return image, self._delta(image)

    def _delta(self, image: MetadataImage) -> MetadataDelta:
        """Returns the delta. Compares only objects that a record has changed."""
        base = self._base
        created, deleted, changed = [], [], []
        for name in self._changed_topics:
            old, new = base.topics.get(name), image.topics.get(name)
            if old is not None and (new is None or new.topic_id != old.topic_id):
                deleted.append(old)
                old = None
            if new is None:
                continue
            if old is None:
                created.append(name)
            previous = () if old is None else old.partitions
            changed += [
                (name, partition.index)
                for partition in new.partitions
                if partition.index >= len(previous) or previous[partition.index] != partition
            ]
        return MetadataDelta(
            topics_created=tuple(created),
            topics_deleted=tuple(deleted),
            partitions_changed=tuple(changed),
            configs_changed=tuple(
                resource
                for resource in self._changed_configs
                if base.configs.get(resource) != image.configs.get(resource)
            ),
            brokers_changed=tuple(
                broker_id
                for broker_id in self._changed_brokers
                if base.brokers.get(broker_id) != image.brokers.get(broker_id)
            ),
            features_changed=tuple(
                name for name in self._changed_features if base.features.get(name) != image.features.get(name)
            ),
        )
