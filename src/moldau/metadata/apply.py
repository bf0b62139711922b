"""From one image to the next: records in, the new image and what changed out. Pure.

Only the maps that a record touches are copied, once for all records of a call, so one topic more in a cluster
of thousands costs some microseconds, and a whole log at boot costs no more than its records.
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
    BrokerImage,
    ClusterDelta,
    ClusterImage,
    ConfigResource,
    Endpoint,
    PartitionImage,
    TopicImage,
)
from moldau.metadata.records import (
    NO_CHANGE,
    RECOVERING,
    UNCHANGED,
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
class LeaderChange:
    """The quorum has a new leader, and so the cluster a new controller. In the log it is a control record."""

    leader_id: int
    epoch: int


Change = Record | LeaderChange


def apply(
    image: ClusterImage, changes: Iterable[Change], last_offset: int
) -> tuple[ClusterImage, ClusterDelta]:
    """The image after `changes`, the last of which stands at `last_offset`.

    Raises CorruptRecordError for a change that cannot follow on the image: no controller wrote that log.
    """
    if last_offset < image.offset:
        raise CorruptRecordError(f"offset {last_offset} cannot follow on offset {image.offset}")
    step = _Step(image)
    for change in changes:
        step.take(change)
    return step.finish(last_offset)


def _thaw(mapping: Mapping[K, V]) -> dict[K, V]:
    # A mapping proxy is copied at the speed of the dict inside it only by its own method.
    return mapping.copy() if isinstance(mapping, MappingProxyType) else dict(mapping)


def _freeze(copy: dict[K, V] | None, base: Mapping[K, V]) -> Mapping[K, V]:
    return base if copy is None else MappingProxyType(copy)


class _Step:
    """The next image while it is being made: copies of the maps that are touched, and what was touched."""

    def __init__(self, base: ClusterImage) -> None:
        self._base = base
        self._topics: dict[str, TopicImage] | None = None
        self._topic_names: dict[UUID, str] | None = None
        self._partitions: dict[str, list[PartitionImage]] = {}
        self._configs: dict[ConfigResource, Mapping[str, str]] | None = None
        self._open_configs: dict[ConfigResource, dict[str, str]] = {}
        self._brokers: dict[int, BrokerImage] | None = None
        self._features: dict[str, int] | None = None
        self._next_producer_id = base.next_producer_id
        self._leader = LeaderChange(base.controller_id, base.controller_epoch)
        # Dicts stand in for ordered sets: the delta must come out in the same order in every run.
        self._topics_touched: dict[str, None] = {}
        self._configs_touched: dict[ConfigResource, None] = {}
        self._brokers_touched: dict[int, None] = {}
        self._features_touched: dict[str, None] = {}

    def take(self, change: Change) -> None:
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
                    raise CorruptRecordError(
                        f"producer ids from {change.next_producer_id} were given away before"
                    )
                self._next_producer_id = change.next_producer_id
            case LeaderChange():
                self._leader = change
            case NoOpRecord():
                pass

    # Topics

    def _topic_maps(self) -> tuple[dict[str, TopicImage], dict[UUID, str]]:
        if self._topics is None or self._topic_names is None:
            self._topics = _thaw(self._base.topics)
            self._topic_names = _thaw(self._base.topic_names)
        return self._topics, self._topic_names

    def _topic(self, topic_id: UUID) -> TopicImage:
        topics, names = self._topic_maps()
        name = names.get(topic_id)
        if name is None:
            raise CorruptRecordError(f"a record names the topic id {topic_id}, which no topic has")
        return topics[name]

    def _open_partitions(self, topic: TopicImage) -> list[PartitionImage]:
        """The topic's partitions as a list that this step may change."""
        self._topics_touched[topic.name] = None
        found = self._partitions.get(topic.name)
        if found is None:
            found = self._partitions[topic.name] = list(topic.partitions)
        return found

    def _add_topic(self, record: TopicRecord) -> None:
        topics, names = self._topic_maps()
        if record.name in topics or record.topic_id in names:
            raise CorruptRecordError(f"topic {record.name} ({record.topic_id}) is created twice")
        topics[record.name] = TopicImage(record.name, record.topic_id, ())
        names[record.topic_id] = record.name
        self._topics_touched[record.name] = None

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topic(record.topic_id)
        topics, names = self._topic_maps()
        del topics[topic.name], names[record.topic_id]
        self._partitions.pop(topic.name, None)
        self._topics_touched[topic.name] = None
        resource = ConfigResource(TOPIC_RESOURCE, topic.name)
        if resource in self._config_map():
            self._config_map().pop(resource)
            self._open_configs.pop(resource, None)
            self._configs_touched[resource] = None

    def _add_partition(self, record: PartitionRecord) -> None:
        topic = self._topic(record.topic_id)
        partitions = self._open_partitions(topic)
        if record.partition_id != len(partitions):
            raise CorruptRecordError(
                f"partition {record.partition_id} of {topic.name} cannot follow on {len(partitions)} others"
            )
        partitions.append(
            PartitionImage(
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
        partitions = self._open_partitions(topic)
        if not 0 <= record.partition_id < len(partitions):
            raise CorruptRecordError(f"{topic.name} has no partition {record.partition_id} to change")
        old = partitions[record.partition_id]
        elected = record.leader != UNCHANGED
        leader_epoch = old.leader_epoch + 1 if elected else old.leader_epoch
        elected_uncleanly = elected and record.leader_recovery_state == RECOVERING
        partitions[record.partition_id] = PartitionImage(
            old.index,
            old.replicas if record.replicas is None else record.replicas,
            old.in_sync if record.isr is None else record.isr,
            record.leader if elected else old.leader,
            leader_epoch,
            old.partition_epoch + 1,
            old.adding if record.adding_replicas is None else record.adding_replicas,
            old.removing if record.removing_replicas is None else record.removing_replicas,
            old.eligible if record.eligible_leader_replicas is None else record.eligible_leader_replicas,
            old.last_known_eligible if record.last_known_elr is None else record.last_known_elr,
            old.is_recovering
            if record.leader_recovery_state == NO_CHANGE
            else record.leader_recovery_state == RECOVERING,
            leader_epoch if elected_uncleanly else old.unclean_epoch,
        )

    # Configurations

    def _config_map(self) -> dict[ConfigResource, Mapping[str, str]]:
        if self._configs is None:
            self._configs = _thaw(self._base.configs)
        return self._configs

    def _set_config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        self._configs_touched[resource] = None
        configs = self._config_map()
        values = self._open_configs.get(resource)
        if values is None:
            values = self._open_configs[resource] = _thaw(configs.get(resource, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            configs[resource] = MappingProxyType(values)
        else:
            configs.pop(resource, None)

    # Brokers and features

    def _broker_map(self) -> dict[int, BrokerImage]:
        if self._brokers is None:
            self._brokers = _thaw(self._base.brokers)
        return self._brokers

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        self._brokers_touched[record.broker_id] = None
        self._broker_map()[record.broker_id] = BrokerImage(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            tuple(Endpoint(at.name, at.host, at.port, at.security_protocol) for at in record.end_points),
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
        )

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        brokers = self._broker_map()
        old = brokers.get(record.broker_id)
        if old is None or old.epoch != record.broker_epoch:
            raise CorruptRecordError(
                f"broker {record.broker_id} is not registered with epoch {record.broker_epoch}"
            )
        self._brokers_touched[record.broker_id] = None
        del brokers[record.broker_id]

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        brokers = self._broker_map()
        old = brokers.get(record.broker_id)
        if old is None or old.epoch != record.broker_epoch:
            raise CorruptRecordError(
                f"broker {record.broker_id} is not registered with epoch {record.broker_epoch}"
            )
        self._brokers_touched[record.broker_id] = None
        brokers[record.broker_id] = dataclasses.replace(
            old,
            fenced=old.fenced if record.fenced == 0 else record.fenced > 0,
            in_controlled_shutdown=old.in_controlled_shutdown or record.in_controlled_shutdown > 0,
        )

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        self._features_touched[record.name] = None
        if self._features is None:
            self._features = _thaw(self._base.features)
        if record.feature_level == 0:
            self._features.pop(record.name, None)
        else:
            self._features[record.name] = record.feature_level

    # The end

    def finish(self, last_offset: int) -> tuple[ClusterImage, ClusterDelta]:
        base = self._base
        for name, partitions in self._partitions.items():
            topics, _ = self._topic_maps()
            topics[name] = dataclasses.replace(topics[name], partitions=tuple(partitions))
        image = ClusterImage(
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

    def _delta(self, image: ClusterImage) -> ClusterDelta:
        """The difference between the two images, looked for only where a record touched them."""
        base = self._base
        created, deleted, changed = [], [], []
        for name in self._topics_touched:
            old, new = base.topics.get(name), image.topics.get(name)
            if old is not None and (new is None or new.topic_id != old.topic_id):
                deleted.append(old)
                old = None
            if new is None:
                continue
            if old is None:
                created.append(name)
            before = () if old is None else old.partitions
            changed += [
                (name, partition.index)
                for partition in new.partitions
                if partition.index >= len(before) or before[partition.index] != partition
            ]
        return ClusterDelta(
            topics_created=tuple(created),
            topics_deleted=tuple(deleted),
            partitions_changed=tuple(changed),
            configs_changed=tuple(
                at for at in self._configs_touched if base.configs.get(at) != image.configs.get(at)
            ),
            brokers_changed=tuple(
                at for at in self._brokers_touched if base.brokers.get(at) != image.brokers.get(at)
            ),
            features_changed=tuple(
                at for at in self._features_touched if base.features.get(at) != image.features.get(at)
            ),
        )
