"""An index of partitions by replica, leader and preferred leader, so that a decision on one broker does not scan all
partitions (Kafka's BrokersToIsrs)."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from moldau.metadata.image import NO_LEADER, MetadataDelta, MetadataImage, PartitionRegistration


class PartitionName(NamedTuple):
    topic: str
    partition: int


# A dict is used as an ordered set.
_Names = dict[PartitionName, None]


class PartitionIndex:
    """Must be updated with every change of the image. All results are sorted by partition name."""

    def __init__(self, image: MetadataImage, controller_led_topics: Collection[str] = ()) -> None:
        """`controller_led_topics` are the topics with leader.follows.controller."""
        self._controller_id = image.controller_id
        self._controller_led_topics = frozenset(controller_led_topics)
        self._replicas_by_broker: dict[int, _Names] = {}
        self._leaders_by_broker: dict[int, _Names] = {}
        self._preferred_by_broker: dict[int, _Names] = {}
        self._imbalanced: _Names = {}
        self._away_from_controller: _Names = {}
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
        """Returns the partitions whose leader is not their preferred leader."""
        return sorted(self._imbalanced)

    def partitions_away_from_controller(self) -> Collection[PartitionName]:
        """Returns the partitions that prefer the active controller as leader and have it in their ISR, but have another
        leader or none."""
        return self._away_from_controller.keys()

    def preferred_leader(self, topic: str, partition: PartitionRegistration) -> int:
        """Returns the active controller if the topic has leader.follows.controller and the controller has a replica
        that stays. Returns the first replica otherwise."""
        controller_id = self._controller_id
        if (
            topic in self._controller_led_topics
            and controller_id in partition.replicas
            and controller_id not in partition.removing_replicas
        ):
            return controller_id
        return partition.replicas[0]

    def replica_count(self, broker_id: int) -> int:
        return len(self._replicas_by_broker.get(broker_id, ()))

    def leader_count(self, broker_id: int) -> int:
        return len(self._leaders_by_broker.get(broker_id, ()))

    def preferred_leader_count(self, broker_id: int) -> int:
        return len(self._preferred_by_broker.get(broker_id, ()))

    def update(
        self,
        before: MetadataImage,
        after: MetadataImage,
        delta: MetadataDelta,
        controller_led_topics: Collection[str] = (),
    ) -> None:
        """Applies the changes between two images. `controller_led_topics` are those of the second image."""
        deleted = set()
        for topic in delta.topics_deleted:
            deleted.add(topic.name)
            for partition in topic.partitions:
                self._remove(PartitionName(topic.name, partition.index), partition)
        changed = dict.fromkeys(PartitionName(*each) for each in delta.partitions_changed)
        controller_led = frozenset(controller_led_topics)
        if controller_led is not self._controller_led_topics:
            for name in sorted(self._controller_led_topics ^ controller_led):
                if name in after.topics:
                    changed.update((PartitionName(name, each.index), None) for each in after.topics[name].partitions)
        # Remove all old entries before the set of topics changes, because `_remove` needs the old preferred leaders.
        for at in changed:
            old = None if at.topic in deleted else before.partition(*at)
            if old is not None:
                self._remove(at, old)
        self._controller_led_topics = controller_led
        for at in changed:
            new = after.partition(*at)
            assert new is not None, "a changed partition exists"
            self._add(at, new)

    def _add(self, name: PartitionName, partition: PartitionRegistration) -> None:
        for broker_id in partition.replicas:
            self._replicas_by_broker.setdefault(broker_id, {})[name] = None
        preferred = self.preferred_leader(name.topic, partition)
        self._leaders_by_broker.setdefault(partition.leader, {})[name] = None
        self._preferred_by_broker.setdefault(preferred, {})[name] = None
        if partition.leader != preferred:
            self._imbalanced[name] = None
            is_controller_led = name.topic in self._controller_led_topics
            if is_controller_led and preferred == self._controller_id and preferred in partition.isr:
                self._away_from_controller[name] = None

    def _remove(self, name: PartitionName, partition: PartitionRegistration) -> None:
        for broker_id in partition.replicas:
            self._replicas_by_broker[broker_id].pop(name)
        self._leaders_by_broker[partition.leader].pop(name)
        self._preferred_by_broker[self.preferred_leader(name.topic, partition)].pop(name)
        self._imbalanced.pop(name, None)
        self._away_from_controller.pop(name, None)
