"""The controller's state: the metadata image after all decisions so far, including uncommitted decisions."""

from collections.abc import Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from uuid import UUID

from moldau.controller.partition_index import PartitionIndex
from moldau.controller.requests import BrokerHeartbeat
from moldau.controller.topic_names import collision_key
from moldau.errors import PolicyViolationError
from moldau.metadata.image import TOPIC_RESOURCE, ConfigResource, MetadataImage, PartitionRegistration
from moldau.metadata.image_builder import apply_changes
from moldau.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    Record,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings

_NO_REPLICAS: Mapping[tuple[UUID, int], bool] = MappingProxyType({})
_BROKER_RECORDS = (RegisterBrokerRecord, BrokerRegistrationChangeRecord, UnregisterBrokerRecord)

RECORDS_PER_DECISION_MAX = 20_000
"""The maximum number of records in one decision. A decision is one batch of the metadata log, and a batch must be small
enough to replicate and apply at once."""
LEADER_FOLLOWS_CONTROLLER = "leader.follows.controller"
CONFIG_BYTES_PER_DECISION_MAX = 8 * 1024 * 1024
"""The maximum total size of the configs in one decision. All other records are small."""


class ControllerState:
    """The state that decisions read. `apply` adds the records of a decision to the state.

    Offline replicas are part of the state, but not of the metadata log, because brokers report them in heartbeats.
    """

    def __init__(self, image: MetadataImage, static: BrokerSettings) -> None:
        """`image` must contain all records of the metadata log, and all of them must be committed."""
        self.image = image
        self.settings = EffectiveSettings(static, image)
        """Includes config changes that are decided but not yet committed. These changes are earlier in the metadata
        log, so a partition leader applies them before the current decision."""
        self.controller_led_topics = self._with_leader_follows_controller(image.configs)
        """The topics with leader.follows.controller."""
        self.index = PartitionIndex(image, self.controller_led_topics)
        self.offline_replicas: dict[int, tuple[int, Mapping[tuple[UUID, int], bool]]] = {}
        """Offline replicas by broker id: the broker epoch of the report, and for each replica whether the failure is
        transient."""
        self._loaded_offset = image.offset
        self._last_fenced_offsets: dict[int, int] = {}
        """For each broker that registered or was fenced after `_loaded_offset`: the offset of the last record of the
        latest such decision."""
        self._last_change_offsets: dict[int, int] = {}
        """For each broker whose registration changed after `_loaded_offset`: the offset after the last record of the
        latest such decision."""
        self._topics_by_collision_key: dict[str, str] = {}
        for name in image.topics:
            self._index_name(name)

    @property
    def next_offset(self) -> int:
        """The offset of the first record of the next decision."""
        return self.image.offset + 1

    def active_brokers(self) -> set[int]:
        return {broker_id for broker_id, broker in self.image.brokers.items() if broker.is_active}

    def apply(self, records: Sequence[Record], end_offset: int) -> None:
        before = self.image
        self.image, delta = apply_changes(before, records, end_offset - 1)
        self.settings.apply(self.image, delta)
        changed = [resource for resource in delta.configs_changed if resource.type == TOPIC_RESOURCE]
        if changed:
            self.controller_led_topics -= {resource.name for resource in changed}
            self.controller_led_topics |= self._with_leader_follows_controller(changed)
        self.index.update(before, self.image, delta, self.controller_led_topics)
        for record in records:
            if isinstance(record, _BROKER_RECORDS):
                self._last_change_offsets[record.broker_id] = end_offset
            if isinstance(record, RegisterBrokerRecord) or (
                isinstance(record, BrokerRegistrationChangeRecord) and record.fenced > 0
            ):
                self._last_fenced_offsets[record.broker_id] = end_offset - 1
        for topic in delta.topics_deleted:
            key = collision_key(topic.name)
            if key is not None and self._topics_by_collision_key.get(key) == topic.name:
                del self._topics_by_collision_key[key]
        for name in delta.topics_created:
            self._index_name(name)

    def _with_leader_follows_controller(self, resources: Iterable[ConfigResource]) -> frozenset[str]:
        return frozenset(
            resource.name
            for resource in resources
            if resource.type == TOPIC_RESOURCE
            and LEADER_FOLLOWS_CONTROLLER in self.image.config(resource)
            and self.settings.topic(resource.name).leader_follows_controller
        )

    def preferred_leader(self, topic: str, partition: PartitionRegistration) -> int:
        """Returns the broker that leads the partition if it can: the active controller for topics with
        leader.follows.controller, and the first replica for others."""
        return self.index.preferred_leader(topic, partition)

    def update_offline_replicas(self, beat: BrokerHeartbeat) -> bool:
        """Stores the offline replicas that a heartbeat reports, so that decisions do not elect them. Returns whether
        they differ from those of the previous heartbeat. Ignores heartbeats of earlier incarnations of the broker."""
        broker = self.image.brokers.get(beat.broker_id)
        if broker is None or broker.epoch != beat.broker_epoch:
            return False
        offline = {(each.topic_id, each.partition): each.is_transient for each in beat.not_ready}
        known = self.offline_replicas.get(beat.broker_id)
        if known == (beat.broker_epoch, offline) or (known is None and not offline):
            return False
        self.offline_replicas[beat.broker_id] = (beat.broker_epoch, offline)
        return True

    def is_offline(self, broker_id: int, topic_id: UUID, partition: int) -> bool:
        """Returns whether the broker's current incarnation has reported its replica as offline."""
        epoch, offline = self.offline_replicas.get(broker_id, (-1, _NO_REPLICAS))
        broker = self.image.brokers.get(broker_id)
        return (topic_id, partition) in offline and broker is not None and broker.epoch == epoch

    def exclude_offline(self, brokers: Container[int], topic_id: UUID, partition: int) -> Container[int]:
        """Returns the `brokers` without those whose replica of the partition is offline.

        If no online ISR member remains, the result includes brokers whose replica is transiently offline (readable, but
        currently not writable). Such an ISR member has all committed records and can still serve reads.
        """
        offline = [each for each in self.offline_replicas if self.is_offline(each, topic_id, partition)]
        if not offline:
            return brokers
        online = {each for each in self.image.brokers if each in brokers and each not in offline}
        if any(member in online for member in self._isr(topic_id, partition)):
            return online
        return online | {
            each for each in offline if each in brokers and self.is_transiently_offline(each, topic_id, partition)
        }

    def is_transiently_offline(self, broker_id: int, topic_id: UUID, partition: int) -> bool:
        """Returns whether the broker's replica can be read but currently not written."""
        _, offline = self.offline_replicas.get(broker_id, (-1, _NO_REPLICAS))
        return offline.get((topic_id, partition), False)

    def _isr(self, topic_id: UUID, partition: int) -> Sequence[int]:
        topic = self.image.topic_by_id(topic_id)
        return () if topic is None else topic.partitions[partition].isr

    def last_fenced_offset(self, broker_id: int) -> int:
        """Returns the offset of the last record of the latest decision that fenced or registered the broker. A broker
        that has applied the metadata up to this offset knows which partitions it no longer leads."""
        return self._last_fenced_offsets.get(broker_id, self._loaded_offset)

    def last_change_offset(self, broker_id: int) -> int:
        """Returns the offset after the latest batch of metadata records that changed the broker's registration."""
        return self._last_change_offsets.get(broker_id, self._loaded_offset)

    def colliding_topic(self, key: str) -> str | None:
        return self._topics_by_collision_key.get(key)

    def _index_name(self, name: str) -> None:
        key = collision_key(name)
        if key is not None:
            self._topics_by_collision_key[key] = name


def check_batch_size(records: list[Record]) -> list[Record]:
    configs = sum(
        len(each.name.encode()) + len((each.value or "").encode()) for each in records if isinstance(each, ConfigRecord)
    )
    if len(records) > RECORDS_PER_DECISION_MAX or configs > CONFIG_BYTES_PER_DECISION_MAX:
        raise PolicyViolationError("Unable to perform excessively large batch operation.")
    return records
