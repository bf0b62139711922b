"""The controller's view of the cluster: the image with everything decided so far, committed or not yet."""

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from uuid import UUID

from moldau.controller.index import PartitionIndex
from moldau.controller.topic_names import collision_key
from moldau.errors import PolicyViolationError
from moldau.metadata.image import MetadataImage
from moldau.metadata.image_builder import apply
from moldau.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    Record,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)

_NO_REPLICAS: Mapping[tuple[UUID, int], bool] = MappingProxyType({})
_BROKER_RECORDS = (RegisterBrokerRecord, BrokerRegistrationChangeRecord, UnregisterBrokerRecord)

RECORDS_PER_DECISION_MAX = 20_000
"""A decision is one batch of the log, which must stay small enough to be replicated and applied at one go."""
CONFIG_BYTES_PER_DECISION_MAX = 8 * 1024 * 1024
"""In values of configs. All other records are small."""


class ControllerState:
    """Decisions read it; only `apply` changes it, save what brokers say of failed replicas, which is in no log."""

    def __init__(self, image: MetadataImage) -> None:
        """`image` is committed up to the end of the log."""
        self.image = image
        self.index = PartitionIndex(image)
        self.offline_replicas: dict[int, tuple[int, Mapping[tuple[UUID, int], bool]]] = {}
        """By broker: its epoch, and those of its replicas whose logs have failed, with whether that may pass."""
        self._loaded_offset = image.offset
        self._last_fenced_offsets: dict[int, int] = {}
        """Of the brokers that registered or were fenced since then."""
        self._last_change_offsets: dict[int, int] = {}
        """Of the brokers of which anything was decided since then: where the newest such decision ends."""
        self._topics_by_collision_key: dict[str, str] = {}
        """A topic for each collision key in use."""
        for name in image.topics:
            self._index_name(name)

    @property
    def next_offset(self) -> int:
        """Where the first record of the next decision will stand."""
        return self.image.offset + 1

    def apply(self, records: Sequence[Record], end_offset: int) -> None:
        before = self.image
        self.image, delta = apply(before, records, end_offset - 1)
        self.index.update(before, self.image, delta)
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

    def is_offline(self, broker_id: int, topic_id: UUID, partition: int) -> bool:
        """Whether the broker, in the life that is registered, has said that its log of a partition has failed."""
        epoch, failed = self.offline_replicas.get(broker_id, (-1, _NO_REPLICAS))
        broker = self.image.brokers.get(broker_id)
        return (topic_id, partition) in failed and broker is not None and broker.epoch == epoch

    def exclude_offline(self, brokers: Container[int], topic_id: UUID, partition: int) -> Container[int]:
        """Those of the brokers whose replicas of a partition can be relied on. Where nobody is left of those in sync,
        replicas whose trouble may pass can: they have all that is committed, and it can be read."""
        failed = [each for each in self.offline_replicas if self.is_offline(each, topic_id, partition)]
        if not failed:
            return brokers
        well = {each for each in self.image.brokers if each in brokers and each not in failed}
        if any(member in well for member in self._isr(topic_id, partition)):
            return well
        return well | {
            each
            for each in failed
            if each in brokers and self.is_transiently_offline(each, topic_id, partition)
        }

    def is_transiently_offline(self, broker_id: int, topic_id: UUID, partition: int) -> bool:
        """Whether what has failed on a broker is only that its replica cannot be written for the moment."""
        _, failed = self.offline_replicas.get(broker_id, (-1, _NO_REPLICAS))
        return failed.get((topic_id, partition), False)

    def _isr(self, topic_id: UUID, partition: int) -> Sequence[int]:
        topic = self.image.topic_by_id(topic_id)
        return () if topic is None else topic.partitions[partition].isr

    def last_fenced_offset(self, broker_id: int) -> int:
        """The end of the decision by which a broker was last fenced, with its registration or after it. Who has taken
        the metadata up to there knows what it does not lead any more."""
        return self._last_fenced_offsets.get(broker_id, self._loaded_offset)

    def last_change_offset(self, broker_id: int) -> int:
        """Whoever is told what the broker is (registered, fenced) is told of the log below this offset."""
        return self._last_change_offsets.get(broker_id, self._loaded_offset)

    def colliding_topic(self, key: str) -> str | None:
        """The topic with this collision key."""
        return self._topics_by_collision_key.get(key)

    def _index_name(self, name: str) -> None:
        key = collision_key(name)
        if key is not None:
            self._topics_by_collision_key[key] = name


def check_batch_size(records: list[Record]) -> list[Record]:
    configs = sum(len((each.value or "").encode()) for each in records if isinstance(each, ConfigRecord))
    if len(records) > RECORDS_PER_DECISION_MAX or configs > CONFIG_BYTES_PER_DECISION_MAX:
        raise PolicyViolationError("Unable to perform excessively large batch operation.")
    return records
