"""The image builder, which applies metadata records to an image and returns the next image with its delta. Pure.

Each call copies only the maps that records change. Both images share the other maps.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar
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

MAPS = ("features", "brokers", "topics", "topic_names", "configs")
"""The names of the maps of an image. `_ImageBuilder` has a cached property for each: a copy that records can change."""


@dataclass(frozen=True, slots=True)
class ControllerChange:
    """A new leader of the quorum, which is also the new controller. In the log it is a control record."""

    leader_id: int
    epoch: int


MetadataChange = Record | ControllerChange


def apply_changes(
    image: MetadataImage, changes: Iterable[MetadataChange], last_offset: int
) -> tuple[MetadataImage, MetadataDelta]:
    """Returns the next image and the delta. Raises CorruptRecordError for a change that contradicts the image."""
    if last_offset < image.offset:
        raise CorruptRecordError(f"offset {last_offset} is below the image's offset {image.offset}")
    builder = _ImageBuilder(image)
    for change in changes:
        builder.replay(change)
    return builder.build(last_offset)


def delta_between(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """Returns the delta between two images. Used if several calls of `apply_changes`, or a snapshot, led to `new`."""
    return _compare(
        old,
        new,
        old.topics,
        new.topics,
        {**old.configs, **new.configs},
        {**old.brokers, **new.brokers},
        {**old.features, **new.features},
    )


def _compare(
    old: MetadataImage,
    new: MetadataImage,
    old_topics: Iterable[str],
    new_topics: Iterable[str],
    configs: Iterable[ConfigResource],
    brokers: Iterable[int],
    features: Iterable[str],
) -> MetadataDelta:
    """Returns the delta between two images. Compares only the named objects, and lists them in the given order."""
    created, deleted, changed = [], [], []
    for name in old_topics:
        topic, next_topic = old.topics.get(name), new.topics.get(name)
        if topic is not None and (next_topic is None or next_topic.topic_id != topic.topic_id):
            deleted.append(topic)
    for name in new_topics:
        previous, topic = old.topics.get(name), new.topics.get(name)
        if topic is None or topic is previous:
            continue
        if previous is None or previous.topic_id != topic.topic_id:
            created.append(name)
            previous = None
        partitions = () if previous is None else previous.partitions
        changed += [
            (name, partition.index)
            for partition in topic.partitions
            if partition.index >= len(partitions) or partitions[partition.index] != partition
        ]
    return MetadataDelta(
        topics_created=tuple(created),
        topics_deleted=tuple(deleted),
        partitions_changed=tuple(changed),
        configs_changed=tuple(each for each in configs if old.configs.get(each) != new.configs.get(each)),
        brokers_changed=tuple(each for each in brokers if old.brokers.get(each) != new.brokers.get(each)),
        features_changed=tuple(each for each in features if old.features.get(each) != new.features.get(each)),
    )


def _thaw(mapping: Mapping[K, V]) -> dict[K, V]:
    # `dict(proxy)` copies item by item. The proxy's own `copy` is faster, because it copies the whole dict at once.
    return mapping.copy() if isinstance(mapping, MappingProxyType) else dict(mapping)


class _ImageBuilder:
    """Collects the changed maps of the next image, and the names of the changed objects."""

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self._partitions: dict[str, list[PartitionRegistration]] = {}
        self._changed_values: dict[ConfigResource, dict[str, str]] = {}
        self._next_producer_id = base.next_producer_id
        self._leader = ControllerChange(base.controller_id, base.controller_epoch)
        # Dicts are used as ordered sets, because the delta must have the same order in every run.
        self._changed_topics: dict[str, None] = {}
        self._changed_configs: dict[ConfigResource, None] = {}
        self._changed_brokers: dict[int, None] = {}
        self._changed_features: dict[str, None] = {}

    @cached_property
    def _features(self) -> dict[str, int]:
        return _thaw(self._base.features)

    @cached_property
    def _brokers(self) -> dict[int, BrokerRegistration]:
        return _thaw(self._base.brokers)

    @cached_property
    def _topics(self) -> dict[str, TopicImage]:
        return _thaw(self._base.topics)

    @cached_property
    def _topic_names(self) -> dict[UUID, str]:
        return _thaw(self._base.topic_names)

    @cached_property
    def _configs(self) -> dict[ConfigResource, Mapping[str, str]]:
        return _thaw(self._base.configs)

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

    def _topic(self, topic_id: UUID) -> TopicImage:
        name = self._topic_names.get(topic_id)
        if name is None:
            raise CorruptRecordError(f"a record has the unknown topic id {topic_id}")
        return self._topics[name]

    def _mutable_partitions(self, topic: TopicImage) -> list[PartitionRegistration]:
        self._changed_topics[topic.name] = None
        partitions = self._partitions.get(topic.name)
        if partitions is None:
            partitions = self._partitions[topic.name] = list(topic.partitions)
        return partitions

    def _add_topic(self, record: TopicRecord) -> None:
        if record.name in self._topics or record.topic_id in self._topic_names:
            raise CorruptRecordError(f"topic {record.name} ({record.topic_id}) is created twice")
        self._topics[record.name] = TopicImage(record.name, record.topic_id, ())
        self._topic_names[record.topic_id] = record.name
        self._changed_topics[record.name] = None

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topic(record.topic_id)
        del self._topics[topic.name], self._topic_names[record.topic_id]
        self._partitions.pop(topic.name, None)
        self._changed_topics[topic.name] = None
        resource = ConfigResource(TOPIC_RESOURCE, topic.name)
        if self._configs.pop(resource, None) is not None:
            self._changed_values.pop(resource, None)
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

    def _set_config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        self._changed_configs[resource] = None
        values = self._changed_values.get(resource)
        if values is None:
            values = self._changed_values[resource] = _thaw(self._configs.get(resource, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            self._configs[resource] = MappingProxyType(values)
        else:
            self._configs.pop(resource, None)

    # Brokers and features

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        self._changed_brokers[record.broker_id] = None
        self._brokers[record.broker_id] = BrokerRegistration(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            tuple(Endpoint(each.name, each.host, each.port, each.security_protocol) for each in record.end_points),
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            tuple((each.name, each.min_supported_version, each.max_supported_version) for each in record.features),
        )

    def _registered_broker(self, record: UnregisterBrokerRecord | BrokerRegistrationChangeRecord) -> BrokerRegistration:
        old = self._brokers.get(record.broker_id)
        if old is None or old.epoch != record.broker_epoch:
            raise CorruptRecordError(f"broker {record.broker_id} is not registered with epoch {record.broker_epoch}")
        self._changed_brokers[record.broker_id] = None
        return old

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._registered_broker(record)
        del self._brokers[record.broker_id]

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        old = self._registered_broker(record)
        self._brokers[record.broker_id] = dataclasses.replace(
            old,
            fenced=old.fenced if record.fenced == 0 else record.fenced > 0,
            in_controlled_shutdown=old.in_controlled_shutdown or record.in_controlled_shutdown > 0,
        )

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        self._changed_features[record.name] = None
        if record.feature_level == 0:
            self._features.pop(record.name, None)
        else:
            self._features[record.name] = record.feature_level

    # The result

    def build(self, last_offset: int) -> tuple[MetadataImage, MetadataDelta]:
        base = self._base
        for name, partitions in self._partitions.items():
            self._topics[name] = dataclasses.replace(self._topics[name], partitions=tuple(partitions))
        # Each map is a cached property, so `vars(self)` has only the maps that a record has needed.
        copies: dict[str, Any] = {
            name: MappingProxyType(vars(self)[f"_{name}"]) for name in MAPS if f"_{name}" in vars(self)
        }
        image = dataclasses.replace(
            base,
            offset=last_offset,
            controller_epoch=self._leader.epoch,
            controller_id=self._leader.leader_id,
            next_producer_id=self._next_producer_id,
            **copies,
        )
        delta = _compare(
            base,
            image,
            self._changed_topics,
            self._changed_topics,
            self._changed_configs,
            self._changed_brokers,
            self._changed_features,
        )
        return image, delta
