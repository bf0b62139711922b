"""The controller's view of the cluster: the image with everything decided so far, committed or not yet."""

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from uuid import UUID

from moldau.controller.index import PartitionIndex
from moldau.controller.names import collision_key
from moldau.errors import PolicyViolationError
from moldau.metadata.apply import apply
from moldau.metadata.image import ClusterImage
from moldau.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    Record,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)

_NONE: Mapping[tuple[UUID, int], bool] = MappingProxyType({})
_OF_A_BROKER = (RegisterBrokerRecord, BrokerRegistrationChangeRecord, UnregisterBrokerRecord)

RECORDS_PER_DECISION_MAX = 20_000
"""A decision is one batch of the log, which must stay small enough to be replicated and applied at one go."""
CONFIG_BYTES_PER_DECISION_MAX = 8 * 1024 * 1024
"""In values of configs. All other records are small."""


class ControllerState:
    """Decisions read it; only `apply` changes it, save what brokers say of failed replicas, which is in no log."""

    def __init__(self, image: ClusterImage) -> None:
        """`image` is committed up to the end of the log."""
        self.image = image
        self.index = PartitionIndex(image)
        self.failed_replicas: dict[int, tuple[int, Mapping[tuple[UUID, int], bool]]] = {}
        """By broker: its epoch, and those of its replicas whose logs have failed, with whether that may pass."""
        self._loaded_offset = image.offset
        self._put_out_offsets: dict[int, int] = {}
        """Of the brokers that registered or were fenced since then."""
        self._changed_offsets: dict[int, int] = {}
        """Of the brokers of which anything was decided since then: where the newest such decision ends."""
        self._twins: dict[str, str] = {}
        """A topic for each collision key in use."""
        for name in image.topics:
            self._add_name(name)

    @property
    def next_offset(self) -> int:
        """Where the first record of the next decision will stand."""
        return self.image.offset + 1

    def apply(self, records: Sequence[Record], end_offset: int) -> None:
        before = self.image
        self.image, delta = apply(before, records, end_offset - 1)
        self.index.update(before, self.image, delta)
        for record in records:
            if isinstance(record, _OF_A_BROKER):
                self._changed_offsets[record.broker_id] = end_offset
            if isinstance(record, RegisterBrokerRecord) or (
                isinstance(record, BrokerRegistrationChangeRecord) and record.fenced > 0
            ):
                self._put_out_offsets[record.broker_id] = end_offset - 1
        for topic in delta.topics_deleted:
            key = collision_key(topic.name)
            if key is not None and self._twins.get(key) == topic.name:
                del self._twins[key]
        for name in delta.topics_created:
            self._add_name(name)

    def has_failed(self, broker_id: int, topic_id: UUID, partition: int) -> bool:
        """Whether the broker, in the life that is registered, has said that its log of a partition has failed."""
        epoch, failed = self.failed_replicas.get(broker_id, (-1, _NONE))
        broker = self.image.brokers.get(broker_id)
        return (topic_id, partition) in failed and broker is not None and broker.epoch == epoch

    def without_failed(self, brokers: Container[int], topic_id: UUID, partition: int) -> Container[int]:
        """Those of the brokers whose replicas of a partition can be relied on. Where nobody is left of those in sync,
        replicas whose trouble may pass can: they have all that is committed, and it can be read."""
        failed = [each for each in self.failed_replicas if self.has_failed(each, topic_id, partition)]
        if not failed:
            return brokers
        well = {each for each in self.image.brokers if each in brokers and each not in failed}
        if any(member in well for member in self._in_sync(topic_id, partition)):
            return well
        return well | {
            each for each in failed if each in brokers and self.is_transient(each, topic_id, partition)
        }

    def is_transient(self, broker_id: int, topic_id: UUID, partition: int) -> bool:
        """Whether what has failed on a broker is only that its replica cannot be written for the moment."""
        _, failed = self.failed_replicas.get(broker_id, (-1, _NONE))
        return failed.get((topic_id, partition), False)

    def _in_sync(self, topic_id: UUID, partition: int) -> Sequence[int]:
        topic = self.image.topic_by_id(topic_id)
        return () if topic is None else topic.partitions[partition].in_sync

    def put_out_offset(self, broker_id: int) -> int:
        """The end of the decision by which a broker was last fenced, with its registration or after it. Who has taken
        the metadata up to there knows what it does not lead any more."""
        return self._put_out_offsets.get(broker_id, self._loaded_offset)

    def changed_offset(self, broker_id: int) -> int:
        """Whoever is told what the broker is (registered, fenced) is told of the log below this offset."""
        return self._changed_offsets.get(broker_id, self._loaded_offset)

    def colliding_topic(self, key: str) -> str | None:
        """The topic with this collision key."""
        return self._twins.get(key)

    def _add_name(self, name: str) -> None:
        key = collision_key(name)
        if key is not None:
            self._twins[key] = name


def bounded(records: list[Record]) -> list[Record]:
    configs = sum(len((each.value or "").encode()) for each in records if isinstance(each, ConfigRecord))
    if len(records) > RECORDS_PER_DECISION_MAX or configs > CONFIG_BYTES_PER_DECISION_MAX:
        raise PolicyViolationError("Unable to perform excessively large batch operation.")
    return records
