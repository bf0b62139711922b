"""Where partitions are, by broker and by what they lack: kept beside the image, so that a decision about one
broker looks at that broker's partitions and not at all of them."""

from collections.abc import Sequence
from typing import NamedTuple

from moldau.metadata.image import NO_LEADER, ClusterDelta, ClusterImage, PartitionImage


class PartitionName(NamedTuple):
    topic: str
    partition: int


# Dicts stand in for ordered sets.
_Names = dict[PartitionName, None]


class PartitionIndex:
    """Only `update` changes it, in steps with the image. What it lists is in the order of names."""

    def __init__(self, image: ClusterImage) -> None:
        self._of: dict[int, _Names] = {}
        self._led: dict[int, _Names] = {}
        self._preferring: dict[int, _Names] = {}
        self._led_elsewhere: _Names = {}
        for topic in image.topics.values():
            for partition in topic.partitions:
                self._add(PartitionName(topic.name, partition.index), partition)

    def partitions_of(self, broker_id: int) -> Sequence[PartitionName]:
        """Those with a replica on this broker."""
        return sorted(self._of.get(broker_id, ()))

    def led_by(self, broker_id: int) -> Sequence[PartitionName]:
        return sorted(self._led.get(broker_id, ()))

    def leaderless(self) -> Sequence[PartitionName]:
        return self.led_by(NO_LEADER)

    def led_elsewhere(self) -> Sequence[PartitionName]:
        """Those whose leader is not their preferred replica."""
        return sorted(self._led_elsewhere)

    def count_of(self, broker_id: int) -> int:
        """How many replicas the broker has."""
        return len(self._of.get(broker_id, ()))

    def count_led_by(self, broker_id: int) -> int:
        return len(self._led.get(broker_id, ()))

    def count_preferring(self, broker_id: int) -> int:
        """How many partitions the broker would lead if all were led by their preferred replicas."""
        return len(self._preferring.get(broker_id, ()))

    def update(self, before: ClusterImage, after: ClusterImage, delta: ClusterDelta) -> None:
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
            assert new is not None, "a partition that changed is still there"
            self._add(at, new)

    def _add(self, name: PartitionName, partition: PartitionImage) -> None:
        for broker_id in partition.replicas:
            self._of.setdefault(broker_id, {})[name] = None
        preferred = partition.replicas[0]
        self._led.setdefault(partition.leader, {})[name] = None
        self._preferring.setdefault(preferred, {})[name] = None
        if partition.leader != preferred:
            self._led_elsewhere[name] = None

    def _remove(self, name: PartitionName, partition: PartitionImage) -> None:
        for broker_id in partition.replicas:
            self._of[broker_id].pop(name)
        self._led[partition.leader].pop(name)
        self._preferring[partition.replicas[0]].pop(name)
        self._led_elsewhere.pop(name, None)
