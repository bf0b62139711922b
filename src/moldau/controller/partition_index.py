"""An index of partitions by replica, leader and preferred leader, so that a decision on one broker does not scan all
partitions (Kafka's BrokersToIsrs)."""

from collections.abc import Sequence
from typing import NamedTuple

from moldau.metadata.image import NO_LEADER, MetadataDelta, MetadataImage, PartitionRegistration


class PartitionName(NamedTuple):
    topic: str
    partition: int


# A dict is used as an ordered set.
_Names = dict[PartitionName, None]


class PartitionIndex:
    """Must be updated with every change of the image. All results are sorted by partition name."""

    def __init__(self, image: MetadataImage) -> None:
        self._replicas_by_broker: dict[int, _Names] = {}
        self._leaders_by_broker: dict[int, _Names] = {}
        self._preferred_by_broker: dict[int, _Names] = {}
        self._imbalanced: _Names = {}
        for topic in image.topics.values():
            for partition in topic.partitions:
                self._add(PartitionName(topic.name, partition.index), partition)

    def partitions_on(self, broker_id: int) -> Sequence[PartitionName]:
        return sorted(self._replicas_by_broker.get(broker_id, ()))

    def partitions_led_by(self, broker_id: int) -> Sequence[PartitionName]:
        return sorted(self._leaders_by_broker.get(broker_id, ()))

    def leaderless_partitions(self) -> Sequence[PartitionName]:
        return self.partitions_led_by(NO_LEADER)

    def imbalanced_partitions(self) -> Sequence[PartitionName]:
        """Returns the partitions whose leader is not their preferred replica."""
        return sorted(self._imbalanced)

    def replica_count(self, broker_id: int) -> int:
        return len(self._replicas_by_broker.get(broker_id, ()))

    def leader_count(self, broker_id: int) -> int:
        return len(self._leaders_by_broker.get(broker_id, ()))

    def preferred_leader_count(self, broker_id: int) -> int:
        return len(self._preferred_by_broker.get(broker_id, ()))

    def update(self, before: MetadataImage, after: MetadataImage, delta: MetadataDelta) -> None:
        deleted = set()
        for topic in delta.topics_deleted:
            deleted.add(topic.name)
            for partition in topic.partitions:
                self._remove(PartitionName(topic.name, partition.index), partition)
        for name, index in delta.partitions_changed:
            at = PartitionName(name, index)
            old = None if name in deleted else before.partition(name, index)
            if old is not None:
                self._remove(at, old)
            new = after.partition(name, index)
            assert new is not None, "a changed partition exists"
            self._add(at, new)

    def _add(self, name: PartitionName, partition: PartitionRegistration) -> None:
        for broker_id in partition.replicas:
            self._replicas_by_broker.setdefault(broker_id, {})[name] = None
        preferred = partition.replicas[0]
        self._leaders_by_broker.setdefault(partition.leader, {})[name] = None
        self._preferred_by_broker.setdefault(preferred, {})[name] = None
        if partition.leader != preferred:
            self._imbalanced[name] = None

    def _remove(self, name: PartitionName, partition: PartitionRegistration) -> None:
        for broker_id in partition.replicas:
            self._replicas_by_broker[broker_id].pop(name)
        self._leaders_by_broker[partition.leader].pop(name)
        self._preferred_by_broker[partition.replicas[0]].pop(name)
        self._imbalanced.pop(name, None)
